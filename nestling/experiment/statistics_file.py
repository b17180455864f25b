"""statistics.safetensors: the norm statistics of every tested sub-model, so that a run directory alone gives them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from nestling.cut.extract import State
from nestling.errors import RunError
from nestling.experiment.directory import STATISTICS
from nestling.files import write_whole


def write_statistics(folder: Path, round: int, statistics: Mapping[str, State]) -> None:
    """Write the statistics of a round: key of a plan → name → tensor."""
    tensors = {f"{key}/{name}": tensor for key, state in statistics.items() for name, tensor in state.items()}
    data = safetensors.torch.save(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, {"round": str(round)}
    )
    path = folder / STATISTICS
    if not path.exists() or path.read_bytes() != data:
        write_whole(path, data)


def read_statistics(folder: Path, round: int) -> dict[str, dict[str, Tensor]]:
    """Return the statistics of a round by the keys of plans; empty if those in the directory are of another round."""
    path = folder / STATISTICS
    if not path.exists():
        return {}
    statistics: dict[str, dict[str, Tensor]] = {}
    try:
        with safetensors.safe_open(path, "pt") as file:
            if (file.metadata() or {}).get("round") != str(round):
                return {}
            for name in file.keys():  # noqa: SIM118 (it is no dictionary)
                key, _, own = name.partition("/")
                statistics.setdefault(key, {})[own] = file.get_tensor(name)
    except (OSError, safetensors.SafetensorError) as problem:
        raise RunError(
            f"{path} cannot be read: {str(problem).splitlines()[0]}; put back a copy, or delete it"
        ) from None
    return statistics
