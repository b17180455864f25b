"""How pytest runs the examples of the documentation: in a folder of their own, as ``runs/first`` is written by some."""

import pytest

collect_ignore = ["hooks/griffe_doctests.py"]  # needs the packages of the extra `docs`


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
