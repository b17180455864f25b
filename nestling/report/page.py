"""The HTML page about some runs: one self-contained file that needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from nestling.errors import ReportError, ReportFailed
from nestling.files import DISK_ERRORS, write_whole
from nestling.report.find import find_readable
from nestling.report.page_content import content
from nestling.report.read import Run

__all__ = ["page_data", "page_html", "save", "write"]

_SCRIPTS = ("page_draw.js", "page_lines.js", "page_rows.js", "page_table.js", "page.js")  # in the order of their use
_LIVE = "live.js"
_FOOTER = "A single file, written by Nestling; it loads nothing from the network."


def page_data(folder: str | os.PathLike[str], *, live: bool = False) -> dict[str, Any]:
    """Return everything the page shows of a run directory, or of a folder that holds several, as plain values.

    The keys are described in `nestling.report.page_content`. Nothing in the folder makes this fail: what is missing,
    unfinished or damaged is a sentence in ``problems``. On a ``live`` page that a run goes on is no problem: its status
    says so.

    >>> page_data("no/such/folder")["problems"]
    ['there is no directory no/such/folder']
    """
    runs, problems = find_readable([folder])
    return content(runs, problems, live=live)


def page_html(data: dict[str, Any], *, live: bool = False) -> str:
    """Return the page that shows `data`, complete in itself.

    Parameters
    ----------
    data
        What `page_data` returned. The page holds it as JSON in the element ``nestling-data``. The function
        ``nestlingRender(data)`` of the page's script draws other data of the same form and keeps what the reader chose.
    live
        Whether the page is shown while runs go on: it has an empty element ``nestling-live`` for status lines, runs the
        script ``live.js`` beside this module, and may connect to the server that it came from.

    Examples
    --------
    >>> page = page_html(page_data("no/such/folder"))
    >>> page.startswith("<!DOCTYPE html>"), "nestlingRender" in page
    (True, True)
    """
    scripts = [_file(name) for name in _SCRIPTS]
    if live and resources.files("nestling.report").joinpath(_LIVE).is_file():
        scripts.append(_file(_LIVE))
    # Only these scripts run, and nothing is loaded, whatever the files of a run contain.
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"
    policy += "; connect-src 'self'" if live else ""
    status = '<div id="nestling-live"></div>\n' if live else ""
    footer = "Live: it follows the runs' files and changes none." if live else _FOOTER
    unscripted = "<noscript><p>This page is drawn by JavaScript, which is inside this file.</p></noscript>"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(str(data.get("title") or "Nestling report"))}</title>
<link rel="icon" href="data:,">
<style>{_file("page.css")}</style>
</head>
<body>
{status}<div id="nestling-page">{unscripted}</div>
<footer>{footer}</footer>
<script type="application/json" id="nestling-data">{_script(data)}</script>
{"".join(f"<script>{script}</script>{chr(10)}" for script in scripts)}</body>
</html>
"""


def write(runs: Sequence[Run], path: str | os.PathLike[str], problems: Sequence[str] = ()) -> Path:
    """Write the page about `runs` to `path`; `problems` are sentences about other runs that could not be read.

    >>> write([], "report.html")
    Traceback (most recent call last):
    nestling.errors.ReportError: there are no runs to report on
    """
    if not runs and not problems:
        raise ReportError("there are no runs to report on")
    return save(page_html(content(runs, problems)), path)


def save(page: str, path: str | os.PathLike[str]) -> Path:
    """Write a page so that a crash leaves either the old file or the new one, complete; return its path."""
    target = Path(path)
    try:
        write_whole(target, page.encode(errors="replace"))
    except OSError as problem:
        error = ReportFailed if problem.errno in DISK_ERRORS else ReportError
        raise error(f"the page cannot be written to {target}: {problem.strerror}") from None
    return target


def _file(name: str) -> str:
    return resources.files("nestling.report").joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _script(value: Any) -> str:
    r"""Return JSON for use inside a script element: nothing in it can end the script or begin a comment.

    >>> print(_script("</script>"))
    "\u003c/script>"
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
