"""A cache of its own for every test, and the real data where a machine has it."""

import os
from pathlib import Path

import pytest

REAL = Path(os.environ.get("NESTLING_DATA") or Path(__file__).resolve().parents[2].parent / "shared" / "data")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """The cache folder; nothing outside of it and of `data_dir` is searched."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("NESTLING_CACHE", str(folder))
    monkeypatch.delenv("NESTLING_DATA", raising=False)
    return folder


@pytest.fixture
def real():
    """Returns a function: name of a file → the folder of real data that holds it."""

    def folder(file):
        if not (REAL / file).exists():
            pytest.skip(f"the real data {file} is not on this machine (set NESTLING_DATA to its folder)")
        return REAL

    return folder
