"""Updates as messages: the change of a client's slice is encoded, and decoded again where slices are merged.

Three kinds of tensors are not sent: the client's own ones, statistics that training does not use, and those that the
user froze.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from nestling.cut import Plan
from nestling.cut.extract import State, cuts
from nestling.methods.context import Setup
from nestling.methods.messages import Update
from nestling.seeds import derive
from nestling.upload import compress, decode, encode

_RESIDUAL = "residual/"


def encode_update(setup: Setup, update: Update, sent: State, client_state: State, seed: int) -> Update:
    """Return an update whose message is the encoded change of the slice that the client was `sent`.

    With error feedback, what the message leaves out is kept in the client's state.
    """
    change = {name: update.state[name] - sent[name] for name in travelling(setup, sent)}
    residual = {
        name.removeprefix(_RESIDUAL): value for name, value in client_state.items() if name.startswith(_RESIDUAL)
    }
    message, left = compress(change, residual, setup.upload, seed=seed)
    client_state = update.client_state | {_RESIDUAL + name: value for name, value in left.items()}
    private = {name: update.state[name] for name in update.state if name in setup.private}
    return replace(update, state=private, client_state=client_state, message=message)


def decode_update(setup: Setup, update: Update, sent: State) -> Update:
    """Return an update with the slice after training, from the slice that was `sent` and the message."""
    assert update.message is not None
    template = {name: sent[name] for name in travelling(setup, sent)}
    state: dict[str, Tensor] = dict(sent)
    state |= {name: sent[name] + change for name, change in decode(update.message, template).items()}
    names = [name for name in state if name not in setup.user_frozen]
    dense = {name: state[setup.axes.tied.get(name, name)] for name in names}
    return replace(update, state=dense | update.state)


def expected_bytes(setup: Setup, plan: Plan) -> int:
    """Return the expected bytes of a message: those of a random change."""
    slices, state = cuts(setup.cut_axes, plan), setup.model.state_dict()
    stream = torch.Generator().manual_seed(derive(setup.seed, "expected"))
    change = {
        name: torch.randn(slices[name].shape, generator=stream).to(state[name].dtype)
        for name in travelling(setup, slices)
    }
    return len(encode(change, setup.upload))


def travelling(setup: Setup, names: Iterable[str]) -> list[str]:
    """Return the names of the tensors that are sent, among some of the model's; of tied ones, the first."""
    return [name for name in names if name not in setup.stay and name not in setup.axes.tied]
