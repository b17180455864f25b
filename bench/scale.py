"""Scale: what one server and trees of edge servers merge in an hour, from the time and the bytes of each merge."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

from bench.figure import Figure, Table
from bench.merges import LEVELS, MODEL, SMALL
from bench.populations import MILLIONS
from nestling.axes import trace
from nestling.cut import Tally, extract, pack, plan, unpack
from nestling.cut.partial_merge import PartialMerge
from nestling.fleet import Fleet, parse_mix
from nestling.nets import build, example

EDGES = (1, 16, 256)
PER_EDGE = 1000  # clients of a round that an edge server, or the only server, merges
GIGABITS = (1, 10)
_NAMES = "abcde"


def scale(quick: bool = False) -> Iterator[Figure | Table]:
    """Merging of packed updates from outside, with all checks, on one core; and the clients per hour that follow."""
    name, repeats = (SMALL, 1) if quick else (MODEL, 7)
    model = build(name)
    axes, state = trace(model, *example(name)), model.state_dict()
    plans = [plan(axes, width) for width in LEVELS]
    messages = [pack(extract(axes, one, state), one) for one in plans]
    edge, server = Tally(axes, state), Tally(axes, state)

    def merge_clients() -> None:
        for message in messages:
            edge.add(*unpack(message))

    client = _seconds(merge_clients, repeats) / len(messages)
    partial = edge.pack()
    packing = _seconds(edge.pack, repeats)
    merging = _seconds(lambda: server.merge(PartialMerge.unpack(partial)), repeats)
    valuing = _seconds(server.value, repeats)
    client_bytes = sum(map(len, messages)) / len(messages)
    yield Table(
        f"megabytes of a packed update of {name}",
        (*_NAMES, "mean a–e", "partial merge"),
        (("MB", (*(len(message) / 1e6 for message in messages), client_bytes / 1e6, len(partial) / 1e6)),),
        "a partial merge of any number of clients at these levels",
    )
    yield Figure("merge of a client, mean of a–e", client * 1000, "ms", note=_rate(client_bytes, client))
    yield Figure("packing of a partial merge", packing * 1000, "ms", note="at the edge server")
    yield Figure("merge of a partial merge", merging * 1000, "ms", note=_rate(len(partial), merging))
    yield Figure("the merged model", valuing * 1000, "ms", note="once in a round")
    fleet = Fleet(MILLIONS, PER_EDGE, parse_mix("a-b-c-d-e"))
    fleet.level(0, 1)
    drawing = _seconds(lambda: [fleet.level(one, 1) for one in fleet.sample(1)], repeats)
    yield Figure(f"drawing {PER_EDGE:,} of {MILLIONS:,} clients", drawing * 1000, "ms", note="and their levels")

    def round_seconds(edges: int, bandwidth: float) -> float:
        """The round of `edges` servers: each merges its clients; the root merges theirs."""
        own = PER_EDGE * max(client, client_bytes / bandwidth)
        above = 0.0 if edges == 1 else packing + edges * max(merging, len(partial) / bandwidth)
        return own + above + valuing + edges * drawing

    rows = []
    for edges in EDGES:
        clients = edges * PER_EDGE
        hourly = [clients * 3600 / round_seconds(edges, gigabits * 1e9 / 8) / 1e6 for gigabits in GIGABITS]
        root = PER_EDGE * client_bytes if edges == 1 else edges * len(partial)
        rows.append((_called(edges), (float(clients), root / 1e9, *hourly)))
    columns = ("clients in a round", "GB into the root", *(f"millions an hour, {g} Gbit/s" for g in GIGABITS))
    yield Table(f"clients of {name} at levels a–e", columns, tuple(rows), "one core a server; merging after receiving")


def _called(edges: int) -> str:
    return "one server" if edges == 1 else f"{edges} edge servers"


def _rate(size: float, seconds: float) -> str:
    return f"{size / seconds / 1e6:,.0f} MB/s from bytes, with all checks"


def _seconds(action: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of an action after a first that does not count."""
    action()
    spent = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)
