"""Tests on devices: of a model on a device's own samples, and of the model that a device has of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from nestling.client.transport import travelling
from nestling.cut import Plan
from nestling.cut.extract import State
from nestling.errors import DeviceError
from nestling.flower.array_codec import decode_state, packed
from nestling.flower.link import EncodedTensor, Packet
from nestling.flower.node_messages import (
    ANSWER,
    OwnDataTest,
    OwnDataTested,
    OwnModelTest,
    OwnModelTested,
    raw,
    write,
)
from nestling.flower.node_questions import ask_clients
from nestling.flower.nodes import Nodes
from nestling.methods.context import Setup
from nestling.methods.messages import TestClientModelJob, TestOwnDataJob


def own_data_counts(
    setup: Setup, nodes: Nodes, jobs: Sequence[TestOwnDataJob], download: Callable[[Plan], State]
) -> list[tuple[int, int] | None]:
    """Return for every job how many of a client's samples are predicted right, and how many there are; else None."""
    if not jobs:
        return []
    slices: dict[Plan, dict[str, EncodedTensor]] = {}
    by_client = {job.client: job for job in jobs}

    def question(client: int, ticket: str) -> Packet:
        job = by_client[client]
        if job.plan not in slices:  # with the norm statistics of the model, which else do not travel
            slices[job.plan] = packed(_tested(setup, download(job.plan)))
        header = OwnDataTest(ticket=ticket, client=client, plan=raw(job.plan), batch=job.batch)
        return Packet(write(header), slices[job.plan])

    def checked(client: int, reply: OwnDataTested, received: Mapping[str, EncodedTensor]) -> tuple[int, int]:
        del client
        decode_state(received, {})
        if not reply.samples or reply.right > reply.samples:
            raise DeviceError(f"it says that {reply.right} of {reply.samples} samples are right")
        return reply.right, reply.samples

    counts = ask_clients(nodes, list(by_client), question, OwnDataTested, checked, what="results on its own samples")
    return [counts.get(job.client) for job in jobs]


def own_model_answers(
    setup: Setup,
    nodes: Nodes,
    jobs: Sequence[TestClientModelJob],
    download: Callable[[Plan], State],
    outputs_like: Callable[[Plan, State], Tensor],
    *,
    run: str,
    round: int,
) -> list[Tensor | None]:
    """Return for every job the outputs of a client's own model on the test samples; None for clients without answer.

    Parameters
    ----------
    setup, nodes, jobs, download
        The experiment, the devices, what is asked of them, and what returns the slice of a plan.
    outputs_like
        Returns a tensor like the outputs of a sub-model on all test samples.
    run, round
        The run, and the round whose models are tested.
    """
    if not jobs:
        return []
    slices: dict[Plan, dict[str, EncodedTensor]] = {}
    outputs: dict[Plan, Tensor] = {}
    by_client = {job.who.client: job for job in jobs}

    def question(client: int, ticket: str) -> Packet:
        job, who = by_client[client], by_client[client].who
        if job.plan not in slices:
            state = download(job.plan)
            slices[job.plan] = packed({name: state[name] for name in travelling(setup, state)})
            outputs[job.plan] = outputs_like(job.plan, state)
        header = OwnModelTest(
            ticket=ticket,
            run=run,
            round=round,
            client=client,
            level=who.level.name,
            samples=who.samples,
            seed=who.seed,
            plan=raw(job.plan),
            batch=job.batch,
            norm_batch=job.norm_batch,
        )
        return Packet(write(header), slices[job.plan])

    def checked(client: int, reply: OwnModelTested, received: Mapping[str, EncodedTensor]) -> Tensor | None:
        template = {ANSWER: outputs[by_client[client].plan]} if reply.kept else {}
        answer = decode_state(received, template).get(ANSWER)
        if answer is not None and not bool(answer.isfinite().all()):
            raise DeviceError("they hold values that are not finite")
        return answer

    answers = ask_clients(nodes, list(by_client), question, OwnModelTested, checked, what="results of its own model")
    return [answers.get(job.who.client) for job in jobs]


def _tested(setup: Setup, state: State) -> dict[str, Tensor]:
    """Return what a device needs to test a model: what travels in rounds, and norm statistics."""
    names = [name for name in state if name in setup.norm_statistics and name not in setup.axes.tied]
    return {name: state[name] for name in (*travelling(setup, state), *names)}
