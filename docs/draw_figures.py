"""Draw the figures of the documentation: ``python -m docs.draw_figures`` in the repository.

``--demo DIR`` first reads the results of a comparison of the presets of `make demo`, made with the command below.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from docs.drawings import grand, owners, reproduced, results, slices
from nestling.cli import main as nestling_command

COMMAND = (
    "nestling compare fedavg-small-digits fedavg-large-digits heterofl-digits fedrolex-digits fjord-digits "
    "fed-dropout-digits --seeds 3 --out DIR"
)
FIGURES = Path(__file__).with_name("figures")


def nested_sizes() -> str:
    """Return the drawing that `nestling check resnet8 --plot` makes."""
    with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "sizes.svg"
        if nestling_command(["check", "resnet8", "--plot", str(path)]):
            raise SystemExit("nestling check resnet8 failed")
        return path.read_text(encoding="utf-8")


DRAWN: dict[str, Callable[[], str]] = {
    "nested-accuracy": results.nested_accuracy,
    "results": results.results,
    "named-axes": slices.named_axes,
    "picks": slices.picks,
    "merge": slices.merge,
    "owners": owners.owners,
    "nested-sizes": nested_sizes,
    "time-to-accuracy": lambda: reproduced.reproduced("time-to-accuracy", seeds=2),
}
if grand.RESULTS.is_file():  # its runs take hours; see docs/results.md
    DRAWN["grand-comparison"] = grand.grand_comparison


def main(arguments: list[str]) -> None:
    """Draw all figures."""
    if arguments[:1] == ["--demo"]:
        demo = {"command": COMMAND, "methods": results.read_demo(Path(arguments[1]))}
        results.DEMO.write_text(json.dumps(demo, indent=1) + "\n", encoding="utf-8")
    for name, draw in DRAWN.items():
        (FIGURES / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
