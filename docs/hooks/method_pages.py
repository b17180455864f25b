"""A page for every method: its docstring, its options, and the paper's algorithm beside the code that does it."""

from __future__ import annotations

import ast
import inspect
import textwrap
import tomllib
from pathlib import Path
from typing import Any

from docs.hooks.repository_links import ROOT
from nestling.cli.settings_reference import written_value
from nestling.methods.registry import METHODS, about, described_options

LONG = 24  # lines of code that a page shows without being asked
STEPS = Path(__file__).parents[1] / "method_steps.toml"


def module_of(name: str) -> str:
    """Return the path of a method's module in the repository.

    >>> module_of("fedmorph")
    'nestling/methods/fedmorph/__init__.py'
    """
    return str(Path(inspect.getfile(METHODS[name])).relative_to(ROOT))


def page_paths() -> dict[str, str]:
    """Return the path of every method's module, and of its page on the site."""
    return {module_of(name): f"methods/{name}.md" for name in METHODS}


def overview() -> str:
    """Return the page that lists all methods."""
    rows = [f"| [{name}]({name}.md) | {about(name).partition(': ')[2]} |" for name in METHODS]
    return "\n".join(
        [
            "# Methods",
            "",
            "A method is a plan, which says what each client trains, and a chain of parts. Each page is made from the",
            "docstring of its module, and shows the paper's algorithm beside the code that does it.",
            "[Which method when?](../which-method.md) chooses among them.",
            "",
            "| | |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def method_page(name: str) -> str:
    """Return the page of a method."""
    path = module_of(name)
    title, _, text = (ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8"))) or "").partition("\n")
    label, _, claim = title.partition(": ")
    parts = [
        "---\nhide:\n  - toc\n---",  # the code beside the algorithm needs the place
        f"# {label}",
        f"*{claim[:1].upper()}{claim[1:]}*",
        f"```\nnestling run {name}-digits   # on the embedded data, in seconds\n```",
        text.strip(),
        *_algorithm(name),
        "## Options",
        _options(name),
        f"The whole file: [`{path}`](../source/{path}.md).",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def code_of(reference: str) -> str:
    """Return the code of a function, method or class without its docstring, from ``path.py:Name.name``.

    >>> print(code_of("nestling/methods/fedrolex.py:RollingPlan.plan"))
    def plan(self, round: RoundContext, who: Participant) -> Plan:
        return plan(round.setup.axes, who.level.ratio, "rolling", round=round.number - 1, step=self.step)
    """
    path, _, name = reference.partition(":")
    source = (ROOT / path).read_text(encoding="utf-8")
    node: Any = ast.parse(source)
    for part in name.split("."):
        node = next(child for child in node.body if getattr(child, "name", None) == part)
    lines = source.splitlines()
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    kept = lines[first - 1 : node.end_lineno]
    if ast.get_docstring(node) and len(node.body) > 1:
        start, end = node.body[0].lineno, node.body[0].end_lineno
        rest = lines[end + (not lines[end].strip()) : node.end_lineno]
        kept = lines[first - 1 : start - 1] + rest
    return textwrap.dedent("\n".join(kept))


def steps(name: str) -> list[dict[str, str]]:
    """Return the steps of a method's algorithm: what the paper says, and where the code is; none for a new method."""
    table = tomllib.loads(STEPS.read_text(encoding="utf-8"))
    return [
        table["shared"][step["use"]] | step if "use" in step else step for step in table.get(name, {}).get("step", ())
    ]


def _algorithm(name: str) -> list[str]:
    rows = []
    for number, step in enumerate(steps(name), 1):
        path, _, symbol = step["code"].partition(":")
        block = f"```python\n{code_of(step['code'])}\n```"
        if block.count("\n") > LONG:
            block = f"<details markdown>\n<summary><code>{symbol}</code></summary>\n\n{block}\n\n</details>"
        rows.append(
            f'<div class="step" markdown>\n<div markdown>\n\n**{number}.** {step["text"].strip()}\n\n'
            f"[`{path}`](../source/{path}.md)\n\n</div>\n<div markdown>\n\n"
            f"{block}\n\n</div>\n</div>"
        )
    return ["## The algorithm beside the code", *rows] if rows else []


def _options(name: str) -> str:
    rows = described_options(name)
    if not rows:
        return "None."
    lines = ["| `options.…` | default | accepted | |", "|---|---|---|---|"]
    for row in rows:
        cells = [
            f"`{row['name']}`",
            f"`{written_value(row['default'])}`",
            row["accepted"],
            " ".join(row["meaning"].split()),
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    switches = [row for row in rows if isinstance(row["default"], bool)]
    first = switches[0] if switches else rows[0]
    value = written_value(not first["default"] if switches else first["default"])
    lines.append(f"\nTo set one: `nestling run {name}-digits options.{first['name']}={value}`")
    return "\n".join(lines)
