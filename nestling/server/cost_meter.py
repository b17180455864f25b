"""`CostMeter`: what plans cost, how many bytes are sent, and how long rounds take on simulated devices."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any

import torch

from nestling.client.transport import expected_bytes
from nestling.cut import Cost, Plan, cost
from nestling.cut.extract import cuts
from nestling.data.batches import local_samples
from nestling.data.federated import ClientData
from nestling.events import report
from nestling.fleet import TRAINING, Population, Timing, round_clock, time_of
from nestling.methods.aggregator import Aggregator, Metered
from nestling.methods.context import Participant, RoundContext, Setup
from nestling.methods.frozen import frozen_slice
from nestling.methods.messages import TrainJob, Update
from nestling.model_inputs import arguments, chosen
from nestling.server.state import Totals


@dataclass(frozen=True)
class _Beside:
    """Costs of a client in a round beside those of its slice: bytes to it and from it, and multiply-accumulates."""

    bytes_down: int = 0
    bytes_up: int = 0
    macs: int = 0


@dataclass(frozen=True)
class Timed:
    """The jobs of a round on its devices: those that it waits for, those that come too late for it, and how long."""

    jobs: Sequence[TrainJob]
    ignored: Sequence[TrainJob] = ()
    seconds: float = 0.0


class CostMeter:
    """Measures and adds up costs; the costs of a plan are measured once.

    Parameters
    ----------
    setup
        The experiment.
    devices
        The devices of the clients; None if rounds are not timed.
    deadline
        Seconds of a round on the simulated clock after which clients are dropped; 0 for none.
    over_selection
        How many times as many clients start in a round as it waits for.
    """

    def __init__(
        self,
        setup: Setup,
        devices: Population | None = None,
        deadline: float = 0.0,
        over_selection: float = 1.0,
    ) -> None:
        self._setup, self._devices, self._deadline, self._more = setup, devices, deadline, over_selection
        self._costs: dict[object, Cost] = {}
        self._frozen: dict[Plan, tuple[str, int]] = {}

    def cost(self, plan: Plan) -> Cost:
        """Return what the sub-model of a plan costs at the batch of local training."""
        setup = self._setup
        rows = [name for name in plan.runs if name in setup.axes.frozen]
        if rows:
            return self._cost_of_rows(plan, rows)
        sizes = tuple((name, sum(b - a for a, b in runs)) for name, runs in plan.runs.items()), plan.blocks
        if sizes not in self._costs:
            batch, (args, kwargs) = setup.training.batch_size, arguments(chosen(setup.example, slice(1)))
            self._costs[sizes] = cost(setup.model, setup.axes, plan, *args, batch=batch, **kwargs)
        return self._costs[sizes]

    def _cost_of_rows(self, plan: Plan, rows: Sequence[str]) -> Cost:
        """Return what a sub-model with fewer rows costs.

        Costs grow linearly with the number of classes or words, which differs between clients. So they are measured
        with a single one (and special words) and with all, and interpolated.
        """
        setup = self._setup
        sizes = {name: setup.axes.table[name].size for name in rows}
        classes = setup.task.classes
        others = {name: plan.index(name) for name in plan.runs if name not in rows}
        key = Plan(others, plan.blocks), tuple(rows)
        if key not in self._costs:
            one = {name: torch.arange(1 + size - classes) for name, size in sizes.items()}
            single = Plan(others | one, plan.blocks)
            args, kwargs = arguments(chosen(setup.example, slice(1)))
            self._costs[key] = cost(
                setup.model, setup.cut_axes, single, *args, batch=setup.training.batch_size, **kwargs
            )
        more, most = len(plan.index(rows[0])) - (sizes[rows[0]] - classes) - 1, classes - 1
        pairs = zip(astuple(self._costs[key]), astuple(self.cost(key[0])), strict=True)
        return Cost(*(low + (high - low) * more // most for low, high in pairs))

    def macs(self, plan: Plan, samples: int) -> int:
        """Return the multiply-accumulates of a client's training in a round: forward, and twice as many backward."""
        training = self._setup.training
        return self.cost(plan).macs // training.batch_size * TRAINING * local_samples(training, samples)

    def bytes_down(self, plan: Plan) -> int:
        """Return the bytes of a slice that are sent to a client: those of all tensors that are shared and trained."""
        slices = cuts(self._setup.cut_axes, plan)
        stay = sum(math.prod(slices[name].shape) * size for name, size in self._stay.items() if name in slices)
        return self.cost(plan).bytes - stay

    def bytes_up(self, plan: Plan) -> int:
        """Return the bytes that will be sent back, as far as that is known before there is an update."""
        own = self._setup.method.upload_bytes(self._setup, plan)
        if own is not None:
            return own
        dense = self._setup.upload.format == "dense"
        return self.bytes_down(plan) if dense else expected_bytes(self._setup, plan)

    @property
    def over_selects(self) -> bool:
        """Whether more clients start in a round than it waits for."""
        return self._more > 1

    def seconds(self, job: TrainJob, totals: Totals, round: RoundContext) -> float:
        """Return how long a job takes on its client's device; without devices, no time at all."""
        return 0.0 if self._devices is None else self._timing(self._devices, job, totals, round).total

    def _timing(self, devices: Population, job: TrainJob, totals: Totals, round: RoundContext) -> Timing:
        client = job.who.client
        beside = self._beside(round, job.who, job.plan)
        setup = sum(self._setup_bytes(totals, client, job.plan, round.public).values())
        received = self.bytes_down(job.plan) + beside.bytes_down + setup
        macs = self.macs(job.plan, job.who.samples) + beside.macs
        return time_of(devices.device_of(client), received, self.bytes_up(job.plan) + beside.bytes_up, macs)

    def in_time(self, jobs: Sequence[TrainJob], totals: Totals, round: RoundContext) -> Timed:
        """Return which jobs a round waits for, and how long, by the clock of their devices."""
        if self._devices is None:
            return Timed(jobs)
        timings = {job.who.client: self._timing(self._devices, job, totals, round) for job in jobs}
        clock = round_clock(timings, self._deadline or None, awaited(len(jobs), self._more))
        if clock.dropped:
            late = clock.dropped
            named = ", ".join(map(str, late[:10])) + (", …" if len(late) > 10 else "")
            report(
                "client dropped",
                f"{len(late)} of {len(jobs)} clients missed the deadline of {self._deadline:g} s ({named})",
                logging.INFO,
                count=len(late),
            )
        by_client = {job.who.client: job for job in jobs}
        kept, ignored = ([by_client[client] for client in some] for some in (clock.finished, clock.ignored))
        return Timed(kept, ignored, clock.seconds)

    def add(self, totals: Totals, update: Update, round: RoundContext) -> None:
        """Add the costs of an update to what was spent so far."""
        for who in update.who:
            self._add_training(totals, who, update.plan, round)
        sent = len(update.who) * self.bytes_down(update.plan)
        totals.bytes_down += sent
        encoded = update.bytes_up if update.message is None else len(update.message)
        if self._setup.method.overriding("upload_bytes"):
            encoded = 0  # `add_traffic` counts it
        totals.bytes_up += (sent if encoded is None else encoded) + _bytes(update.extra)
        totals.cover(update.plan, len(update.who))

    def add_traffic(self, totals: Totals, rule: Aggregator) -> None:
        """Add what clients sent and received in the messages of a merge rule, if it has any, after its `value`."""
        if isinstance(rule, Metered):
            up, down = rule.traffic()
            totals.bytes_up += up
            totals.bytes_down += down

    def add_ignored(self, totals: Totals, jobs: Iterable[TrainJob], round: RoundContext) -> None:
        """Add the costs of clients that trained in vain: what they received and computed, but no upload."""
        for job in jobs:
            self._add_training(totals, job.who, job.plan, round)
            totals.bytes_down += self.bytes_down(job.plan)

    def _add_training(self, totals: Totals, who: Participant, plan: Plan, round: RoundContext) -> None:
        """Add what a client computes, and what it receives beside its slice."""
        self._hand_out(totals, who, plan, round.public)
        beside = self._beside(round, who, plan)
        totals.client_macs += self.macs(plan, who.samples) + beside.macs
        totals.bytes_down += beside.bytes_down

    def recorded(self, totals: Totals) -> dict[str, Any]:
        """Return what was spent so far, as it is recorded; simulated time only if there are devices."""
        seconds = totals.simulated_seconds if self._devices else None
        return {**totals.counts(), "simulated_seconds": seconds}

    def _beside(self, round: RoundContext, who: Participant, plan: Plan) -> _Beside:
        """Return what a client receives, computes and sends beside its slice and the training of it."""
        method = self._setup.method
        if not any(map(method.overriding, ("send", "public_work"))):
            return _Beside()
        received, work = _bytes(method.send(round, who)), method.public_work(self._setup, round.public)
        passes = work.predicted + (TRAINING * work.trained if received else 0)
        return _Beside(received, work.bytes_up, self.cost(plan).macs // self._setup.training.batch_size * passes)

    def _setup_bytes(self, totals: Totals, client: int, plan: Plan, public: ClientData | None) -> dict[str, int]:
        """Return the bytes that a client has yet to receive once, before it can train a slice: key → size.

        These are frozen tensors and, if clients need them, the public samples.
        """
        sizes = dict([self._frozen_slice(plan)])
        if public is not None and self._setup.method.overriding("public_work"):
            sizes["public"] = len(public) * _bytes({"inputs": public.batch(torch.arange(1))[0]})
        known = totals.handed_out.get(client, ())
        return {key: size for key, size in sizes.items() if size and key not in known}

    def _hand_out(self, totals: Totals, who: Participant, plan: Plan, public: ClientData | None) -> None:
        """Count what a client receives once, if it has not got that yet."""
        sizes = self._setup_bytes(totals, who.client, plan, public)
        if sizes:
            totals.bytes_setup += sum(sizes.values())
            totals.handed_out[who.client] = totals.handed_out.get(who.client, frozenset()) | sizes.keys()

    def _frozen_slice(self, plan: Plan) -> tuple[str, int]:
        """Return a key of the frozen tensors that a client must have for a plan, and their bytes."""
        setup = self._setup
        if not setup.user_frozen:
            return "", 0
        if plan not in self._frozen:
            sizes = {name: tensor.itemsize for name, tensor in self._state.items() if name in setup.user_frozen}
            self._frozen[plan] = frozen_slice(setup.cut_axes, plan, sizes)
        return self._frozen[plan]

    @cached_property
    def _state(self) -> dict[str, torch.Tensor]:
        return self._setup.model.state_dict()

    @cached_property
    def _stay(self) -> dict[str, int]:
        """The bytes of one value of every tensor that is not sent."""
        names = self._setup.stay - self._setup.axes.tied.keys()
        return {name: tensor.itemsize for name, tensor in self._state.items() if name in names}


def awaited(started: int, over_selection: float) -> int:
    """Return how many of the clients that started a round are waited for.

    >>> awaited(13, 1.3), awaited(13, 1.25), awaited(4, 1.3), awaited(7, 1.0)
    (10, 10, 3, 7)
    """
    return min(started, max(1, math.floor(round(started / over_selection, 9))))


def _bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors.values())
