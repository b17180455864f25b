"""One model, devices of five sizes: what the cut does, in the simplest federated loop that is honest.

Twenty devices share scikit-learn's handwritten digits. Most of them are small: they can carry 1/8 or 1/16 of the
width of the model. Four ways to train it are compared, with the same devices, data, rounds and seed:

- the smallest model for all (what one does without Nestling when every device must take part),
- the whole model on the few big devices alone (what one does when the model must be big),
- every device its slice: the first units of every axis (as HeteroFL cuts),
- every device its slice: a window that rolls on each round (as FedRolex cuts).

Run it with ``make demo``.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

import nestling

WIDTHS = {"a": 1.0, "b": 1 / 2, "c": 1 / 4, "d": 1 / 8, "e": 1 / 16}
FLEET = "aabbccddddeeeeeeeeee"  # the level of each device
BARS = "▁▂▃▄▅▆▇█"


def build(width: float = 1.0) -> nn.Sequential:
    """Make an ordinary model: nothing in it knows of slices or federation."""
    channels, hidden = int(64 * width), int(128 * width)
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(channels * 16, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )


def data(seed: int) -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    """Return each device's images and labels, and the test set; images are (n, 1, 8, 8)."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(seed))
    images = (torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16 - 0.5)[order]
    labels = torch.tensor(digits.target)[order]
    test, train = slice(0, 397), slice(397, None)
    shares = zip(images[train].chunk(len(FLEET)), labels[train].chunk(len(FLEET)), strict=True)
    return list(shares), (images[test], labels[test])


def train(model: nn.Module, width: float, images: Tensor, labels: Tensor, seed: int) -> None:
    """Train for two epochs: what a device does with its slice."""
    # HeteroFL's Scaler: a slice sums over fewer inputs, so while it trains its hidden layers are scaled up to match
    for layer in list(model)[:-1]:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(lambda _layer, _given, out: out / width)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for epoch in range(2):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed + epoch))
        for batch in order.split(10):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()


@dataclass(frozen=True)
class Way:
    """Who takes part, how wide the global model is, and which units of it a device gets."""

    devices: str = "abcde"
    width: float = 1.0
    pick: str = "prefix"


WAYS = {
    "smallest model for all": Way(width=WIDTHS["e"]),
    "big devices only": Way(devices="a"),
    "every device its slice": Way(),
    "… in rolling windows": Way(pick="rolling"),
}


def federate(way: Way, rounds: int, seed: int) -> Iterator[tuple[float, int]]:
    """Run federated rounds in one way; yield test accuracy of the global model and bytes sent after each."""
    torch.manual_seed(seed)
    shares, (images, labels) = data(seed)
    model = build(way.width)
    axes = nestling.trace(model, images[:1])
    devices = [device for device, level in enumerate(FLEET) if level in way.devices]
    sent = 0
    for round in range(rounds):
        tally = nestling.Tally(axes, model.state_dict())
        for device in devices:
            share = min(1.0, WIDTHS[FLEET[device]] / way.width)
            plan = nestling.plan(axes, share, way.pick, round=round)
            small = nestling.submodel(model, axes, plan)
            train(small, share, *shares[device], seed=1000 * round + device)
            tally.add(small.state_dict(), plan, weight=len(shares[device][1]))
            sent += 2 * sum(tensor.nbytes for tensor in small.state_dict().values())  # down and up
        model.load_state_dict(tally.value())
        with torch.no_grad():
            yield (model(images).argmax(1) == labels).double().mean().item(), sent


def show_model(console: Console) -> None:
    """Print what was found in the model, the proof, and what each level costs."""
    model, example = build(), torch.randn(2, 1, 8, 8)
    axes = nestling.trace(model, example)
    report = nestling.check(model, axes, example)
    report.raise_if_bad()
    console.print("[bold]One model, cut along the axes found in it[/]")
    console.print("  " + ", ".join(f"{name} ({size} units)" for name, size in axes.axes.items()))
    console.print(
        f"  [green]proved[/]: permuted, cut and trained; a cut reaches {report.coverage:.0%} of the parameters\n"
    )
    table = Table("level", "devices", "width", "parameters", "share", "MACs", "memory to train")
    for column in table.columns[1:]:
        column.justify = "right"
    whole = sum(parameter.numel() for parameter in model.parameters())
    for level, width in WIDTHS.items():
        cost = nestling.cost(model, axes, nestling.plan(axes, width), example[:1], batch=10)
        table.add_row(
            level,
            str(FLEET.count(level)),
            f"1/{1 / width:.0f}" if width < 1 else "1",
            f"{cost.parameters:,}",
            f"{cost.parameters / whole:.1%}",
            f"{cost.macs // 10:,}",
            f"{cost.memory / 1e6:.2f} MB",
        )
    console.print(table)


def main() -> None:
    """Show the model, compare the ways, print a table (or JSON)."""
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--rounds", type=int, default=12, help="federated rounds of each way")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--json", action="store_true", help="print JSON instead of tables")
    given = options.parse_args()
    if given.rounds < 1:
        options.error("--rounds must be at least 1")
    torch.set_num_threads(1)  # small layers: a second thread costs more than it gives
    console = Console(stderr=given.json)
    if not given.json:
        show_model(console)
        console.print()
    results = []
    with Progress(console=console, transient=True) as progress:
        for name, way in WAYS.items():
            task = progress.add_task(name, total=given.rounds)
            start, curve, sent = time.perf_counter(), [], []
            for accuracy, bytes_so_far in federate(way, given.rounds, given.seed):
                curve.append(accuracy)
                sent.append(bytes_so_far)
                progress.update(task, advance=1, description=f"{name}: {accuracy:.1%}")
            seconds = time.perf_counter() - start
            devices = sum(FLEET.count(level) for level in way.devices)
            results.append({"way": name, "devices": devices, "curve": curve, "bytes": sent[-1], "seconds": seconds})
    if given.json:
        print(json.dumps(results))
        return
    table = Table("way", "devices", "by round", "final", "sent", "time")
    for column in table.columns:
        column.no_wrap = True
    for column in (*table.columns[1:2], *table.columns[3:]):
        column.justify = "right"
    for row in results:
        bars = "".join(BARS[min(7, int(value * 8))] for value in row["curve"])
        table.add_row(
            row["way"],
            str(row["devices"]),
            bars,
            f"{row['curve'][-1]:.1%}",
            f"{row['bytes'] / 1e6:.1f} MB",
            f"{row['seconds']:.1f} s",
        )
    console.print("[bold]Digits on twenty devices[/]: accuracy on held-out images after the last round")
    console.print(table)


if __name__ == "__main__":
    main()
