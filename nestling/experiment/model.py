"""The global model of an experiment: by name, by ``module:factory``, or the caller's own.

With ``model.width`` below 1 a net by name is built at that width and initialised as such, as in the papers' code. Where
only the whole model can be built (the user's own) or its weights matter (those loaded from a file), it is sliced. A
slice keeps the scale of the whole model's initial weights: a head that reads 32 of 512 features starts at ±0.044, and
one that was built for 32 at ±0.177.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nestling.axes import AxisMap, trace
from nestling.cut import plan, resize, submodel
from nestling.data.federated import FederatedData
from nestling.draws import drawing
from nestling.errors import ConfigError, ModelError, NestlingError, first_line, nearest
from nestling.events import report
from nestling.imported import imported
from nestling.methods import Method
from nestling.model_inputs import arguments, count, logits_of, tensors_of
from nestling.nets import MODELS, build
from nestling.nets.pretrained import start_from
from nestling.safe_kernels import SafeKernels
from nestling.seeds import torch_stream
from nestling.settings import Experiment
from nestling.tasks import Task

_WIDTHS = ("widths", "width", "stem_width", "hidden", "head_width", "embedding")  # options of models that are widths


def traced_model(
    experiment: Experiment, data: FederatedData, task: Task, own: nn.Module | None = None
) -> tuple[nn.Module, AxisMap, str]:
    """Return the global model with its initial weights, its axes, and a sentence about pre-trained weights, if any."""
    settings, example = experiment.model, data.example(2)
    with drawing(torch_stream(experiment.seed, "model")):
        model = own if own is not None else _build(settings.name, settings.options, data)
    started = start_from(model, settings.weights).summary() if settings.weights else ""
    reason = task.objection(model, example)
    if reason:
        raise ConfigError(f"the model {settings.name} {reason}")
    args, kwargs = arguments(example)
    axes = trace(model, *args, **kwargs)
    if settings.width < 1:
        by_name = own is None and not settings.weights and ":" not in settings.name
        narrow = _built_narrow(experiment, data, model, axes) if by_name else None
        if narrow is None:
            report(
                "model sliced",
                f"model.width={settings.width:g} keeps a slice of the initial weights of {settings.name}, on the scale "
                "of the whole model: a model of that width would start with larger ones",
                logging.INFO,
            )
            narrow = submodel(model, axes, plan(axes, settings.width))
        model = narrow
        axes = trace(model, *args, **kwargs)
    return model, axes, started


def _built_narrow(experiment: Experiment, data: FederatedData, whole: nn.Module, axes: AxisMap) -> nn.Module | None:
    """Return a net by name with the sizes of its sub-model and weights of its own; None if its options give others."""
    settings = experiment.model
    cut = plan(axes, settings.width)
    before = {name: tensor.shape for name, tensor in whole.state_dict().items()}
    after = {name: tensor.shape for name, tensor in resize(whole, axes, cut).state_dict().items()}
    sizes = {axes.table[name].size: size for name, size in cut.sizes.items()}  # inside heads and groups
    pairs = {pair for name, shape in before.items() for pair in zip(shape, after[name], strict=True)}
    sizes |= dict(sorted(pairs, reverse=True))  # a width that equals, say, the number of classes: the smaller one
    options = model_options(settings.name, settings.options, data)
    chosen = MODELS[settings.name].options | options
    narrowed = {key: _with_sizes(chosen[key], sizes) for key in _WIDTHS if chosen.get(key) is not None}
    try:
        with drawing(torch_stream(experiment.seed, "model")):
            model = build(settings.name, **{**options, **narrowed})
    except ModelError:
        return None
    return model if {name: tensor.shape for name, tensor in model.state_dict().items()} == after else None


def _with_sizes(value: Any, sizes: Mapping[int, int]) -> Any:
    """Return an option, such as a list of widths, with some of its sizes replaced.

    >>> _with_sizes([[64, 64], [128, 3]], {64: 4, 128: 8})
    [[4, 4], [8, 3]]
    """
    return sizes.get(value, value) if isinstance(value, int) else [_with_sizes(part, sizes) for part in value]


def check_output(model: nn.Module, data: FederatedData, task: Task, method: Method) -> None:
    """Raise unless the output of a model is what training needs: logits for every sample, one for every class.

    The model is run once on two empty samples, in evaluation mode. Its buffers and PyTorch's generator do not change.
    """
    example = data.example(2)
    was_training = [module for module in model.modules() if module.training]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.eval()
    try:
        with torch.no_grad(), SafeKernels(), drawing(torch_stream(0, "output")):
            output = logits_of(functional_call(model, buffers, *arguments(example)))
    finally:
        for module in was_training:
            module.training = True
    try:
        logits = method.predict(output)
    except NestlingError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError) as problem:
        raise ConfigError(
            f"{method.name} cannot read what the model returns, {_kind_of(output)}: {first_line(problem)}"
        ) from problem
    if task.any_output:
        return
    wanted = task.output_shape(example)
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        outputs = "one tensor of numbers" if wanted is None else f"logits alone, of shape {wanted}"
        raise ConfigError(
            f"{method.name} needs a model that returns {outputs} for {count(example)} samples, not {_kind_of(logits)}"
        )
    if wanted is None:
        return
    if logits.shape[:-1] != wanted[:-1] or logits.dim() < 2:
        raise ConfigError(
            f"the model returns logits of shape {tuple(logits.shape)} for {count(example)} samples of {data.name}, "
            f"where {wanted} is needed"
        )
    if logits.shape[-1] < task.classes:
        raise ConfigError(
            f"the model has {logits.shape[-1]} outputs, too few for the {task.classes} classes of {data.name}"
        )


def _kind_of(output: object) -> str:
    if isinstance(output, Tensor):
        return f"a tensor of {output.dtype}"
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {len(output)}"
    return "nothing" if output is None else f"a {type(output).__name__}"


def _call(factory: Callable[..., Any], name: str, known: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call a user's factory with those known options of the data that it accepts, and with the user's options."""
    accepted: Mapping[str, inspect.Parameter]
    try:
        accepted = inspect.signature(factory).parameters
    except ValueError:  # some functions written in C have no signature
        accepted = {}
    any_name = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    unknown = [option for option in options if option not in accepted and not any_name]
    if unknown:
        names = " or ".join(map(repr, unknown))
        raise ConfigError(f"the model {name!r} has no option {names}{nearest(unknown[0], sorted(accepted))}")
    try:
        return factory(**{**{key: value for key, value in known.items() if key in accepted}, **options})
    except NestlingError:
        raise
    except Exception as problem:  # whatever a user's own code raises
        raise ConfigError(
            f"the model {name!r} could not be made: {type(problem).__name__}: {first_line(problem)}"
        ) from problem


def _build(name: str, options: dict[str, Any], data: FederatedData) -> nn.Module:
    """Build a model by name, or by ``module:factory``; options that follow from the data have these as defaults."""
    if ":" in name:
        model = _call(imported(name, ConfigError), name, data.model_options, options)
        if not isinstance(model, nn.Module):
            raise ConfigError(f"the model {name!r} is a {type(model).__name__}, not an nn.Module")
        return model
    return build(name, **model_options(name, options, data))


def model_options(name: str, options: dict[str, Any], data: FederatedData) -> dict[str, Any]:
    """Return the options of a model by name: those that follow from the data, and those given."""
    known = dict(data.model_options)
    if name not in MODELS:
        raise ConfigError(f"there is no model {name!r}, nor is that of the form module:factory{nearest(name, MODELS)}")
    defaults = MODELS[name].options
    if _reads_numbers(data) == bool(MODELS[name].tokens):
        kind = "words" if MODELS[name].tokens else "numbers"
        raise ConfigError(f"the model {name} reads {kind}, which {data.name} is not made of")
    if defaults.get("positions", 0) >= known.get("positions", 0):  # a table of positions may be longer than sequences
        known.pop("positions", None)
    return {**{key: value for key, value in known.items() if key in defaults}, **options}


def _reads_numbers(data: FederatedData) -> bool:
    """Return whether the first input of a model is numbers, and not words."""
    return tensors_of(data.example(1))[0].is_floating_point()
