"""`nestling watch` serves one page and its events, to browsers on this machine alone."""

import http.client
import json
import socket
import time

import pytest

from nestling.errors import NestlingError
from nestling.experiment.progress_file import ProgressWriter
from nestling.report import watch_server
from nestling.report.live_state import LiveRuns
from nestling.report.watch_server import WatchServer
from tests.processes import wait_until
from tests.report.watch_cases import serving

LIMIT = 60  # seconds for an answer


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch):
    monkeypatch.setattr(watch_server, "_EVERY", 0.02)
    monkeypatch.setattr(watch_server, "_SHARE", 0)


def ask(server, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=LIMIT)
    headers = {"Host": f"127.0.0.1:{server.server_port}", **headers}
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, body


class Stream:
    """The events of a server."""

    def __init__(self, server, page=""):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=LIMIT)
        self.connection.request("GET", f"/events?page={page}")
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200
        assert self.answer.headers["Content-Type"].startswith("text/event-stream")

    def until(self, kind, condition=lambda data: True):
        """Return the data of the next event of a kind for which a condition holds."""
        event, end = {}, time.monotonic() + LIMIT
        while (line := self.answer.readline()) and time.monotonic() < end:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                event[name] = value
                continue
            if event.get("event") == kind and condition(data := json.loads(event["data"])):
                return data
            event = {}
        raise AssertionError("the stream has ended, or nothing comes")

    def close(self):
        self.answer.close()
        self.connection.close()


def line(round, accuracy=0.5):
    evaluation = {
        "global_accuracy": accuracy,
        "submodels": {"a": {"accuracy": accuracy}, "c": {"accuracy": accuracy / 2}},
    }
    counts = {"bytes_down": 1000 * round, "bytes_up": 1000 * round, "client_macs": 10 * round}
    return json.dumps({"round": round, **counts, "clients": 2, "train_loss": 1.0, "evaluation": evaluation}) + "\n"


@pytest.fixture
def folder(tmp_path):
    run = tmp_path / "first" / "seed-0"
    run.mkdir(parents=True)
    (run / "config.toml").write_text('name = "first"\nmethod = "heterofl"\nrounds = 9\n[data]\nname = "digits"\n')
    (run / "metrics.jsonl").write_text(line(1) + line(2))
    (tmp_path / "secret.txt").write_text("outside of the page")
    return tmp_path


def test_the_page_follows_the_runs(folder):
    with serving(folder) as server:
        status, headers, page = ask(server)
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert headers["Cache-Control"] == "no-store"
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert 'id="nestling-live"' in page
        assert "EventSource" in page
        data = json.loads(page.partition('id="nestling-data">')[2].partition("</script>")[0])
        stream, pages = Stream(server, data["version"]), Stream(server, data["version"])
        row = stream.until("live")["runs"][0]
        assert (row["name"], row["state"], row["round"], row["rounds"]) == ("first/seed-0", "stopped", 2, 9)
        assert row["levels"] == [{"name": "a", "value": "50.0 %"}, {"name": "c", "value": "25.0 %"}]
        with (folder / "first" / "seed-0" / "metrics.jsonl").open("a") as file:
            file.write(line(3, 0.75))
        assert stream.until("live", lambda live: live["runs"][0]["round"] == 3)["runs"][0]["value"] == "75.0 %"
        assert pages.until("page")["experiments"][0]["rounds_done"] == 3  # what the page had was not sent again
        stream.close()
        pages.close()


def test_who_trains_now_and_what_happens(folder):
    run = folder / "first" / "seed-0"
    with serving(folder) as server:
        stream = Stream(server)
        assert stream.until("live")["counts"] == {"running": 0, "stopped": 1, "finished": 0}
        writer = ProgressWriter(run)
        progress = {"phase": "training", "round": 2, "rounds": 9, "share": 0.25, "seconds": 3.0, "left": 9.0}
        writer.write({**progress, "training": [{"client": 4, "level": "a", "samples": 100}]})
        row = stream.until("live", lambda live: live["counts"]["running"])["runs"][0]
        assert row["progress"]["training"] == [{"client": 4, "level": "a", "samples": 100}]
        event = {
            "round": 2,
            "kind": "worker lost",
            "level": "WARNING",
            "count": 1,
            "message": "<b>worker 3</b> is gone",
        }
        (run / "events.jsonl").write_text(json.dumps(event) + "\n{\n")
        (seen,) = stream.until("live", lambda live: live["events"])["events"]
        assert seen == {"run": "first/seed-0", "round": 2, "level": "WARNING", "message": "<b>worker 3</b> is gone"}
        writer.close()
        (run / "summary.json").write_text("{}")
        assert stream.until("live", lambda live: live["counts"]["finished"])["runs"][0]["state"] == "finished"
        stream.close()


def test_rounds_that_a_resume_cuts_and_damage_are_survived(folder):
    metrics = folder / "first" / "seed-0" / "metrics.jsonl"
    with serving(folder) as server:
        stream = Stream(server)
        stream.until("live", lambda live: live["runs"][0]["round"] == 2)
        metrics.write_text(line(1, 0.25))
        assert stream.until("live", lambda live: live["runs"][0]["round"] == 1)["runs"][0]["value"] == "25.0 %"
        metrics.write_text(line(1) + "{" + "\n" + line(2))
        assert "line 2" in stream.until("live", lambda live: live["runs"][0]["problem"])["runs"][0]["problem"]
        metrics.write_text(line(1) + line(2) + line(3)[:20])  # a line that is being written
        stream.until("live", lambda live: live["runs"][0].get("round") == 2)
        metrics.unlink()
        (metrics.parent / "config.toml").unlink()
        stream.until("live", lambda live: not live["runs"])
        assert ask(server)[0] == 200
        stream.close()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1:{port}.evil.example", ""]
)
def test_other_hosts_are_refused(folder, host):
    with serving(folder) as server:
        for path in ("/", "/events"):
            status, _, body = ask(server, path, Host=host.format(port=server.server_port))
            assert (status, "first" in body) == (403, False)
        assert ask(server, Host=f"LOCALHOST:{server.server_port}")[0] == 200
        assert ask(server, Origin="http://evil.example")[0] == 403
        assert ask(server, Origin=server.url.rstrip("/"))[0] == 200
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.1", server.server_port)) != 0  # it has ended


def test_a_request_without_or_with_two_hosts_is_refused(folder):
    with serving(folder) as server:
        for lines in ("", f"Host: 127.0.0.1:{server.server_port}\r\nHost: evil.example\r\n"):
            with socket.create_connection(("127.0.0.1", server.server_port), LIMIT) as raw:
                raw.sendall(f"GET / HTTP/1.1\r\n{lines}\r\n".encode())
                assert raw.recv(100).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
def test_only_get_is_possible(folder, method):
    with serving(folder) as server:
        status, headers, body = ask(server, method=method)
        assert (status, headers["Allow"]) == (405, "GET")
        assert "first" not in body


@pytest.mark.parametrize(
    "path",
    [
        "/secret.txt",
        "/../secret.txt",
        "/first/../secret.txt",
        "/%2e%2e/secret.txt",
        "/first/seed-0/config.toml",
        "/./",
        "//etc/passwd",
        "/events/../secret.txt",
        "http://evil.example/",
        "http://evil.example/events",
        "/?x",
        "*",
    ],
)
def test_nothing_but_the_page_is_served(folder, path):
    with serving(folder) as server:
        status, _, body = ask(server, path)
        assert status == 404
        assert "outside" not in body
        assert "heterofl" not in body


def test_files_are_looked_at_only_while_somebody_is_connected(folder, monkeypatch):
    looks = []
    stamps = LiveRuns.stamps
    monkeypatch.setattr(LiveRuns, "stamps", lambda self: looks.append(1) or stamps(self))
    with serving(folder) as server:
        ask(server)
        assert len(looks) == 1  # for the page itself
        streams = [Stream(server) for _ in range(3)]
        for stream in streams:
            stream.until("live")
        wait_until(lambda: len(looks) > 5, limit=LIMIT)
        for stream in streams:
            stream.close()
        monkeypatch.setattr(watch_server, "_HEARTBEAT", 0.02)
        (folder / "first" / "seed-0" / "metrics.jsonl").write_text(line(1))  # news, by which closed tabs are noticed
        wait_until(lambda: server.snapshots._listeners == 0, limit=LIMIT)


def test_too_many_tabs_and_a_port_that_is_taken(folder, monkeypatch):
    monkeypatch.setattr(watch_server, "_MAX_STREAMS", 1)
    with serving(folder) as server:
        stream = Stream(server)
        assert ask(server, "/events")[0] == 503
        stream.close()
        with pytest.raises(NestlingError, match=f"port {server.server_port} cannot be used"):
            WatchServer(folder, server.server_port)


def test_an_empty_folder_has_a_page_too(tmp_path):
    with serving(tmp_path) as server:
        assert ask(server)[0] == 200
        stream = Stream(server)
        assert stream.until("live")["runs"] == []
        run = tmp_path / "late"
        run.mkdir()
        (run / "config.toml").write_text('method = "fedavg"\nrounds = 1\n')
        assert stream.until("live", lambda live: live["runs"])["runs"][0]["problem"] == "no round is complete"
        stream.close()
