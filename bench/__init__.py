"""Speed and memory as ratios measured side by side in one run (`make bench`).

Timings on a shared machine wander by tens of per cent; ratios of two things measured in turn do not. Every figure
here is therefore a median over interleaved repeats, on one thread, beside the figure that it is compared with.
"""

from bench.figure import Figure, Table
from bench.parts import PARTS, chosen, measure, report
from bench.render import cells, facts, markdown

__all__ = ["PARTS", "Figure", "Table", "cells", "chosen", "facts", "markdown", "measure", "report"]
