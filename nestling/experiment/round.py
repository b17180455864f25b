"""One round: the page to read first.

Clients are drawn, each gets the slice that its method gives it, trains it, and sends it back; the server merges the
slices and takes a step. Small clients of one shape may train together, as a cohort. Where clients run is the engine's
affair: replies come as they come, and are merged in one order, the largest clients first, so that the same seed gives
the same numbers everywhere. A slice is cut when it is handed out. A round changes nothing of the server that it began
with: it makes the next one, so that whatever interrupts it, the last whole round is there.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from nestling.cut import Plan
from nestling.engines import Engine
from nestling.events import report
from nestling.experiment.between import between
from nestling.experiment.client_tensors import recall, remember
from nestling.experiment.cohorts import groups
from nestling.experiment.jobs import Train, Update
from nestling.experiment.server import Server
from nestling.experiment.setting import Setting
from nestling.experiment.slices import Slices
from nestling.experiment.submodel_means import SubmodelMeans
from nestling.experiment.training import trained
from nestling.experiment.uploads import expected, unpacked
from nestling.fleet import TRAINING, round_clock, time_of
from nestling.server.server_step import step
from nestling.settings import learning_rate

Tick = Callable[[], None]


def run_round(
    setting: Setting, before: Server, engine: Engine, tick: Tick = lambda: None
) -> tuple[Server, dict[str, Any]]:
    """Run the next round; return the server after it, and what is recorded of it."""
    server = before.next()
    round = server.round
    rate = learning_rate(setting.experiment.local, round, setting.experiment.rounds)
    asked = setting.sample(round)
    drawn = tuple(client for client in asked if setting.holds_samples(client))
    empty = len(asked) - len(drawn)
    if empty:
        report("client without samples", f"{empty} of {len(asked)} clients have no samples: skipped", logging.INFO)
    levels = {client: setting.level(client, round) for client in drawn}
    plans = {client: setting.plan(client, levels[client].ratio, round, server.notes) for client in drawn}
    finished, seconds = _in_time(setting, server, plans)
    if late := sorted(plans.keys() - set(finished)):
        named = ", ".join(map(str, late[:10])) + (", …" if len(late) > 10 else "")
        limit = setting.experiment.fleet.deadline
        report(
            "client dropped",
            f"{len(late)} of {len(plans)} clients missed the deadline of {limit:g} s ({named})",
            logging.INFO,
            count=len(late),
        )
    # the largest first: the same order for doing and merging lets few replies wait for others
    clients = sorted(finished, key=lambda client: -_macs(setting, client, plans[client]))
    slices = Slices(engine, partial(server.slice, setting), (plans[client] for client in clients))

    cohorts = groups(setting, clients, plans, {client: levels[client].ratio for client in clients})

    def job(client: int) -> Train:
        plan = plans[client]
        memory = recall(setting.cut_axes, server.memories, client, plan)
        own = recall(setting.cut_axes, server.private, client, plan, before.state)
        return Train(client, round, levels[client].ratio, plan, slices.get(plan), rate, own, memory)

    tally = server.tally
    tally.restart(server.state)
    own = SubmodelMeans(setting.inconsistent)
    if not clients:
        report("round without clients", f"nobody takes part ({_nobody(asked, drawn)}): the model stays as it is")
    samples, loss, correct = 0, 0.0, 0.0
    for reply in trained(engine, cohorts, job, tick):
        update = _received(setting, server, reply)
        weight = sum(setting.weight(client, levels[client].ratio) for client in update.clients)
        own.add(update, weight)
        _merge(setting, server, update, weight)
        slices.done(update.plan, len(update.clients))
        samples += update.progress.samples
        loss += update.progress.loss
        correct += update.progress.correct
    how, trainable = setting.experiment.server, setting.parameters - setting.user_frozen
    merged = tally.value() | {name: before.state[name] for name in setting.inconsistent}  # sub-models have their own
    server.state, server.memory = step(
        how, server.state, merged, gathered=tally.weights, memory=server.memory, trained=trainable
    )
    server.submodels |= own.value()
    between(setting, before, server, rate)
    server.counts["simulated_seconds"] += seconds
    return server, {
        "round": round,
        "clients": tally.clients,
        "dropped": len(drawn) - tally.clients,
        "lr": rate,
        "train_loss": loss / samples if samples else None,
        "train_accuracy": correct / samples if samples else None,
        **server.told(setting),
        "levels": dict(sorted(Counter(levels[client].name for client in clients).items())),
        **({"empty": empty} if empty else {}),
    }


def _nobody(asked: tuple[int, ...], drawn: tuple[int, ...]) -> str:
    """Why a round has no clients."""
    if not asked:
        return "none of those drawn is online"
    return "all are past the deadline" if drawn else "none of those drawn has samples"


def _received(setting: Setting, server: Server, update: Update) -> Update:
    """A client's update with its slice as it arrives, where uploads are encoded."""
    if update.upload is None:
        return update
    state = unpacked(setting, update.upload, server.slice(setting, update.plan))
    return replace(update, state=state | update.state)


def _merge(setting: Setting, server: Server, update: Update, weight: float) -> None:
    """Take in what a client returned, or the mean of several; what one keeps to itself changes nothing of the model."""
    first, clients = update.clients[0], len(update.clients)  # those who keep something come one by one
    kept = setting.private & update.state.keys()
    if kept:
        sent = server.slice(setting, update.plan)
        own = {name: update.state[name] for name in sorted(kept)}
        plan, untrained = update.plan, server.state
        remember(setting.cut_axes, server.private, first, plan, own, round=server.round, untrained=untrained)
        update.state.update({name: sent[name] for name in kept})
    if update.memory:
        remember(setting.cut_axes, server.memories, first, update.plan, update.memory, round=server.round)
    # where nothing was encoded, the worker has looked for values that are not finite
    trusted = update.upload is None
    server.tally.add(update.state, update.plan, weight, update.touched, clients=clients, trusted=trusted)
    server.cover(update.plan, clients)
    for client in update.clients:
        server.hand_out(setting, client, update.plan)
    travelled = clients * _bytes(setting, update.plan)
    server.counts["bytes_down"] += travelled
    server.counts["bytes_up"] += travelled if update.upload is None else len(update.upload)
    server.counts["client_macs"] += sum(_macs(setting, client, update.plan) for client in update.clients)


def _in_time(setting: Setting, server: Server, plans: dict[int, Plan]) -> tuple[tuple[int, ...], float]:
    """Who is done before the deadline, and how long the round takes on their devices."""
    if setting.devices is None:
        return tuple(plans), 0.0
    timings = {}
    for client, plan in plans.items():
        device = setting.devices.device_of(client)
        travelled = _bytes(setting, plan) + server.setup_bytes(setting, client, plan)
        timings[client] = time_of(device, travelled, _bytes_up(setting, plan), _macs(setting, client, plan))
    clock = round_clock(timings, setting.experiment.fleet.deadline or None)
    return clock.finished, clock.seconds


def _macs(setting: Setting, client: int, plan: Plan) -> int:
    """Multiply-accumulates of a client's training in a round: forward, and twice as many backward."""
    local = setting.experiment.local
    return setting.cost(plan).macs // local.batch * TRAINING * local.epochs * len(setting.partition.train[client])


def _bytes(setting: Setting, plan: Plan) -> int:
    """Bytes that travel one way: what is shared and trained; statistics of static norms are not used in training."""
    return setting.cost(plan).bytes - setting.kept_bytes(plan)


def _bytes_up(setting: Setting, plan: Plan) -> int:
    """Bytes that will travel back, as far as that is known before there is an update."""
    return _bytes(setting, plan) if setting.experiment.upload.format == "dense" else expected(setting, plan)
