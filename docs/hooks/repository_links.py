"""Links in Markdown that are right in the repository, made right on the site.

In the repository, a page links to files: other pages, notebooks, modules, examples. On the site, a notebook is a page,
a method's module is the page of that method, and any other file outside of ``docs`` is a page that shows its content.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = "docs"

# Pages of the repository that have a place of their own on the site.
PLACES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}

_FENCE = re.compile(r"^([ \t]*)(```+|~~~+).*?^\1\2[ \t]*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?P<text>\]\()(?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?(?=[)\s])")
_HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*$", re.MULTILINE)


def links(markdown: str) -> Iterator[tuple[str, str]]:
    """Yield the target and the anchor of every link to a file, outside of code.

    >>> list(links("[a](x.md#y) and [b](https://z) `[c](d)`"))
    [('x.md', 'y')]
    """
    for match in _LINK.finditer(_without_code(markdown)):
        if not _outside(match["target"]):
            yield match["target"], (match["anchor"] or "").removeprefix("#")


def anchors(markdown: str) -> set[str]:
    r"""Return the anchors of a page's headings, as Python-Markdown makes them.

    >>> sorted(anchors("# One & two\n## `A` page's end"))
    ['a-pages-end', 'one-two']
    """
    names: set[str] = set()
    for _, heading in _HEADING.findall(_FENCE.sub("", markdown)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())
        number, free = 0, name
        while free in names:
            number += 1
            free = f"{name}_{number}"
        names.add(free)
    return names


def resolve(target: str, page: str) -> str:
    """Return the path in the repository that a link of a page means.

    >>> resolve("../examples/own_data.py", "docs/experiments.md")
    'examples/own_data.py'
    """
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) if target else page


def site_path(path: str, method_pages: dict[str, str]) -> str:
    """Return the page of the site that shows a file of the repository.

    >>> site_path("docs/tutorials/own_model.ipynb", {}), site_path("examples/own_data.py", {})
    ('tutorials/own_model.md', 'source/examples/own_data.py.md')
    """
    if path in PLACES:
        return PLACES[path]
    if path in method_pages:
        return method_pages[path]
    if path.startswith(f"{DOCS}/") and not path.endswith(".py"):
        inside = path.removeprefix(f"{DOCS}/")
        return f"{inside.removesuffix('.ipynb')}.md" if inside.endswith(".ipynb") else inside
    return f"source/{path}.md"


def rewrite(markdown: str, page: str, place: str, method_pages: dict[str, str]) -> str:
    """Return a page with its links as they are on the site.

    Parameters
    ----------
    markdown
        The page.
    page, place
        Its path in the repository, and on the site.
    method_pages
        Path of a method's module → the page of that method.
    """

    def replaced(match: re.Match[str]) -> str:
        target, anchor = match["target"], match["anchor"] or ""
        if not target or _outside(target):
            return match[0]
        there = site_path(resolve(target, page), method_pages)
        return f"{match['text']}{posixpath.relpath(there, posixpath.dirname(place) or '.')}{anchor}"

    return _outside_of_code(markdown, lambda text: _LINK.sub(replaced, text))


def source_page(path: str) -> str:
    """Return a page that shows a file of the repository."""
    language = {".py": "python", ".toml": "toml", ".json": "json", ".md": "markdown"}.get(Path(path).suffix, "text")
    content = (ROOT / path).read_text(encoding="utf-8")
    head = "---\nsearch:\n  exclude: true\n---\n"
    return f"{head}\n# {Path(path).name}\n\n`{path}`\n\n``````{language}\n{content.rstrip()}\n``````\n"


def _outside(target: str) -> bool:
    return bool(re.match(r"[a-z]+:", target))


def _without_code(markdown: str) -> str:
    return re.sub(r"(`+)[^`].*?\1", "", _FENCE.sub("", markdown))


def _outside_of_code(markdown: str, change: Callable[[str], str]) -> str:
    parts, end = [], 0
    for match in _FENCE.finditer(markdown):
        parts += [change(markdown[end : match.start()]), match[0]]
        end = match.end()
    return "".join([*parts, change(markdown[end:])])
