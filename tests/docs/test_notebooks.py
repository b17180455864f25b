"""The notebooks run, from top to bottom."""

import pytest

from docs.hooks import notebooks

PATHS = sorted(notebooks.FOLDER.glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in PATHS])
def test_a_notebook_runs(path):
    before = notebooks.read(path)
    after = notebooks.run(before)
    assert [len(cell.get("outputs", [])) for cell in after["cells"]] == [
        len(cell.get("outputs", [])) for cell in before["cells"]
    ]


def test_there_are_notebooks_with_small_outputs():
    assert len(PATHS) >= 2
    for path in PATHS:
        assert path.stat().st_size < 30_000


def test_an_error_in_a_cell_ends_the_notebook():
    cell = {"cell_type": "code", "source": ["1 / 0"], "outputs": []}
    with pytest.raises(ZeroDivisionError):
        notebooks.run({"cells": [cell]})


def test_a_page_shows_code_and_outputs():
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["6 * 7"], "outputs": []},
    ]
    page = notebooks.page(notebooks.run({"cells": cells}), "x.ipynb")
    assert page.index("# Title") < page.index("6 * 7") < page.index("42")
