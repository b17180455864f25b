"""Pages of the API reference: the public names of `nestling` and of its packages, for mkdocstrings to fill in."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import nestling

# Package → the heading of its page, in the order of the navigation.
PACKAGES = {
    "nestling.axes": "Axes: what can be cut",
    "nestling.cut": "Cut: plans, slices, merging",
    "nestling.proof": "Proof: whether a map of axes is right",
    "nestling.sizing": "Sizing: sub-models for budgets",
    "nestling.experiment": "Experiments",
    "nestling.settings": "Settings in Python",
    "nestling.methods": "Methods and their parts",
    "nestling.tasks": "Tasks",
    "nestling.data": "Data",
    "nestling.fleet": "Fleet",
    "nestling.upload": "Uploads",
    "nestling.nets": "Nets",
    "nestling.errors": "Errors",
}


def api_pages() -> dict[str, str]:
    """Return the pages: place → Markdown."""
    pages = {"api/index.md": _index()}
    for package, heading in PACKAGES.items():
        values = [(name, value) for name, value in _public(package) if _home(value, package) == package]
        entries = [_entry(name, value) for name, value in values]
        text = inspect.getdoc(importlib.import_module(package)) or ""
        pages[_place(package)] = "\n\n".join([f"# {heading}", f"`{package}`. {text.splitlines()[0]}", *entries]) + "\n"
    return pages


def _public(package: str) -> list[tuple[str, Any]]:
    """Return the functions and classes that a package exports; for a single module, those that it defines."""
    module = importlib.import_module(package)
    names = getattr(module, "__all__", None)
    if names is None:
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == package]
        names = [name for name in own if not name.startswith("_")]
    values = [(name, getattr(module, name)) for name in names]
    return [(name, value) for name, value in values if inspect.isclass(value) or inspect.isfunction(value)]


def _home(value: Any, package: str) -> str:
    """Return the package whose page has a value: its own, if that is one of them, and else the one that exports it."""
    return next((home for home in PACKAGES if f"{value.__module__}.".startswith(f"{home}.")), package)


def _entry(name: str, value: Any) -> str:
    path = f"{value.__module__}.{value.__qualname__}"
    return f"::: {path}\n    options:\n      heading: {name}\n      toc_label: {name}"


def _index() -> str:
    rows = []
    for name in sorted(nestling.__all__, key=str.lower):
        value = getattr(nestling, name)
        home = _home(value, "")
        anchor = f"{value.__module__}.{value.__qualname__}"
        summary = (inspect.getdoc(value) or "").splitlines()[0].replace("|", "\\|")
        rows.append(f"| [`nestling.{name}`]({_place(home).removeprefix('api/')}#{anchor}) | {summary} |")
    pages = [
        f"- [{heading}]({_place(package).removeprefix('api/')}): `{package}`" for package, heading in PACKAGES.items()
    ]
    return "\n".join(
        [
            "# API",
            "",
            "The names of `nestling` itself:",
            "",
            "| | |",
            "|---|---|",
            *rows,
            "",
            "By package:",
            "",
            *pages,
            "",
        ]
    )


def _place(package: str) -> str:
    return f"api/{package.rpartition('.')[2]}.md"
