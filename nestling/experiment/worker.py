"""`Worker`: does the jobs of clients in one process, and keeps nothing from job to job but models."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, singledispatchmethod
from itertools import accumulate, chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nestling.client.grouped.train_group import Batch, Member, train_together
from nestling.client.sgd import half_of
from nestling.client.train import Progress, summed, train
from nestling.cut import Plan
from nestling.data.batches import batches
from nestling.data.federated import ClientData
from nestling.draws import DrawnInBackward, drawing, process_is_ours
from nestling.errors import DataError, TrainingError, first_line
from nestling.events import report
from nestling.experiment.jobs import GroupJob, NormStatisticsJob, State, Test, TestClientModelJob, Train, Update
from nestling.experiment.pooled import pooled
from nestling.experiment.rows import ranks
from nestling.experiment.setting import Overrides, Setting, setting
from nestling.experiment.submodels import Models
from nestling.experiment.uploads import packed
from nestling.kernels.device import find_device
from nestling.kernels.grouped_layers import Grouped, Layout
from nestling.methods.context import ClientContext
from nestling.methods.parts.static_norms import mean_statistics, norm_sums
from nestling.seeds import derive, numpy_stream, torch_stream
from nestling.tasks.task import Answer

_AT_ONCE = 2**22  # values of a client's images that are made ready at once: 16 MiB
_SHARED_DRAWS, _ALL_DRAWS = "shared draws", "all draws"  # what was found of a model while it trained
_GROUP_AT_ONCE = 2**24  # the same of clients that train together: 64 MiB


class Worker:
    """Does jobs, in whatever order they come: the result of one never depends on another."""

    def __init__(self, made: Setting, device: torch.device | None = None) -> None:
        self._setting = made
        self._device = device or find_device(made.experiment.device)
        self._half = half_of(self._device, made.experiment.precision)
        self._fast = made.experiment.accelerate != "off"
        self._models = Models(made, self._device)

    @classmethod
    def from_overrides(cls, overrides: Overrides) -> Worker:
        """Build a worker in a new process."""
        return cls(setting(overrides))

    @singledispatchmethod
    def __call__(self, job: Any) -> Any:
        """Do a job and return its result."""
        raise TypeError(f"a worker cannot do {type(job).__name__}")

    @__call__.register
    def _train(self, job: Train) -> Update:
        kept = self._models.get(job.plan, {}, job.ratio)
        before = torch.default_generator.get_state()
        try:
            update = self._train_once(job)
        except DrawnInBackward:
            report(
                "forward pass run again",
                "the model runs a forward pass again in its backward pass (gradient checkpointing): it trains with "
                "PyTorch's own generator, and code in other threads that draws from it changes the run's numbers",
                logging.INFO,
            )
            kept.scratch[_SHARED_DRAWS] = True
            return self._train_once(job)
        quiet = kept.draws.training or process_is_ours() or _SHARED_DRAWS in kept.scratch
        if quiet or _ALL_DRAWS in kept.scratch or torch.equal(before, torch.default_generator.get_state()):
            return update
        # this model drew after all, or somebody else did: only one of both would make the result wrong
        kept.scratch[_ALL_DRAWS] = True
        return self._train_once(job)

    def _train_once(self, job: Train) -> Update:
        made, seed = self._setting, self._setting.experiment.seed
        own = {axis: job.plan.index(axis) for axis in job.plan.runs if axis in made.axes.frozen}  # rows it received
        kept = self._models.get(job.plan, job.state | job.own, job.ratio)
        context = ClientContext(
            kept.model,
            made.axes,
            job.plan,
            job.ratio,
            None if own else self._labels(job.client),
            numpy_stream(seed, "draw", job.round, job.client),
            tuple(sorted(level.ratio for level, _ in made.fleet.mix)),
            job.round,
            kept.scratch,
            self._here(job.memory),
            made.dataset.classes - len(made.partition.labels[job.client]) if own else 0,
            self._fast,
        )
        augment = torch_stream(seed, "augment", job.round, job.client)
        samples, batch = self._own_samples(made.data.client(job.client), own, augment)
        everything, shared = kept.draws.training or _ALL_DRAWS in kept.scratch, _SHARED_DRAWS in kept.scratch
        with self._drawing("dropout", job.round, job.client, everything=everything, shared=shared):
            try:
                progress = train(
                    context,
                    samples,
                    batch,
                    made.experiment.local,
                    lr=job.lr,
                    generator=torch_stream(seed, "batches", job.round, job.client),
                    loss=made.method.loss,
                    proximal=made.method.proximal + made.experiment.local.proximal,
                    half=self._half,
                )
            except TrainingError as problem:
                raise TrainingError(f"round {job.round}, client {job.client}: {problem}") from None
            except ValueError as problem:
                if "more than 1 value per channel" not in str(problem):
                    raise
                raise DataError(
                    f"client {job.client} has a single sample, of which a norm can tell no variance: "
                    "set data.minimum=2, or a model.options.norm other than bn"
                ) from None
        state = {
            name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name, tensor in kept.tensors.items()
            if name not in made.user_frozen
        }
        memory = made.method.remember(context, self._here(job.state)) if made.method.remember else {}
        memory = {name: tensor.cpu() for name, tensor in memory.items()}
        return self._update(job, state, progress, memory)

    @contextmanager
    def _drawing(self, *name: str | int, everything: bool, shared: bool = False) -> Iterator[None]:
        """Let what draws random numbers by itself, such as dropout, draw from the stream called `name`."""
        stream = torch_stream(self._setting.experiment.seed, *name)
        device_seed = getattr(getattr(torch, self._device.type, None), "manual_seed", None)
        if self._device.type != "cpu" and device_seed is not None:
            device_seed(stream.initial_seed())
        with drawing(stream, everything=everything, shared=shared):
            yield

    @__call__.register
    def _train_many(self, job: GroupJob) -> list[Update]:
        problem: Exception | None = None
        if job.layout is not None:
            try:
                return self._together(job, job.layout)
            except (TrainingError, ValueError) as found:
                problem = found
        updates = [self._train(alone) for alone in job.jobs]  # raises where it was the fault of a client, and names it
        if problem is not None:
            clients = ", ".join(str(alone.client) for alone in job.jobs)
            report("cohort split", f"clients {clients} trained one by one, not together: {first_line(problem)}")
        return [pooled(updates, self._weights(job.jobs))] if self._alike(job.jobs) else updates

    def _together(self, job: GroupJob, layout: Layout) -> list[Update]:
        made, seed = self._setting, self._setting.experiment.seed
        data = [made.data.client(one.client) for one in job.jobs]
        members = [
            Member(
                one.state | one.own,
                torch.arange(len(data[k]), device="cpu"),
                torch_stream(seed, "batches", one.round, one.client),
                torch_stream(seed, "dropout", one.round, one.client),
                self._labels(one.client),
            )
            for k, one in enumerate(job.jobs)
        ]
        trained = train_together(
            self._grouped(job, layout),
            members,
            self._batches(data, [torch_stream(seed, "augment", one.round, one.client) for one in job.jobs]),
            made.experiment.local,
            lr=job.jobs[0].lr,
            proximal=made.method.proximal + made.experiment.local.proximal,
        )
        if self._alike(job.jobs):
            clients, touched = tuple(one.client for one in job.jobs), self._touched(job.jobs[0])
            mean = self._without_frozen(trained.mean(self._weights(job.jobs)))
            return [Update(clients, job.jobs[0].plan, touched, mean, summed(trained.progress))]
        told = zip(job.jobs, trained.states(), trained.progress, strict=True)
        return [self._update(one, self._without_frozen(state), progress, {}) for one, state, progress in told]

    def _without_frozen(self, state: State) -> State:
        frozen = self._setting.user_frozen
        return {name: tensor for name, tensor in state.items() if name not in frozen} if frozen else state

    def _alike(self, jobs: Sequence[Train]) -> bool:
        """Whether the server needs no more of some clients than their mean: they trained the same, and keep nothing."""
        made = self._setting
        if made.private or made.method.remember or made.experiment.upload.format != "dense":
            return False
        return len({one.plan for one in jobs}) == 1 and len({self._touched(one) for one in jobs}) == 1

    def _weights(self, jobs: Sequence[Train]) -> list[float]:
        return [self._setting.weight(one.client, one.ratio) for one in jobs]

    def _labels(self, client: int) -> Tensor | None:
        """The classes that a client holds, where its loss is masked to them."""
        labels = self._setting.partition.labels[client]
        masked = self._setting.method.masked and len(labels) < self._setting.dataset.classes
        return labels.to(self._device) if masked else None

    def _update(self, job: Train, state: State, progress: Progress, memory: State) -> Update:
        """What a client returns, from its weights after training."""
        made, upload = self._setting, None
        if made.experiment.upload.format != "dense":
            drawn = derive(made.experiment.seed, "upload", job.round, job.client)
            upload, left = packed(made, state, job.state, job.memory, drawn)
            memory, state = memory | left, {name: state[name] for name in state if name in made.private}
        return Update((job.client,), job.plan, self._touched(job), state, progress, memory, upload)

    def _touched(self, job: Train) -> Plan | None:
        """What a client trains of its slice where that is less than all of it: the rows of classes that it holds."""
        made = self._setting
        selected = any(axis in made.axes.frozen for axis in job.plan.runs)
        rows = made.rows(job.client) if made.method.masked and not selected else {}
        return Plan(rows) if rows else None

    @__call__.register
    def _gather(self, job: NormStatisticsJob) -> tuple[State, int]:
        kept = self._models.get(job.plan, job.state)
        with self._drawing("testing", *job.clients, everything=kept.draws.testing):
            return self._statistics(kept.model, job.clients, job.batch)

    @__call__.register
    @torch.no_grad()
    def _test(self, job: Test) -> Answer:
        kept = self._models.get(job.plan, job.state)
        model = kept.model.eval()
        with self._drawing("testing", job.part, job.start, everything=kept.draws.testing):
            return self._answer(model, job.part, job.start, job.stop)

    @__call__.register
    @torch.no_grad()
    def _test_own(self, job: TestClientModelJob) -> Answer:
        everything = self._models.get(job.plan, {}).draws.testing
        with self._drawing("testing", job.client, everything=everything):
            return self._tested_own(job)

    def _tested_own(self, job: TestClientModelJob) -> Answer:
        own = job.state | job.own
        model = self._models.get(job.plan, own).model
        if self._setting.statistics:
            told = mean_statistics([self._statistics(model, [job.client], job.batch)])
            state = {name: told.get(name, tensor).to(tensor.dtype) for name, tensor in own.items()}
            model = self._models.get(job.plan, state).model
        model.eval()
        return self._answer(model, "test", 0, len(self._setting.data.test))

    def _batch(
        self, data: ClientData, rows: Mapping[str, Tensor], generator: torch.Generator, chosen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some of a client's samples; where it received some `rows` alone, by their places."""
        made = self._setting
        inputs, targets = made.task.prepare(data.batch(chosen), generator, training=True)
        for axis in made.tokens if rows else ():
            inputs = ranks(rows[axis], inputs)
        targets = ranks(rows[str(made.classes)], targets) if rows else targets
        return data.transform(inputs.to(self._device), generator), targets.to(self._device)

    def _own_samples(
        self, data: ClientData, rows: Mapping[str, Tensor], generator: torch.Generator
    ) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor]]]:
        """A client's samples by number, and what gives the inputs and targets of some numbers."""
        numbers = torch.arange(len(data), device="cpu")
        if not self._fast or self._draws(data) or rows or data.values > _AT_ONCE:
            return numbers, partial(self._batch, data, rows, generator)
        # nothing is drawn: all of them once, as making a batch ready takes as long as a step of a small model
        inputs, targets = self._batch(data, rows, generator, numbers)
        return numbers, lambda chosen: (inputs[chosen], targets[chosen])

    def _draws(self, data: ClientData) -> bool:
        """Whether random numbers are drawn to make a batch."""
        return data.augmented or self._setting.task.draws

    def _here(self, state: State) -> State:
        """Tensors where the model is."""
        return {name: tensor.to(self._device) for name, tensor in state.items()}

    def _batches(self, data: Sequence[ClientData], draws: Sequence[torch.Generator]) -> Batch:
        """What gives the batches of several clients, each as it would be alone, one after another."""
        if not any(map(self._draws, data)) and sum(one.values for one in data) <= _GROUP_AT_ONCE:
            every = [torch.arange(len(one), device="cpu") for one in data]
            inputs, targets = self._joined(data, draws, range(len(data)), every)
            first = [0, *accumulate(map(len, data))]

            def chosen_of_all(who: Sequence[int], chosen: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
                rows = torch.cat([part + first[k] for k, part in zip(who, chosen, strict=True)])
                return inputs[rows], targets[rows]

            return chosen_of_all
        return partial(self._joined, data, draws)

    def _joined(
        self,
        data: Sequence[ClientData],
        draws: Sequence[torch.Generator],
        who: Sequence[int],
        chosen: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor]:
        parts = [self._batch(data[k], {}, draws[k], part) for k, part in zip(who, chosen, strict=True)]
        if len({inputs.shape[1:] for inputs, _ in parts}) > 1:
            raise TrainingError("clients of a cohort have sequences of different lengths")
        return torch.cat([inputs for inputs, _ in parts]), torch.cat([targets for _, targets in parts])

    def _answer(self, model: nn.Module, part: Literal["test", "validation"], start: int, stop: int) -> Answer:
        """What a task keeps of a model's answers; what is drawn for it is the same in every round."""
        made, task = self._setting, self._setting.task
        data = made.data.test if part == "test" else made.data.validation
        random = torch_stream(made.experiment.seed, "mask", part, start)
        inputs, targets = task.prepare(data.batch(torch.arange(start, stop, device="cpu")), random, training=False)
        size = task.test_batch(inputs, made.experiment.evaluate.batch)
        answers = []
        for some, asked in zip(inputs.split(size), targets.split(size), strict=True):
            read = data.transform(some.to(self._device), None)
            answers.append(task.answer(made.method.predict(model(read)), read, asked.to(self._device)))
        return task.join(answers)

    def _statistics(self, model: nn.Module, clients: Sequence[int], batch: int) -> tuple[State, int]:
        parts = chain.from_iterable(self._inputs(client, batch) for client in clients)
        return norm_sums(model, parts, join=self._fast)

    def _inputs(self, client: int, batch: int) -> Iterator[Tensor]:
        """A client's samples in batches, as a model reads them."""
        made, data = self._setting, self._setting.data.client(client)
        random = torch_stream(made.experiment.seed, "mask", "statistics", client)
        for part in batches(torch.arange(len(data), device="cpu"), batch):
            inputs, _ = made.task.prepare(data.batch(part), random, training=True)
            yield data.transform(inputs.to(self._device), None)

    def _grouped(self, job: GroupJob, layout: Layout) -> Grouped:
        """A grouped network with room for all clients of a job, built once per shape; it lives as long as the model."""
        first = job.jobs[0]
        alone = self._models.get(first.plan, {}, first.ratio)
        kept: Grouped | None = alone.scratch.get(Grouped)
        if kept is None or kept.room < len(job.jobs):
            kept = alone.scratch[Grouped] = Grouped(alone.model, len(job.jobs), layout)
        return kept
