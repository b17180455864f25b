"""Settings that are fine alone and do not go together, each refused in one sentence."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from nestling.errors import ConfigError

if TYPE_CHECKING:
    from nestling.settings.structs import Experiment, LocalTraining

LEVELS_FILES = (".toml", ".json", ".csv")  # endings of fleet.levels that name a file
_MOST = 10**9  # of anything that is only compared or counted
_LARGEST_POWER = 300  # of ten: well within a number of 64 bits
_SAMPLES_AT_ONCE = 10**7  # in a step: costs multiply this by the activations of a model, in 64 bits
_NAME = 200  # bytes of a name: file systems take 255, and suffixes are added

_Range = tuple[Callable[[Any], bool], str]
_POSITIVE: _Range = (lambda value: value > 0, "above 0")
_AT_LEAST_0: _Range = (lambda value: value >= 0, "0 or more")

# What numbers settings take beside their types, as tests and in words; the reference of settings shows them, too.
RANGES: dict[str, _Range] = {
    **dict.fromkeys(("local.lr", "local.batch_size", "server.lr"), _POSITIVE),
    **dict.fromkeys(
        [
            f"local.{name}"
            for name in ("momentum", "weight_decay", "clip_norm", "lr_decay", "warmup_rounds", "proximal")
        ],
        _AT_LEAST_0,
    ),
    "server.beta1": (lambda value: 0 <= value < 1, "0 or more and below 1"),
    "server.beta2": (lambda value: 0 <= value <= 1, "from 0 to 1"),
    **dict.fromkeys(("server.tau", "server.staleness"), _AT_LEAST_0),
}
LIMITS = {"local.epochs": 10**6, "local.batch_size": _SAMPLES_AT_ONCE, "local.warmup_rounds": _MOST}


def check_together(experiment: Experiment) -> None:
    """Raise where settings that are fine alone do not go together."""
    local, fleet = experiment.local, experiment.fleet
    _check_name(experiment.name)
    if math.isnan(experiment.worker_timeout):
        raise ConfigError("the setting worker_timeout must be 0 or more seconds, not nan")
    _check_work(local)
    for name, (fits, accepted) in RANGES.items():
        if not fits(value := attrgetter(name)(experiment)):
            raise ConfigError(f"the setting {name} must be {accepted}, not {value!r}")
    for name, most in LIMITS.items():
        if (value := attrgetter(name)(experiment)) > most:
            raise ConfigError(f"the setting {name} must be at most {most:,}, not {value:,}")
    if any(milestone < 1 for milestone in local.milestones):
        raise ConfigError(f"the setting local.milestones names rounds, which count from 1, not {min(local.milestones)}")
    if len(local.milestones) * math.log10(max(local.lr_decay, 1.0)) + math.log10(local.lr) > _LARGEST_POWER:
        raise ConfigError(
            f"local.lr_decay={local.lr_decay!r} at {len(local.milestones)} milestones is more than a number holds"
        )
    group = experiment.group_clients
    if group < 1 if isinstance(group, int) else group not in ("auto", "off"):
        raise ConfigError(f'the setting group_clients is "auto", "off" or a number of clients from 1, not {group!r}')
    if fleet.per_round > fleet.clients:
        raise ConfigError(
            f"{fleet.per_round} clients cannot take part in a round of a fleet of {fleet.clients}: set fleet.per_round="
            f"{fleet.clients} or less"
        )
    if experiment.data.partition in ("classes", "heterofl-shards") and not experiment.data.classes_per_client:
        raise ConfigError("a partition by classes needs data.classes_per_client, the number of classes of each client")
    if experiment.address and experiment.engine != "ray":
        raise ConfigError(f"address={experiment.address} is that of a Ray cluster: it needs engine=ray")
    if experiment.engine == "ray" and experiment.device.startswith("cuda:"):
        raise ConfigError(f"Ray deals out GPUs by itself: use device=cuda, not {experiment.device}")
    _check_device(experiment.device, experiment.precision)
    _check_stragglers(experiment)
    if fleet.deadline and not fleet.devices and not fleet.levels.strip().lower().endswith(LEVELS_FILES):
        raise ConfigError("fleet.deadline needs fleet.devices: without devices, nothing is known of their time")


def _check_stragglers(experiment: Experiment) -> None:
    """Raise unless there is one way to deal with slow clients."""
    fleet, server = experiment.fleet, experiment.server
    more, buffer = f"fleet.over_selection={fleet.over_selection:g}", f"server.buffer={server.buffer}"
    if fleet.over_selection > 1:
        if fleet.sampling == "poisson":
            raise ConfigError(f"{more} merges a fixed number of clients: use fleet.sampling=fixed")
        if fleet.per_round * fleet.over_selection > fleet.clients:
            raise ConfigError(
                f"{more} would start more clients than fleet.clients={fleet.clients}: set a lower fleet.per_round, "
                f"which is {fleet.per_round}"
            )
    if not server.buffer:
        return
    if fleet.over_selection > 1:
        raise ConfigError(f"{buffer} waits for nobody, so {more} has nothing to do: leave out one of them")
    if fleet.deadline:
        raise ConfigError(f"{buffer} waits for nobody: leave out fleet.deadline={fleet.deadline:g}")
    if fleet.sampling == "poisson":
        raise ConfigError(f"{buffer} has a fixed number of clients in training: use fleet.sampling=fixed")
    if server.fan_in:
        raise ConfigError(
            f"{buffer} discounts every update by itself, and server.fan_in={server.fan_in} merges some before they "
            "arrive: set server.fan_in=0"
        )


def _check_work(local: LocalTraining) -> None:
    """Raise unless either epochs or steps say how long clients train in a round."""
    epochs, steps = local.epochs, local.steps
    if not 0 <= steps <= _MOST or (isinstance(steps, float) and steps >= 1):
        raise ConfigError(
            f"the setting local.steps must be a whole number of steps up to {_MOST:,}, or a part of an epoch between 0 "
            f"and 1 such as 0.5, not {steps!r}"
        )
    if steps and epochs:
        raise ConfigError(
            f"local.steps={steps!r} takes the place of local.epochs={epochs!r}: set one of them, and the other to 0"
        )
    if not steps and not epochs > 0:
        raise ConfigError(f"the setting local.epochs must be above 0, not {epochs!r}, unless local.steps is")


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


def _check_device(name: str, precision: str) -> None:
    """Raise where a device has another name than PyTorch's, or the CPU should compute in mixed precision."""
    if not re.fullmatch(r"cpu|mps|cuda(:\d{1,2})?", name):
        raise ConfigError(f"the setting device cannot be {name!r}: it is cpu, cuda, cuda:0, cuda:1, … or mps")
    if name == "cpu" and precision == "mixed":
        raise ConfigError("precision=mixed is for GPUs: on the CPU use precision=full, which is faster there")
