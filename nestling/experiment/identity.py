"""What a run directory records at the start: the settings, the objects handed in from Python, and the machine.

They are checked when the run is resumed, so that it never finishes with other data, another model or other settings.
Objects are recorded by digests of what determines numbers: shapes, labels and samples of data, names and shapes of a
model's tensors. Of large tensors, only evenly spaced rows are read, so recording takes milliseconds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import singledispatch
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from nestling import machine
from nestling.data import Dataset, Partition, Text
from nestling.data.own.own_clients import OwnArrays, OwnClients
from nestling.errors import ConfigError, RunError
from nestling.events import report
from nestling.experiment.directory import CONFIG, IDENTITY
from nestling.experiment.federated_data import Source
from nestling.experiment.recorded_data import DataRecord
from nestling.experiment.simulation import KINDS, Overrides, Simulation
from nestling.files import write_whole
from nestling.fleet import read_levels_file
from nestling.methods import Method
from nestling.model_inputs import Inputs, shapes
from nestling.settings import Experiment

_FORMAT = "nestling-run-1"
_MAX_BYTES = 2**23  # the bytes of one tensor that are read
_MAX_ITEMS = 1000  # the items of one sequence of shares or texts that are read


class Described(msgspec.Struct, frozen=True):
    """A description of an object: its name, and digests of its parts."""

    name: str
    parts: dict[str, str]


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a run began with.

    Attributes
    ----------
    settings
        The settings as TOML.
    objects
        The objects handed in from Python, by kind: ``model``, ``dataset``, ``partition``, ``method``, ``task``.
    dataset
        The data, handed in or not.
    weights
        A digest of the initial weights of a model that was handed in.
    machine
        What determines the last bits of results (`nestling.machine.processor`).
    data
        What models depend on in the data; None in runs of earlier versions.
    levels
        The content of the file that fleet.levels names; empty if it names none.
    """

    format: str
    settings: str
    objects: dict[str, Described]
    dataset: Described
    weights: str
    machine: dict[str, str]
    data: DataRecord | None = None
    levels: str = ""

    @classmethod
    def of(cls, simulation: Simulation, objects: Mapping[str, Described]) -> Identity:
        """Describe a run that begins."""
        return cls(
            format=_FORMAT,
            settings=simulation.settings.to_toml(),
            objects=dict(objects),
            dataset=describe_data(simulation.dataset),
            weights=_digest(simulation.setup.model.state_dict()) if "model" in objects else "",
            machine=machine.processor(),
            data=DataRecord.of(simulation.data, simulation.setup.task),
            levels=simulation.levels_text,
        )

    @classmethod
    def read(cls, folder: Path) -> Identity:
        """Return the identity that a directory records."""
        path = folder / IDENTITY
        try:
            identity = msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            raise RunError(f"{path} is missing, and it says what this run began with: put back a copy") from None
        except (OSError, msgspec.DecodeError) as problem:
            raise RunError(f"{path} cannot be read: {str(problem).splitlines()[0]}; put back a copy") from None
        if identity.format != _FORMAT:
            raise RunError(f"{path} is of another kind ({identity.format!r}, not {_FORMAT!r})")
        return identity

    def write(self, folder: Path) -> None:
        """Write this into a directory."""
        write_whole(folder / IDENTITY, msgspec.json.format(msgspec.json.encode(self)) + b"\n")

    @property
    def began(self) -> Experiment:
        """The settings that the run began with."""
        try:
            return Experiment.from_toml(self.settings)
        except ConfigError as problem:
            raise RunError(f"{IDENTITY} holds settings that this version cannot read: {problem}") from None

    def check_objects(
        self,
        folder: Path,
        objects: Mapping[str, Described],
        function: str = "nestling.resume",
        needed: Collection[str] = KINDS,
    ) -> None:
        """Raise unless the objects handed in to a `function`, which needs some kinds, are those of the run."""
        place = str(folder)
        missing = [kind for kind in self.objects if kind not in objects and kind in needed]
        if missing:
            own = _listed(f"{kind} ({self.objects[kind].name})" for kind in missing)
            arguments = ", ".join(f"{kind}=…" for kind in self.objects if kind in needed)
            raise RunError(
                f"{place!r} was started in Python with its own {own}, which must be handed in again: "
                f"{function}({place!r}, {arguments})"
                + (", or call nestling.federate again" if "dataset" in missing and "task" in self.objects else "")
            )
        for kind, described in objects.items():
            if kind not in self.objects:
                raise RunError(f"{place!r} was started with the {kind} that its {CONFIG} names: leave out {kind}=…")
            self._check_same(folder, kind, self.objects[kind], described)

    def check_built(self, folder: Path, simulation: Simulation, started_over: bool) -> None:
        """Raise if the data, or the initial weights of a run that starts over, are not those that it began with."""
        self._check_same(folder, "dataset", self.dataset, describe_data(simulation.dataset))
        if started_over and "model" in self.objects and _digest(simulation.setup.model.state_dict()) != self.weights:
            raise RunError(
                f"no round of {str(folder)!r} was saved, and the weights of the model handed in are not those that "
                "it began with: hand in the same weights, or start a new run"
            )

    def check_levels(self, folder: Path) -> None:
        """Raise if the file that fleet.levels names has changed; if it is gone, its recorded content is used."""
        path = Path(self.began.fleet.levels.strip())
        if self.levels and path.is_file() and read_levels_file(str(path)).text != self.levels:
            raise RunError(
                f"the file {str(path)!r} of fleet.levels is not the one that {str(folder)!r} was started with: put it "
                "back, or start another run"
            )

    def check_machine(self) -> None:
        """Report an event if this machine may compute other last bits than the one that the run began on."""
        here = machine.processor()
        changed = {what: was for what, was in self.machine.items() if here.get(what) != was}
        other = [f"{what} is {here.get(what, '')!r} and was {was!r}" for what, was in changed.items()]
        if other:
            report(
                "another machine",
                f"the run began on another processor or PyTorch ({', '.join(other)}): last bits of figures may differ",
            )

    def _check_same(self, folder: Path, kind: str, began: Described, now: Described) -> None:
        differ = [part for part in {**began.parts, **now.parts} if began.parts.get(part) != now.parts.get(part)]
        if differ:
            raise RunError(
                f"the {kind} {now.name!r} is not the one that {str(folder)!r} was started with: "
                f"its {_listed(differ)} differ{'' if len(differ) > 1 or differ[0].endswith('s') else 's'}"
            )


def describe(overrides: Overrides) -> dict[str, Described]:
    """Return a description of every object that was handed in, by kind."""
    describers: dict[str, Callable[[Any], Described]] = {
        "model": _describe_model,
        "dataset": describe_data,
        "partition": _describe_partition,
        "method": _describe_method,
        "task": lambda task: Described(task.name, {"settings": _stable_repr(task)}),
    }
    return {kind: describers[kind](getattr(overrides, kind)) for kind in overrides.handed()}


def with_names(overrides: Overrides) -> Experiment:
    """Return the settings with the names of the objects handed in, so that config.toml names what was used.

    >>> from nestling.methods import make
    >>> with_names(Overrides(Experiment(), model=nn.Linear(2, 2), method=make("fedavg"))).model.name
    'Linear'
    """
    experiment, change = overrides.experiment, msgspec.structs.replace
    if overrides.model is not None:
        name = type(overrides.model).__name__
        experiment = change(experiment, model=change(experiment.model, name=name, options={}))
    if overrides.dataset is not None:
        experiment = change(experiment, data=change(experiment.data, name=overrides.dataset.name))
    if overrides.method is not None:
        experiment = change(experiment, method=overrides.method.name, options={})
    return experiment


def config_text(experiment: Experiment, objects: Iterable[str]) -> bytes:
    """Return the text of config.toml: the settings, and a comment on the objects that were handed in."""
    kinds = ", ".join(objects)
    remark = f"# Started in Python with an own {kinds}, which these settings do not hold.\n" if kinds else ""
    return (remark + experiment.to_toml()).encode()


def describe_data(data: Source) -> Described:
    """Return a description of data: its shapes, its labels, its samples and how they are prepared."""
    return Described(data.name, {"name": data.name, **_data_parts(data)})


@singledispatch
def _data_parts(data: Any) -> dict[str, str]:
    """Return what describes the samples of `FederatedData`."""
    every = isinstance(data, OwnClients) and data.reader is None and len(data) <= _MAX_ITEMS
    clients = [data.client(number) for number in range(0, len(data), 1 if every else -(-len(data) // 8))]
    samples = [client.batch(torch.arange(min(len(client), 100))) for client in clients]
    test = data.test.batch(torch.arange(min(len(data.test), 100)))
    public = data.public.inputs if isinstance(data, OwnClients) and len(data.public) else None
    return {
        "shapes": f"{len(data)} clients, {data.classes} classes, inputs {_shapes(data.example(1))}",
        "samples": _digest([[len(client) for client in clients], samples]),
        "test samples": _digest([len(data.test), test]),
        **({} if public is None else {"public samples": _digest(public)}),
    }


@_data_parts.register
def _dataset_parts(data: Dataset) -> dict[str, str]:
    shapes = f"{tuple(data.inputs.shape)} and {tuple(data.test_inputs.shape)} of {data.inputs.dtype}"
    return {
        "shapes": f"{shapes}, {data.classes} classes",
        "labels": _digest([data.targets, data.test_targets]),
        "samples": _digest([data.inputs, data.test_inputs]),
        "users": _digest([data.users, data.test_users]),
        "preparation": f"{data.mean} {data.std} {data.augment} {data.resize}",
    }


@_data_parts.register
def _own_parts(data: OwnArrays) -> dict[str, str]:
    parts = data.samples, data.test, data.validation, *([data.public] if len(data.public) else [])
    return {
        "shapes": f"{data.classes} classes, inputs {_shapes(data.example(1))}",
        "samples": _digest([[part.inputs, part.outputs] for part in parts]),
        "users": _digest(data.users),
    }


def _shapes(inputs: Inputs) -> str:
    """Return the shape of an input, or the shapes of several."""
    return str(shapes(inputs)[0] if isinstance(inputs, Tensor) else shapes(inputs))


@_data_parts.register
def _text_parts(data: Text) -> dict[str, str]:
    words = data.vocabulary
    return {
        "shapes": f"{data.task}, {data.length} words, {len(data.users)} users, padded: {data.padded}",
        "vocabulary": _digest([list(words.words), words.unknown, words.begin, words.end]),
        "samples": _digest([data.stream, data.sizes, _some(data.users, 8)]),
        "test samples": _digest([_some(data.test, 8), _some(data.validation, 8)]),
    }


def _describe_model(model: nn.Module) -> Described:
    tensors = {name: [str(value.dtype), list(value.shape)] for name, value in model.state_dict().items()}
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    layers = {name: type(module).__name__ for name, module in model.named_modules()}
    parts = {"tensors": _digest(tensors), "frozen parameters": _digest(trained), "layers": _digest(layers)}
    return Described(type(model).__name__, parts)


def _describe_partition(shares: Partition) -> Described:
    parts = {
        "training shares": _digest(_some(shares.train)),
        "test shares": _digest(_some(shares.test)),
        "labels": _digest(_some(shares.labels)),
    }
    return Described(f"{len(shares)} clients", parts)


def _describe_method(method: Method) -> Described:
    return Described(method.name, {field.name: _stable_repr(getattr(method, field.name)) for field in fields(method)})


def _some(items: Sequence[Any], most: int = _MAX_ITEMS) -> list[Any]:
    """Return the number of items, and at most `most` evenly spaced ones of them."""
    step = -(-len(items) // most) or 1
    return [len(items), *(items[k] for k in range(0, len(items), step))]


def _digest(value: Any) -> str:
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    """Feed a value to a digest: nested lists and dictionaries of tensors, arrays, numbers and texts."""
    if isinstance(value, Mapping):
        value = [[key, value[key]] for key in value]
    if isinstance(value, list | tuple):
        digest.update(f"[{len(value)}".encode())
        for item in value:
            _feed(digest, item)
        return
    if isinstance(value, Tensor | np.ndarray):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        step = -(-value.nbytes // _MAX_BYTES)
        rows = value[::step] if value.ndim and step > 1 else value
        if isinstance(rows, Tensor):  # as bytes: NumPy does not know all of PyTorch's types
            rows = rows.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(rows.tobytes())
        return
    digest.update(f"{type(value).__name__}:{_stable_repr(value)};".encode())


def _stable_repr(value: Any) -> str:
    """Return the `repr` of a value without memory addresses."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _listed(words: Iterable[str]) -> str:
    """Return words as a list in a sentence: ``a, b and c``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
