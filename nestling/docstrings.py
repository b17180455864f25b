"""Docstrings in the numpy convention, read: the one source of the texts that reference pages and help show."""

from __future__ import annotations

import inspect
import re

_ENTRY = re.compile(r"\w+(, \w+)*")  # a line such as "lr, momentum"


def summary(docstring: str | None) -> str:
    """Return the first line of a docstring.

    >>> summary("How a client trains." + chr(10) * 2 + "More of it.")
    'How a client trains.'
    """
    return (docstring or "").strip().partition("\n")[0]


def entries(docstring: str | None, section: str) -> dict[str, str]:
    """Return name → description of a section such as ``Parameters``, in Markdown; names may share a description.

    >>> text = chr(10).join(["Train.", "", "Parameters", "----------", "lr, decay", "    As in", "    ``torch``."])
    >>> entries(text, "Parameters")
    {'lr': 'As in `torch`.', 'decay': 'As in `torch`.'}
    """
    lines = inspect.cleandoc(docstring or "").splitlines()
    described: dict[str, str] = {}
    names: list[str] = []
    body: list[str] = []
    for line in [*_section(lines, section), "end"]:
        if line.startswith(" ") or not line:
            body.append(line.strip())
            continue
        described |= dict.fromkeys(names, _markdown(body))
        names, body = line.split(", ") if _ENTRY.fullmatch(line) else [], []
    return described


def _section(lines: list[str], title: str) -> list[str]:
    """Return the lines of a section, up to the next one."""
    underlined = [place for place, line in enumerate(lines) if place and line and not line.strip("-")]
    for place, after in zip(underlined, [*underlined[1:], len(lines) + 1], strict=False):  # none: no section
        if lines[place - 1] == title:
            return lines[place + 1 : after - 1]
    return []


def _markdown(lines: list[str]) -> str:
    """Return lines as one paragraph, or as one and a list; names and literals in single backticks."""
    text = ""
    for line in lines:
        text += ("\n" if line.startswith("- ") else " ") + line
    return "\n".join(" ".join(part.split()) for part in text.split("\n")).strip().replace("``", "`")
