"""docs/architecture.md names files and symbols that exist, and no module has the path of a public function."""

import ast
import importlib.util
import re
from pathlib import Path

import nestling

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| (.+?) \| `(.+?)` \| `(.+?)` \|$", re.M)


def defined(path):
    """The names that a file defines at its top level."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_where_is_what_names_what_there_is():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = ROW.findall(text.partition("## Where is what")[2].partition("\n## ")[0])
    assert len(rows) >= 16
    for change, file, symbol in rows:
        assert symbol in defined(ROOT / file), change


def test_no_module_has_the_path_of_a_public_function():
    for name in nestling.__all__:
        assert importlib.util.find_spec(f"nestling.{name}") is None, name
