"""The figures of the documentation are those that the library draws today."""

import pytest

from docs import draw_figures

SLOW = {"nested-sizes": pytest.mark.slow}  # it checks a whole net


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in draw_figures.DRAWN])
def test_a_figure_is_what_its_function_draws(name):
    drawn, path = draw_figures.DRAWN[name](), draw_figures.FIGURES / f"{name}.svg"
    assert drawn == path.read_text(encoding="utf-8"), f"{path} is old: make figures"
    assert len(drawn) < 100_000
