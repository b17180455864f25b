"""``nestling new``: a small app of one's own, in simulation or, with --flower, on devices too."""

from __future__ import annotations

import keyword
import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from nestling.cli.new_files import FILES, FLOWER_FILES
from nestling.cli.screen import out
from nestling.errors import ConfigError
from nestling.files import write_whole

_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")


def new_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the app, which is that of its folder, too.")],
    *,
    flower: Annotated[
        bool, typer.Option("--flower", help="Also write what 'flwr run' needs to run it on devices.")
    ] = False,
) -> None:
    """Write a small app: a model, data, an experiment and a test, each to be replaced by your own.

    With --flower the same experiment also runs on devices, or in Flower's simulation.
    """
    folder = Path(name)
    written = write_app(folder, flower=flower)
    for path in written:
        out().print(str(path))
    quoted = shlex.quote(name)
    out().print(f"\ncd {quoted} && nestling run {name}/experiment.toml --out runs/first")
    if flower:
        out().print(f"cd {quoted} && flwr run . --stream   (README.md: in an environment with nestling[flower])")


def write_app(folder: Path, *, flower: bool) -> list[Path]:
    """Write the files of a new app, whose name is that of its folder; return their paths."""
    name = folder.name
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(f"an app cannot be called {name!r}: use small letters, digits and _, a letter first")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{str(folder)!r} exists already and is not empty: give another name")
    files = {**FILES, **(FLOWER_FILES if flower else {})}
    written = []
    for path, text in files.items():
        target = folder / path.replace("NAME", name)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, text.replace("NAME", name).encode())
        written.append(target)
    return written
