"""The reference of settings as text: for ``nestling help settings``, and as Markdown for the documentation."""

from __future__ import annotations

import textwrap
from typing import Any

import tomli_w

from nestling.settings.reference import SettingRow, reference, tables

_INDENT = "    "
_WIDEST = 100  # columns of running text


def settings_markdown() -> str:
    """Return the reference of all settings as Markdown: a heading and a table for every table of settings.

    >>> settings_markdown().splitlines()[:3]
    ['## Settings of the experiment', '', 'The experiment itself.']
    """
    rows = reference()
    parts = []
    for table, about in tables().items():
        title = f"## `{table}.*`" if table else "## Settings of the experiment"
        lines = [title, "", about, "", "| setting | default | accepted values | meaning |", "|---|---|---|---|"]
        lines += [_markdown_row(row) for row in rows if row.name.rpartition(".")[0] == table]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def described_lines(default: Any, accepted: str, meaning: str, width: int) -> tuple[str, str]:
    """Return what follows the name of a setting or an option, and its meaning, indented and folded to a width.

    >>> described_lines(0.1, "a number above 0", "The learning `rate`.", 80)
    (' = 0.1   (a number above 0)', '    The learning rate.')
    """
    lines: list[str] = []
    for paragraph in meaning.replace("`", "").split("\n"):
        hanging = _INDENT + ("  " if paragraph.startswith("- ") else "")
        lines += textwrap.wrap(
            paragraph,
            min(width, _WIDEST),
            initial_indent=_INDENT,
            subsequent_indent=hanging,
            break_on_hyphens=False,
            break_long_words=False,
        )
    return f" = {written_value(default)}   ({accepted})", "\n".join(lines)


def written_value(value: Any) -> str:
    """Return a value as it is written on the command line.

    >>> written_value(0.1), written_value("sgd"), written_value(()), written_value(False), written_value("")
    ('0.1', 'sgd', '[]', 'false', "''")
    """
    if isinstance(value, str):
        return value or "''"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written_value, value))}]"
    return tomli_w.dumps({"value": value}).partition("=")[2].strip() or "{}"


def _markdown_row(row: SettingRow) -> str:
    cells = (f"`{row.name}`", f"`{written_value(row.default)}`", row.accepted, row.meaning.replace("\n- ", "<br>– "))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
