"""The merge of a round by secure aggregation: cohorts are formed, run the protocol, and give a sum each, or none.

Departures from Bonawitz et al.: a client that dropped out before the protocol began (it missed the deadline) is no
longer in a cohort. The server does not open a sum over fewer than three clients at any coordinate, as it would all but
tell their values; so cohorts have at least three clients, and padded ones leave out coordinates of too few.

The updates of a round are kept until it ends, as on the devices of their clients: memory grows with the clients of a
round, by the size of their slices.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nestling.cut import Plan
from nestling.cut.extract import cuts
from nestling.events import report
from nestling.methods.aggregator import Mean
from nestling.methods.context import RoundContext
from nestling.methods.messages import Update
from nestling.methods.parts.holders import LEAST, Holders, merging_cuts, shared_names
from nestling.methods.secure.cohort_vectors import CohortVectors
from nestling.secagg.fixed_point import FixedPoint
from nestling.secagg.mask_stream import Residues
from nestling.secagg.secagg_run import STEPS, SecureSum, Step, secure_sum
from nestling.seeds import derive, numpy_stream

if TYPE_CHECKING:
    from nestling.methods.secure.secure_aggregation import SecureAggregation


class MaskedSum:
    """The updates of a round, merged by sums over cohorts.

    Parameters
    ----------
    part
        The settings.
    round, mean
        The round, and the plain mean, of which only what clients were sent is used.
    """

    def __init__(self, part: SecureAggregation, round: RoundContext, mean: Mean) -> None:
        setup = round.setup
        self._part, self._round, self._mean = part, round, mean
        self._arrived: list[tuple[Update, float]] = []
        self._whole = cuts(setup.cut_axes, Plan())
        self._totals = {name: torch.zeros(0, dtype=torch.float64) for name in shared_names(setup)}
        self._weights = {name: self._whole[name].blank(torch.device("cpu")) for name in self._totals}
        self._own: dict[str, tuple[Plan, float, dict[str, Tensor]]] = {}
        self._record = dict.fromkeys(("cohorts", "dropped_cohorts", "clients", "left_out", "clipped_values"), 0)
        self._bytes = [0, 0]

    @property
    def clients(self) -> int:
        """The number of clients in the sums, after `value`."""
        return self._record["clients"]

    def add(self, update: Update, weight: float) -> None:
        """Keep an update, as its client would, until the round ends."""
        self._arrived.append((update, weight))

    @torch.no_grad()
    def value(self) -> dict[str, Tensor]:
        """Run the protocol in every cohort; return the model with the mean changes of those who are in the sums."""
        setup, before = self._round.setup, self._round.before
        for cohort in self._cohorts():
            self._sum(cohort)
        merged = {name: before[name].clone() for name in setup.axes.dims if name not in setup.axes.tied}
        for name, total in self._totals.items():
            if len(total):
                weight = self.gathered(name)
                change = torch.where(weight > 0, total.view(weight.shape) / weight, 0.0)
                merged[name] = (before[name].double() + change).to(before[name].dtype)
        return {name: merged[setup.axes.tied.get(name, name)] for name in setup.axes.dims}

    def gathered(self, name: str) -> Tensor:
        """Return the weight of the clients in the sum of each coordinate; 0 where it keeps its value."""
        name = self._round.setup.axes.tied.get(name, name)
        whole = self._whole[name]
        if name not in self._weights:
            return torch.zeros(whole.shape, dtype=torch.float64)
        return self._weights[name].expand(whole.view).reshape(whole.shape)

    def submodels(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors that belong to each sub-model alone, of the sub-models that have a sum."""
        merged: dict[str, dict[str, Tensor]] = {}
        for key, (plan, weight, totals) in self._own.items():
            sent = self._mean.sent(plan)
            merged[key] = {
                name: (sent[name].double() + total / weight).to(sent[name].dtype) for name, total in totals.items()
            }
        return merged

    def traffic(self) -> tuple[int, int]:
        """Return the bytes that all clients sent and received in the protocol."""
        return self._bytes[0], self._bytes[1]

    def recorded(self) -> dict[str, Any]:
        """Return the cohorts, who is in their sums, and how many coordinates of trained slices are in none."""
        holders = Holders(self._round.setup)
        for update, _ in self._arrived:
            holders.add(update)
        unmerged = sum(int(((holders.count(name) > 0) & (self.gathered(name) == 0)).sum()) for name in self._totals)
        return {"secagg": {**self._record, "unmerged_coordinates": unmerged}}

    def _cohorts(self) -> list[list[tuple[Update, float]]]:
        """Divide the clients of a round into cohorts of similar sizes, in their order."""
        groups: dict[Hashable, list[tuple[Update, float]]] = {}
        one_slice = self._part.cohort == "slice"
        for one in self._arrived:
            groups.setdefault(one[0].plan if one_slice else None, []).append(one)
        cohorts = []
        for group in groups.values():
            if len(group) < LEAST:
                self._record["left_out"] += len(group)
                where = f"the slice {group[0][0].plan.key}" if one_slice else "the round"
                report(
                    "client left out",
                    f"a cohort of secure aggregation needs {LEAST} clients, and {where} has {len(group)}: no update of "
                    "them is sent",
                    count=len(group),
                )
                continue
            parts = max(1, min(math.ceil(len(group) / self._part.size), len(group) // LEAST))
            cohorts += [group[k * len(group) // parts : (k + 1) * len(group) // parts] for k in range(parts)]
        return cohorts

    def _sum(self, cohort: Sequence[tuple[Update, float]]) -> None:
        """Run the protocol in a cohort, and add its sum."""
        clients, least = len(cohort), self._part.least(len(cohort))
        most = max(weight for _, weight in cohort)
        vectors = CohortVectors(self._round, [update for update, _ in cohort], needed=LEAST + clients - least)
        code = FixedPoint(self._part.range, clients, self._part.bits)
        clipped: list[int] = []

        def residues(place: int) -> Residues:
            update, weight = cohort[place]
            encoded, beyond = code.encode(vectors.vector(update, self._mean.sent(update.plan), weight / most))
            clipped.append(beyond)
            return encoded

        result = secure_sum(
            {place + 1: partial(residues, place) for place in range(clients)},
            {place + 1: self._entropy(update) for place, (update, _) in enumerate(cohort)},
            threshold=least,
            length=vectors.length,
            bits=self._part.bits,
            drops={place + 1: step for place, (update, _) in enumerate(cohort) if (step := self._drop(update))},
        )
        self._note(clients, result, sum(clipped))
        if result.total is not None:
            summed = [cohort[number - 1] for number in result.clients]
            self._add(vectors, summed, *vectors.tensors(code.decode(result.total) * most))

    def _add(
        self,
        vectors: CohortVectors,
        summed: Sequence[tuple[Update, float]],
        shared: Mapping[str, Tensor],
        own: Mapping[str, Tensor],
    ) -> None:
        """Add the sum of a cohort over some clients, and their weights, where it has coordinates."""
        setup = self._round.setup
        for name, change in shared.items():
            if not len(self._totals[name]):
                self._totals[name] = torch.zeros(math.prod(self._whole[name].view), dtype=torch.float64)
            self._totals[name].index_add_(0, vectors.places[name], change)
        weights = {name: torch.zeros_like(known) for name, known in self._weights.items()}
        for update, weight in summed:
            for name, (_, where) in merging_cuts(setup, update).items():
                where.count(weights[name], weight)
        for name, here in weights.items():
            self._weights[name] += torch.where(vectors.summed[name], here, 0.0)
        if own:
            plan = summed[0][0].plan
            _, before, earlier = self._own.get(plan.key, (plan, 0.0, {}))
            totals = {name: earlier[name] + total if name in earlier else total for name, total in own.items()}
            self._own[plan.key] = plan, before + sum(weight for _, weight in summed), totals

    def _note(self, clients: int, result: SecureSum, clipped: int) -> None:
        """Record what came of a cohort, and report what went wrong."""
        self._bytes[0] += result.bytes_up
        self._bytes[1] += result.bytes_down
        self._record["cohorts"] += 1
        self._record["clients"] += len(result.clients)
        self._record["clipped_values"] += clipped
        if result.total is None:
            self._record["dropped_cohorts"] += 1
            report(
                "cohort dropped",
                f"a cohort of {clients} clients has no sum ({result.problem}): none of their updates is merged",
            )
        elif len(result.clients) < clients:
            lost = clients - len(result.clients)
            message = f"{lost} of {clients} clients of a cohort dropped out before they sent their vectors"
            report("client dropped", message, logging.INFO, count=lost)
        if clipped:
            report(
                "value clipped",
                f"{clipped} values of changes are beyond secagg's range={self._part.range:g} and were clipped: set a "
                "larger range",
                count=clipped,
            )

    def _entropy(self, update: Update) -> bytes:
        """Return the random bytes of a simulated client in this round, which follow from the seed of the run."""
        seed, round, client = self._round.setup.seed, self._round.number, update.who[0].client
        return b"".join(derive(seed, "secagg", round, client, part).to_bytes(8, "big") for part in range(4))

    def _drop(self, update: Update) -> Step | None:
        """Return the step at which a simulated client drops out; None if it does not."""
        if not self._part.dropout:
            return None
        stream = numpy_stream(self._round.setup.seed, "secagg dropout", self._round.number, update.who[0].client)
        return STEPS[int(stream.integers(len(STEPS)))] if stream.random() < self._part.dropout else None
