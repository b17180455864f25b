"""README, CITATION.cff and the package agree on title and version."""

import re
from pathlib import Path

import nestling

ROOT = Path(__file__).parents[2]


def test_how_to_cite_is_the_same_everywhere():
    readme, citation = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CITATION.cff"))
    title = re.search(r'^title: "(.+)"$', citation, re.M)[1]
    assert f"title   = {{{title}}}" in readme
    assert f"version = {{{nestling.__version__}}}" in readme
    assert f"version: {nestling.__version__}\n" in citation
    assert "The Nestling authors" in readme
    assert "The Nestling authors" in citation
