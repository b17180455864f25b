"""`Experiment`: everything that decides the numbers of a run, typed, validated, and written as TOML."""

from __future__ import annotations

import math
import tomllib
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import tomli_w

from nestling.errors import ConfigError, nearest
from nestling.local import Local
from nestling.local.device import named_device
from nestling.local.steps import Precision, half_of
from nestling.methods.server import Server
from nestling.upload import Upload

Count = Annotated[int, msgspec.Meta(ge=1)]
Maybe = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
_NAME = 200  # bytes of a name: file systems take 255, and suffixes are added


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings: frozen, and nothing unknown among them."""


class Model(_Settings, frozen=True):
    """The global model: one of `nestling.nets` by name, its options, and how much of its width the server keeps.

    Classes, channels and image size follow from the data unless given among the options. `weights` is a file of
    pre-trained weights to start from (safetensors or a PyTorch state dict).
    """

    name: str = "cnn"
    options: dict[str, Any] = {}
    width: Share = 1.0
    weights: str = ""


class Data(_Settings, frozen=True):
    """The data set, and how it is divided among clients.

    `resize` brings images to that side in pixels, batch by batch (0: as stored). `samples` takes only so many
    training samples (0: all); `validation` keeps back a share of the training set, on which the best round is then
    chosen; `dir` is where files lie. `unlabelled` gives a share of the training samples to the server, without
    their labels, for methods that use such; `unlabelled_test` gives it the inputs of the test set instead, as
    FedMorph's authors do.

    Of a text, `task` is to fill in masked words or to predict next ones (``default``: as the papers do with it),
    `positions` those that the loss of masked words is over, `vocabulary` and `length` the words known and those of a
    sequence (0: as the papers take), and `most_per_client` the most sequences that a client uses (0: all). A text's
    validation part is its own; `validation` above 0 says that it is used.
    """

    name: str = "digits"
    partition: Literal["iid", "classes", "dirichlet", "user"] = "iid"
    classes_per_client: Maybe = 0
    alpha: Annotated[float, msgspec.Meta(gt=0)] = 0.5
    minimum: Maybe = 1
    augment: Literal["default", "none", "crop-flip"] = "default"
    resize: Maybe = 0
    samples: Maybe = 0
    validation: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    unlabelled: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    unlabelled_test: bool = False
    task: Literal["default", "masked-word", "next-word"] = "default"
    positions: Literal["all", "masked"] = "all"
    vocabulary: Maybe = 0
    length: Maybe = 0
    most_per_client: Maybe = 0
    dir: str = ""


class FleetSettings(_Settings, frozen=True):
    """The devices: how many, how many take part in a round, and which levels they can carry.

    `levels` is a list such as ``a-b-c-d-e`` or, with shares, ``a1-e9`` or ``a:0.06,b:0.1,…``. `assign` is ``fixed`` (a
    level per client for good), ``dynamic`` (drawn each round) or ``tiers``. With `devices` (``phone-low:6,laptop:1``)
    levels follow from the devices' memory instead, and rounds are timed; `deadline` seconds later clients are dropped.
    """

    clients: Count = 100
    per_round: Count = 10
    levels: str = "a-b-c-d-e"
    assign: Literal["fixed", "dynamic", "tiers"] = "fixed"
    devices: str = ""
    deadline: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class Evaluate(_Settings, frozen=True):
    """When and how models are tested.

    Attributes
    ----------
    every
        Rounds between evaluations; the last round is always evaluated.
    batch
        Samples tested at a time.
    samples
        Test samples used (0: all).
    submodels
        Whether every level is tested, not the whole model alone.
    statistics_clients
        Clients asked for statistics of the norms (0: all of them).
    statistics_batch
        Samples in a batch of those (0: as in training).
    """

    every: Count = 1
    batch: Count = 500
    samples: Maybe = 0
    submodels: bool = True
    statistics_clients: Maybe = 0
    statistics_batch: Maybe = 0


class Experiment(_Settings, frozen=True):
    """One experiment.

    Attributes
    ----------
    workers
        Processes that train clients side by side; the figures do not depend on it.
    worker_timeout
        Seconds after which a worker that is still at a job is replaced, and its job done again. 0 is automatic: twenty
        times as long as the longest such job so far, and at least two minutes. The figures do not depend on it.
    engine, address
        Where they run: ``local`` or ``ray``; `address` is that of a Ray cluster to join, such as ``auto``.
    device
        Where models compute: ``cpu``, ``cuda``, ``cuda:1`` or ``mps``.
    precision
        ``full``, or ``mixed`` for training on GPUs.
    select
        Whether clients receive and return only the rows of the classes, or words, that they hold (Federated Select):
        fewer bytes, and the same result, as the masked loss uses no others.
    threads
        Threads that PyTorch uses in each worker for one operation. Another number than 1 may change the last bits of
        figures, and pays for large models and few workers alone.
    accelerate
        ``"auto"``, or ``"off"`` for plain PyTorch: no channels-last memory, no convolutions as products, `torch.optim`
        and `torch.nn.functional.cross_entropy` as they are, no cohorts, no batches that are joined for the statistics
        of norms, no samples made ready at once. It is slower, and changes the last bits of figures: for comparison,
        and where a kernel is under suspicion. Kernels that are known to corrupt memory or to answer wrongly stay
        replaced (`nestling.safe_kernels`).
    cohort
        How many small clients of one shape train together, as one grouped network: ``"auto"`` as many as pays by
        measurement, ``"off"`` none, or at most so many. It changes the last bits of figures.

    Examples
    --------
    >>> experiment = Experiment(method="fedrolex", rounds=5, fleet=FleetSettings(clients=10, per_round=5))
    >>> Experiment.from_toml(experiment.to_toml()) == experiment
    True
    """

    name: str = ""
    method: str = "heterofl"
    options: dict[str, Any] = {}
    rounds: Count = 10
    seed: int = 0
    workers: Count = 1
    worker_timeout: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    engine: Literal["local", "ray"] = "local"
    address: str = ""
    device: str = "cpu"
    precision: Precision = "full"
    cohort: str | int = "auto"
    threads: Count = 1
    accelerate: Literal["auto", "off"] = "auto"
    checkpoint: Count = 10
    select: bool = False
    model: Model = Model()
    data: Data = Data()
    fleet: FleetSettings = FleetSettings()
    local: Local = Local()
    server: Server = Server()
    upload: Upload = Upload()
    evaluate: Evaluate = Evaluate()

    def to_toml(self) -> str:
        """Return this experiment as TOML text."""
        return tomli_w.dumps(msgspec.to_builtins(self))

    @classmethod
    def from_toml(cls, text: str) -> Experiment:
        """Read an experiment from TOML text; settings that are not named keep their defaults."""
        try:
            return read(tomllib.loads(text))
        except tomllib.TOMLDecodeError as problem:
            raise ConfigError(f"this is not TOML: {problem}") from None

    def with_settings(self, overrides: Iterable[str]) -> Experiment:
        """Return this experiment with settings changed as on the command line.

        >>> Experiment().with_settings(["rounds=5", "fleet.levels=a-c-e"]).fleet.levels
        'a-c-e'
        """
        data = msgspec.to_builtins(self)
        for override in overrides:
            key, equals, text = override.partition("=")
            if not equals:
                raise ConfigError(f"{override!r} is not a setting: write key=value, such as rounds=5")
            _put(data, key.strip(), _value(text.strip()))
        return read(data)


def read(data: Mapping[str, Any]) -> Experiment:
    """Return the experiment that nested settings describe, or say in one sentence which one cannot be.

    >>> read({"rounds": 0})
    Traceback (most recent call last):
        ...
    nestling.errors.ConfigError: the setting rounds cannot be 0: expected `int` >= 1
    """
    _known(Experiment, data, "")
    try:
        # numbers written without a point are fine where numbers with one are meant
        experiment = msgspec.convert(data, Experiment, strict=True)
    except msgspec.ValidationError as problem:
        said, _, path = str(problem).partition(" - at `$")
        path = path.strip("`.")
        found: Any = data
        kind: Any = Experiment
        for part in filter(None, path.replace("[...]", "").split(".")):
            found = found[part]
            kind = get_type_hints(kind).get(part) if isinstance(kind, type) else None
        if get_origin(kind) is Literal:
            raise ConfigError(f"the setting {path} cannot be {found!r}{nearest(str(found), get_args(kind))}") from None
        raise ConfigError(f"the setting {path} cannot be {found!r}: {said[:1].lower()}{said[1:]}") from None
    _sensible(experiment)
    return experiment


def _known(kind: type[msgspec.Struct], data: Mapping[str, Any], path: str) -> None:
    """Raise where a setting is unknown, with the nearest that is known."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in data.items():
        if key not in fields:
            raise ConfigError(f"there is no setting {path + key!r}{nearest(key, fields)}")
        inner = fields[key]
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            if not isinstance(value, Mapping):
                raise ConfigError(f"the setting {path + key} is a table of settings, not {value!r}")
            _known(inner, value, f"{path}{key}.")


def _sensible(experiment: Experiment) -> None:
    """Raise where settings that are fine alone do not go together."""
    local, fleet = experiment.local, experiment.fleet
    _check_name(experiment.name)
    if math.isnan(experiment.worker_timeout):
        raise ConfigError("the setting worker_timeout must be 0 or more seconds, not nan")
    for name in ("lr", "epochs", "batch"):
        if not getattr(local, name) > 0:
            raise ConfigError(f"the setting local.{name} must be above 0, not {getattr(local, name)!r}")
    for name in ("momentum", "weight_decay", "clip", "factor", "warmup", "proximal"):
        if not 0 <= getattr(local, name) < float("inf"):
            raise ConfigError(f"the setting local.{name} must be 0 or more, not {getattr(local, name)!r}")
    cohort = experiment.cohort
    if cohort < 1 if isinstance(cohort, int) else cohort not in ("auto", "off"):
        raise ConfigError(f'the setting cohort is "auto", "off" or a number of clients from 1, not {cohort!r}')
    if fleet.per_round > fleet.clients:
        raise ConfigError(f"{fleet.per_round} clients cannot take part in a round of a fleet of {fleet.clients}")
    if experiment.data.partition == "classes" and not experiment.data.classes_per_client:
        raise ConfigError("a partition by classes needs data.classes_per_client, the number of classes of each client")
    if experiment.address and experiment.engine != "ray":
        raise ConfigError(f"address={experiment.address} is that of a Ray cluster: it needs engine=ray")
    if experiment.engine == "ray" and experiment.device.startswith("cuda:"):
        raise ConfigError(f"Ray deals out GPUs by itself: use device=cuda, not {experiment.device}")
    device = named_device(experiment.device)
    if device.type == "cpu":
        half_of(device, experiment.precision)
    if fleet.deadline and not fleet.devices:
        raise ConfigError("fleet.deadline needs fleet.devices: without devices, nothing is known of their time")


def _check_name(name: str) -> None:
    """Raise where a name cannot be that of a directory, or would lead out of the one it is to be in."""
    if set(name) & {"/", "\\"}:
        raise ConfigError(f"the setting name cannot be {name!r}: it is the name of a directory, without / and \\")
    if name.startswith("."):
        raise ConfigError(f"the setting name cannot be {name!r}: it must not begin with a dot")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        raise ConfigError(f"the setting name cannot be {name!r}: it must not hold control characters")
    if len(name.encode()) > _NAME:
        raise ConfigError(f"the setting name has {len(name.encode())} bytes: at most {_NAME} are accepted")


def _put(data: dict[str, Any], key: str, value: Any) -> None:
    place: Any = data
    *folders, last = key.split(".")
    for folder in folders:
        if not isinstance(place, dict) or folder not in place:
            raise ConfigError(f"there is no setting {key!r}{nearest(folder, place)}")
        place = place[folder]
    if not isinstance(place, dict):
        raise ConfigError(f"there is no setting {key!r}: {'.'.join(folders)} is a single value")
    place[last] = value


def _value(text: str) -> Any:
    """Read a value as TOML would, and as plain text where it is not TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def from_file(path: str | Path) -> Experiment:
    """Read an experiment from a TOML file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as problem:
        raise ConfigError(f"{str(path)!r} cannot be read: {problem.strerror}") from None
    try:
        return Experiment.from_toml(text)
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from None
