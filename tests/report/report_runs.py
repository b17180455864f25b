"""Run directories as the program writes them, made up: methods that differ the way the papers say they do."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from nestling.report.read import Evaluation, Run
from nestling.seeds import numpy_stream

LEVELS = {
    "a": (1.0, 1_556_874, 39_974_912),
    "b": (0.5, 391_370, 10_300_416),
    "c": (0.25, 98_922, 2_731_520),
    "d": (0.125, 25_274, 759_808),
    "e": (0.0625, 6_594, 229_888),
}
AXES = {"conv1": 64, "conv2": 128, "conv3": 256, "conv4": 512}
# what the whole model and the smallest sub-model reach, how fast, and the levels of those who take part
METHODS = {
    "fedavg": (0.934, 0.12, 5.0, "a"),
    "heterofl": (0.898, 0.842, 6.0, "abcde"),
    "fedrolex": (0.921, 0.815, 7.5, "abcde"),
    "fjord": (0.886, 0.858, 6.5, "abcde"),
    "nefl": (0.907, 0.871, 5.5, "abcde"),
}


def config(method: str, seed: int, rounds: int, **local: float) -> str:
    given = "".join(f"{key} = {value}\n" for key, value in {"lr": 0.1, "batch": 10, "epochs": 5, **local}.items())
    return (
        f'name = "{method}-digits"\nmethod = "{method}"\nmodel = "cnn"\nrounds = {rounds}\nseed = {seed}\n\n'
        f'[data]\nname = "digits"\npartition = "iid"\nclients = 40\n\n'
        f'[fleet]\nlevels = "a-b-c-d-e"\nmode = "dynamic"\n\n[local]\n{given}'
    )


def lines(method: str, seed: int, rounds: int, every: int = 2) -> list[dict]:
    whole, least, speed, used = METHODS[method]
    draw = numpy_stream(seed, "runs", method)
    shift = draw.normal(0, 0.006)
    down = macs = 0
    entries = []
    for number in range(1, rounds + 1):
        counts = draw.multinomial(10, [1 / len(used)] * len(used)).tolist()
        taking = dict(zip(used, counts, strict=True))
        down += sum(4 * LEVELS[level][1] * count for level, count in taking.items())
        macs += sum(3 * 180 * LEVELS[level][2] * count for level, count in taking.items())
        learnt = 1 - math.exp(-number / speed)
        entry = {
            "round": number,
            "clients": 10,
            "dropped": 0,
            "lr": 0.1,
            "train_loss": 2.3 - 2 * learnt,
            "train_accuracy": 0.1 + 0.85 * learnt,
            "bytes_down": down,
            "bytes_up": down,
            "client_macs": macs,
            "simulated_seconds": number * (14.0 if used == "a" else 5.5),
            "levels": taking,
        }
        if number % every == 0 or number == rounds:
            entry["evaluation"] = evaluation(0.1 + (whole - 0.1 + shift) * learnt, whole - least, draw)
        entries.append(entry)
    return entries


def evaluation(top: float, loss: float, draw: np.random.Generator) -> dict:
    submodels = {}
    for place, level in enumerate(LEVELS):
        accuracy = float(np.clip(top - loss * (place / 4) ** 1.5 + draw.normal(0, 0.004), 0.05, 1))
        submodels[level] = {"accuracy": accuracy, "loss": 2.3 * (1 - accuracy)}
    reached = [values["accuracy"] for values in submodels.values()]
    return {
        "global_accuracy": reached[0],
        "global_loss": submodels["a"]["loss"],
        "worst_submodel": min(reached),
        "mean_submodel": sum(reached) / 5,
        "local_accuracy": min(1.0, reached[0] + 0.02),
        "submodels": submodels,
    }


def trained(method: str, rounds: int) -> dict[str, list[int]]:
    entries = {}
    for axis, size in AXES.items():
        counts = np.zeros(size, dtype=int)
        for number in range(rounds):
            for level in METHODS[method][3]:
                width = math.ceil(LEVELS[level][0] * size)
                start = number * size // rounds if method == "fedrolex" else 0
                counts[(start + np.arange(width)) % size] += 2
        entries[axis] = counts.tolist()
    return entries


def summary(method: str, seed: int, rounds: int, history: list[dict]) -> dict:
    evaluated = [entry["evaluation"] | {"round": entry["round"]} for entry in history if "evaluation" in entry]
    final, last = evaluated[-1], history[-1]
    draw = numpy_stream(seed, "local", method)
    local = np.clip(draw.normal(final["local_accuracy"], 0.05, 40), 0, 1)
    return {
        "method": method,
        "name": f"{method}-digits",
        "model": "cnn",
        "dataset": "digits",
        "partition": "iid",
        "seed": seed,
        "rounds": rounds,
        "rounds_done": rounds,
        "final": final,
        "best": max(evaluated, key=lambda figures: figures["global_accuracy"]),
        **{key: last[key] for key in ("bytes_down", "bytes_up", "client_macs", "simulated_seconds")},
        "seconds": 12.3 + seed,
        "command": f"nestling run {method}-digits seed={seed} --out runs/{method}-digits/seed-{seed}",
        "levels": {
            level: {"ratio": ratio, "parameters": parameters, "bytes": 4 * parameters, "macs": macs}
            for level, (ratio, parameters, macs) in LEVELS.items()
        },
        "coverage": trained(method, rounds),
        "local": {str(client): float(value) for client, value in enumerate(local)},
    }


def make(
    folder: Path, method: str = "heterofl", seed: int = 0, rounds: int = 20, finished: bool = True, **local: float
) -> Path:
    """Write a run directory into `folder` as compare does: NAME/seed-0."""
    directory = folder / f"{method}-digits" / f"seed-{seed}"
    directory.mkdir(parents=True)
    history = lines(method, seed, rounds)
    (directory / "config.toml").write_text(config(method, seed, rounds, **local))
    shown = history if finished else history[: rounds // 2]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in shown))
    if finished:
        (directory / "summary.json").write_text(json.dumps(summary(method, seed, rounds, history)))
    return directory


_END = Evaluation(3, {"global_accuracy": 0.5, "worst_submodel": 0.25}, {})
_ONE = Run(
    directory=Path("one"),
    config="",
    settings={"rounds": 3},
    name="one",
    method="fedavg",
    model="cnn",
    dataset="digits",
    partition="iid",
    seed=0,
    rounds=3,
    rounds_done=3,
    finished=True,
    history=(),
    final=_END,
    best=_END,
    bytes=2048,
    client_macs=5_000_000,
    simulated_seconds=None,
    seconds=4.0,
    command="",
)


def run(name="one", seed=0, accuracy=0.5, **changes) -> Run:
    """Return a run as it is read, without files."""
    end = Evaluation(3, {"global_accuracy": accuracy, "worst_submodel": accuracy / 2}, {})
    return replace(_ONE, **({"name": name, "seed": seed, "final": end, "best": end} | changes))
