"""Flower's real processes on loopback: a SuperLink, SuperNodes and runs, each ended by its own id."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
import tomli_w

from nestling.experiment import find
from tests.processes import start, wait_until

ROOT = Path(__file__).parents[2]
LIMIT = 500  # seconds of a run, which takes a twentieth of that on a machine with nothing else to do
PROGRAMS = Path(os.environ.get("NESTLING_FLOWER", ROOT / ".venv-flower")) / "bin"
needs_flower = pytest.mark.skipif(
    not (PROGRAMS / "flower-superlink").exists(),
    reason="there is no environment with Flower: make .venv-flower/.ready, or set NESTLING_FLOWER to one",
)

SERVER = """
from pathlib import Path
from nestling.experiment.flower_apps import server_app
app = server_app(Path(__file__).with_name("experiment.toml"), own_data=False)
"""
CLIENT = """
from pathlib import Path
from nestling.experiment.flower_apps import client_app
app = client_app(Path(__file__).with_name("experiment.toml"))
"""


def make_app(folder: Path, settings, config, *, preset="heterofl-digits", client=CLIENT) -> Path:
    """Write a Flower app that runs an experiment."""
    package = folder / "fed"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "server_app.py").write_text(SERVER)
    (package / "client_app.py").write_text(client)
    (package / "experiment.toml").write_text(find(preset).with_settings(settings).to_toml())
    app = {"publisher": "tests", "components": {"serverapp": "fed.server_app:app", "clientapp": "fed.client_app:app"}}
    project = {"name": "fed", "version": "1.0.0", "description": "A test.", "license": "Apache-2.0"}
    app["config"] = {"out": str(folder / "run"), "poll": 0.1, **config}
    (folder / "pyproject.toml").write_text(tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}}))
    return folder


class Federation:
    """Processes of Flower in a folder of their own.

    Parameters
    ----------
    folder
        Where everything is written.
    simulation
        Whether the SuperLink simulates its nodes.
    tls
        The folder of certificates (`certificates`); None for plain connections.
    """

    def __init__(self, folder: Path, *, simulation=False, tls=None, port=None):
        self.folder, self._tls, self._simulation = folder, tls, simulation
        self.port = port or free_port()
        self.processes: dict[str, subprocess.Popen] = {}
        self.home = folder / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        connection = {"address": f"127.0.0.1:{self.port}"}
        connection |= {"insecure": True} if tls is None else {"root-certificates": str(tls / "ca.crt")}
        config = {"superlink": {"default": "here", "here": connection}}
        (self.home / "config.toml").write_text(tomli_w.dumps(config))
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("FLWR_", "COV_", "PYTEST"))},
            "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ADDRESS": "local",  # a Ray of its own, whoever else runs one
            "OMP_NUM_THREADS": "1",
        }

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        for name in reversed(list(self.processes)):
            groups = groups_of(self.processes[name].pid)
            self.processes[name].terminate()  # Ray ends its own processes
            with suppress(subprocess.TimeoutExpired):
                self.processes[name].wait(10)
            for group in groups:
                signal_group(group, signal.SIGKILL)
            self.processes.pop(name).wait(10)

    def start(self, name: str, *command: str) -> subprocess.Popen:
        """Start a program of Flower; its output goes to a file."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = start(
                [str(PROGRAMS / command[0]), *command[1:]],
                limit=2 * LIMIT,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )
        return self.processes[name]

    def kill(self, name: str, number=signal.SIGKILL) -> None:
        """End a program and what it has started."""
        process = self.processes.pop(name)
        for group in groups_of(process.pid):
            signal_group(group, number)
        process.wait(30)

    def kill_server_app(self) -> None:
        """Kill the process in which the server's code runs, as the system would that is out of memory."""
        everyone = descendants(self.processes["superlink"].pid)
        apps = [pid for pid in everyone if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert apps, self.log("superlink")
        for pid in apps:
            os.kill(pid, signal.SIGKILL)

    def superlink(self, *more: str) -> None:
        """Start the SuperLink and wait until it answers."""
        secure = ["--insecure"]
        if self._tls is not None:
            names = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.pem", "--ssl-keyfile": "server.key"}
            secure = [part for option, file in names.items() for part in (option, str(self._tls / file))]
        simulation = ["--simulation"] if self._simulation else []
        self.start(
            "superlink",
            *("flower-superlink", *secure, *simulation, "--host", "127.0.0.1", "--port", str(self.port)),
            *("--database", str(self.folder / "state.db"), *more),
        )
        wait_until(lambda: answers(self.port) or self.ended("superlink"), 60)
        assert not self.ended("superlink"), self.log("superlink")

    def supernode(self, client: int, *more: str, config: str = "", name: str = "") -> str:
        """Start a SuperNode; return its name."""
        name = name or f"node{client}"
        secure = ["--insecure"] if self._tls is None else ["--root-certificates", str(self._tls / "ca.crt")]
        secure = [] if "--root-certificates" in more else secure
        self.start(
            name,
            *("flower-supernode", *secure, "--superlink", f"127.0.0.1:{self.port}"),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", f"partition-id={client} {config}".strip(), *more),
        )
        return name

    def flwr(self, *words: str, limit=LIMIT) -> tuple[int, str]:
        """Run `flwr` and return its exit code and output."""
        process = start(
            [str(PROGRAMS / "flwr"), *words],
            limit=limit,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=self.environment,
            cwd=self.folder,
            encoding="utf-8",
        )
        with process:
            out, _ = process.communicate()
        return process.returncode, out

    def begin(self, app: Path, *more: str) -> int:
        """Begin a run of an app; return its id."""
        code, out = self.flwr("run", str(app), "here", *more)
        assert code == 0, out
        return int(re.search(r"started run (\d+)", out)[1])

    def finished(self, run: int) -> str | None:
        """Return how a run ended; None while it runs."""
        _, out = self.flwr("ls", "here", "--run-id", str(run), "--format", "json")
        status = re.search(r'"status": "(\w+):?(\w*)', out)
        assert status, out
        return status[2] if status[1] == "finished" else None

    def complete(self, app: Path, *more: str, limit=LIMIT) -> str:
        """Run an app to its end; return what it said."""
        code, out = self.flwr("run", str(app), "here", "--stream", *more, limit=limit)
        assert code == 0, out + self.log("superlink")[-6000:]
        return out

    def ended(self, name: str) -> bool:
        """Return whether a program has ended."""
        return self.processes[name].poll() is not None

    def log(self, name: str) -> str:
        """Return what a program wrote."""
        return (self.folder / f"{name}.log").read_text(errors="replace")


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group, if it still exists."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def answers(port: int) -> bool:
    """Return whether something listens at a port."""
    with socket.socket() as one:
        one.settimeout(0.5)
        return one.connect_ex(("127.0.0.1", port)) == 0


def descendants(pid: int) -> list[int]:
    """Return a process, which is ours, and all that it has started."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = path.read_text().rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(path.parent.name))
    everyone = [pid]
    for one in everyone:
        everyone += children.get(one, [])
    return everyone


def groups_of(pid: int) -> list[int]:
    """Return the process groups of a process, which is ours, and all that it has started."""
    groups = {pid}  # it began a session, and what it left behind is still in it
    for one in descendants(pid):
        with suppress(ProcessLookupError):
            groups.add(os.getpgid(one))
    return sorted(groups - {os.getpgid(0)})


def certificates(folder: Path) -> Path:
    """Make a certificate authority, and the certificate of a server at 127.0.0.1."""
    folder.mkdir(parents=True)
    openssl = shutil.which("openssl")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    new = [openssl, "req", "-newkey", "rsa:2048", "-nodes"]
    authority = [*new, "-x509", "-days", "2", "-subj", "/CN=tests", "-keyout", "ca.key", "-out", "ca.crt"]
    subprocess.run(authority, check=True, **quiet)
    subprocess.run([*new, "-subj", "/CN=127.0.0.1", "-keyout", "server.key", "-out", "server.csr"], check=True, **quiet)
    (folder / "server.ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    sign = [openssl, "x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"]
    subprocess.run([*sign, "-days", "2", "-extfile", "server.ext", "-out", "server.pem"], check=True, **quiet)
    return folder


def node_key(folder: Path, name: str) -> Path:
    """Make the key of a node; return the private one, beside which lies the public one."""
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(folder / name)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return folder / name


def rounds_in(run: Path) -> list[dict]:
    """Return the record of a run so far."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_rounds(run: Path, count: int, limit=LIMIT) -> None:
    """Wait until so many rounds are saved: those that are recorded only would be done again."""
    end = time.monotonic() + limit
    while not any(int(path.name[6:]) >= count for path in (run / "checkpoints").glob("round-*")):
        assert time.monotonic() < end, f"{run} has {len(rounds_in(run))} of {count} rounds after {limit} s"
        time.sleep(0.1)
