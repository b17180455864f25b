"""The figures of the documentation are those that the library draws today."""

import pytest

from docs import draw_figures
from docs.drawings import grand
from nestling.experiment.reproductions.finished_runs import FinishedRun, write_results

SLOW = {"nested-sizes": pytest.mark.slow}  # it checks a whole net


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in draw_figures.DRAWN])
def test_a_figure_is_what_its_function_draws(name):
    drawn, path = draw_figures.DRAWN[name](), draw_figures.FIGURES / f"{name}.svg"
    assert drawn == path.read_text(encoding="utf-8"), f"{path} is old: make figures"
    assert len(drawn) < 100_000


def test_the_grand_comparison_is_drawn_from_what_is_finished(tmp_path):
    def run(method, seed, accuracies):
        levels = {level: (parameters, value) for level, parameters, value in accuracies}
        return FinishedRun(f"{method}-cifar10-grand-evening", seed, "0", {}, {}, {}, 1, 1, 1, 1.0, {}, levels)

    mixed = [run("heterofl", seed, [("1", 700_000, 0.7 + seed / 10), ("0.2", 140_000, 0.5)]) for seed in (0, 1)]
    write_results(tmp_path / "some.json", [*mixed, run("fedavg", 0, [("full", 700_000, 0.8)])])
    points = grand.read_points(tmp_path / "some.json")
    assert points == {
        "fedavg": [(700_000, pytest.approx(80))],
        "heterofl": [(140_000, 50), (700_000, pytest.approx(75))],
    }
    picture = grand.grand_comparison(tmp_path / "some.json")
    assert "10 of 12 methods to come" in picture
    assert "HeteroFL 75.0 %" in picture
    assert "FjORD" not in picture
