"""All settings of an experiment: what decides the numbers of a run, typed, validated, and written as TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

import msgspec
import tomli_w

from nestling.errors import ConfigError, UploadError, first_line, nearest
from nestling.settings.checks import check_together
from nestling.settings.overrides import as_value, put, with_one_amount
from nestling.settings.renamed import RENAMED, RefusesOldNames, refuse_old_name, with_new_names
from nestling.settings.validation import built, check

MOST_ALIKE = 10**6  # the largest alpha: shares are equal to three digits, and far larger ones overflow
_MOST = 10**9  # of anything that is only compared or counted: far beyond any experiment, and exact in any format

Count = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
Maybe = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  # what TOML and JSON promise to keep
Rounds = Annotated[int, msgspec.Meta(ge=1, le=999_999)]  # folders of checkpoints have six digits
Clients = Annotated[int, msgspec.Meta(ge=1, le=10**7)]  # the share of each is held in memory
File = Annotated[str, msgspec.Meta(description="a file")]
_PARTS = (
    "fedprox, feddyn, fjord, median, trimmed-mean, krum, multi-krum, clip-norm, dp, secagg or module:factory, "
    "separated by commas, each with a value or without"
)

Precision = Literal["full", "mixed"]
Format = Literal["dense", "topk", "8-bit", "1-bit", "topk-8bit", "topk-1bit"]
Scope = Literal["global", "tensor"]
Rounding = Literal["nearest", "stochastic"]


class _Settings(msgspec.Struct, metaclass=RefusesOldNames, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings: frozen, and nothing unknown among them."""

    table: ClassVar[str] = ""

    if not TYPE_CHECKING:  # so that mypy finds settings that do not exist

        def __getattr__(self, name: str) -> Any:
            new = RENAMED.get(f"{self.table}{name}")
            raise AttributeError(
                f"the setting {self.table}{name} " + (f"is now called {new}" if new else "does not exist")
            )


class Model(_Settings, frozen=True):
    """The global model.

    Attributes
    ----------
    name
        The model. Classes, channels and image size follow from the data unless given among the options.
    options
        Options of the model, such as ``model.options.norm=gn``.
    width
        The share of the model's width that the server keeps. A net by name is initialised at this width; a model of the
        user's own, or with loaded weights, is sliced.
    weights
        A file of pre-trained weights to start from, as safetensors or a PyTorch state dict; empty for random weights.
    """

    table: ClassVar[str] = "model."
    name: Annotated[str, msgspec.Meta(description="a name of 'nestling list models', or module:factory")] = "cnn"
    options: dict[str, Any] = {}
    width: Share = 1.0
    weights: File = ""


class Data(_Settings, frozen=True):
    """The data set, and how it is divided among clients.

    Attributes
    ----------
    name
        The data set.
    partition
        How samples are divided: ``iid``, by ``classes`` (so many per client), ``dirichlet`` (with a concentration), by
        ``user``, or as ``heterofl-shards``: by classes in the way of HeteroFL's authors, which leaves samples unused
        (see `nestling.data.partition`).
    classes_per_client
        The number of classes that each client has, where samples are divided by classes.
    alpha
        The concentration of a ``dirichlet`` partition: the smaller, the more clients differ.
    min_samples
        The fewest samples that a client may have. With 0, clients may be empty, and rounds skip these.
    augment
        Random changes of training images: as is usual for the data set, none, or shifts and mirror images.
    resize
        The side in pixels to which images are resized; 0 leaves them as stored.
    max_samples
        Training samples that are used; 0 for all.
    validation
        The share of the training set that is kept back to choose the best round on. A text has a validation part of its
        own, which is used where this is above 0.
    public_share
        The share of the training samples that the server gets, without labels, for methods that need such samples; with
        DS-FL, clients have them, too.
    public_from_test
        Whether the server gets the inputs of the test set instead, as FedMorph's authors do.
    task
        Of a text: to fill in masked words or to predict next ones; ``default`` as in the papers.
    loss_positions
        Of a text with masked words: the positions that count in the loss.
    vocabulary_size
        Of a text: words in the vocabulary; 0 as in the papers.
    sequence_length
        Of a text: words in a sequence; 0 as in the papers.
    max_sequences
        Of a text: the most sequences that a client uses; 0 for all.
    dir
        The folder of the data's files; empty for NESTLING_DATA and the cache.
    """

    table: ClassVar[str] = "data."
    name: Annotated[str, msgspec.Meta(description="a name of 'nestling list datasets', or module:factory")] = "digits"
    partition: Literal["iid", "classes", "dirichlet", "user", "heterofl-shards"] = "iid"
    classes_per_client: Maybe = 0
    alpha: Annotated[float, msgspec.Meta(gt=0, le=MOST_ALIKE)] = 0.5
    min_samples: Maybe = 1
    augment: Literal["default", "none", "crop-flip"] = "default"
    resize: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    max_samples: Maybe = 0
    validation: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    public_share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    public_from_test: bool = False
    task: Literal["default", "masked-word", "next-word"] = "default"
    loss_positions: Literal["all", "masked"] = "all"
    vocabulary_size: Annotated[int, msgspec.Meta(ge=0, le=10**7)] = 0
    sequence_length: Annotated[int, msgspec.Meta(ge=0, le=10**5)] = 0
    max_sequences: Maybe = 0
    dir: Annotated[str, msgspec.Meta(description="a folder")] = ""


class FleetSettings(_Settings, frozen=True):
    """The devices: how many, how many take part in a round, and which levels they can carry.

    Attributes
    ----------
    clients
        Clients in all.
    per_round
        Clients that take part in a round; with server.buffer, clients that train at a time.
    levels
        Which sub-models the clients can carry: levels in equal shares (``a-b-c-d-e``), with shares (``a1-e9``,
        ``a:0.06,b:0.94``), as ratios (``0.2-0.6-1``), budgets (``2 MB; 500 kB, 20 MMACs``), or a file of clients'
        levels, budgets or devices (see `nestling.fleet.levels_file`).
    assign
        Whether a client's level is ``fixed`` for good, drawn in each round (``dynamic``), or drawn in each round from
        the levels beside its own (``tiers``).
    devices
        Kinds of devices with their shares, such as ``phone-low:6,laptop:1``: levels follow from the devices' memory,
        and rounds are timed. Empty for none.
    deadline
        Seconds of simulated time after which clients of a round are dropped; 0 for no deadline. It needs devices.
    sampling
        ``fixed``: `per_round` clients take part in every round; ``poisson``: each client by itself, so many on average.
    over_selection
        How many times as many clients a round starts as it merges. A round of 1.3 starts 1.3 times `per_round` clients,
        merges the first `per_round` that arrive and ignores the others; where some are offline, it merges one of every
        1.3 that began. In simulation it needs devices, whose clock says who arrives first.
    """

    table: ClassVar[str] = "fleet."
    clients: Clients = 100
    per_round: Count = 10
    levels: Annotated[str, msgspec.Meta(description="levels, budgets, or a file (.toml, .json, .csv)")] = "a-b-c-d-e"
    assign: Literal["fixed", "dynamic", "tiers"] = "fixed"
    devices: Annotated[str, msgspec.Meta(description="names of 'nestling list devices', with shares")] = ""
    deadline: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    sampling: Literal["fixed", "poisson"] = "fixed"
    over_selection: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 1.0


class LocalTraining(_Settings, frozen=True):
    """How a client trains.

    Attributes
    ----------
    optimizer
        The optimizer of clients; fresh in every round.
    lr
        The learning rate.
    momentum
        The momentum of SGD.
    weight_decay
        The weight decay, as PyTorch's optimizers take it.
    clip_norm
        The largest norm of the gradient; 0 leaves it as it is.
    epochs
        Passes over the client's samples in one round.
    steps
        Instead of `epochs`, which must be 0 then: the number of steps in one round, the same for every client (``20``),
        or a part of an epoch below 1 (``0.5``), rounded up to whole steps. Setting one of the two sets the other to 0.
    batch_size
        Samples in a step.
    schedule
        How the learning rate changes from round to round: ``constant``, ``steps`` (times `lr_decay` after every round
        in `milestones`), or ``cosine`` (down towards zero, which the round after the last would have).
    milestones
        The rounds after which ``steps`` multiplies the learning rate.
    lr_decay
        The factor by which ``steps`` multiplies the learning rate.
    warmup_rounds
        The first rounds, in which the learning rate rises linearly.
    proximal
        FedProx's μ, on top of any method's own: holds clients near the weights they received.
    """

    table: ClassVar[str] = "local."
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip_norm: float = 1.0
    epochs: int = 5
    steps: Annotated[int | float, msgspec.Meta(description="a number of steps, or a part of an epoch such as 0.5")] = 0
    batch_size: int = 10
    schedule: Literal["constant", "steps", "cosine"] = "constant"
    milestones: tuple[int, ...] = ()
    lr_decay: float = 0.1
    warmup_rounds: int = 0
    proximal: float = 0.0


class ServerSettings(_Settings, frozen=True):
    """How the server turns merged weights into new ones.

    Attributes
    ----------
    optimizer
        ``average`` takes the merged weights; ``fedavgm``, ``fedadam`` and ``fedyogi`` take a step towards them
        (Algorithm 2 of Reddi et al.).
    lr
        The step size of the adaptive methods.
    beta1
        β₁, the momentum of the adaptive methods.
    beta2
        β₂, the decay of their second moments.
    tau
        τ, their degree of adaptivity.
    weighting
        How much a client counts in the merge: ``none`` all the same, by ``samples``, by ``width``, or as the ``method``
        says.
    fan_in
        How many clients' slices are merged where they train, before they reach the server, which then merges these; 0:
        the server merges every client by itself. Fewer bytes reach the server; last bits of figures change.
    buffer
        The updates after which an asynchronous server takes a step (FedBuff): clients train all the time, as many at
        once as `fleet.per_round`, and nobody waits for the slowest. A round is then one step of the server. In
        simulation it needs devices, whose clock says who arrives when. 0: the server waits for all clients of a round.
    staleness
        a, with which a change that arrives s steps late counts (1 + s)^-a times; 0: as much as any other.
    max_staleness
        The steps that a change may be late; later ones are ignored. The server keeps at most so many earlier models.
    """

    table: ClassVar[str] = "server."
    optimizer: Literal["average", "fedavgm", "fedadam", "fedyogi"] = "average"
    lr: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    weighting: Literal["method", "none", "samples", "width"] = "method"
    fan_in: Maybe = 0
    buffer: Maybe = 0
    staleness: float = 0.5
    max_staleness: Count = 20


class Upload(_Settings, frozen=True):
    """How a client's change is sent.

    Attributes
    ----------
    format
        How the change is written:

        - ``dense``: every value as it is.
        - ``topk``: the values of largest magnitude as they are, and where they stand; all others are zero (Lin et al.,
          Deep Gradient Compression, 2017, §3).
        - ``8-bit``: every value as one of 255 even steps between minus and plus the tensor's largest magnitude; zero
          stays zero.
        - ``1-bit``: every value as its sign, times the tensor's mean magnitude (Seide et al., 1-Bit Stochastic Gradient
          Descent, 2014; scaled as in Karimireddy et al., Error Feedback Fixes SignSGD, 2019). Zero is sent as a
          positive value.
        - ``topk-8bit``, ``topk-1bit``: both; the second is Sattler et al.'s sparse ternary compression (2019).
    fraction
        Of all floating-point values, how many ``topk`` keeps: rounded up. Zeros among them need not be sent.
    scope
        Whether ``topk`` looks for the largest in all tensors together (``global``) or in each one (``tensor``).
    rounding
        To the ``nearest`` step of ``8-bit``, or ``stochastic``: up or down at random such that the mean is right.
    feedback
        Whether what was not sent is remembered and added to the next change (see `nestling.upload.compress`).
    """

    table: ClassVar[str] = "upload."
    format: Format = "dense"
    fraction: float = 0.1
    scope: Scope = "global"
    rounding: Rounding = "nearest"
    feedback: bool = False

    def __post_init__(self) -> None:
        for field, known in (("format", Format), ("scope", Scope), ("rounding", Rounding)):
            given, names = getattr(self, field), get_args(known)
            if given not in names:
                raise UploadError(f"there is no {field} {given!r} of uploads{nearest(str(given), names)}")
        if not (isinstance(self.fraction, float | int) and 0 < self.fraction <= 1):
            raise UploadError(
                f"upload.fraction (of values that are sent) must be above 0 and at most 1, not {self.fraction!r}"
            )


class Evaluate(_Settings, frozen=True):
    """When and how models are tested.

    Attributes
    ----------
    every
        Rounds between evaluations; the last round is always evaluated.
    batch
        Samples that are tested at a time.
    samples
        Test samples that are used; 0 for all.
    submodels
        Whether every level is tested, not the whole model alone.
    norm_clients
        Clients asked for the statistics of norms; 0 for all.
    norm_batch
        Samples in a batch of these statistics; 0 as in training.
    local
        What local accuracy is measured on: clients' shares of the test set, predicted among the classes that the
        client holds (``masked``) or among all of them (``unmasked``, as in HeteroFL's rows without masked loss), or
        clients' own training samples, predicted among their classes (``own-data``, as in FedRolex).
    """

    table: ClassVar[str] = "evaluate."
    every: Count = 1
    batch: Count = 500
    samples: Maybe = 0
    submodels: bool = True
    norm_clients: Maybe = 0
    norm_batch: Maybe = 0
    local: Literal["masked", "unmasked", "own-data"] = "masked"


class Experiment(_Settings, frozen=True):
    """One experiment.

    Attributes
    ----------
    name
        The name of the experiment in tables and of its folder; empty for METHOD-DATA.
    method
        Who trains which slice of the model.
    parts
        Parts to add to the method, in this order, such as ``fedprox:0.01,feddyn:0.1`` (see
        `nestling.methods.registry.PARTS`); one of your own is ``module:factory``.
    options
        Options of the method, such as ``options.step=2``; 'nestling list methods NAME' explains them.
    rounds
        Rounds of training.
    seed
        The seed of all random numbers: the same experiment gives the same figures.
    workers
        Processes that train clients side by side; the figures do not depend on it.
    worker_timeout
        Seconds after which a worker that is still at a job is replaced, and its job done again. 0 is automatic: twenty
        times as long as the longest such job so far, and at least two minutes. A branch of clients
        (server.fan_in) has that time for each of its jobs. The figures do not depend on it.
    engine
        Where workers run: on this machine (``local``), or on a cluster (``ray``). The figures do not depend on it.
    address
        The address of a Ray cluster to join, such as ``auto`` or ``10.0.0.5:6379``; if empty, one is started here.
    device
        Where models compute.
    precision
        ``full``, or ``mixed`` for training on GPUs.
    group_clients
        How many small clients of one shape train together, as one grouped network: ``auto`` as many as pays by
        measurement, ``off`` none, or at most so many. It changes the last bits of figures.
    threads
        Threads that PyTorch uses in each worker for one operation. Another number than 1 may change the last bits of
        figures, and pays for large models and few workers alone.
    accelerate
        ``auto``, or ``off`` for plain PyTorch: no channels-last memory, no convolutions as products, `torch.optim`
        and `torch.nn.functional.cross_entropy` as they are, no groups, no batches that are joined for the statistics
        of norms, no samples made ready at once. It is slower, and changes the last bits of figures: for comparison,
        and where a kernel is under suspicion. Kernels that are known to corrupt memory or to answer wrongly stay
        replaced (`nestling.safe_kernels`).
    checkpoint_every
        Rounds between checkpoints. The figures do not depend on it.
    select_rows
        Whether clients receive and return only the rows of the classes, or words, that they hold (Federated Select):
        fewer bytes, and the same result, as the masked loss uses no others.
    model
        The global model.
    data
        The data set, and how it is divided among clients.
    fleet
        The devices.
    local
        How a client trains.
    server
        How the server turns merged weights into new ones.
    upload
        How a client's change is sent.
    evaluate
        When and how models are tested.

    Examples
    --------
    >>> experiment = Experiment(method="fedrolex", rounds=5, fleet=FleetSettings(clients=10, per_round=5))
    >>> Experiment.from_toml(experiment.to_toml()) == experiment
    True
    """

    name: Annotated[str, msgspec.Meta(description="the name of a folder")] = ""
    method: Annotated[str, msgspec.Meta(description="a name of 'nestling list methods', or module:factory")] = (
        "heterofl"
    )
    parts: Annotated[str, msgspec.Meta(description=_PARTS)] = ""
    options: dict[str, Any] = {}
    rounds: Rounds = 10
    seed: Seed = 0
    workers: Count = 1
    worker_timeout: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    engine: Literal["local", "ray"] = "local"
    address: Annotated[str, msgspec.Meta(description="auto, or host:port")] = ""
    device: Annotated[str, msgspec.Meta(description="cpu, cuda, cuda:0, cuda:1, … or mps")] = "cpu"
    precision: Precision = "full"
    group_clients: Annotated[str | int, msgspec.Meta(description="auto, off, or a number of clients from 1")] = "auto"
    threads: Count = 1
    accelerate: Literal["auto", "off"] = "auto"
    checkpoint_every: Count = 10
    select_rows: bool = False
    model: Model = Model()
    data: Data = Data()
    fleet: FleetSettings = FleetSettings()
    local: LocalTraining = LocalTraining()
    server: ServerSettings = ServerSettings()
    upload: Upload = Upload()
    evaluate: Evaluate = Evaluate()

    def __post_init__(self) -> None:
        check(self)
        check_together(self)

    def to_toml(self) -> str:
        """Return this experiment as TOML text."""
        return tomli_w.dumps(msgspec.to_builtins(self))

    @classmethod
    def from_toml(cls, text: str) -> Experiment:
        """Read an experiment from TOML text, with old or new names; settings that are not named keep their defaults."""
        try:
            return read(with_new_names(tomllib.loads(text)))
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
            refuse_old_name(key.strip())
            changes.append((key.strip(), as_value(text)))
        last = dict(changes)
        if last.get("model.name", self.model.name) != self.model.name:
            data["model"]["options"] = {}
        if last.get("method", self.method) != self.method:
            data["options"] = {}
        for key, value in changes:
            put(data, key, value)
        given = [key.removeprefix("local.") for key in last if key.startswith("local.")]
        data["local"] = with_one_amount(data["local"], given)
        return read(data)


def read(data: Mapping[str, Any]) -> Experiment:
    """Return the experiment that nested settings describe, or say in one sentence which one cannot be.

    >>> read({"rounds": 0})
    Traceback (most recent call last):
        ...
    nestling.errors.ConfigError: the setting rounds cannot be 0: expected `int` >= 1
    """
    local = data.get("local", {})
    return built(Experiment, {**data, "local": with_one_amount(local, given=local)})


def checked(experiment: Experiment) -> Experiment:
    """Return the same experiment as it would be read from its config.toml: every value of its setting's type.

    >>> checked(Experiment(local=LocalTraining(lr=1))).local.lr
    1.0
    """
    check(experiment)
    return read(msgspec.to_builtins(experiment))
