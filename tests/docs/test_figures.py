"""The figures of the documentation are those that the library draws today."""

import pytest

from docs import draw_figures


@pytest.mark.parametrize("name", draw_figures.DRAWN)
def test_a_figure_is_what_its_function_draws(name):
    drawn, path = draw_figures.DRAWN[name](), draw_figures.FIGURES / f"{name}.svg"
    assert drawn == path.read_text(encoding="utf-8"), f"{path} is old: make figures"
    assert len(drawn) < 100_000
