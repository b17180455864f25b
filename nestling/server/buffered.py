"""Buffered asynchronous rounds: the server takes a step as soon as a few updates are there, and waits for nobody.

FedBuff (Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022, Algorithm 1): clients
train all the time. An update that arrives s steps after its client began is stale; its change counts (1 + s)^-a times
(Xie et al., Asynchronous Federated Optimization, 2019, polynomial), and the buffer's sum is divided by its clients.

Departures and what slices add
------------------------------
- A coordinate moves by the mean of the discounted changes of those in the buffer who hold it; one that nobody holds
  keeps its value. Discounts are not divided out: a coordinate whose only holder is late moves little.
- A change is added to the model of now, not of then. So everything that merges updates sees one whose client began
  with the current model and moved less; an update that is not late is merged as it is.
- A client gives at most one update to a step. It goes on with the next model, so if all clients train at once and the
  buffer takes all, steps are synchronous rounds. Updates that are later than `server.max_staleness` are ignored.
- What a client trains (slice, learning rate, samples) is that of the round in which it began: windows roll, and levels
  change, with the steps of the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from nestling.cut.accept import averaged
from nestling.data.federated import ClientData
from nestling.methods.context import Participant, Setup
from nestling.methods.messages import TrainJob, Update
from nestling.server.aggregate import Merge
from nestling.server.cost_meter import CostMeter
from nestling.server.in_flight import Flights, Version
from nestling.server.round import merge_and_step
from nestling.server.state import ServerState


@dataclass(frozen=True)
class Rest:
    """What is left when a buffer is full.

    Attributes
    ----------
    flights
        The clients that still train.
    now
        The simulated clock, in seconds.
    discarded
        The jobs whose updates came too late.
    lost
        The number of clients that failed.
    """

    flights: Flights
    now: float
    discarded: Sequence[TrainJob] = ()
    lost: int = 0


class Arrivals(Protocol):
    """Where the updates of a step come from: a simulated clock, or real devices."""

    def updates(self, before: ServerState) -> Iterator[tuple[int, Update]]:
        """Yield updates, each with the number of the round in which its client began, until the buffer is full."""

    def rest(self) -> Rest:
        """Return what is left after the last update."""


def run_buffered(
    setup: Setup,
    before: ServerState,
    arrivals: Arrivals,
    *,
    merge: Merge,
    costs: CostMeter,
    public: ClientData | None = None,
) -> tuple[ServerState, dict[str, Any]]:
    """Take the next step of the server; return the state after it, and the line that is recorded of it."""
    round = before.context(setup, public)
    trained: list[Participant] = []
    steps_late: list[int] = []

    def replies() -> Iterator[Update]:
        for number, update in arrivals.updates(before):
            trained.extend(update.who)
            steps_late.extend([round.number - number] * len(update.who))
            yield discounted(setup, before, number, update)

    done = merge_and_step(setup, before, replies(), merge=merge, costs=costs, public=public)
    rest = arrivals.rest()
    totals = done.after.totals
    totals.simulated_seconds = rest.now
    costs.add_ignored(totals, rest.discarded, round)
    line = done.line(
        costs,
        round.lr,
        trained,
        dropped=rest.lost,
        staleness_mean=sum(steps_late) / len(steps_late) if steps_late else 0.0,
        staleness_max=max(steps_late, default=0),
        discarded=len(rest.discarded),
        in_training=len(rest.flights.clients),
        models_kept=len(rest.flights.versions),
    )
    return replace(done.after, flights=rest.flights), line


def discounted(setup: Setup, before: ServerState, number: int, update: Update) -> Update:
    """Return an update as if its client had begun with the current model, and its change had been discounted.

    Tensors that clients keep to themselves stay as they are. So do integers, which count and are not averaged.

    Parameters
    ----------
    setup, before
        The experiment, and the state before the step.
    number
        The number of the round in which the client began.
    update
        Its update.
    """
    late = before.round + 1 - number
    if late == 0:
        return update
    then, now = (state.download(setup, update.plan) for state in (before.version(number), before))
    share = (1.0 + late) ** -setup.server.staleness
    moved = {
        name: move(now[name], then[name], tensor, share)
        for name, tensor in update.state.items()
        if name not in setup.private and averaged(tensor)
    }
    return replace(update, state=update.state | moved)


@torch.no_grad()
def move(now: Tensor, then: Tensor, trained: Tensor, share: float) -> Tensor:
    """Return the current value, moved by a share of the change from `then` to `trained`.

    >>> move(torch.tensor([5.0]), torch.tensor([1.0]), torch.tensor([3.0]), 0.5)
    tensor([6.])
    """
    exact = torch.complex128 if now.is_complex() else torch.float64
    change = (trained.to(exact) - then.to(exact)).mul_(share)
    return change.add_(now.to(exact)).to(now.dtype)


def kept_versions(before: ServerState, flights: Flights, most: int) -> Flights:
    """Return flights with the models that some client still trains, and that are not too old for the next step.

    Parameters
    ----------
    before
        The state before the step that ends, whose model some of the clients may have.
    flights
        The clients that train.
    most
        How many steps late an update may be.
    """
    next_number = before.round + 2
    wanted = {one.round for one in flights.clients if next_number - one.round <= most}
    versions = {number: before.flights.versions[number] for number in sorted(wanted - {before.round + 1})}
    if before.round + 1 in wanted:
        versions[before.round + 1] = Version(before.model, before.submodels)
    return replace(flights, versions=versions)
