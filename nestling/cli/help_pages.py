"""The pages of ``--help``: commands in groups, whole sentences, and no types of Python."""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_GROUPS = {
    "Start": ("demo", "list", "help", "new"),
    "Run experiments": ("run", "resume", "compare", "sweep", "reproduce"),
    "Look at results": ("watch", "report", "export"),
    "Sizes of models": ("check", "cost", "fit", "probe"),
    "Data and machine": ("data", "doctor"),
}
_OTHERS = "Commands"
_TYPE = re.compile(r" <[^>]*>$")  # some versions of typer write one behind the name of an argument
_LEAST = re.compile(r"(?<=[\[ ])x>=(\d+)")  # the notation of typer for the least value of an option
_RANGE = re.compile(r"(?<=[\[ ])(\d+)<=x<=(\d+)")  # and for both limits


class PlainCommand(TyperCommand):
    """A command whose help names its arguments and options without types of Python."""

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the arguments and the options."""
        _write_parameters(self, ctx, formatter)


class GroupedCommands(TyperGroup):
    """A command with commands, whose help lists them in groups, each with the first sentence of its help, whole."""

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the groups of commands, and the options."""
        known = {name: command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))}
        grouped = {name for names in _GROUPS.values() for name in names}
        for title, names in {**_GROUPS, _OTHERS: tuple(name for name in known if name not in grouped)}.items():
            rows = [(name, _first_sentence(known[name].help)) for name in names if name in known]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        _write_parameters(self, ctx, formatter)


def _write_parameters(command: TyperCommand | TyperGroup, ctx: typer.Context, formatter: Any) -> None:
    for kind, title in (("argument", "Arguments"), ("option", "Options")):
        parameters = [one for one in command.get_params(ctx) if one.param_type_name == kind]
        records = [record for one in parameters if (record := one.get_help_record(ctx))]
        if records:
            with formatter.section(title):
                formatter.write_dl([(_TYPE.sub("", name), _limits_in_words(text)) for name, text in records])


def _limits_in_words(text: str) -> str:
    """Return the help of an option with its least and largest values in words.

    >>> _limits_in_words("The port. [default: 0; 0<=x<=65535]")
    'The port. [default: 0; 0 to 65535]'
    """
    return _RANGE.sub(r"\1 to \2", _LEAST.sub(r"at least \1", text))


def _first_sentence(text: str | None) -> str:
    """Return the first sentence of a help text, without its line breaks.

    >>> _first_sentence("Run it." + chr(10) * 2 + "More.")
    'Run it.'
    """
    return " ".join((text or "").strip().partition("\n\n")[0].split())
