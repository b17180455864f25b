"""`Worker`: does the jobs of clients in one process or on one device; between jobs it keeps only models."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import nn

from nestling.client.branch import train_branch
from nestling.client.samples import Samples
from nestling.client.submodels import Submodel, Submodels
from nestling.client.train import train
from nestling.client.transport import encode_update
from nestling.cut import Plan
from nestling.cut.extract import State
from nestling.data.federated import ClientData, FederatedData
from nestling.draws import DrawnInBackward, drawing, process_is_ours
from nestling.errors import DataError, TrainingError
from nestling.events import report
from nestling.methods.context import ClientContext, Setup
from nestling.methods.messages import (
    BranchJob,
    GroupJob,
    JobEnvelope,
    NormStatisticsJob,
    TestClientModelJob,
    TestJob,
    TestOwnDataJob,
    TrainJob,
    Update,
)
from nestling.methods.parts.static_norms import mean_statistics, norm_sums
from nestling.methods.sgd import half_of
from nestling.seeds import derive, numpy_stream, torch_stream
from nestling.settings.structs import Precision
from nestling.tasks.task import Answer, OutputMask

_SHARED_DRAWS, _ALL_DRAWS = (
    "shared draws",
    "all draws",
)  # keys of a workspace: what was found out about a model in training
_CPU = torch.device("cpu")


class Worker:
    """Does jobs in any order: the result of one never depends on another.

    Parameters
    ----------
    setup, data
        The experiment, and the samples of its clients.
    device, precision
        Where models compute, and in which precision they train.
    public
        Samples without labels that all clients have, if the method needs that.
    """

    def __init__(
        self,
        setup: Setup,
        data: FederatedData,
        device: torch.device = _CPU,
        precision: Precision = "full",
        public: ClientData | None = None,
    ) -> None:
        self._setup, self._data, self._device, self._public = setup, data, device, public
        self._half = half_of(device, precision)
        self._submodels = Submodels(setup, device)
        self._samples = Samples(setup, data, device)

    def __call__(self, envelope: JobEnvelope | GroupJob | BranchJob) -> Any:
        """Do a job and return its result: one or several updates, sums of norm statistics, or a task's answer."""
        if isinstance(envelope, BranchJob):
            return train_branch(self._setup, self, envelope)
        if isinstance(envelope, GroupJob):
            return self._train_group(envelope)
        match envelope.job:
            case TrainJob():
                return self._train(envelope, envelope.job)
            case NormStatisticsJob():
                return self._norm_statistics(envelope.job, envelope.state)
            case TestJob():
                return self._test(envelope.job, envelope.state)
            case TestOwnDataJob():
                return self._test_own_data(envelope.job, envelope.state)
            case TestClientModelJob():
                return self._test_client_model(envelope.job, envelope.state | envelope.private)
        raise TypeError(f"a worker cannot do {type(envelope.job).__name__}")

    def _train_group(self, group: GroupJob) -> list[Update]:
        raise TypeError("jobs of several clients need a GroupWorker")

    def _train(self, envelope: JobEnvelope, job: TrainJob) -> Update:
        submodel = self._submodels.get(job.plan, {}, job.who.level.ratio)
        before = torch.default_generator.get_state()
        try:
            update = self._train_once(envelope, job)
        except DrawnInBackward:
            report(
                "forward pass run again",
                "the model runs a forward pass again in its backward pass (gradient checkpointing): it trains with "
                "PyTorch's own generator, and code in other threads that draws from it changes the run's numbers",
                logging.INFO,
            )
            submodel.workspace[_SHARED_DRAWS] = True
            return self._train_once(envelope, job)
        quiet = submodel.draws.training or process_is_ours() or _SHARED_DRAWS in submodel.workspace
        if quiet or _ALL_DRAWS in submodel.workspace or torch.equal(before, torch.default_generator.get_state()):
            return update
        # PyTorch's generator was used, by this model or by other code: train again in case it was the model
        submodel.workspace[_ALL_DRAWS] = True
        return self._train_once(envelope, job)

    def _train_once(self, envelope: JobEnvelope, job: TrainJob) -> Update:
        setup, seed, client = self._setup, self._setup.seed, job.who.client
        submodel = self._submodels.get(job.plan, envelope.state | envelope.private, job.who.level.ratio)
        rows = {axis: job.plan.index(axis) for axis in job.plan.runs if axis in setup.axes.frozen}  # if it selects rows
        mask = self._mask(client, selected=bool(rows))
        context = ClientContext(
            setup,
            submodel.model,
            job.plan,
            job.who.level.ratio,
            job.round,
            job.lr,
            sent=envelope.state,
            client_state={name: tensor.to(self._device) for name, tensor in envelope.client_state.items()},
            extra={name: tensor.to(self._device) for name, tensor in envelope.extra.items()},
            public=self._public,
            mask=mask,
            draw=numpy_stream(seed, "draw", job.round, client),
            workspace=submodel.workspace,
        )
        indices, batch = self._samples.of_client(client, rows, torch_stream(seed, "augment", job.round, client))
        everything, shared = (
            submodel.draws.training or _ALL_DRAWS in submodel.workspace,
            _SHARED_DRAWS in submodel.workspace,
        )
        with self._drawing("dropout", job.round, client, everything=everything, shared=shared):
            try:
                setup.method.start(context)
                shuffle = torch_stream(seed, "batches", job.round, client)
                progress = train(context, indices, batch, lr=job.lr, generator=shuffle, half=self._half)
            except TrainingError as problem:
                raise TrainingError(f"round {job.round}, client {client}: {problem}") from None
            except ValueError as problem:
                # PyTorch has no type for this error, and which norm gets a single value only a forward pass shows: the
                # message is the only sign that tells it from a ValueError of the model's own code
                if "more than 1 value per channel" not in str(problem):
                    raise
                raise DataError(
                    f"client {client} has a single sample, which is too few for a batch norm: "
                    "set data.min_samples=2, or a model.options.norm other than bn"
                ) from None
        state = {
            name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name, tensor in submodel.tensors.items()
            if name not in setup.user_frozen
        }
        client_state = {name: tensor.cpu() for name, tensor in setup.method.finish(context).items()}
        extra = {name: tensor.cpu() for name, tensor in setup.method.reply(context).items()}
        update = Update((job.who,), job.plan, self._merging(mask), state, progress, client_state, extra=extra)
        return self._encoded(envelope, update)

    def _mask(self, client: int, *, selected: bool) -> OutputMask | None:
        """Return the mask of a client's loss; if it selected rows, its model has no others."""
        method = self._setup.method
        if not method.overriding("output_mask"):
            return None  # finding the classes that a client holds may take long
        held = self._data.client(client).held()
        if selected:
            return OutputMask(absent=self._setup.task.classes - len(held))
        mask = method.output_mask(self._setup, held)
        return mask if mask is None or mask.held is None else replace(mask, held=mask.held.to(self._device))

    def _merging(self, mask: OutputMask | None) -> Plan | None:
        """Return the rows of a client's slice that merge; None for all."""
        return Plan(mask.rows) if mask is not None and mask.rows else None

    def _encoded(self, envelope: JobEnvelope, update: Update) -> Update:
        """Return an update as it is sent: dense or encoded."""
        setup = self._setup
        if setup.upload.format == "dense":
            return update
        assert isinstance(envelope.job, TrainJob)
        seed = derive(setup.seed, "upload", envelope.job.round, envelope.job.who.client)
        return encode_update(setup, update, envelope.state, envelope.client_state, seed)

    def _norm_statistics(self, job: NormStatisticsJob, state: State) -> tuple[State, int]:
        submodel = self._submodels.get(job.plan, state)
        with self._drawing("testing", *job.clients, everything=submodel.draws.testing):
            return self._statistics(submodel.model, job.clients, job.batch)

    @torch.no_grad()
    def _test(self, job: TestJob, state: State) -> Answer:
        submodel = self._submodels.get(job.plan, state)
        with self._drawing("testing", job.part, job.start, everything=submodel.draws.testing):
            return self._answer(submodel, job.part, job.start, job.stop, job.batch)

    @torch.no_grad()
    def _test_own_data(self, job: TestOwnDataJob, state: State) -> tuple[int, int]:
        own = self._data.client(job.client)
        submodel, held = self._submodels.get(job.plan, state), own.held()
        with self._drawing("testing", job.client, 0, everything=submodel.draws.testing):
            answer = self._answer(submodel, job.client, 0, len(own), job.batch)
        return int((held[answer[:, held].argmax(-1)] == own.targets()).sum()), len(own)

    @torch.no_grad()
    def _test_client_model(self, job: TestClientModelJob, state: State) -> Answer:
        submodel = self._submodels.get(job.plan, state)
        with self._drawing("testing", job.who.client, everything=submodel.draws.testing):
            if self._setup.norm_statistics:
                measured = mean_statistics([self._statistics(submodel.model, [job.who.client], job.norm_batch)])
                state = {name: measured.get(name, tensor).to(tensor.dtype) for name, tensor in state.items()}
                submodel = self._submodels.get(job.plan, state)
            return self._answer(submodel, "test", 0, len(self._data.test), job.batch)

    def _answer(self, submodel: Submodel, part: str | int, start: int, stop: int, most: int) -> Answer:
        """Return what the task keeps of a model's output on some test samples."""
        task, method = self._setup.task, self._setup.method
        model = submodel.model.eval()
        answers = []
        for inputs, targets in self._samples.for_test(part, start, stop, most):
            answers.append(task.answer_of(model, method.predict, inputs, targets))
        return task.join(answers)

    def _statistics(self, model: nn.Module, clients: Sequence[int], batch: int) -> tuple[State, int]:
        parts = chain.from_iterable(self._samples.for_statistics(client, batch) for client in clients)
        return norm_sums(model, parts, join=self._setup.accelerate)

    @contextmanager
    def _drawing(self, *name: str | int, everything: bool, shared: bool = False) -> Iterator[None]:
        """Make layers that draw random numbers, such as dropout, draw from the stream called `name`."""
        stream = torch_stream(self._setup.seed, *name)
        device_seed = getattr(getattr(torch, self._device.type, None), "manual_seed", None)
        if self._device.type != "cpu" and device_seed is not None:
            device_seed(stream.initial_seed())
        with drawing(stream, everything=everything, shared=shared):
            yield
