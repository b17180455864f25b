"""Whether a model of the user's own learns from data of the user's own: tried before anything is trained."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from nestling.client.submodels import build_plain
from nestling.data.own.own_clients import OwnClients
from nestling.draws import drawing
from nestling.errors import ConfigError, NestlingError, first_line
from nestling.experiment.simulation import Simulation
from nestling.model_inputs import count
from nestling.safe_kernels import SafeKernels
from nestling.seeds import torch_stream
from nestling.tasks import OwnTask
from nestling.tasks.task import Batch

_SAMPLES = 4


def check_first_step(simulation: Simulation) -> None:
    """Raise `ConfigError` unless the whole model and the smallest sub-model have a loss on samples of a client."""
    setup, data = simulation.setup, simulation.data
    if not isinstance(data, OwnClients):
        return
    if simulation.settings.workers > 1 or simulation.settings.engine != "local":
        _check_sendable(setup.task)
        functions: list[Callable[..., Any]] = [data.reader.read] if data.reader else []
        if isinstance(setup.task, OwnTask):
            functions += [setup.task.function, *dict(setup.task.metric_functions).values()]
        for function in functions:
            _check_importable(function)
    holder = next((number for number in range(len(data)) if data.size(number)), None)
    if holder is None:
        raise ConfigError(f"no client of {data.name} has any samples")
    samples = data.client(holder)
    prepared = setup.task.prepare(
        samples.batch(torch.arange(min(_SAMPLES, len(samples)))), torch_stream(0, "first step"), training=True
    )
    batch = samples.transform(prepared[0], None), prepared[1]
    for name, ratio in dict([*list(simulation.levels.items())[-1:], ("full", 1.0)][::-1]).items():
        plan = setup.global_plan() if name == "full" else setup.submodel_plan(ratio)
        model = build_plain(setup, plan, ratio)
        whole = not (plan.runs or plan.blocks)
        _check_loss(simulation, model, batch, f"the model cannot learn from client {holder}" if whole else _small(name))
        if whole and isinstance(setup.task, OwnTask):
            _check_metrics(setup.task, model, batch)


def _check_loss(simulation: Simulation, model: nn.Module, batch: Batch, problem_is: str) -> None:
    """Raise unless a model has a loss on a batch that training can lower."""
    model.train(count(batch[0]) > 1)
    try:
        with SafeKernels(), drawing(torch_stream(0, "first step")):
            loss = simulation.setup.task.loss(model, batch).value
    except ConfigError:
        raise
    except NestlingError as problem:
        raise ConfigError(f"{problem_is}: {first_line(problem)}") from problem
    except Exception as problem:  # a forward, or a loss function, may fail in any way
        raise ConfigError(f"{problem_is}: {type(problem).__name__}: {first_line(problem)}") from problem
    if not loss.requires_grad:
        raise ConfigError("the loss does not depend on any parameter that is trained: is it detached, or all frozen?")
    if not bool(loss.isfinite()):
        raise ConfigError("the loss of the first samples is not a finite number: look at the loss and at the samples")


def _check_metrics(task: OwnTask, model: nn.Module, batch: Batch) -> None:
    """Raise unless metrics of the user's own are numbers, which the end of the first round would be late to learn."""
    try:
        with torch.no_grad(), SafeKernels(), drawing(torch_stream(0, "first step")):
            task.answer_of(model.eval(), model, *batch)
    except ConfigError:
        raise
    except Exception as problem:  # a metric may fail in any way
        raise ConfigError(f"a metric cannot be computed: {type(problem).__name__}: {first_line(problem)}") from problem


def _small(level: str) -> str:
    return (
        f"the sub-model of level {level} cannot be run, probably because a size is written into the model's forward "
        "(take sizes from tensors: x.shape)"
    )


def _check_importable(function: Callable[..., Any]) -> None:
    """Raise if a function is defined where worker processes cannot import it from."""
    if getattr(function, "__module__", "") == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        name = getattr(function, "__name__", type(function).__name__)
        raise ConfigError(
            f"the function {name!r} is defined in a notebook or at a prompt, where workers cannot find it: put it in a "
            "module, or use workers=1"
        )


def _check_sendable(task: object) -> None:
    """Raise unless a task can be sent to worker processes."""
    try:
        pickle.dumps(task)
    except Exception as problem:  # pickling fails in many ways
        raise ConfigError(
            f"the loss or a metric cannot be sent to workers ({first_line(problem)}): define it with def at the top "
            "level of a module, or use workers=1"
        ) from None
