"""Speed and memory of the cut, and of populations, as ratios measured side by side in one run (`nestling bench`).

Timings on a shared machine wander by tens of per cent; ratios of two things measured in turn do not. Every figure
here is therefore a median over interleaved repeats, on one thread, beside the figure that it is compared with.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from nestling.axes import AxisMap, trace
from nestling.bench_cohorts import CASES, COMMAND, measured
from nestling.cut import Plan, Tally, cost, extract, plan, submodel
from nestling.data.made_words import USERS as POPULATION
from nestling.engines import LocalEngine
from nestling.local import Local
from nestling.methods.nefl_plans import nefl_plan
from nestling.nets import build, example
from nestling.run import Data, Experiment, FleetSettings, Model
from nestling.run.round import play
from nestling.run.server import Server
from nestling.run.setting import Blueprint, setting
from nestling.run.workshop import Workshop

LEVELS = (1.0, 0.5, 0.25, 0.125, 0.0625)
MODEL = "resnet18"  # 11 million parameters


@dataclass(frozen=True)
class Figure:
    """One measurement: `value` in `unit`, and the bound that it should keep, where there is one."""

    name: str
    value: float
    unit: str
    bound: str = ""
    ok: bool = True
    note: str = ""


def side_by_side(*actions: Callable[[], object], repeats: int = 7) -> list[float]:
    """Return the median seconds of each action, all of them run in turn `repeats` times."""
    for action in actions:
        action()
    seconds: list[list[float]] = [[] for _ in actions]
    for _ in range(repeats):
        for action, spent in zip(actions, seconds, strict=True):
            start = time.perf_counter()
            action()
            spent.append(time.perf_counter() - start)
    return [statistics.median(spent) for spent in seconds]


def _merging() -> Iterator[Figure]:
    """Merging mixed-level clients against copying the same tensors into memory that is there already."""
    model = build(MODEL)
    axes, whole = trace(model, *example(MODEL)), model.state_dict()
    tally = Tally(axes, whole)
    for pick, bound in (("prefix", 0.9), ("rolling", 0.9), ("random", 0.6)):
        for count in (10, 100):
            fleet = _fleet(axes, whole, pick, count)
            room = [{name: torch.empty_like(x) for name, x in state.items()} for state in _distinct(fleet)]
            places = {id(state): place for state, place in zip(_distinct(fleet), room, strict=True)}

            def copy(fleet: Fleet = fleet, places: dict[int, dict[str, Tensor]] = places) -> None:
                for state, _ in fleet:
                    for name, place in places[id(state)].items():
                        place.copy_(state[name])

            def merge(trusted: bool, fleet: Fleet = fleet) -> float:
                tally.restart(whole)
                start = time.perf_counter()
                for state, made in fleet:
                    tally.add(state, made, trusted=trusted)
                return time.perf_counter() - start

            copied, merged, checked, value = _merge_times(copy, merge, tally, repeats=9 if count == 10 else 5)
            ratio = copied / merged
            yield Figure(
                f"merge of {count} clients, {pick}",
                ratio,
                "× copy_",
                f"≥ {bound}",
                ratio >= bound,
                f"{copied / checked:.2f} with the search for NaN and ∞; value() takes {value / copied:.2f} of the copy",
            )


Fleet = list[tuple[dict[str, Tensor], Plan]]


def _fleet(axes: AxisMap, whole: dict[str, Tensor], pick: str, count: int) -> Fleet:
    """`count` clients, level by level in turn: two states per level, shared, since only their bytes matter."""
    states: dict[tuple[float, int], dict[str, Tensor]] = {}
    fleet = []
    for client in range(count):
        width = LEVELS[client % len(LEVELS)]
        made = plan(axes, width, pick, round=37, seed=client)
        key = width, client // len(LEVELS) % 2
        if key not in states:
            states[key] = extract(axes, made, whole)
        fleet.append((states[key], made))
    return fleet


def _distinct(fleet: Fleet) -> list[dict[str, Tensor]]:
    return list({id(state): state for state, _ in fleet}.values())


def _merge_times(
    copy: Callable[[], None], merge: Callable[[bool], float], tally: Tally, repeats: int
) -> tuple[float, float, float, float]:
    merge(True)
    copies, merges, checks, values = [], [], [], []
    for _ in range(repeats):
        copies += side_by_side(copy, repeats=1)
        merges.append(merge(True))
        checks.append(merge(False))
        start = time.perf_counter()
        tally.value()
        values.append(time.perf_counter() - start)
    return (
        statistics.median(copies),
        statistics.median(merges),
        statistics.median(checks),
        statistics.median(values),
    )


def _extracting() -> Iterator[Figure]:
    """Cutting out a half-width model against cloning that model."""
    model = build(MODEL)
    axes, whole = trace(model, *example(MODEL)), model.state_dict()
    half = plan(axes, 0.5)
    small = extract(axes, half, whole)
    cut, cloned = side_by_side(
        lambda: extract(axes, half, whole), lambda: [x.clone() for x in small.values()], repeats=15
    )
    yield Figure("extract of a half-width model", cloned / cut, "× clone", note="each kept value is copied once")


def _memory() -> Iterator[Figure]:
    """Peak memory of a merge of 400 clients with random sets against fewer, each in a process of its own."""
    few, some, many = (_peak(count) for count in (10, 100, 400))
    ratio = many / some
    note = f"{many / few:.2f} × 10 clients, which do not fill the room for slices that wait"
    yield Figure("memory of a merge, 400 clients", ratio, "× 100 clients", "≤ 1.05", ratio <= 1.05, note)


def _peak(count: int) -> int:
    return _told_by(f"merge_and_tell_peak({count})")


def _told_by(call: str, module: str = "bench") -> int:
    """The number that a function prints in a process of its own, which gives back what it frees."""
    command = [sys.executable, "-c", f"from nestling import {module}; {module}.{call}"]
    steady = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    return int(subprocess.run(command, capture_output=True, text=True, check=True, env=steady).stdout)


def merge_and_tell_peak(count: int) -> None:
    """Merge `count` random slices made one at a time, and print the most memory (KiB) that took."""
    torch.set_num_threads(1)
    model = build(MODEL)
    axes, whole = trace(model, *example(MODEL)), model.state_dict()
    tally = Tally(axes, whole)
    for client in range(count):
        made = plan(axes, LEVELS[client % len(LEVELS)], "random", seed=client)
        tally.add(extract(axes, made, whole), made)
    tally.value()
    print(_most_memory())


def _most_memory() -> int:
    """The most memory (KiB) that this program had; `getrusage` would count the program that started it, too."""
    told = Path("/proc/self/status").read_text()
    return int(told.partition("VmHWM:")[2].split()[0])


def _tracing() -> Iterator[Figure]:
    """Seconds to trace big models without their memory; the first trace of a process, which imports, apart."""
    with torch.device("meta"):
        wide = build("wide-resnet101-2")
    inputs = example("wide-resnet101-2", batch=1)
    (seconds,) = side_by_side(lambda: trace(wide, *inputs), repeats=3)
    yield Figure("trace of wide-resnet101-2", seconds, "s", "< 0.5", seconds < 0.5, "125 million parameters")
    if find_spec("transformers") is None:
        return
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - an optional extra

    shape = LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        use_cache=False,
    )
    with torch.device("meta"):
        llama = LlamaForCausalLM(shape)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    words = torch.zeros(1, 16, dtype=torch.long)
    (seconds,) = side_by_side(lambda: trace(llama, words), repeats=1)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    size = sum(parameter.numel() for parameter in llama.parameters()) / 1e9
    yield Figure(
        "trace of Llama-8B", seconds, "s", "< 2", seconds < 2, f"{size:.1f} billion parameters, {grown:.0f} MB more"
    )


def _shallow() -> Iterator[Figure]:
    """A training step of NeFL's sub-models against the whole model: time and memory as measured, beside MACs."""
    sizes = (0.2, 0.4, 0.6, 0.8, 1.0)
    steps = {gamma: _step(gamma) for gamma in sizes}
    whole, peak = side_by_side(steps[1.0][0], repeats=3)[0], _step_peak(1.0)
    before = 0.0
    for gamma in sizes[:-1]:
        action, macs = steps[gamma]
        seconds, full = side_by_side(action, steps[1.0][0], repeats=3)
        ratio, memory = seconds / full, _step_peak(gamma) / peak
        yield Figure(
            f"training step of NeFL's {gamma:g} of resnet18",
            ratio,
            "× whole",
            "rises with its size, < 1",
            before < ratio < 1 and memory < 1,
            f"{macs / steps[1.0][1]:.2f} of its MACs; {memory:.2f} of its memory; the whole takes {whole:.2f} s",
        )
        before = ratio


def _step(gamma: float, batch: int = 32) -> tuple[Callable[[], None], int]:
    """A training step of one of NeFL's sub-models (WD), and the MACs of its forward pass."""
    model = build(MODEL)
    axes = trace(model, *example(MODEL))
    made = nefl_plan(axes, frozenset(name for name, _ in model.named_parameters()), gamma)
    small = submodel(model, axes, made).train()
    inputs = torch.randn(batch, *example(MODEL)[0].shape[1:])

    def step() -> None:
        small.zero_grad()
        torch.nn.functional.cross_entropy(small(inputs), torch.zeros(batch, dtype=torch.long)).backward()

    return step, cost(model, axes, made, *example(MODEL)).macs


def _step_peak(gamma: float) -> int:
    return _told_by(f"step_and_tell_peak({gamma})")


def step_and_tell_peak(gamma: float) -> None:
    """Train one of NeFL's sub-models a step, and print the most memory (KiB) that took beyond what was in use before.

    The batch is large, so that the step takes more than building the model did.
    """
    torch.set_num_threads(1)
    step, _ = _step(gamma, batch=256)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    step()
    print(_most_memory() - pages * resource.getpagesize() // 1024)


def _population() -> Iterator[Figure]:
    """Setting up 342,477 clients that hold text, and rounds of 200 of them against those of a small population."""
    seconds, more, most = (_told_by(f"set_up_and_tell({what!r})") for what in ("seconds", "more", "most"))
    yield Figure("set-up of 342,477 clients", seconds / 1000, "s", "≤ 5", seconds <= 5000, "made-up sentences")
    note = f"beyond what is imported before; the whole program has {most / 1024:.0f} MiB"
    yield Figure("memory of that set-up", more / 1024, "MiB", "≤ 286 (300 MB)", more * 1024 <= 300e6, note)
    small, large = side_by_side(*(_rounds(clients) for clients in (1000, POPULATION)), repeats=5)
    ratio = large / small
    yield Figure(
        "round of 200 clients of 342,477",
        ratio,
        "× of 1,000",
        "0.9 to 1.1",
        0.9 <= ratio <= 1.1,
        f"{large:.2f} s; of users who write alike",
    )


def _words(clients: int) -> Experiment:
    fleet = FleetSettings(clients=clients, per_round=200, levels="a-b-c-d-e")
    model = Model(name="transformer-nwp", options={"width": 64, "hidden": 128, "depth": 1})
    data = Data(name="words", partition="user", most_per_client=4)  # all have as many, so rounds differ in nothing else
    return Experiment(rounds=100, model=model, data=data, fleet=fleet, local=Local(epochs=1, batch=4))


def _rounds(clients: int) -> Callable[[], None]:
    """A function that plays the next round of an experiment with a population of so many."""
    made = setting(Blueprint(_words(clients)))
    engine = LocalEngine(partial(Workshop, made))
    servers = [Server.start(made, None)]

    def play_next() -> None:
        after, _ = play(made, servers.pop(), engine)
        servers.append(after)

    return play_next


def set_up_and_tell(what: str) -> None:
    """Set up an experiment with 342,477 clients, and print the milliseconds that it took.

    Or the most memory (KiB) that the program had, or how much more that is than before.
    """
    torch.set_num_threads(1)
    before = _most_memory()
    start = time.perf_counter()
    made = setting(Blueprint(_words(POPULATION)))
    made.level(POPULATION - 1, 1)
    made.sample(1)
    spent = time.perf_counter() - start
    most = _most_memory()
    print({"seconds": round(1000 * spent), "most": most, "more": most - before}[what])


def _workers() -> Iterator[Figure]:
    """Peak memory of rounds of 100 clients on two workers, against the model and what training takes, twice."""
    model = sum(tensor.nbytes for tensor in build(MODEL).state_dict().values()) / 2**20
    training = _told_by("training_and_tell_peak()", "bench_round") / 1024
    aim = 2 * (model + 2 * training)
    for method, levels in (("heterofl", "a-b-c-d-e"), ("fed-dropout", "b-c-d-e")):
        peak = _told_by(f"round_and_tell_peak({method!r}, {levels!r}, 100)", "bench_round") / 1024
        note = f"beyond idle programs; the model has {model:.0f} MiB, a training of it alone {training:.0f}"
        yield Figure(f"memory of a round, {method}", peak, "MiB", f"≤ {aim:.0f}", peak <= aim, note)


def _cohorts() -> Iterator[Figure]:
    """Clients of one shape trained together against one by one, in processor seconds; the whole table takes minutes."""
    for name, ratio in (("mlp", 1 / 4), ("cnn", 1 / 16)):
        case = next(case for case in CASES if case.name == name)
        gain = measured(case, ratio, sizes=(10,), repeats=3).gains[10]
        yield Figure(
            f"ten clients of {name} at {ratio:g} as one cohort", gain, "× one by one", "≥ 1.2", gain >= 1.2, COMMAND
        )


def _one_thread(measure: Callable[[], Iterator[Figure]]) -> Callable[[], list[Figure]]:
    def measured() -> list[Figure]:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return list(measure())
        finally:
            torch.set_num_threads(before)

    return measured


FIGURES: dict[str, Callable[[], list[Figure]]] = {
    "merging": _one_thread(_merging),
    "extracting": _one_thread(_extracting),
    "memory": _one_thread(_memory),
    "tracing": _one_thread(_tracing),
    "sub-models": _one_thread(_shallow),
    "populations": _one_thread(_population),
    "workers": _one_thread(_workers),
    "cohorts": _one_thread(_cohorts),
}
