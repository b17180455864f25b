"""`NodeWorker`: what a device does: it answers the messages of the server with its own samples."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from nestling.axes import AxisMap
from nestling.budgets import parse_bytes
from nestling.client.transport import travelling
from nestling.client.worker import Worker
from nestling.cut import Plan, cost, extract
from nestling.cut.cost import with_batch
from nestling.data.federated import FederatedData
from nestling.errors import DeviceError
from nestling.fleet import TRAINING, parse_level
from nestling.flower.array_codec import decode_state, packed
from nestling.flower.link import EncodedTensor, Kind, Packet
from nestling.flower.node_memory import NodeMemory, keep_state, kept_state
from nestling.flower.node_messages import (
    ANSWER,
    Capacity,
    Measured,
    OwnDataTest,
    OwnDataTested,
    OwnModelTest,
    OwnModelTested,
    Question,
    Statistics,
    Trained,
    Training,
    plan_of,
    read,
    write,
)
from nestling.machine import memory as machine_memory
from nestling.methods.context import Participant, Setup
from nestling.methods.messages import (
    JobEnvelope,
    NormStatisticsJob,
    TestClientModelJob,
    TestOwnDataJob,
    TrainJob,
)
from nestling.model_inputs import arguments
from nestling.sizing.step_time import submodel_seconds

_LIMIT = 0.5  # seconds of a step beyond which fewer steps are measured


@dataclass(frozen=True)
class NodeConfig:
    """What the owner of a node sets.

    Attributes
    ----------
    client
        The number of its client; None if the server is to choose one.
    memory
        What training may use, such as ``256 MB``; empty for what is free.
    level
        The largest level that it trains, such as ``c``; empty for any.
    """

    client: int | None = None
    memory: str = ""
    level: str = ""

    def __post_init__(self) -> None:
        if self.level:
            parse_level(self.level)


class NodeWorker:
    """Answers messages in one process, with models that are built once.

    Parameters
    ----------
    setup, data
        The experiment, and data of which a client's own samples alone are read.
    worker
        Does the jobs.
    """

    def __init__(self, setup: Setup, data: FederatedData, worker: Worker) -> None:
        self._setup, self._data, self._worker = setup, data, worker

    def answer(self, kind: Kind, packet: Packet, config: NodeConfig, memory: Callable[[str], NodeMemory]) -> Packet:
        """Return the answer to a message; raise if it cannot be given. `memory` is what is kept for a run."""
        if kind == "query":
            return self._introduce(read(packet.header, Question), config)
        if kind == "train":
            training = read(packet.header, Training)
            return self._train(training, packet, memory(training.run))
        match read(packet.header, Statistics, OwnDataTest, OwnModelTest):
            case Statistics() as statistics:
                return self._measure(statistics, packet)
            case OwnDataTest() as test:
                return self._test_own_data(test, packet)
            case OwnModelTest() as test:
                return self._test_own_model(test, packet, memory(test.run))
        raise DeviceError("this is no message to a node")

    def _introduce(self, question: Question, config: NodeConfig) -> Packet:
        setup, client = self._setup, config.client
        number = 0 if client is None else client
        if number >= setup.clients:
            raise DeviceError(f"this node is client {number}, but fleet.clients is {setup.clients}: set a lower number")
        free = parse_bytes(config.memory) if config.memory else machine_memory()["available"]
        capacity = Capacity(
            ticket=question.ticket,
            model=model_digest(setup),
            client=client,
            samples=self._data.size(number),
            held=self._data.client(number).held().tolist() if setup.select_rows else [],
            memory=float(free or 0),
            speed=self._speed() if question.measure else 0.0,
            level=config.level,
        )
        return Packet(write(capacity))

    def _train(self, request: Training, packet: Packet, memory: NodeMemory) -> Packet:
        setup, plan = self._setup, plan_of(request.plan)
        sent = self._slice(plan, packet.tensors)
        kept, private, state = kept_state(setup, memory, request.round, plan) if setup.clients_keep else (0, {}, {})
        job = TrainJob(self._who(request), plan, request.round, request.lr)
        update = self._worker(JobEnvelope(job, sent, private, state))
        if setup.clients_keep:
            keep_state(setup, memory, request.round, update)
        reply = Trained(
            ticket=request.ticket,
            plan=plan.digest,
            samples=update.progress.samples,
            loss=update.progress.loss,
            correct=update.progress.correct,
            rows="" if update.rows is None else update.rows.to_json(),
            kept=kept,
        )
        if update.message is not None:
            return Packet(write(reply), blob=update.message)
        return Packet(write(reply), packed({name: update.state[name] for name in travelling(setup, update.state)}))

    def _who(self, request: Training | OwnModelTest) -> Participant:
        held = self._data.client(request.client).held() if self._setup.select_rows else None
        return Participant(request.client, parse_level(request.level), request.samples, request.seed, held)

    def _test_own_data(self, request: OwnDataTest, packet: Packet) -> Packet:
        plan = plan_of(request.plan)
        state = self._slice(plan, packet.tensors, more=self._setup.norm_statistics)
        right, samples = self._worker(JobEnvelope(TestOwnDataJob(plan, request.client, request.batch), state))
        return Packet(write(OwnDataTested(ticket=request.ticket, right=right, samples=samples)))

    def _test_own_model(self, request: OwnModelTest, packet: Packet, memory: NodeMemory) -> Packet:
        plan = plan_of(request.plan)
        kept, private, _ = kept_state(self._setup, memory, request.round + 1, plan)
        reply = write(OwnModelTested(ticket=request.ticket, kept=kept))
        if not kept:
            return Packet(reply)
        job = TestClientModelJob(self._who(request), plan, request.batch, request.norm_batch)
        answer = self._worker(JobEnvelope(job, self._slice(plan, packet.tensors), private))
        return Packet(reply, packed({ANSWER: answer}))

    def _measure(self, request: Statistics, packet: Packet) -> Packet:
        tensors: dict[str, Tensor] = {}
        batches = 0
        for place, part in enumerate(request.plans):
            plan = plan_of(part)
            state = self._slice(plan, packet.tensors, prefix=f"{place}/")
            sums, batches = self._worker(JobEnvelope(NormStatisticsJob(plan, (request.client,), request.batch), state))
            tensors |= {f"{place}/{name}": value for name, value in sums.items()}
        return Packet(write(Measured(ticket=request.ticket, batches=batches)), packed(tensors))

    def _slice(
        self,
        plan: Plan,
        tensors: Mapping[str, EncodedTensor],
        *,
        prefix: str = "",
        more: frozenset[str] = frozenset(),
    ) -> dict[str, Tensor]:
        """Return the slice of a plan as it was sent; tensors that do not travel have their initial values.

        `more` are names that came although they do not travel in rounds.
        """
        setup = self._setup
        own = extract(setup.cut_axes, plan, setup.model.state_dict())
        untied = (name for name in own if name in more and name not in setup.axes.tied)
        template = {name: own[name] for name in (*travelling(setup, own), *untied)}
        mine = {name.removeprefix(prefix): part for name, part in tensors.items() if name.startswith(prefix)}
        state = own | decode_state(mine, template)
        return {name: state[setup.axes.tied.get(name, name)] for name in state}

    def _speed(self) -> float:
        """Return the multiply-accumulates per second of training the smallest sub-model."""
        setup = self._setup
        plan, batch = setup.submodel_plan(setup.ratios[0]), setup.training.batch_size
        args, kwargs = arguments(setup.example)
        macs = cost(setup.model, setup.axes, plan, *args, batch=batch, **kwargs).macs
        args, kwargs = with_batch(batch, args, kwargs)
        seconds = submodel_seconds(setup.model, setup.axes, plan, *args, limit=_LIMIT, **kwargs)
        return TRAINING * macs / max(seconds, 1e-9) if math.isfinite(seconds) else 0.0


def model_digest(setup: Setup) -> str:
    """Return a digest of what the server and its nodes must have in common: axes, tensors, method, task, training."""
    text = [
        AxisMap.to_json(setup.axes),
        *(f"{name} {tensor.dtype}" for name, tensor in setup.model.state_dict().items()),
        *map(repr, (setup.method, setup.task.name, setup.training, setup.upload, setup.select_rows, setup.seed)),
    ]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:16]
