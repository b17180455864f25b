"""The page: it is one file, it says what is wrong with runs, nothing in a file breaks out, and a browser shows it."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from nestling.cli.report import report_command
from nestling.errors import NestlingError, ReportError
from nestling.report import find, page_data, page_html, panel, write
from nestling.report.page_content import content
from nestling.report.panels import PANELS
from nestling.report.read import Round
from tests.report import report_runs

EVIL = '</script><img src="x" onerror="document.title=1"><script>document.title=2</script> & %{y} {"\ud800'

# What a finished comparison of three methods shows; panels of single methods are tested beside their modules.
SHOWN = {
    "Accuracy against size": "first",
    "Learning curves": "curves",
    "Nested sizes": "overview",
    "Local accuracy of clients": "overview",
    "Who took part": "overview",
    "Coverage: how evenly units were trained": "details",
}


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
def data(folder):
    return page_data(folder)


def embedded(page):
    """The data in a page."""
    return json.loads(Tags(page).scripts[0])


def test_the_page_is_one_small_file_that_asks_for_nothing_and_runs_its_own_scripts_alone(data):
    page = page_html(data)
    parsed = Tags(page)
    assert len(page.encode()) < 400_000
    assert not [tag for tag, attributes in parsed.tags if "src" in attributes]
    assert [attributes["href"] for tag, attributes in parsed.tags if "href" in attributes] == ["data:,"]
    (policy,) = [attributes["content"] for tag, attributes in parsed.tags if "http-equiv" in attributes]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src" not in policy
    allowed = re.search("script-src ([^;]*)", policy)[1].split()
    own = [
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in parsed.scripts
    ]
    assert own[1:] == allowed
    assert "nestlingRender" in parsed.scripts[-1]


def test_a_page_of_many_large_runs_stays_small():
    shares = dict.fromkeys(("global_accuracy", "worst_submodel", "mean_submodel", "local_accuracy", "global_loss"), 0.7)
    history = tuple(
        Round(n, n * 12345, n * 12345, n * 98765, evaluation=shares | {"global_loss": 1 / n}) for n in range(1, 401)
    )
    coverage = {f"stages.{n}.body.conv1": tuple(range(n, n + 300)) for n in range(60)}
    runs = [
        report_runs.run(f"method-{number}", seed, method=f"m{number}", history=history, coverage=coverage)
        for number in range(12)
        for seed in range(2)
    ]
    assert len(page_html(content(runs))) < 1_000_000


def test_a_live_page_has_a_place_for_status_lines_and_may_ask_its_server(data):
    live, still = page_html(data, live=True), page_html(data)
    assert '<div id="nestling-live"></div>' in live
    assert "connect-src 'self'" in live
    assert "nestling-live" not in Tags(still).tags
    assert embedded(live) == embedded(still)


def test_every_panel_has_its_section_and_a_sentence(data):
    assert {panel["title"]: panel["section"] for panel in data["panels"]} == SHOWN
    assert all(len(panel["about"]) > 40 for panel in data["panels"])
    assert [len(one["runs"]) for one in data["runs"]] == [2, 2, 2, 1]
    assert [one["name"] for one in data["experiments"]] == ["FedAvg", "FedRolex", "HeteroFL", "NeFL"]


def test_what_is_unfinished_is_said(data):
    (problem,) = data["problems"]
    assert problem.startswith("nefl-digits (seed 0) is not finished (4 of 8 rounds); it goes on with")


def test_numbers_are_those_of_the_summary(folder, data):
    summary = json.loads((folder / "heterofl-digits/seed-0/summary.json").read_text())
    other = json.loads((folder / "heterofl-digits/seed-1/summary.json").read_text())
    comparison, sizes = data["tables"]
    titles = [column["title"] for column in comparison["columns"]]
    (row,) = [row for row in comparison["rows"] if row["cells"][0]["text"] == "heterofl-digits"]
    cells = dict(zip(titles, row["cells"], strict=True))
    means = {
        title: (summary["final"][key] + other["final"][key]) / 2
        for title, key in (("global accuracy", "global_accuracy"), ("worst accuracy", "worst_submodel"))
    }
    for title, mean in means.items():
        assert cells[title]["value"] == pytest.approx(mean, abs=1e-12)
        assert cells[title]["text"].startswith(f"{100 * mean:.1f} ± ")
    (smallest,) = [
        row for row in sizes["rows"] if row["cells"][0]["text"] == "heterofl-digits" and row["cells"][1]["text"] == "e"
    ]
    assert [cell["value"] for cell in smallest["cells"][2:5]] == list(summary["levels"]["e"].values())[1:]


def test_an_empty_folder_gives_a_page_that_says_so(tmp_path):
    data = page_data(tmp_path)
    assert data["problems"] == [f"there is no run in {tmp_path}: a run directory holds config.toml and metrics.jsonl"]
    assert data["heading"] == "Nothing was measured yet"
    assert str(tmp_path) in json.dumps(embedded(page_html(data)))


def test_a_run_without_rounds_gives_a_page_that_says_so(tmp_path):
    directory = report_runs.make(tmp_path, finished=False)
    (directory / "metrics.jsonl").write_text("")
    data = page_data(directory)
    assert data["heading"] == "Nothing was measured yet"
    assert "no round is complete" in data["problems"][0]
    assert data["panels"] == []


def test_a_damaged_run_is_named_and_the_others_are_shown(tmp_path):
    report_runs.make(tmp_path, "heterofl", rounds=4)
    (report_runs.make(tmp_path, "fedavg", rounds=4) / "summary.json").write_text('{"method": 3}')
    data = page_data(tmp_path)
    assert "summary.json: expected `str`, got `int`" in data["problems"][0]
    assert [one["method"] for one in data["experiments"]] == ["heterofl"]


def test_values_that_are_no_numbers_are_gaps_and_the_page_says_so(tmp_path):
    directory = report_runs.make(tmp_path, rounds=8)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    lines[3]["evaluation"]["global_accuracy"] = float("nan")
    lines[5]["train_loss"] = float("inf")
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = page_data(tmp_path)
    assert (
        "values that are not numbers, drawn as gaps: global_accuracy (1 times), train_loss (1 times)"
        in data["problems"][0]
    )
    (curves,) = [panel["figures"][0] for panel in data["panels"] if panel["title"] == "Learning curves"]
    assert [value is None for value in curves["series"][0]["y"]["global_accuracy"]] == [False, True, False, False]
    assert "NaN" not in page_html(data)


def test_nothing_from_a_file_breaks_out_of_its_place(tmp_path):
    directory = evil(tmp_path)
    data = page_data(tmp_path)
    page = page_html(data)
    parsed = Tags(page)
    assert "img" not in {tag for tag, _ in parsed.tags}
    assert len(parsed.scripts) == 6
    assert embedded(page) == data
    assert EVIL in data["runs"][0]["runs"][0]["command"]
    write(find([tmp_path]), directory / "report.html")


def evil(tmp_path, text=EVIL):
    """A run whose every name tries to run a script."""
    directory = report_runs.make(tmp_path, rounds=4)
    summary = json.loads((directory / "summary.json").read_text())
    summary |= {"name": text, "method": text, "dataset": text, "partition": text, "command": text}
    summary["coverage"] = {text: [1, 2]}
    summary["panels"] = {
        "steps": {text: {text: 1.0}},
        "weights": {text: {text: 0.1}},
        "kept": {"first": {text: 1.0}, "last": {text: 0.5}},
    }
    summary["levels"][text] = summary["levels"].pop("a")
    summary["final"]["submodels"][text] = {"accuracy": 0.3}
    (directory / "summary.json").write_text(json.dumps(summary))
    (directory / "config.toml").write_text("# " + text.replace("\ud800", ""))
    lines = (directory / "metrics.jsonl").read_text().replace('"worst_submodel"', json.dumps(text))
    (directory / "metrics.jsonl").write_text(lines)
    return directory


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_no_summary_makes_the_page_fail(tmp_path, data):
    directory = tmp_path / "heterofl-digits" / "seed-0"
    shutil.rmtree(tmp_path / "heterofl-digits", ignore_errors=True)
    report_runs.make(tmp_path, rounds=2)
    summary = json.loads((directory / "summary.json").read_text())
    place = summary
    for _ in range(data.draw(st.integers(0, 3))):
        inner = [value for value in place.values() if isinstance(value, dict) and value]
        place = data.draw(st.sampled_from(inner)) if inner else place
    place[data.draw(st.sampled_from(sorted(place)) | st.text(max_size=5))] = data.draw(ANY)
    (directory / "summary.json").write_text(json.dumps(summary))
    page = page_data(tmp_path)
    assert embedded(page_html(page)) == page


def test_a_method_adds_a_panel_with_one_function(folder):
    @panel("How it morphs", "Read it like this & that.", section="overview")
    def morphs(groups):
        return {"kind": "columns", "axes": [], "measures": [], "bars": [[len(groups), 1]], "width": 1}

    try:
        data = page_data(folder)
    finally:
        PANELS.pop()
    (own,) = [one for one in data["panels"] if one["title"] == "How it morphs"]
    assert own["figures"][0]["bars"] == [[4, 1]]


def test_a_panel_that_fails_is_named(folder):
    @panel("Broken", "It divides by zero.")
    def broken(groups):
        return 1 / 0

    try:
        data = page_data(folder)
    finally:
        PANELS.pop()
    assert "the panel 'Broken' cannot be drawn: ZeroDivisionError: division by zero" in data["problems"]


def test_writing_replaces_the_file_or_leaves_it(folder, tmp_path, monkeypatch):
    runs = find([folder])
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
    assert embedded((folder / "report.html").read_text(encoding="utf-8")) == content(find([folder]))


def test_the_command_prints_json_alone(folder, tmp_path):
    done = program(folder / "fedavg-digits", "--json", "--out", tmp_path / "other.html")
    (row,) = json.loads(done.stdout)
    assert (row["experiment"], row["seeds"]) == ("fedavg-digits", [0, 1])
    assert (tmp_path / "other.html").exists()


def test_the_command_prints_the_table_for_papers(folder, tmp_path):
    text = program(folder, "--markdown", "--out", tmp_path / "page.html").stdout
    assert text.startswith("| experiment | seeds | rounds | global accuracy |")
    assert "| heterofl-digits | 2 | 8 | " in text
    text = program(folder, "--latex", "--out", tmp_path / "page.html").stdout
    assert r"\begin{tabular}{lrr" in text
    assert r" \% & " in text
    refused = program(folder, "--latex", "--json").exception
    assert isinstance(refused, NestlingError)
    assert "choose one" in str(refused)


def test_the_command_writes_a_page_about_what_is_no_run_and_fails(tmp_path):
    assert isinstance(program(tmp_path).exception, ReportError)
    assert "there is no run in" in (tmp_path / "report.html").read_text()
    assert isinstance(program(tmp_path / "nowhere").exception, ReportError)


# What a person would do: choose another measure and axis, hide the first experiment, sort, copy.
ACTIONS = """
<script>
const results = {}, stored = JSON.parse(document.getElementById("nestling-data").textContent);
const all = (selector) => [...document.querySelectorAll(selector)];
const texts = (selector) => all(selector).map((node) => node.textContent);
const names = () => texts("#learning-curves .name");
const column = () => all('[data-slot="table comparison"] tbody tr').map((row) => Number(row.children[3].dataset.value));
const edge = () => document.getElementById("learning-curves").getBoundingClientRect().top;
results.names = names();
const choice = document.querySelector("#learning-curves select");
choice.value = "worst_submodel";
choice.dispatchEvent(new Event("change"));
document.querySelector('[data-key="learning-curves 0 x bytes"]').click();
results.titles = texts("#learning-curves .title");
document.querySelector(".legend button").click();
results.kept = names();
results.hiddenRows = all("tr.off").length;
all('[data-slot="table comparison"] thead button').find((one) => one.textContent === "global accuracy").click();
results.sorted = column();
results.csv = Tables.csv(stored.tables[0]);
scrollTo(0, 700);
const before = edge();
stored.sentences = ["Another round is done."];
stored.tables[0].rows.reverse();
nestlingRender(stored);
results.again = { lead: texts(".lead"), sorted: column(), names: names(), moved: edge() - before,
  measure: document.querySelector("#learning-curves select").value };
results.fetched = performance.getEntriesByType("resource").map((entry) => entry.name);
results.wide = document.documentElement.scrollWidth > document.documentElement.clientWidth; // without the scroll bar
results.ticks = all(".lines").map((picture) => ["end", "middle"].map((anchor) =>
  [...picture.querySelectorAll(`text:not([class])[text-anchor=${anchor}]`)].map((one) => one.textContent)));
const ranges = [[0.9801, 0.9849], [0.97, 0.98], [0.2, 1], [0.5, 3000], [1e4, 1.2e4], [-0.2, 0.1]];
results.labels = ranges.flatMap(([low, high]) =>
  ["percent", "number", "count", "bytes", "macs", "seconds"].flatMap((unit) => (low > 0 ? [false, true] : [false])
    .map((log) => Draw.axis({ low, high, unit, log, start: 0, end: 400, gap: 40 }).ticks.map((tick) => tick.text))));
document.body.insertAdjacentHTML("beforeend", "<output></output>");
document.querySelector("output").textContent = JSON.stringify(results);
</script></body>
"""


def browsed(page, tmp_path, width=500):
    """Return the document of a page as chromium has it after its scripts, and what they complained of."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("there is no chromium to look at the page with")
    target = tmp_path / "page.html"
    target.write_bytes(page.encode(errors="replace"))
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
        "--enable-logging=stderr",
        "--disable-dev-shm-usage",
        "--virtual-time-budget=5000",
        f"--window-size={width},900",
        "--dump-dom",
    ]
    command = [browser, *options, f"--user-data-dir={tmp_path / 'profile'}", target.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


# What sticks out to the right, and is in nothing that scrolls.
WIDE = """
<script>
const scrolls = (node) => node && (getComputedStyle(node).overflowX === "auto" || scrolls(node.parentElement));
for (const details of document.querySelectorAll("details")) details.open = true;
const wide = [...document.querySelectorAll("#nestling-page *")].filter((node) =>
  node.getBoundingClientRect().right > innerWidth + 1 && !scrolls(node));
document.title = wide.length ? `${wide[0].tagName}.${wide[0].className}` : "fits";
</script></body>
"""


def without_policy(data):
    """A page into which a test can put a script."""
    return re.sub(r'<meta http-equiv="Content-Security-Policy".*?>', "", page_html(data))


@pytest.mark.slow
def test_a_browser_draws_the_page_without_errors_or_requests(data, tmp_path):
    document, complaints = browsed(page_html(data), tmp_path, width=1280)
    assert complaints == []
    assert len(re.findall('class="lines"', document)) >= 2
    assert len(re.findall('class="line"', document)) >= 6
    shown = Counter(float(value) for value in re.findall(r'data-value="(.*?)"', document))
    cells = [cell for table in data["tables"] for row in table["rows"] for cell in row["cells"][1:]]
    assert shown == Counter(float(cell["value"]) for cell in cells if cell["value"] is not None)
    assert all(f">{cell['text']}<" in document for cell in cells)


@pytest.mark.slow
def test_choices_of_the_reader_stay_when_the_page_is_drawn_again(data, tmp_path):
    page = without_policy(data).replace("</body>", ACTIONS)
    document, complaints = browsed(page, tmp_path, width=800)
    assert complaints == []
    results = json.loads(re.findall(r"<output>(.*?)</output>", document, re.DOTALL)[-1].replace("&amp;", "&"))
    assert set(results["names"]) == {"FedAvg", "FedRolex", "HeteroFL", "NeFL"}
    assert results["titles"][0] == "worst sub-model (%)"
    assert results["titles"][1].startswith("data sent, both ways (")
    assert set(results["kept"]) == {"FedRolex", "HeteroFL", "NeFL"}
    assert results["hiddenRows"] == 1 + len([row for row in data["tables"][1]["rows"] if row["experiment"] == 0])
    assert results["sorted"] == sorted(results["sorted"], reverse=True)
    assert results["csv"].splitlines()[0].startswith("experiment,seeds,rounds,global accuracy")
    assert results["csv"].count("\r\n") == 5
    again = results["again"]
    assert again["lead"] == ["Another round is done."]
    assert (again["sorted"], set(again["names"])) == (results["sorted"], set(results["kept"]))
    assert again["measure"] == "worst_submodel"
    assert results["fetched"] == []
    assert not results["wide"]
    assert len(results["labels"]) == 66
    assert all(len(set(labels)) == len(labels) > 1 for labels in results["labels"]), results["labels"]
    assert len(results["ticks"]) >= 2
    for axes in results["ticks"]:
        for ticks in axes:
            assert len(set(ticks)) == len(ticks) > 1


@pytest.mark.slow
def test_a_browser_runs_no_script_of_a_run(tmp_path):
    evil(tmp_path, EVIL[:-1])  # --dump-dom does not write half a character
    data = page_data(tmp_path)
    document, complaints = browsed(page_html(data), tmp_path)
    assert complaints == []
    assert "<img" not in document
    title = re.search("<title>(.*?)</title>", document, re.DOTALL)[1]
    assert "Nestling" in title
    assert len(re.findall("<script", document)) == len(Tags(page_html(data)).scripts)
    assert "&lt;img" in document


@pytest.mark.slow
def test_the_policy_stops_a_script_that_is_not_ours(data, tmp_path):
    page = page_html(data).replace("</body>", "<script>document.title = 'foreign'</script></body>")
    document, complaints = browsed(page, tmp_path)
    assert "<title>foreign</title>" not in document
    assert "Content Security Policy" in complaints[0]


@pytest.mark.slow
def test_a_phone_is_not_scrolled_sideways(data, tmp_path):
    page = without_policy(data).replace("</body>", WIDE)
    document, _ = browsed(page, tmp_path, width=500)  # chromium has no narrower window
    assert "<title>fits</title>" in document
