"""Pictures of results: of the demonstration on digits, and of the tables in docs/results.md."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

from docs.drawings.chart import Chart
from docs.drawings.svg import COLOURS, GREY, LEVELS, Picture
from nestling.amounts import amount

DOCS = Path(__file__).parents[1]
DEMO = DOCS / "figures" / "demo.json"

_COLOURS = {
    "FedAvg, smallest (e)": GREY,
    "FedAvg, largest (a)": COLOURS[4],
    "HeteroFL": COLOURS[0],
    "FjORD": COLOURS[1],
    "FedRolex": COLOURS[2],
    "Federated Dropout": COLOURS[3],
}
_DEMO = {
    "heterofl-digits": "HeteroFL",
    "fjord-digits": "FjORD",
    "fedrolex-digits": "FedRolex",
    "fed-dropout-digits": "Federated Dropout",
    "fedavg-large-digits": "FedAvg, largest (a)",
    "fedavg-small-digits": "FedAvg, smallest (e)",
}


def read_demo(folder: Path) -> dict[str, Any]:
    """Return what the first picture shows, from the folder of a comparison: preset → level → size and accuracies."""
    methods: dict[str, Any] = {}
    for path in sorted(folder.glob("*/seed-*/summary.json")):
        summary = json.loads(path.read_text(encoding="utf-8"))
        sizes = methods.setdefault(path.parts[-3], {"sent": summary["bytes_down"] + summary["bytes_up"], "levels": {}})
        for level, figures in summary["final"]["submodels"].items():
            entry = sizes["levels"].setdefault(
                level, {"parameters": summary["levels"][level]["parameters"], "accuracy": []}
            )
            entry["accuracy"].append(round(100 * figures["accuracy"], 2))
    return methods


def nested_accuracy() -> str:
    """Return the first picture: nested sub-models, and the accuracy of each against its size."""
    demo = json.loads(DEMO.read_text(encoding="utf-8"))["methods"]
    picture = Picture(900, 380, "Nested sub-models, and their accuracy against their size")
    _nested(picture, demo["heterofl-digits"]["levels"])
    chart = Chart(462, 60, 262, 250, (350, 130_000), (0, 100), log=True)
    picture.text(430, 34, "the accuracy of every size, after 12 rounds on the digits", bold=True)
    chart.draw(
        picture,
        ("parameters of the sub-model", "test accuracy, %"),
        (1e3, 1e4, 1e5),
        (0, 20, 40, 60, 80, 100),
        _thousands,
    )
    for number, (preset, name) in enumerate(_DEMO.items()):
        colour, y = _COLOURS[name], 96 + 24 * number
        levels = demo[preset]["levels"].values()
        places = [(chart.x(level["parameters"]), chart.y(statistics.mean(level["accuracy"]))) for level in levels]
        picture.line(places, colour, 2.5)
        for place in places:
            picture.circle(*place, 4.5, colour)
        picture.circle(748, y - 4, 5, colour)
        picture.text(759, y, name)
    picture.text(740, 262, "FedAvg: everybody trains", style="soft", size=12)
    picture.text(740, 278, "a model of this size", style="soft", size=12)
    return picture.svg()


def _thousands(value: float) -> str:
    return f"{value / 1000:g} k"


def _nested(picture: Picture, levels: dict[str, Any]) -> None:
    side, left, bottom = 250, 40, 310
    picture.text(left, 34, "one model, five sizes (areas: parameters)", bold=True)
    largest = max(level["parameters"] for level in levels.values())
    for number, (name, level) in enumerate(levels.items()):
        edge = side * (level["parameters"] / largest) ** 0.5
        picture.rect(left, bottom - edge, edge, edge, LEVELS[number])
        picture.circle(left + side + 16, 78 + 24 * number, 5, LEVELS[number])
        picture.text(left + side + 27, 82 + 24 * number, f"{name}: {amount(level['parameters'])}")
    picture.text(left, bottom + 24, "each device trains and runs the square that it can carry", style="soft")


def results() -> str:
    """Return a picture of the IID tables of docs/results.md: the accuracy of the global model against bytes sent."""
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    picture = Picture(900, 385, "Accuracy of the global model against bytes sent")
    for number, (title, ys) in enumerate((("MNIST, IID", (80, 85, 90, 95, 100)), ("CIFAR-10, IID", (20, 30, 40, 50)))):
        rows = _rows(text, title)
        left = 70 + 440 * number
        chart = Chart(left, 60, 350, 220, (0.3, 900), (ys[0], ys[-1]), log=True)
        picture.text(left, 34, title, bold=True)
        chart.draw(picture, ("MiB sent, both ways, in 30 rounds", "accuracy, %"), (1, 10, 100), ys)
        for place, (name, mean, deviation, sent) in enumerate(rows):
            colour = _COLOURS[name]
            x = chart.x(sent) + (3 * (place - 3.5) if place > 1 else 0)  # four methods send equally much
            picture.line([(x, chart.y(mean - deviation)), (x, chart.y(mean + deviation))], colour, 2)
            picture.circle(x, chart.y(mean), 5, colour)
    for place, (name, colour) in enumerate(_COLOURS.items()):
        x, y = 75 + 200 * (place // 2), 346 + 22 * (place % 2)
        picture.circle(x, y - 4, 5, colour)
        picture.text(x + 12, y, name)
    return picture.svg()


def _rows(text: str, title: str) -> list[tuple[str, float, float, float]]:
    """Return the rows of a table that are merged and sent: name, accuracy, its deviation, MiB."""
    section = text.partition(f"### {title}\n")[2].partition("\n### ")[0]
    rows = []
    for line in section.splitlines():
        cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        match = re.fullmatch(r"([\d.]+) ± ([\d.]+)", cells[1]) if len(cells) > 4 else None
        if match and cells[4].endswith("MiB"):
            name = cells[0].removesuffix(", levels a–e").replace("everybody trains the ", "")
            rows.append((name, float(match[1]), float(match[2]), float(cells[4].removesuffix(" MiB"))))
    return rows
