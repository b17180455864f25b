"""Norm statistics of sub-models, measured by devices before tests: one message to each, about all sub-models."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from nestling.client.transport import travelling
from nestling.cut import Plan
from nestling.cut.extract import State
from nestling.errors import DeviceError, RunFailed
from nestling.events import report
from nestling.flower.array_codec import decode_state, encode_tensor
from nestling.flower.link import Answer, Packet, Request
from nestling.flower.node_messages import Measured, Statistics, raw, read, write
from nestling.flower.nodes import Nodes, reason_of
from nestling.methods.context import Setup
from nestling.methods.messages import NormStatisticsJob

Sums = tuple[State, int]  # of the statistics of batches, and how many batches


def norm_statistics(
    setup: Setup, nodes: Nodes, jobs: Sequence[NormStatisticsJob], download: Callable[[Plan], State]
) -> list[Sums]:
    """Return the sums for every job, over those of its clients that answer before the deadline.

    Raise `RunFailed` if no client does.
    """
    if not jobs:
        return []
    plans = list(dict.fromkeys(job.plan for job in jobs))
    wanted, known = dict.fromkeys(client for job in jobs for client in job.clients), set(nodes.known())
    clients = [client for client in wanted if client in known]
    if len(clients) < len(wanted):
        missing = len(wanted) - len(clients)
        report("statistics missing", f"{missing} of {len(wanted)} clients were never online, and measure no norms")
    states = {plan: download(plan) for plan in plans}
    tensors = {
        f"{place}/{name}": encode_tensor(states[plan][name])
        for place, plan in enumerate(plans)
        for name in travelling(setup, states[plan])
    }
    sent: dict[str, tuple[int, str]] = {}
    for client in clients:
        ticket = secrets.token_hex(8)
        header = Statistics(ticket=ticket, client=client, plans=list(map(raw, plans)), batch=jobs[0].batch)
        packet = Packet(write(header), tensors)
        name = nodes.link.push(Request(nodes.node(client).id, "evaluate", 0, 2 * nodes.rules.deadline, packet))
        if name is not None:
            sent[name] = client, ticket
    sums = _replies(setup, nodes, sent, states)
    if not sums:
        raise RunFailed("no device has measured the statistics of the model's norms, so it cannot be tested")
    return [_total([sums[client][job.plan] for client in job.clients if client in sums]) for job in jobs]


def _replies(
    setup: Setup, nodes: Nodes, sent: Mapping[str, tuple[int, str]], states: Mapping[Plan, State]
) -> dict[int, dict[Plan, Sums]]:
    """Return the checked sums of every client that answers: client → plan → sums."""
    template = {
        f"{place}/{name}": torch.zeros(tensor.shape, dtype=torch.float64)
        for place, state in enumerate(states.values())
        for name, tensor in state.items()
        if name in setup.norm_statistics and tensor.is_floating_point()
    }
    end, waiting = time.monotonic() + nodes.rules.deadline, dict(sent)
    results: dict[int, dict[Plan, Sums]] = {}
    while waiting and time.monotonic() < end:
        arrived = nodes.link.pull(list(waiting))  # they are small
        for answer in arrived:
            client, ticket = waiting.pop(answer.request, (-1, ""))
            if client < 0:
                continue  # it came twice
            try:
                batches, values = _checked(answer, ticket, template)
            except DeviceError as problem:
                report("statistics refused", f"those of client {client} are left out: {reason_of(problem)}")
                continue
            results[client] = {plan: (_of(place, values), batches) for place, plan in enumerate(states)}
        if not arrived:
            time.sleep(nodes.rules.poll)
    for client, _ in waiting.values():
        report("statistics missing", f"client {client} has not measured the norms in {nodes.rules.deadline:g} s")
    return results


def _checked(answer: Answer, ticket: str, template: State) -> tuple[int, dict[str, Tensor]]:
    """Return the number of batches and the sums in a reply; raise `DeviceError` unless it answers this request."""
    if answer.packet is None:
        raise DeviceError(answer.error)
    reply = read(answer.packet.header, Measured)
    if reply.ticket != ticket:
        raise DeviceError("it is the reply to another request")
    values = decode_state(answer.packet.tensors, template)
    if not all(bool(value.isfinite().all()) for value in values.values()):
        raise DeviceError("they hold values that are not finite")
    return reply.batches, values


def _of(place: int, values: State) -> dict[str, Tensor]:
    prefix = f"{place}/"
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _total(parts: Sequence[Sums]) -> Sums:
    totals: dict[str, Tensor] = {}
    for state, _ in parts:
        totals = {name: totals[name] + value if name in totals else value for name, value in state.items()}
    return totals, sum(count for _, count in parts)
