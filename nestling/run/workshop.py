"""`Workshop`: where a client's jobs are done. Every worker has one, and it keeps nothing from job to job but models."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial, singledispatchmethod
from typing import Any

import torch
from torch import Tensor, nn

from nestling.cut import Plan, submodel
from nestling.data import AUGMENT
from nestling.errors import TrainingError
from nestling.local import Learner, train
from nestling.local.batches import batches
from nestling.local.device import find_device
from nestling.local.norms import averaged, static, statistics
from nestling.local.scaler import scale
from nestling.local.steps import half_of
from nestling.run.jobs import Gather, State, Test, TestOwn, Train, Update
from nestling.run.setting import Blueprint, Setting, setting
from nestling.run.uploads import packed
from nestling.seeds import derive, numpy_stream, torch_stream

_MODELS = 16  # shapes of sub-models kept ready


class Workshop:
    """Does jobs, in whatever order they come: the result of one never depends on another."""

    def __init__(self, made: Setting, device: torch.device | None = None) -> None:
        self._setting = made
        self._device = device or find_device(made.experiment.device)
        self._half = half_of(self._device, made.experiment.precision)
        self._models: OrderedDict[object, tuple[nn.Module, dict[Any, Any]]] = OrderedDict()

    @classmethod
    def from_blueprint(cls, blueprint: Blueprint) -> Workshop:
        """Build a workshop in a new process."""
        return cls(setting(blueprint))

    @singledispatchmethod
    def __call__(self, job: Any) -> Any:
        """Do a job and return its result."""
        raise TypeError(f"a workshop cannot do {type(job).__name__}")

    @__call__.register
    def _train(self, job: Train) -> Update:
        made, seed = self._setting, self._setting.experiment.seed
        labels = made.partition.labels[job.client]
        masked = made.method.masked and len(labels) < made.dataset.classes
        model, scratch = self._model(job.plan, job.state | job.own, job.ratio)
        learner = Learner(
            model,
            made.axes,
            job.plan,
            job.ratio,
            labels.to(self._device) if masked else None,
            numpy_stream(seed, "draw", job.round, job.client),
            tuple(sorted(level.ratio for level, _ in made.fleet.mix)),
            job.round,
            scratch,
            job.memory,
        )
        samples = made.partition.train[job.client]
        augment = torch_stream(seed, "augment", job.round, job.client)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(seed, "dropout", job.round, job.client))
            try:
                progress = train(
                    learner,
                    samples,
                    partial(self._batch, generator=augment),
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
                raise TrainingError(
                    f"client {job.client} has a single sample, of which a norm can tell no variance: "
                    "set data.minimum=2, or a model.options.norm other than bn"
                ) from None
        touched = Plan({made.classes: labels}) if masked and made.classes is not None else None
        state = {name: tensor.detach().to("cpu", copy=True) for name, tensor in model.state_dict().items()}
        memory = made.method.remember(learner, job.state) if made.method.remember else {}
        upload = None
        if made.experiment.upload.format != "dense":
            drawn = derive(seed, "upload", job.round, job.client)
            upload, left = packed(made, state, job.state, job.memory, drawn)
            memory, state = memory | left, {name: state[name] for name in state if name in made.private}
        return Update(job.client, job.plan, touched, state, len(samples), progress, memory, upload)

    @__call__.register
    def _gather(self, job: Gather) -> list[tuple[State, int]]:
        model, _ = self._model(job.plan, job.state)
        return [self._statistics(model, client, job.batch) for client in job.clients]

    @__call__.register
    @torch.no_grad()
    def _test(self, job: Test) -> Tensor:
        model, _ = self._model(job.plan, job.state)
        model.eval()
        if job.part == "test":
            inputs = self._setting.dataset.test_inputs[job.start : job.stop]
        else:
            inputs = self._setting.dataset.inputs[self._setting.validation[job.start : job.stop]]
        return self._logits(model, inputs)

    @__call__.register
    @torch.no_grad()
    def _test_own(self, job: TestOwn) -> Tensor:
        own = job.state | job.own
        model, _ = self._model(job.plan, own)
        if self._setting.statistics:
            told = averaged([self._statistics(model, job.client, job.batch)])
            state = {name: told.get(name, tensor).to(tensor.dtype) for name, tensor in own.items()}
            model, _ = self._model(job.plan, state)
        model.eval()
        samples = self._setting.experiment.evaluate.samples or None
        return self._logits(model, self._setting.dataset.test_inputs[:samples])

    def _batch(self, chosen: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        dataset = self._setting.dataset
        inputs = AUGMENT[dataset.augment](dataset.inputs[chosen].to(self._device), generator)
        return dataset.ready(inputs), dataset.targets[chosen].to(self._device)

    def _logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        size = self._setting.experiment.evaluate.batch
        ready, predict = self._setting.dataset.ready, self._setting.method.predict
        return torch.cat([predict(model(ready(part.to(self._device)))) for part in inputs.split(size)]).cpu()

    def _statistics(self, model: nn.Module, client: int, batch: int) -> tuple[State, int]:
        dataset = self._setting.dataset
        parts = batches(self._setting.partition.train[client], batch)
        return statistics(model, (dataset.ready(dataset.inputs[part].to(self._device)) for part in parts))

    def _model(self, plan: Plan, state: State, ratio: float = 1.0) -> tuple[nn.Module, dict[Any, Any]]:
        """A sub-model that holds `state`, built once per shape, and room for what losses keep beside it."""
        made = self._setting
        sizes = tuple((name, sum(b - a for a, b in runs)) for name, runs in plan.runs.items())
        key = sizes, plan.blocks, ratio if made.method.scaler else None
        if key not in self._models:
            model = submodel(made.model, made.axes, plan)
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name not in made.frozen)
            if made.method.scaler:
                scale(model, made.axes, ratio)
            self._models[key] = model.to(self._device), {}
        self._models.move_to_end(key)
        while len(self._models) > _MODELS:
            self._models.popitem(last=False)
        model, scratch = self._models[key]
        model.load_state_dict(state)
        if made.method.static:
            static(model)
        return model, scratch
