"""``nestling watch DIR``: the report page, live in the browser while runs go on."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from nestling.cli.screen import out, working


def watch_command(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A run directory, or the folder of a comparison, sweep or reproduction."),
    ],
    *,
    port: Annotated[
        int,
        typer.Option(
            "--port",
            metavar="NUMBER",
            min=0,
            max=65535,
            help="The port of the page; 0 means any that is free.",
        ),
    ] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the page in the browser.")] = False,
) -> None:
    """Show runs in the browser while they go on.

    The page shows what 'nestling report' writes, and follows: who trains now, rounds, accuracy by level, bytes, time
    left and events. It survives the end of a run, and goes on when the run is resumed. Only browsers on this machine
    can open it, and it changes no file. Ctrl-C ends it, and no run.
    """
    with working("reading the runs"):
        from nestling.errors import ReportError  # noqa: PLC0415
        from nestling.report.read import no_directory  # noqa: PLC0415
        from nestling.report.watch_server import WatchServer  # noqa: PLC0415

        if not folder.is_dir():
            raise ReportError(no_directory(folder))
        server = WatchServer(folder, port)
    with server:
        out().print(f"watching {folder} at {server.url} (Ctrl-C ends this)", soft_wrap=True)
        sys.stdout.flush()
        if not no_open and _has_browser():
            webbrowser.open(server.url)
        server.serve_forever()


def _has_browser() -> bool:
    """Return whether there is a screen for a browser; a text browser would take the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
