"""``nestling help``: explain a command, or a topic such as the settings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from nestling.cli.screen import AsJson, out, print_json
from nestling.errors import NestlingError

_COMPLETION = """\
Press TAB, and your shell completes commands, options, names of presets, methods, models and data sets, and settings:

    nestling run fedrolex-d<TAB>  local.opt<TAB>

To install it for your shell (bash, zsh, fish or PowerShell), and open a new one afterwards:

    nestling --install-completion

Where the shell is not recognised, print the script and source it yourself:

    _NESTLING_COMPLETE=source_bash nestling > ~/.nestling-completion.sh
"""
_TOPICS = ("settings", "completion")


def _topics(ctx: typer.Context, incomplete: str) -> list[str]:
    from nestling.settings.reference import tables  # noqa: PLC0415

    commands: list[str] = list(ctx.find_root().command.commands)  # type: ignore[attr-defined]
    return [*_TOPICS, *filter(None, tables()), *commands]


def help_command(
    context: typer.Context,
    topic: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND|TOPIC",
            help="A command, or 'settings' with a table or a name such as local or local.lr, or 'completion'.",
            autocompletion=_topics,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain a command, the settings, or the completion of the shell.

    Of settings, the name, the default, the accepted values and the meaning are printed.
    """
    name, *more = topic or [""]
    if name == "settings" and len(more) <= 1:
        _print_settings(more[0] if more else "", as_json)
    elif as_json:
        raise NestlingError("--json is for the settings: nestling help settings --json")
    elif name == "completion" and not more:
        out().print(_COMPLETION, soft_wrap=True, end="")
    else:
        root = context.find_root()
        root.command.main([*(topic or []), "--help"], prog_name=root.info_name, standalone_mode=False)


def _print_settings(name: str, as_json: bool) -> None:
    from rich.text import Text  # noqa: PLC0415

    from nestling.cli.settings_reference import described_lines  # noqa: PLC0415
    from nestling.settings.reference import reference, settings_called, tables  # noqa: PLC0415

    rows = settings_called(name) if name else reference()
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    console, about = out(), tables()
    shown = None
    for row in rows:
        table = row.name.rpartition(".")[0]
        if table != shown and len(rows) > 1:
            console.print(Text(("" if shown is None else "\n") + about[table], "bold"), soft_wrap=True)
        shown = table
        first, meaning = described_lines(row.default, row.accepted, row.meaning, console.width)
        console.print(Text.assemble((row.name, "cyan"), (first, "dim")), soft_wrap=True)
        console.print(meaning, soft_wrap=True)
