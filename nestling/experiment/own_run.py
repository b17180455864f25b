"""`federate`: a model and data of the user's own, federated by one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nestling.budgets import parse_budget
from nestling.data import Dataset, Partition, Text
from nestling.data.own.own_clients import OwnArrays, OwnClients
from nestling.data.own.own_samples import form_of
from nestling.data.own.sources import own_data
from nestling.draws import drawing
from nestling.errors import ConfigError, first_line
from nestling.events import Event, collect
from nestling.events import forward as forward_events
from nestling.experiment.callback import Callback
from nestling.experiment.changes import changed_settings
from nestling.experiment.directory import CONFIG
from nestling.experiment.federated_data import Source, is_source
from nestling.experiment.identity import with_names
from nestling.experiment.loaded import LoadedRun
from nestling.experiment.record import format_value
from nestling.experiment.runner import Result, resume, run
from nestling.experiment.simulation import Overrides, Simulation
from nestling.experiment.task_choice import with_task
from nestling.experiment.trackers import Tracker
from nestling.fleet import parse_levels, parse_mix, write_mix
from nestling.methods import Method
from nestling.methods.registry import has_option
from nestling.model_inputs import count, forward
from nestling.safe_kernels import SafeKernels
from nestling.seeds import torch_stream
from nestling.server.state import ServerState
from nestling.settings import Experiment, FleetSettings, LocalTraining, from_file
from nestling.tasks import Classification, Task
from nestling.tasks.own_task import LossFunction, MetricFunction

Indices = Sequence[Any]
Levels = str | Sequence[str | float] | Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Federated(LoadedRun):
    """What `federate` returns: the trained model, its sub-models, and the figures.

    Attributes
    ----------
    folder, round, summary
        As of a `LoadedRun`; without `out`, there is no folder.
    rounds
        The record of every round.
    """

    rounds: list[dict[str, Any]] = field(default_factory=list, repr=False)
    written: bool = True

    @property
    def directory(self) -> Path | None:
        """The run directory; None if nothing was written."""
        return self.folder if self.written else None

    @cached_property
    def model(self) -> nn.Module:
        """The trained global model, in evaluation mode; the model that was handed in is not changed."""
        return self.submodel()


def federate(
    model: nn.Module,
    clients: Any,
    test: Any = None,
    *,
    method: str | Method = "heterofl",
    levels: Levels | None = None,
    budgets: Sequence[str] | Mapping[str, float] | None = None,
    task: Task | str | None = None,
    loss: LossFunction | None = None,
    metrics: Mapping[str, MetricFunction] | None = None,
    lower_is_better: Iterable[str] = (),
    validation: Any = None,
    public: Any = None,
    partition: str | Partition | Sequence[Indices] | None = None,
    num_clients: int | None = None,
    label: str = "",
    users: Any = None,
    rounds: int = 20,
    per_round: int = 10,
    epochs: int = 1,
    batch_size: int = 16,
    lr: float | None = None,
    optimizer: Literal["adam", "sgd"] = "adam",
    seed: int = 0,
    out: str | Path | None = None,
    name: str = "own data",
    options: Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    callbacks: Iterable[Callback] = (),
    track: str | Tracker | Iterable[str | Tracker] = (),
    quiet: bool = False,
) -> Federated:
    """Train a model on the data of many clients, each of which trains the slice that its device can carry.

    Parameters
    ----------
    model
        Any `nn.Module`; what has ``requires_grad=False`` stays frozen. It is copied, not changed.
    clients
        A list with the samples of every client; samples that are divided among `num_clients` by `partition`; a function
        from the number of a client to its samples, called where the client trains; or a ``FederatedDataset`` of
        flwr-datasets. Samples are a tuple (inputs, targets) of tensors or arrays, a dictionary of them (``input_ids``,
        ``attention_mask``, ``labels``), a torch ``Dataset``, or a Hugging Face ``Dataset``. Arrays of type uint8 are
        pixels, which the model gets as numbers from 0 to 1. `nestling.Dataset` and the like serve as they are.
    test, validation
        Samples to test on, and samples by which the best round is chosen (by default, the test), in any of these forms.
    public
        Inputs that the server has without labels, for methods that distil (FedMorph, FedDF, DS-FL, Fed-ET).
    method, options
        A method by name, with its options, or a `nestling.Method`.
    levels
        The sizes of devices: ``"a-b-c"``, the default, or ``["a", "b", "c"]`` are the whole width, a half and a quarter
        in equal shares; ``{"a": 0.2, "c": 0.8}`` gives shares.
    budgets
        What devices can carry, instead of `levels`: ``["2 MB", "500 kB, 20 MMACs"]`` in equal shares, or a share for
        each: ``{"2 MB": 0.2, "500 kB": 0.8}``. Each gets the largest sub-model of the method that meets its budget.
    task
        ``"classification"``, ``"regression"``, ``"segmentation"``, ``"next-token"``, a task of `nestling.tasks`, or by
        default what the targets are.
    loss, metrics, lower_is_better
        Instead of a task: a function of a model and a batch that returns the mean loss of the batch, functions by name
        that return its metrics, and the metrics of which lower values are better. The first metric chooses the best
        round. A batch is (inputs, targets), or a dictionary if the data is one.
    partition, num_clients, users
        How samples are divided, by default among 10 clients: ``"iid"`` (the default), ``"dirichlet"``, ``"classes"`` or
        ``"user"``, whose users are `users`; or a list with the indices of every client's samples.
    label
        The key, or column, of the targets; by default ``labels`` or ``label``.
    rounds, per_round, epochs, batch_size, lr, optimizer, seed
        Rounds in all, clients in a round, and how a client trains. The learning rate is 0.001 for Adam and 0.05 for
        SGD by default.
    out
        The directory of the run. If it holds this run already, the run continues, or its result is returned. Without
        one, nothing is written.
    name
        The name of the data in reports.
    settings
        Any other settings, as on the command line: ``["local.clip_norm=0", "workers=2"]``.
    callbacks, track, quiet
        As in `nestling.run`: functions that are called during the run, trackers, and whether to print no progress.

    Examples
    --------
    >>> import torch, nestling
    >>> x = torch.randn(300, 6); y = (x[:, 0] > 0).long()
    >>> net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> result = nestling.federate(net, (x[:200], y[:200]), test=(x[200:], y[200:]), rounds=2)
    >>> list(result.summary["final"]["submodels"]), result.submodel("c")[0]
    (['a', 'b', 'c'], Linear(in_features=6, out_features=4, bias=True))
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"the model must be an nn.Module, not a {type(model).__name__}")
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise ConfigError(f"the model is wrapped in {type(model).__name__}: give the module inside, model.module")
    with collect() as events:  # they belong to the run, which has not begun
        data, chosen = _given(
            model,
            clients,
            test,
            task,
            validation=validation,
            public=public,
            num_clients=num_clients or 0,
            label=label,
            users=users,
            name=name,
            loss=loss,
            metrics=metrics,
            lower_is_better=lower_is_better,
        )
    scheme = partition if isinstance(partition, str) else None
    shares = None if partition is None or scheme else _as_partition(partition, data)
    number = _number_of_clients(data, shares, num_clients)
    experiment = Experiment(
        rounds=rounds,
        seed=seed,
        fleet=FleetSettings(clients=number, per_round=min(per_round, number), levels=_levels(levels, budgets)),
        local=LocalTraining(
            optimizer=optimizer,
            lr=lr if lr is not None else {"adam": 0.001, "sgd": 0.05}.get(optimizer, 0.05),
            weight_decay=0.0,
            epochs=epochs,
            batch_size=batch_size,
        ),
        **({} if isinstance(method, Method) else _method_settings(method, options, chosen)),
    ).with_settings([*_data_settings(scheme), *settings])
    given: dict[str, Any] = {
        "model": model,
        "dataset": data,
        "partition": shares,
        "method": method if isinstance(method, Method) else None,
        "task": chosen,
    }
    result = _run_or_resume(experiment, given, out, callbacks=[_Events(events), *callbacks], track=track, quiet=quiet)
    folder = Path() if out is None else Path(out)
    last, written = result.last, out is not None
    return Federated(folder, last.round, result.summary, result.simulation, last, rounds=result.rounds, written=written)


class _Events(Callback):
    """Passes events that happened before a run on to its log."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events

    def on_start(self, simulation: Simulation, state: ServerState) -> None:
        """Pass the events on."""
        forward_events(self._events)


def _given(
    model: nn.Module,
    clients: Any,
    test: Any,
    task: Task | str | None,
    *,
    loss: LossFunction | None,
    metrics: Mapping[str, MetricFunction] | None,
    lower_is_better: Iterable[str],
    **of_data: Any,
) -> tuple[Source, Task | None]:
    """Return the data of a call, and its task; data of ours is returned as it is."""
    if is_source(clients):
        unused = ("validation", "public", "users")
        if test is not None or loss is not None or any(of_data[key] is not None for key in unused):
            raise ConfigError(f"{clients.name} has its own test samples and targets: leave out test=… and the like")
        return clients, None if task is None else _as_task(task)
    own = own_data(clients, test, **of_data)
    return with_task(own, task, loss=loss, metrics=metrics, lower_is_better=lower_is_better, output=_output(model, own))


def _run_or_resume(experiment: Experiment, given: Mapping[str, Any], out: str | Path | None, **options: Any) -> Result:
    if out is None or not (Path(out) / CONFIG).is_file():
        return run(experiment, out=out, **options, **given)
    named = with_names(Overrides(experiment, **given))
    changed = changed_settings(from_file(Path(out) / CONFIG), named)
    changes = [f"{key}={format_value(new)}" for key, (_, new) in changed.items() if new is not None]
    return resume(out, settings=changes, **options, **given)


def _levels(levels: Levels | None, budgets: Sequence[str] | Mapping[str, float] | None) -> str:
    """Return the setting `fleet.levels` of sizes, or of what devices can carry."""
    if budgets is None:
        if isinstance(levels, Mapping):
            return write_mix(parse_mix(levels))
        return levels if isinstance(levels, str) else "-".join(level.name for level in parse_levels(levels or "a-b-c"))
    if levels is not None:
        raise ConfigError(f"give levels={levels!r} or budgets={budgets!r}, not both: each of them says the sizes")
    if isinstance(budgets, str) or not budgets:
        raise ConfigError(f"budgets must be a list such as ['2 MB', '500 kB'], or a share for each, not {budgets!r}")
    shares = budgets if isinstance(budgets, Mapping) else dict.fromkeys(budgets, "")
    return "; ".join(f"{parse_budget(budget)}{share and f':{share}'}" for budget, share in shares.items())


def _method_settings(method: str, options: Mapping[str, Any] | None, task: Task | None) -> dict[str, Any]:
    """Return the settings of a method; a loss that is masked by classes is for classification only."""
    masks = isinstance(task, Classification) or task is None or not has_option(method, "masked")
    return {"method": method, "options": ({} if masks else {"masked": False}) | dict(options or {})}


def _data_settings(scheme: str | None) -> list[str]:
    """Return the settings of a division by name."""
    if scheme is None:
        return []
    return [f"data.partition={scheme}", *(["data.classes_per_client=2"] if scheme == "classes" else [])]


def _as_task(task: Task | str) -> Task:
    if isinstance(task, str):
        raise ConfigError(f"this data has a task: leave out task={task!r}, or give a task of nestling.tasks")
    return task


def _as_partition(given: Partition | Sequence[Indices], data: Source) -> Partition:
    """Return a partition from one, or from the indices of every client's samples."""
    if isinstance(given, Partition):
        return given
    labels = data.for_partition().targets if isinstance(data, OwnArrays) else getattr(data, "targets", None)
    if labels is None:
        raise ConfigError("partition=… is for samples that are not divided among clients yet")
    train = [torch.as_tensor(indices, dtype=torch.long).flatten() for indices in given]
    none = [torch.empty(0, dtype=torch.long)] * len(train)
    known = all(not len(one) or (int(one.min()) >= 0 and int(one.max()) < len(labels)) for one in train)
    return Partition(train, none, [labels[one].unique() if known else one[:0] for one in train])


def _number_of_clients(data: Source, shares: Partition | None, wanted: int | None) -> int:
    if shares is None and isinstance(data, Dataset | OwnArrays | Text):
        return 10 if wanted is None else wanted
    number = len(shares) if shares is not None else len(data)  # type: ignore[arg-type]  # FederatedData or own data
    if wanted not in (None, number):
        raise ConfigError(f"num_clients={wanted} does not fit {data.name}, which is divided among {number} clients")
    return number


def _output(model: nn.Module, data: OwnClients | OwnArrays) -> Any:
    """Return what the model answers to two test samples; None if that is no tensor."""
    inputs = data.example(2)
    modes: list[tuple[nn.Module, bool]] = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), SafeKernels(), drawing(torch_stream(0, "output")):
            output = forward(model, inputs)
    except Exception as problem:  # a forward may fail in any way
        raise ConfigError(
            f"the model cannot be run on {count(inputs)} test samples, {form_of(inputs)}: {type(problem).__name__}: "
            f"{first_line(problem)}"
        ) from problem
    finally:
        for module, training in modes:
            module.training = training
    return output if isinstance(output, Tensor) else None
