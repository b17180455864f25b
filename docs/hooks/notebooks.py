"""The notebooks of the tutorials: run without Jupyter, and shown as pages.

``python -m docs.hooks.notebooks`` runs all of them and writes what they print into them.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
import types
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "tutorials"


def read(path: Path) -> dict[str, Any]:
    """Return a notebook."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    r"""Return a notebook with the outputs of its code cells: what they print, and the value of a last expression.

    >>> cell = {"cell_type": "code", "source": ["a = 2\n", "a + 1"], "outputs": []}
    >>> run({"cells": [cell]})["cells"][0]["outputs"][0]["text"]
    ['3\n']
    """
    module = types.ModuleType("notebook")  # functions of a notebook are found by name, as those of a script
    sys.modules[module.__name__] = module
    try:
        cells = [
            cell | {"outputs": _outputs(cell, vars(module))} if cell["cell_type"] == "code" else cell
            for cell in notebook["cells"]
        ]
    finally:
        del sys.modules[module.__name__]
    return notebook | {"cells": cells}


def page(notebook: dict[str, Any], name: str) -> str:
    """Return a notebook as Markdown."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        printed = "".join(line for output in cell["outputs"] for line in output["text"])
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    title, *rest = parts
    note = f"This page is a notebook: [download {name}]({name}), and run it where Nestling is installed."
    return "\n\n".join([title, note, *rest]) + "\n"


def _outputs(cell: dict[str, Any], names: dict[str, Any]) -> list[dict[str, Any]]:
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
            if value is not None:
                print(value)
    text = printed.getvalue().splitlines(keepends=True)
    return [{"name": "stdout", "output_type": "stream", "text": text}] if text else []


def main() -> None:
    """Run all notebooks and write their outputs into them."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        path.write_text(json.dumps(run(read(path)), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path, file=sys.stderr)


if __name__ == "__main__":
    main()
