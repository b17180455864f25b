"""`Experiment`: everything that decides the numbers of a run, typed, validated, and written as TOML."""

from __future__ import annotations

import math
import tomllib
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import tomli_w

from nestling.client.sgd import Precision, half_of
from nestling.data.partition import MOST_ALIKE
from nestling.errors import ConfigError, first_line, nearest
from nestling.kernels.device import named_device
from nestling.methods.server import Server
from nestling.run.validation import built, check, shown
from nestling.settings import Local
from nestling.upload import Upload

_MOST = 10**9  # of anything that is only compared or counted: far beyond any experiment, and exact in any format
_LARGEST_POWER = 300  # of ten: well within a number of 64 bits
_SAMPLES_AT_ONCE = 10**7  # in a step: costs multiply this by the activations of a model, in 64 bits

Count = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
Maybe = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
_NAME = 200  # bytes of a name: file systems take 255, and suffixes are added
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  # what TOML and JSON promise to keep
Rounds = Annotated[int, msgspec.Meta(ge=1, le=999_999)]  # folders of checkpoints have six digits
Clients = Annotated[int, msgspec.Meta(ge=1, le=10**7)]  # the share of each is held in memory


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

    `minimum` is the fewest samples that a client may have; with 0, clients may be empty, and rounds skip these.
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
    alpha: Annotated[float, msgspec.Meta(gt=0, le=MOST_ALIKE)] = 0.5
    minimum: Maybe = 1
    augment: Literal["default", "none", "crop-flip"] = "default"
    resize: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    samples: Maybe = 0
    validation: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    unlabelled: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    unlabelled_test: bool = False
    task: Literal["default", "masked-word", "next-word"] = "default"
    positions: Literal["all", "masked"] = "all"
    vocabulary: Annotated[int, msgspec.Meta(ge=0, le=10**7)] = 0
    length: Annotated[int, msgspec.Meta(ge=0, le=10**5)] = 0
    most_per_client: Maybe = 0
    dir: str = ""


class FleetSettings(_Settings, frozen=True):
    """The devices: how many, how many take part in a round, and which levels they can carry.

    `levels` is a list such as ``a-b-c-d-e`` or, with shares, ``a1-e9`` or ``a:0.06,b:0.1,…``. `assign` is ``fixed`` (a
    level per client for good), ``dynamic`` (drawn each round) or ``tiers``. With `devices` (``phone-low:6,laptop:1``)
    levels follow from the devices' memory instead, and rounds are timed; `deadline` seconds later clients are dropped.
    """

    clients: Clients = 100
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
    rounds: Rounds = 10
    seed: Seed = 0
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

    def __post_init__(self) -> None:
        check(self)
        _sensible(self)

    def to_toml(self) -> str:
        """Return this experiment as TOML text."""
        return tomli_w.dumps(msgspec.to_builtins(self))

    @classmethod
    def from_toml(cls, text: str) -> Experiment:
        """Read an experiment from TOML text; settings that are not named keep their defaults."""
        try:
            return read(tomllib.loads(text))
        except RecursionError:
            raise ConfigError("this TOML is nested too deep: settings have at most three levels") from None
        except ConfigError:
            raise
        except ValueError as problem:  # TOMLDecodeError, or a number with too many digits for Python
            raise ConfigError(f"this is not TOML: {first_line(problem)}") from None

    def with_settings(self, overrides: Iterable[str]) -> Experiment:
        """Return this experiment with settings changed as on the command line.

        Another model, or another method, starts from its own defaults: options of the one before are dropped, and
        those given here apply, whatever their order.

        >>> Experiment().with_settings(["rounds=5", "fleet.levels=a-c-e"]).fleet.levels
        'a-c-e'
        >>> cnn = Experiment(model=Model(name="cnn", options={"widths": [8, 8]}))
        >>> cnn.with_settings(["model.options.norm=gn", "model.name=resnet18"]).model.options
        {'norm': 'gn'}
        """
        data = msgspec.to_builtins(self)
        changes = []
        for override in overrides:
            key, equals, text = override.partition("=")
            if not equals:
                raise ConfigError(f"{override!r} is not a setting: write key=value, such as rounds=5")
            changes.append((key.strip(), as_value(text)))
        last = dict(changes)
        if last.get("model.name", self.model.name) != self.model.name:
            data["model"]["options"] = {}
        if last.get("method", self.method) != self.method:
            data["options"] = {}
        for key, value in changes:
            _put(data, key, value)
        return read(data)


def read(data: Mapping[str, Any]) -> Experiment:
    """Return the experiment that nested settings describe, or say in one sentence which one cannot be.

    >>> read({"rounds": 0})
    Traceback (most recent call last):
        ...
    nestling.errors.ConfigError: the setting rounds cannot be 0: expected `int` >= 1
    """
    return built(Experiment, data)


def checked(experiment: Experiment) -> Experiment:
    """Return the same experiment as it would be read from its config.toml: every value of its setting's type.

    >>> checked(Experiment(local=Local(lr=1))).local.lr
    1.0
    """
    check(experiment)
    return read(msgspec.to_builtins(experiment))


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
        if not getattr(local, name) >= 0:
            raise ConfigError(f"the setting local.{name} must be 0 or more, not {getattr(local, name)!r}")
    for name, most in (("epochs", 10**6), ("batch", _SAMPLES_AT_ONCE), ("warmup", _MOST)):
        if getattr(local, name) > most:
            raise ConfigError(f"the setting local.{name} must be at most {most:,}, not {getattr(local, name):,}")
    if any(milestone < 1 for milestone in local.milestones):
        raise ConfigError(f"the setting local.milestones names rounds, which count from 1, not {min(local.milestones)}")
    if len(local.milestones) * math.log10(max(local.factor, 1.0)) + math.log10(local.lr) > _LARGEST_POWER:
        raise ConfigError(
            f"local.factor={local.factor!r} at {len(local.milestones)} milestones is more than a number holds"
        )
    server = experiment.server
    for name, fits, accepted in (
        ("lr", server.lr > 0, "above 0"),
        ("momentum", 0 <= server.momentum < 1, "0 or more and below 1"),
        ("second", 0 <= server.second <= 1, "from 0 to 1"),
        ("tau", server.tau >= 0, "0 or more"),
    ):
        if not fits:
            raise ConfigError(f"the setting server.{name} must be {accepted}, not {getattr(server, name)!r}")
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


def as_value(text: str) -> Any:
    """Read a value as TOML would, and as plain text where it is not TOML."""
    text = text.strip()
    try:
        found = tomllib.loads(f"value = {text}")
    except RecursionError:
        raise ConfigError(f"the value {shown(text)} is nested too deep") from None
    except ValueError:  # not TOML, or a number with more digits than Python reads
        return text
    return found["value"] if found.keys() == {"value"} else text  # a line break may not bring in other settings


def from_file(path: str | Path) -> Experiment:
    """Read an experiment from a TOML file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as problem:
        raise ConfigError(f"{str(path)!r} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{str(path)!r} is not a text in UTF-8: byte {problem.start} is wrong") from None
    if not text.strip():
        raise ConfigError(f'{str(path)!r} is empty: it should hold settings, such as method = "heterofl"')
    try:
        return Experiment.from_toml(text)
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from None
