"""`nestling watch` in a real browser, beside a real run: it follows, without a reload, until after the run's end."""

import importlib.util
import shutil
import signal
import sys

import pytest

from tests.processes import start, wait_until
from tests.report.watch_cases import serving

BROWSER, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
SETTINGS = ["rounds=500", "local.epochs=1", "data.max_samples=200", "evaluate.samples=100", "checkpoint_every=5"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="there is no chromium with chromedriver"),
    pytest.mark.skipif(importlib.util.find_spec("selenium") is None, reason="selenium, of nestling[dev], is missing"),
]


@pytest.fixture
def browser(tmp_path):
    webdriver = importlib.import_module("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in ("headless", "no-sandbox", "disable-gpu", "disable-background-networking", "no-first-run"):
        options.add_argument(f"--{flag}")
    options.add_argument("--disable-dev-shm-usage")
    options.add_argument("--window-size=1100,900")
    options.add_argument(f"--user-data-dir={tmp_path / 'profile'}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER)) as opened:
        yield opened


def training(*command):
    return start([sys.executable, "-m", "nestling", *command, "--quiet"])


def panel(browser):
    return browser.execute_script("return document.getElementById('nestling-live').innerText")


def finished_rounds(browser):
    """The number of rounds by the page's own data, which the script has drawn last."""
    return browser.execute_script("return window.drawn || 0")


COUNT_DRAWINGS = """
const draw = window.nestlingRender;
window.nestlingRender = (data) => {
  draw(data);
  window.drawn = Math.max(...data.experiments.map((one) => one.rounds_done));
};
"""


def test_the_page_lives_through_a_run_a_kill_a_resume_and_an_end(tmp_path, browser):
    folder = tmp_path / "runs"
    run = folder / "first"
    run.mkdir(parents=True)
    with serving(folder) as server:
        browser.get(server.url)
        wait_until(lambda: "No run has begun here yet" in panel(browser))
        browser.execute_script(f"window.marker = 1; {COUNT_DRAWINGS}")
        with training("run", "heterofl-digits", *SETTINGS, "--out", str(run)) as process:
            wait_until(lambda: "Running" in panel(browser) and "left" in panel(browser))
            text = panel(browser)
            assert "first" in text
            assert "of 500" in text
            wait_until(lambda: finished_rounds(browser) >= 6)
            wait_until(lambda: "accuracy" in panel(browser) and "clients" in panel(browser))
            assert "%" in browser.find_element("css selector", ".live-levels li").text
            process.send_signal(signal.SIGKILL)
            process.wait()
        wait_until(lambda: "The run is stopped" in panel(browser) and "first has stopped" in panel(browser))
        before = finished_rounds(browser)
        with training("resume", str(run)) as process:
            wait_until(lambda: "first was resumed" in panel(browser))
            wait_until(lambda: finished_rounds(browser) > before)
            process.send_signal(signal.SIGINT)
            process.wait()
        done = len((run / "metrics.jsonl").read_text().splitlines())
        with training("resume", str(run), f"rounds={done + 1}") as process:
            assert process.wait() == 0
        wait_until(lambda: "The run is finished" in panel(browser))
        wait_until(lambda: finished_rounds(browser) == done + 1)
        port = server.server_port
    wait_until(lambda: "Connection lost" in panel(browser))
    with serving(folder, port):
        wait_until(lambda: "The run is finished" in panel(browser))
        assert browser.execute_script("return window.marker") == 1  # nothing was loaded anew
        log = [entry for entry in browser.get_log("browser") if "ERR_CONNECTION_REFUSED" not in entry["message"]]
        lost = ("ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET")
        assert [entry for entry in log if not any(name in entry["message"] for name in lost)] == []


def test_several_tabs_follow_and_hidden_ones_let_go(tmp_path, browser):
    run = tmp_path / "first"
    run.mkdir()
    (run / "config.toml").write_text('name = "<img src=x onerror=alert(1)>"\nmethod = "heterofl"\nrounds = 9\n')
    (run / "events.jsonl").write_text(
        '{"round": 1, "kind": "k", "level": "WARNING", "count": 1, "message": "<script>alert(1)</script>"}\n'
    )
    with serving(run) as server:
        for _ in range(8):  # browsers allow six connections to one server
            browser.switch_to.new_window("tab")
            browser.get(server.url)
            wait_until(lambda: "The run is stopped" in panel(browser))
        assert "<script>alert(1)</script>" in browser.find_element("css selector", ".live ol").get_attribute(
            "textContent"
        )
        assert not browser.find_elements("css selector", "#nestling-live img, #nestling-live script")
        wait_until(lambda: server.snapshots._listeners <= 6)
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
