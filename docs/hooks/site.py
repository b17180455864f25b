"""What `mkdocs build` does beyond Markdown: pages made from the package, links, and a check that all is local."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from docs.hooks import method_pages, notebooks
from docs.hooks.api_pages import api_pages
from docs.hooks.repository_links import DOCS, PLACES, ROOT, links, resolve, rewrite, site_path, source_page
from nestling.cli.settings_reference import settings_markdown

# Addresses that a browser would fetch when a page is opened.
_FETCHED = re.compile(r"""<(?:script|img|iframe|source|video)\b[^>]*\bsrc=["']?(?:https?:)?//[^"'> ]+|<link\b[^>]*>""")
_CODE = re.compile(r"(<(?:pre|code)\b.*?</(?:pre|code)>)", re.DOTALL)
_SPACE = re.compile(r"(?<=\d) (?=(?:±|%|[kMGT]i?B\b|[kMGT]\b|MACs\b|s\b|ms\b))|(?<=±) (?=\d)")
_LINK_ONLY = re.compile(r"""rel=["']?(canonical|next|prev|alternate)""")


def on_config(config: Any) -> Any:
    """Fill the placeholders of the navigation.

    They are ``methods/*`` and ``api/*``, ``page.md?`` for a page that may be missing, and ``*`` for pages that are
    named nowhere.
    """
    generated = made_pages()
    named = {path.removesuffix("?") for path in _paths(config.nav)}
    perhaps = {path: path.removesuffix("?") for path in _paths(config.nav) if path.endswith("?")}
    existing = {path: [page] if (ROOT / DOCS / page).is_file() else [] for path, page in perhaps.items()}
    folders = {folder: [path for path in generated if path.startswith(f"{folder}/")] for folder in ("methods", "api")}
    root = sorted(path.name for path in (ROOT / DOCS).glob("*.md") if path.name not in named)
    config.nav = _filled(
        config.nav, {f"{folder}/*": paths for folder, paths in folders.items()} | existing | {"*": root}
    )
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages that are made from the package, and those of the files that pages link to."""
    from mkdocs.structure.files import File  # noqa: PLC0415

    def add(place: str, content: str) -> None:
        if not files.get_file_from_path(place):
            files.append(File.generated(config, place, content=content))

    for place, content in made_pages().items():
        add(place, content)
    modules = method_pages.page_paths()
    shown = {step["code"].partition(":")[0] for name in method_pages.METHODS for step in method_pages.steps(name)}
    for path in sorted(shown | modules.keys()):
        add(f"source/{path}.md", source_page(path))
    texts = {f"{DOCS}/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    for path, place in PLACES.items():
        if path != "README.md":
            texts[path] = (ROOT / path).read_text(encoding="utf-8")
            add(place, rewrite(texts[path], path, place, modules))
    for page, text in texts.items():
        for target, _ in links(text):
            path = resolve(target, page)
            if site_path(path, modules).startswith("source/") and (ROOT / path).is_file():
                add(f"source/{path}.md", source_page(path))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Return a page of ``docs`` with its links as they are on the site."""
    del config, files
    place = page.file.src_uri
    return (
        markdown if page.file.generated_by else rewrite(markdown, f"{DOCS}/{place}", place, method_pages.page_paths())
    )


def on_page_content(html: str, *, page: Any, config: Any, files: Any) -> str:
    """Return a page whose figures stay on one line with their deviations and units."""
    del page, config, files
    return unbroken(html)


def unbroken(html: str) -> str:
    """Return a page without line breaks within figures, outside of code.

    >>> unbroken("<td>98.3 ± 0.2 %</td>")
    '<td>98.3&nbsp;±&nbsp;0.2&nbsp;%</td>'
    """
    parts = _CODE.split(html)
    parts[::2] = [_SPACE.sub("&nbsp;", part) for part in parts[::2]]
    return "".join(parts)


def on_post_build(*, config: Any) -> None:
    """Raise an error if a page would fetch anything from elsewhere when it is opened."""
    from mkdocs.exceptions import PluginError  # noqa: PLC0415

    for path in sorted(Path(config.site_dir).rglob("*.html")):
        for found in fetched(path.read_text(encoding="utf-8")):
            raise PluginError(f"{path.relative_to(config.site_dir)} fetches from elsewhere: {found}")


def fetched(html: str) -> list[str]:
    """Return the tags of a page that make a browser fetch something from another host.

    >>> fetched('<script src="https://elsewhere/x.js"></script><img src="here.svg">')
    ['<script src="https://elsewhere/x.js']
    """
    tags = [match[0] for match in _FETCHED.finditer(html)]
    return [tag for tag in tags if not tag.startswith("<link") or (not _LINK_ONLY.search(tag) and "//" in tag)]


@cache
def made_pages() -> dict[str, str]:
    """Return the pages that are made from the package and from notebooks: place → Markdown."""
    names = method_pages.METHODS
    pages = {"methods/index.md": method_pages.overview()}
    pages |= {f"methods/{name}.md": method_pages.method_page(name) for name in names}
    pages |= api_pages()
    for path in sorted(notebooks.FOLDER.glob("*.ipynb")):
        place = f"tutorials/{path.stem}.md"
        text = notebooks.page(notebooks.read(path), path.name)
        pages[place] = rewrite(text, f"{DOCS}/tutorials/{path.name}", place, method_pages.page_paths())
    return pages | {"reference/settings.md": f"# Settings\n\n{settings_markdown()}"}


def _paths(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, list):
        for entry in nav:
            yield from _paths(entry)
    elif isinstance(nav, dict):
        for entry in nav.values():
            yield from _paths(entry)


def _filled(nav: Any, lists: dict[str, list[str]]) -> Any:
    """Return a navigation with its placeholders replaced by the pages that they stand for."""
    if isinstance(nav, dict):
        return {
            title: lists[entry] if isinstance(entry, str) and entry in lists else _filled(entry, lists)
            for title, entry in nav.items()
        }
    if not isinstance(nav, list):
        return nav
    return [
        page
        for entry in nav
        for page in (lists[entry] if isinstance(entry, str) and entry in lists else [_filled(entry, lists)])
    ]
