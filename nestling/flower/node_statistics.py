"""Norm statistics of sub-models, measured by devices before tests: one message to each, about all sub-models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from nestling.client.transport import travelling
from nestling.cut import Plan
from nestling.cut.extract import State
from nestling.errors import DeviceError, RunFailed
from nestling.flower.array_codec import decode_state, encode_tensor
from nestling.flower.link import EncodedTensor, Packet
from nestling.flower.node_messages import Measured, Statistics, raw, write
from nestling.flower.node_questions import ask_clients
from nestling.flower.nodes import Nodes
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
    states = {plan: download(plan) for plan in dict.fromkeys(job.plan for job in jobs)}
    plans, batch = list(map(raw, states)), jobs[0].batch
    tensors = {
        f"{place}/{name}": encode_tensor(state[name])
        for place, state in enumerate(states.values())
        for name in travelling(setup, state)
    }
    template = {
        f"{place}/{name}": torch.zeros(tensor.shape, dtype=torch.float64)
        for place, state in enumerate(states.values())
        for name, tensor in state.items()
        if name in setup.norm_statistics and tensor.is_floating_point()
    }

    def question(client: int, ticket: str) -> Packet:
        return Packet(write(Statistics(ticket=ticket, client=client, plans=plans, batch=batch)), tensors)

    def checked(client: int, reply: Measured, received: Mapping[str, EncodedTensor]) -> dict[Plan, Sums]:
        del client
        values = decode_state(received, template)
        if not all(bool(value.isfinite().all()) for value in values.values()):
            raise DeviceError("they hold values that are not finite")
        return {plan: (_of(place, values), reply.batches) for place, plan in enumerate(states)}

    clients = list(dict.fromkeys(client for job in jobs for client in job.clients))
    sums = ask_clients(nodes, clients, question, Measured, checked, what="statistics of norms")
    if not sums:
        raise RunFailed("no device has measured the statistics of the model's norms, so it cannot be tested")
    return [_total([sums[client][job.plan] for client in job.clients if client in sums]) for job in jobs]


def _of(place: int, values: State) -> dict[str, Tensor]:
    prefix = f"{place}/"
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _total(parts: Sequence[Sums]) -> Sums:
    totals: dict[str, Tensor] = {}
    for state, _ in parts:
        totals = {name: totals[name] + value if name in totals else value for name, value in state.items()}
    return totals, sum(count for _, count in parts)
