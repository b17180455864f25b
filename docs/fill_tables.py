"""Fill the tables of docs/results.md from the committed results: ``python docs/fill_tables.py`` in the repository.

A table stands between two comments, of which the first holds its command::

    <!-- nestling reproduce NAME --results docs/results/NAME.json --finished-only --format markdown -->
    …
    <!-- end -->

``--check`` writes nothing, and fails if a table is not what its command prints.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

from nestling.cli import main

DOCUMENT = Path(__file__).with_name("results.md")
_TABLE = re.compile(r"(<!-- nestling (?P<command>.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """Return a document with every table as its command prints it now."""
    return _TABLE.sub(lambda match: f"{match[1]}{_printed(match['command'])}{match[3]}", text)


def _printed(command: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main(shlex.split(command))
    if code:
        raise SystemExit(f"'nestling {command}' failed")
    return printed.getvalue()


def _fill(check: bool) -> None:
    old = DOCUMENT.read_text(encoding="utf-8")
    new = filled(old)
    if check and new != old:
        raise SystemExit(f"{DOCUMENT} is not what its commands print: run python {Path(__file__).name}")
    if new != old:
        DOCUMENT.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    _fill(check="--check" in sys.argv[1:])
