"""The page: what it draws, that nothing in a file can break out of its place, and that a browser shows it."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from nestling.cli.report import report_command
from nestling.errors import ReportError
from nestling.report import curves, find, spread, write
from nestling.report.page import html
from nestling.report.panels import COLOURS, PANELS, colour, panel
from nestling.report.runs_by_seed import experiments
from tests.report import report_runs

pytest.importorskip("plotly", reason="the page needs nestling[report]")

EVIL = '</script><img src="x" onerror="document.title=1"> & %{y} {"'

OF_SUBMODELS = ("Step sizes", "Weights of sub-models")
OF_MORPHS = ("Units kept", "Networks on the way")


class Tags(HTMLParser):
    """The tags of a page with their attributes, and what its scripts hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.scripts, self.inside = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    runs_folder = tmp_path_factory.mktemp("runs")
    for method in ("fedavg", "heterofl", "fedrolex"):
        for seed in range(2):
            report_runs.make(runs_folder, method, seed, rounds=8)
    report_runs.make(runs_folder, "nefl", rounds=8, finished=False)
    return runs_folder


@pytest.fixture(scope="module")
def runs(folder):
    return find([folder])


@pytest.fixture(scope="module")
def page(runs):
    return html(runs)


def test_the_page_is_one_file_that_asks_for_nothing(page):
    tags = Tags(page).tags
    assert len(page.encode()) < 6_000_000
    assert not [tag for tag, attributes in tags if "src" in attributes]
    assert [attributes["href"] for tag, attributes in tags if "href" in attributes] == ["data:,"]
    (policy,) = [attributes["content"] for tag, attributes in tags if "http-equiv" in attributes]
    assert policy.startswith("default-src 'none';")


def test_every_panel_is_there_with_words_for_those_who_cannot_see_it(page):
    for entry in PANELS:
        assert (f"<h3>{entry.title}</h3>" in page) == (entry.title not in OF_SUBMODELS + OF_MORPHS)
    plots = [attributes for _, attributes in Tags(page).tags if attributes.get("class") == "plot"]
    assert len(plots) == 7
    assert all(plot["role"] == "img" and len(plot["aria-label"]) > 40 for plot in plots)
    assert page.count("<details>") == 7
    assert "unfinished" in page


def test_submodels_with_tensors_of_their_own_have_panels(tmp_path):
    directory = report_runs.make(tmp_path, rounds=4)
    summary = json.loads((directory / "summary.json").read_text())
    steps = {"1": {"stages.0.0": 1.1, "stages.0.1": 0.9}, "0.2": {"stages.0.0": 1.4}}
    summary["panels"] = {"steps": steps, "weights": {"1": {"stem": 0.2}, "0.2": {"stem": 0.3}}}
    (directory / "summary.json").write_text(json.dumps(summary))
    page = html(find([tmp_path]))
    assert all(f"<h3>{title}</h3>" in page for title in OF_SUBMODELS)
    lines = [
        trace
        for figure in json.loads(Tags(page).scripts[0])["figures"]
        for trace in figure["data"]
        if "sub-model" in trace.get("hovertemplate", "")
    ]
    assert [(line["x"], line["y"]) for line in lines if "0.2" in line["name"]] == [([0], [1.4]), ([0], [0.3])]
    for broken in (
        {"steps": 3},
        {"steps": {"1": 3}},
        {"steps": {"1": {"stem": 1.0}, "0.2": 3}},
        {"steps": {}},
        {"weights": []},
    ):
        summary["panels"] = broken
        (directory / "summary.json").write_text(json.dumps(summary))
        assert "<h3>Step sizes</h3>" not in html(find([tmp_path]))


def test_networks_that_were_pruned_have_panels(tmp_path):
    directory = report_runs.make(tmp_path, rounds=4)
    summary = json.loads((directory / "summary.json").read_text())
    summary["panels"] = {"kept": {"first": {"stem": 0.5, "head": 0.5}, "last": {"stem": 1.0, "head": 0.125}}}
    (directory / "summary.json").write_text(json.dumps(summary))
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    tested = [line for line in lines if "evaluation" in line]
    for line in tested:
        line["evaluation"]["networks"] = {"averaged": {"accuracy": 0.5}, "morphed": {"accuracy": 0.25}}
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = html(find([tmp_path]))
    assert all(f"<h3>{title}</h3>" in page for title in OF_MORPHS)
    figures = json.loads(Tags(page).scripts[0])["figures"]
    bars = [trace for figure in figures for trace in figure["data"] if trace["type"] == "bar" and "stem" in trace["x"]]
    assert [bar["y"] for bar in bars] == [[0.5, 0.5], [1.0, 0.125]]
    drawn = {trace["name"].rpartition(": ")[2]: trace for figure in figures for trace in figure["data"]}
    assert drawn["morphed"]["y"] == [0.25] * len(tested)
    assert drawn["server"]["y"] == [line["evaluation"]["global_accuracy"] for line in tested]
    summary["panels"] = {"kept": {"first": 3}}
    (directory / "summary.json").write_text(json.dumps(summary))
    assert "<h3>Units kept</h3>" not in html(find([tmp_path]))


def test_the_gap_is_that_of_the_rounds_since_the_last_test(tmp_path):
    directory = report_runs.make(tmp_path, rounds=4)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    for line, accuracy in zip(lines, (0.2, 0.4, 0.6, 0.8), strict=True):
        line["train_accuracy"] = accuracy
        line.pop("evaluation", None)
    for line, accuracy in ((lines[1], 0.1), (lines[3], 0.5)):
        line["evaluation"] = {"global_accuracy": accuracy}
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    figures = json.loads(Tags(html(find([tmp_path]))).scripts[0])["figures"]
    (gap,) = [figure for figure in figures if "training less test" in json.dumps(figure)]
    assert gap["data"][0]["x"] == [2, 4]
    assert gap["data"][0]["y"] == pytest.approx([0.2, 0.2])


def test_nothing_from_a_file_breaks_out_of_its_place(tmp_path):
    directory = report_runs.make(tmp_path, rounds=4)
    summary = json.loads((directory / "summary.json").read_text())
    summary |= {"name": EVIL, "method": EVIL, "dataset": EVIL, "partition": EVIL, "command": EVIL}
    summary["coverage"] = {EVIL: [1, 2]}
    summary["panels"] = {"steps": {EVIL: {EVIL: 1.0}}, "weights": {EVIL: {EVIL: 0.1}}}
    summary["levels"][EVIL] = summary["levels"].pop("a")
    summary["final"]["submodels"][EVIL] = {"accuracy": 0.3}
    (directory / "summary.json").write_text(json.dumps(summary))
    (directory / "config.toml").write_text(f"# {EVIL}\n")
    text = (directory / "metrics.jsonl").read_text().replace('"worst_submodel"', json.dumps(EVIL))
    (directory / "metrics.jsonl").write_text(text)
    page = html(find([tmp_path]))
    parsed = Tags(page)
    assert "img" not in {tag for tag, _ in parsed.tags}
    assert len(parsed.scripts) == 3
    figures = json.loads(parsed.scripts[0])
    assert all("<" not in trace["name"] for figure in figures["figures"] for trace in figure["data"])
    assert "# &lt;/script&gt;" in page


def test_a_method_adds_a_panel_with_one_function(runs):
    @panel("How it morphs", "Read it like this & that.")
    def morphs(given):
        return f"<p>{len(given)} morphs</p>"

    try:
        document = html(runs)
    finally:
        PANELS.pop()
    assert "<h3>How it morphs</h3>" in document
    assert "this &amp; that" in document
    assert "<p>7 morphs</p>" in document


def test_panels_without_data_are_left_out(tmp_path):
    directory = report_runs.make(tmp_path, finished=False)
    (directory / "metrics.jsonl").write_text("")
    page = html(find([tmp_path]))
    assert 'class="plot"' not in page
    assert "<h1>Nothing was measured yet</h1>" in page


def test_curves_are_means_over_seeds_in_one_colour_per_experiment(runs):
    drawn = curves.by_bytes(runs)
    (line,) = [
        trace
        for trace in drawn["data"]
        if trace["name"] == "heterofl-digits" and trace["meta"]["measure"] == "worst_submodel" and "fill" not in trace
    ]
    own = [run for run in runs if run.method == "heterofl"]
    last = [run.history[-1] for run in own]
    assert line["y"][-1] == pytest.approx(sum(entry.evaluation["worst_submodel"] for entry in last) / 2)
    assert line["x"][-1] * 1024**2 == pytest.approx(sum(entry.bytes for entry in last) / 2)
    for figure in (drawn, curves.by_round(runs), spread.by_size(runs)):
        for trace in figure["data"]:
            if "fill" not in trace:
                assert trace["line"]["color"] == colour(trace["meta"]["experiment"])


def test_seeds_are_averaged_only_where_all_have_a_value(tmp_path):
    for seed, rounds in ((0, 8), (1, 16)):
        report_runs.make(tmp_path, seed=seed, rounds=rounds, finished=False)
        config = tmp_path / "heterofl-digits" / f"seed-{seed}" / "config.toml"
        config.write_text(config.read_text().replace(f"rounds = {rounds}", "rounds = 99"))
    (experiment,) = experiments(find([tmp_path]))
    places = [place for place, _ in curves.points(experiment, "global_accuracy", lambda entry: entry.round)]
    assert places == [2, 4]


def test_coverage_shows_a_staircase_and_an_even_roll(runs):
    heterofl = next(run for run in runs if run.method == "heterofl")
    strip = spread.shades(heterofl.coverage["conv4"])
    assert sorted(strip, reverse=True) == strip
    assert len(set(strip)) == 5
    drawn = spread.coverage(runs)
    assert drawn.count('class="strips"') == 3
    assert ">20%<" in drawn


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=700))
def test_shades_keep_to_their_range(units):
    strip = spread.shades(units)
    assert len(strip) == 128
    assert all(0 <= shade <= 1 for shade in strip)
    if len(units) <= 128:
        assert max(strip) == (1 if any(units) else 0)
    if len(set(units)) == 1:
        assert set(strip) == {1.0 if units[0] else 0.0}


def luminance(hex_colour):
    parts = [int(hex_colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("ground", ["#ffffff", "#181c20"])
@pytest.mark.parametrize("ink", COLOURS)
def test_colours_can_be_seen_on_light_and_dark(ink, ground):
    light, dark = sorted((luminance(ink), luminance(ground)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3


def test_writing_replaces_the_file_or_leaves_it(runs, tmp_path, monkeypatch):
    target = tmp_path / "report.html"
    target.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(ReportError, match=r"cannot be written to .*report\.html: No space left on device$"):
            write(runs, target)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert write(runs, target) == target
    assert target.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with pytest.raises(ReportError, match=r"cannot be written to .*: No such file or directory"):
        write(runs, tmp_path / "nowhere" / "report.html")
    with pytest.raises(ReportError, match=r"cannot be written to .*: Is a directory"):
        write(runs, tmp_path)


def test_without_plotly_a_sentence_says_what_to_install(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ReportError, match=r"pip install 'nestling\[report\]'"):
        html(runs)


def program(*words):
    app = typer.Typer()
    app.command()(report_command)
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_command_prints_the_table_and_where_the_page_is(folder):
    done = program(folder)
    assert done.exit_code == 0, done.output
    assert f"the page: {folder / 'report.html'}" in done.stdout
    assert "fedrolex-digits" in done.stdout
    assert "all others: after the last round" in done.stdout
    assert (folder / "report.html").stat().st_size > 1_000_000


def test_the_command_prints_json_alone(folder, tmp_path):
    done = program(folder / "fedavg-digits", "--json", "--out", tmp_path / "other.html")
    (row,) = json.loads(done.stdout)
    assert (row["experiment"], row["seeds"]) == ("fedavg-digits", [0, 1])
    assert (tmp_path / "other.html").exists()


def test_the_command_refuses_what_is_no_run(tmp_path):
    assert isinstance(program(tmp_path).exception, ReportError)


# What a person would do: choose another measure, hide the first experiment, press a copy button.
ACTIONS = """
<script>
const choice = document.querySelector(".choice");
choice.value = "worst_submodel";
choice.dispatchEvent(new Event("change"));
document.querySelector(".legend button").click(); document.querySelector(".copy").click();
const shown = (plot) => plot.data.filter((trace) => trace.visible).map((trace) => trace.meta);
const seen = [...document.querySelectorAll(".plot")].map(shown);
const fetched = performance.getEntriesByType("resource").map((entry) => entry.name);
document.body.insertAdjacentHTML("beforeend", "<output></output>");
const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;  // without the scroll bar
document.querySelector("output").textContent = JSON.stringify({ seen, fetched, wide });
</script></body>
"""


@pytest.mark.slow
def test_a_browser_draws_the_page_without_errors_or_requests(page, tmp_path):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("there is no chromium to look at the page with")
    target = tmp_path / "report.html"
    target.write_text(page.replace("</body>", ACTIONS), encoding="utf-8")
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
        "--enable-logging=stderr",
        "--disable-dev-shm-usage",
        "--virtual-time-budget=5000",
        "--window-size=500,900",
        "--dump-dom",
    ]
    command = [browser, *options, f"--user-data-dir={tmp_path / 'profile'}", target.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert done.stdout.count('class="main-svg"') >= 6
    assert len(re.findall(r'<g class="trace scatter', done.stdout)) >= 15
    assert len(re.findall(r'<g class="trace violins', done.stdout)) == 2  # of three, one is hidden
    browser = json.loads(re.search(r"<output>(.*?)</output>", done.stdout.rsplit("</script>", 1)[-1], re.DOTALL)[1])
    assert browser["fetched"] == []
    assert not browser["wide"]
    for metas in browser["seen"]:
        assert metas
        assert all(meta["experiment"] != 0 and meta["measure"] in (None, "worst_submodel") for meta in metas)
    first_row = re.search(r'<tr data-experiment="0"[^>]*>', done.stdout)[0]
    assert "off" in first_row
