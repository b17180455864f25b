"""Uploads as they travel: what a client changed, encoded, and read again where slices are merged.

What does not travel stays with the client: tensors it keeps to itself, statistics that training does not use, and
what the user froze.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from nestling.cut import Plan
from nestling.cut.extract import cuts
from nestling.experiment.setting import Setting
from nestling.seeds import derive
from nestling.upload import compress, decode, encode

State = dict[str, Tensor]
_RESIDUAL = "residual/"


def packed(
    setting: Setting, trained: Mapping[str, Tensor], sent: Mapping[str, Tensor], memory: Mapping[str, Tensor], seed: int
) -> tuple[bytes, State]:
    """Return a client's change as bytes, and what it remembers of it: what it did not send, where that is fed back."""
    change = {name: trained[name] - sent[name] for name in _travels(setting, sent)}
    residual = {name.removeprefix(_RESIDUAL): value for name, value in memory.items() if name.startswith(_RESIDUAL)}
    data, left = compress(change, residual, setting.experiment.upload, seed=seed)
    return data, {_RESIDUAL + name: value for name, value in left.items()}


def unpacked(setting: Setting, data: bytes, sent: Mapping[str, Tensor]) -> State:
    """Return the slice after training, from what was sent to the client and the bytes that came back."""
    like = {name: sent[name] for name in _travels(setting, sent)}
    state = dict(sent)
    state.update({name: sent[name] + change for name, change in decode(data, like).items()})
    names = [name for name in state if name not in setting.user_frozen]
    return {name: state[setting.axes.tied.get(name, name)] for name in names}


def expected(setting: Setting, plan: Plan) -> int:
    """Bytes that an upload will take, before there is one: those of a change drawn at random."""
    how, state = cuts(setting.cut_axes, plan), setting.model.state_dict()
    stream = torch.Generator().manual_seed(derive(setting.experiment.seed, "expected"))
    change = {
        name: torch.randn(how[name].shape, generator=stream).to(state[name].dtype) for name in _travels(setting, how)
    }
    return len(encode(change, setting.experiment.upload))


def _travels(setting: Setting, state: Iterable[str]) -> list[str]:
    stay = setting.private | setting.statistics | setting.user_frozen
    return [name for name in state if name not in stay and name not in setting.axes.tied]
