"""Figures for papers: every figure of the page, as files that do not depend on the clock."""

import sys

import pytest

from nestling.errors import ReportError
from nestling.report import page_data
from nestling.report.paper_figures import write_figures
from tests.report import report_runs

pytest.importorskip("matplotlib", reason="figures for papers need nestling[figures]")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for method in ("fedavg", "heterofl"):
        report_runs.make(folder, method, rounds=4)
    return page_data(folder)


def test_a_figure_is_a_file_in_its_format(data, tmp_path):
    (path,) = write_figures(
        {**data, "panels": [one for one in data["panels"] if one["title"] == "Who took part"]}, tmp_path, "svg"
    )
    assert path.name == "who-took-part.svg"
    assert "HeteroFL" in path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_figure_of_the_page_is_a_file(data, tmp_path):
    paths = write_figures(data, tmp_path / "figures", "svg")
    names = {path.stem for path in paths}
    assert len(names) == len(paths)
    assert {
        "accuracy-against-size-score-by-parameters",
        "accuracy-against-size-score-by-macs",
        "learning-curves-global-accuracy-by-bytes",
        "learning-curves-worst-submodel-by-round",
        "local-accuracy-of-clients",
        "nested-sizes",
        "who-took-part",
        "coverage-how-evenly-units-were-trained-heterofl-digits",
    } <= names
    assert all(path.read_text(encoding="utf-8").startswith("<?xml") for path in paths)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "magic"), [("pdf", b"%PDF-1"), ("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_files_are_the_same_every_time(data, tmp_path, kind, magic):
    data = {**data, "panels": [one for one in data["panels"] if one["section"] == "overview"]}
    first, second = (write_figures(data, tmp_path / name, kind) for name in ("one", "two"))
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes().startswith(magic)
        assert one.read_bytes() == two.read_bytes()
        assert kind != "pdf" or b"/FontFile2" in one.read_bytes()  # fonts are embedded


def test_without_matplotlib_a_sentence_says_what_to_install(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ReportError, match=r"pip install 'nestling\[figures\]'"):
        write_figures(data, tmp_path, "pdf")


def test_a_folder_that_cannot_be_written_is_named(data, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="the figures cannot be written to"):
        write_figures(data, tmp_path / "file" / "figures", "svg")
