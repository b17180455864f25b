"""Devices: bytes of messages, memory of a server, messages beside Flower's FedAvg; over real processes of Flower."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import tomli_w

from bench.figure import Figure, Table
from nestling.errors import RunFailed

if TYPE_CHECKING:
    from tests.flower.federation import Federation

_ROOT = Path(__file__).parents[1]
_PYTHON = _ROOT / ".venv-flower" / "bin" / "python"
_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(_ROOT), "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"}
_LIMIT = 3000.0  # seconds of a run of Flower
_SERVER = '"""Measures."""\n\nfrom bench.exchange_server import app\n\n__all__ = ["app"]\n'


def devices(quick: bool = False) -> Iterator[Figure | Table]:
    """Messages of devices: their bytes, the server's memory, the SuperLink's disk, and the time beside FedAvg."""
    if not _PYTHON.exists():
        yield Figure("messages of devices", None, "bytes", note="was not measured: there is no .venv-flower here")
        return
    from tests.flower.federation import Federation  # noqa: PLC0415 - the environment of Flower has no pytest

    yield from _bytes()
    yield from _overhead(1 if quick else 10)
    yield from _memory((10, 20) if quick else (10, 200))
    with TemporaryDirectory() as folder, Federation(Path(folder)) as federation:
        yield from _disk(federation, _app(Path(folder) / "app"), 2 if quick else 20)


def _bytes() -> Iterator[Figure | Table]:
    sizes = _in_flower("bytes_by_level()")
    rows = tuple((level, tuple(size / 1e6 for size in several)) for level, several in sizes.items())
    columns = ("level", "MB of the slice", "MB to the device", "MB from it")
    yield Table("messages of a client of resnet18", columns, rows, "what Flower sends of a message's content")
    worst = max(max(down, up) / own for own, down, up in sizes.values())
    name = "largest message of resnet18 a–e"
    yield Figure(name, worst, "× its slice", "≤ 1.02", worst <= 1.02, "plan, names and shapes, and Flower's own fields")


def _memory(counts: tuple[int, int]) -> Iterator[Figure]:
    lines = _in_flower(f"echoed_memory({counts!r})")
    few, many = lines[0], lines[-1]
    ratio = many["peak"] / few["peak"]
    name = f"memory of the server, {counts[1]} replies of 45 MB"
    note = f"{few['peak'] / 2**20:.2f} and {many['peak'] / 2**20:.2f} GiB at most, with all that is imported"
    yield Figure(name, ratio, f"× that of {counts[0]}", "≤ 1.2", ratio <= 1.2, note)


def _disk(federation: Federation, app: Path, replies: int) -> Iterator[Figure]:
    federation.superlink()
    for client in range(2):
        federation.supernode(client)
    with _DiskWatch(federation.folder) as disk:
        lines = _run(federation, app, str(replies))
    note = (
        f"at most, with {replies} messages and replies of 45 MB from two nodes; {disk.now() / 1e6:,.0f} MB afterwards"
    )
    yield Figure("disk of the SuperLink", disk.most / 1e6, "MB", note=note)
    peak = lines[-1]["peak"] / 2**20
    yield Figure("memory of the ServerApp meanwhile", peak, "GiB", note=f"{lines[-1]['seconds']:.0f} s")


def _overhead(turns: int) -> Iterator[Figure]:
    for model, size in (("resnet18", "45 MB"), ("cnn", "40 kB")):
        laps = _in_flower(f"overhead({model!r}, {turns})")
        ratio = statistics.median(lap["ours"] / lap["FedAvg"] for lap in laps)
        ours, theirs = (1000 * statistics.median(lap[who] for lap in laps) for who in ("ours", "FedAvg"))
        note = f"processor time, {ours:.1f} ms beside {theirs:.1f} ms: medians of {turns} rounds of 5, no network"
        yield Figure(f"a message of {size}", ratio, "× FedAvg", "≤ 1.1", ratio <= 1.1, note)


def _app(folder: Path) -> Path:
    """Write the app: its client is a copy, as importing this package would take longer than what is measured."""
    package = folder / "exchange"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "server_app.py").write_text(_SERVER, encoding="utf-8")
    client = Path(__file__).with_name("exchange_client.py").read_text(encoding="utf-8")
    (package / "client_app.py").write_text(client, encoding="utf-8")
    components = {"serverapp": "exchange.server_app:app", "clientapp": "exchange.client_app:app"}
    plan = _in_flower("whole_plan()")
    config = {"out": "", "plan": plan, "counts": ""}
    app = {"publisher": "bench", "components": components, "config": config}
    project = {"name": "exchange", "version": "1.0.0", "description": "A measurement.", "license": "Apache-2.0"}
    (folder / "pyproject.toml").write_text(
        tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}}), encoding="utf-8"
    )
    return folder


def _run(federation: Federation, app: Path, counts: str) -> list[dict[str, Any]]:
    """Run the app and return the lines that it writes."""
    out = federation.folder / "memory.jsonl"
    said = federation.complete(app, "-c", f'out="{out}" counts="{counts}"', limit=_LIMIT)
    if not out.exists():
        raise RunFailed(f"the ServerApp has measured nothing: {said[-2000:]}")
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def _in_flower(call: str) -> Any:
    """Return what a function of `bench.exchange_server` returns, in the environment of Flower."""
    code = f"import json; from bench import exchange_server as server; print(json.dumps(server.{call}))"
    done = subprocess.run(
        [_PYTHON, "-c", code], capture_output=True, text=True, check=False, cwd=_ROOT, env=_ENVIRONMENT
    )
    if done.returncode:
        raise RunFailed(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


class _DiskWatch:
    """Looks at the size of a SuperLink's database until it is closed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._end, self.most = folder, Event(), 0
        self._thread = Thread(target=self._look, daemon=True)

    def __enter__(self) -> _DiskWatch:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self._thread.join()

    def now(self) -> int:
        """Return the bytes of the database and what lies beside it."""
        return sum(path.stat().st_size for path in self._folder.glob("state.db*"))

    def _look(self) -> None:
        while not self._end.wait(0.5):
            self.most = max(self.most, self.now())
