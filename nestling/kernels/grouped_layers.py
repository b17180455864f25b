"""Layers that compute for several clients at once: one grouped network instead of many small ones.

A grouped network is a copy of a client's model in which every tensor has one more dimension in front, the clients,
and every layer that holds tensors has another class, whose forward applies each client's tensors to that client's
samples. All other code of the model runs unchanged. Activations have one of two layouts:

- ``channels``: (batch, clients · channels, …), for convolutional nets. A convolution becomes a grouped one, in
  channels-last memory, and a batch norm has more channels.
- ``batch``: (clients · batch, …), for nets that treat samples independently. A linear layer becomes a batched product.

Not every model can run in this way (a softmax over channels mixes clients in the first layout): a trial finds out
(`nestling.client.grouped.trial`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nestling.axes.skeleton import copy_with, tensors
from nestling.errors import TrainingError
from nestling.kernels.dense import as_rows
from nestling.kernels.kn2row import Kn2row
from nestling.kernels.seeded_dropout import SeededDropout
from nestling.safe_kernels import convolve, instance_norm, unguard

Layout = Literal["channels", "batch"]


class Pass:
    """The clients of the current forward pass, and the layout of their activations.

    Attributes
    ----------
    layout
        The layout of activations.
    clients, batch
        The number of clients, and of samples of each.
    rows
        Their indices in the stacked tensors, (clients,); None for all of them in order.
    draws
        The random generators of each, for dropout.
    """

    def __init__(self, layout: Layout, clients: int) -> None:
        self.layout = layout
        self.clients = clients
        self.batch = 0
        self.rows: Tensor | None = None
        self.draws: Sequence[torch.Generator] = ()

    def take(self, stacked: Tensor) -> Tensor:
        """Return the tensors of these clients, (clients, …)."""
        return stacked if self.rows is None else stacked.index_select(0, self.rows)

    def flat(self, stacked: Tensor | None) -> Tensor | None:
        """Return the tensors of these clients joined along their first dimension: (clients · first dimension, …)."""
        return None if stacked is None else self.take(stacked).flatten(0, 1)

    def apart(self, x: Tensor) -> Tensor:
        """Return activations as (clients, batch, …)."""
        return _split(x, 0, self.clients) if self.layout == "batch" else _split(x, 1, self.clients).transpose(0, 1)

    def joined(self, parts: Tensor) -> Tensor:
        """Return activations (clients, batch, …) in the network's layout."""
        return parts.flatten(0, 1) if self.layout == "batch" else _side_by_side(parts)

    def channels(self, x: Tensor) -> Tensor:
        """Return activations as (batch, clients · channels, …), whatever the layout."""
        return x if self.layout == "channels" else _side_by_side(self.apart(x))

    def back(self, x: Tensor) -> Tensor:
        """Return the result of `channels` in the network's layout again."""
        return x if self.layout == "channels" else _split(x, 1, self.clients).transpose(0, 1).flatten(0, 1)


def _split(x: Tensor, dim: int, clients: int) -> Tensor:
    """Split a dimension that joins clients in two: (…, clients, the rest of it, …)."""
    parts: Tensor = x.unflatten(dim, (clients, -1))
    return parts


def _side_by_side(parts: Tensor) -> Tensor:
    """(clients, batch, channels, …) → (batch, clients · channels, …), images in channels-last memory."""
    if parts.dim() != 5:
        return parts.transpose(0, 1).flatten(1, 2)
    joined = parts.permute(1, 3, 4, 0, 2).flatten(3, 4)  # a view for images with one channel
    return joined.contiguous().permute(0, 3, 1, 2)


class _Linear(nn.Linear):
    at: Pass

    def forward(self, input: Tensor) -> Tensor:
        parts = self.at.apart(input)
        rows = parts.reshape(self.at.clients, -1, self.in_features)
        weight = self.at.take(self.weight).transpose(1, 2)
        bias: Tensor | None = self.bias
        out = rows.bmm(weight) if bias is None else torch.baddbmm(self.at.take(bias).unsqueeze(1), rows, weight)
        return self.at.joined(out.view(*parts.shape[:-1], self.out_features))


class _Conv(nn.modules.conv._ConvNd):
    at: Pass

    def forward(self, input: Tensor) -> Tensor:
        at = self.at
        groups, weight, bias = self.groups * at.clients, at.take(self.weight).flatten(0, 1), at.flat(self.bias)
        return at.back(convolve(at.channels(input), weight, bias, self.stride, self.padding, self.dilation, groups))


class _BatchNorm(nn.modules.batchnorm._BatchNorm):
    """Uses statistics of each client's own samples, and keeps running statistics per client."""

    at: Pass

    def forward(self, input: Tensor) -> Tensor:
        at, tracks = self.at, self.training and self.track_running_stats
        own = self.training or self.running_mean is None
        mean, var = (None, None) if own and not tracks else (at.flat(self.running_mean), at.flat(self.running_var))
        momentum = self.momentum or 0.0
        x = F.batch_norm(
            at.channels(input), mean, var, at.flat(self.weight), at.flat(self.bias), own, momentum, self.eps
        )
        if tracks and mean is not None and var is not None:
            self._update(mean, var)
        return at.back(x)

    @torch.no_grad()
    def _update(self, mean: Tensor, var: Tensor) -> None:
        rows = self.at.rows
        for stacked, new in ((self.running_mean, mean), (self.running_var, var)):
            if rows is not None and stacked is not None:  # without rows, they were updated in place
                stacked.index_copy_(0, rows, new.view(self.at.clients, -1))
        if self.num_batches_tracked is not None:
            self.num_batches_tracked[slice(None) if rows is None else rows] += 1


class _GroupNorm(nn.GroupNorm):
    at: Pass

    def forward(self, input: Tensor) -> Tensor:
        at = self.at
        x, groups = at.channels(input), self.num_groups * at.clients
        return at.back(F.group_norm(x, groups, at.flat(self.weight), at.flat(self.bias), self.eps))


class _InstanceNorm(nn.modules.instancenorm._InstanceNorm):
    at: Pass

    def forward(self, input: Tensor) -> Tensor:
        at, x = self.at, self.at.channels(input)
        return at.back(instance_norm(x, weight=at.flat(self.weight), bias=at.flat(self.bias), eps=self.eps))


class _LayerNorm(nn.LayerNorm):
    at: Pass

    def forward(self, input: Tensor) -> Tensor:
        parts = self.at.apart(input)
        x = F.layer_norm(parts, self.normalized_shape, eps=self.eps)
        if self.weight is not None:
            x = x * self._broadcast(self.weight, x)
        if self.bias is not None:
            x = x + self._broadcast(self.bias, x)
        return self.at.joined(x)

    def _broadcast(self, stacked: Tensor, x: Tensor) -> Tensor:
        rest = [1] * (x.dim() - stacked.dim())
        return self.at.take(stacked).view(self.at.clients, *rest, *self.normalized_shape)


class _Embedding(nn.Embedding):
    """Looks up ids (clients · batch, …), or ids that all samples share: (positions,) or (1, positions)."""

    at: Pass

    def forward(self, input: Tensor) -> Tensor:
        at = self.at
        if at.layout == "channels":  # ids have no channels, so those of one sample could not be told from shared ones
            raise TrainingError("an embedding needs the samples of clients one after another")
        shared = input.dim() == 1 or len(input) == 1 < at.clients * at.batch
        ids = input.view(1, 1, -1).expand(at.clients, 1, -1) if shared else at.apart(input)
        tables = at.take(self.weight)
        first = torch.arange(at.clients, device=ids.device) * tables.shape[1]
        embedded = F.embedding(ids + first.view(-1, *[1] * (ids.dim() - 1)), tables.flatten(0, 1))
        if shared:
            embedded = embedded.expand(-1, at.batch, -1, -1)
        return at.joined(embedded)


class _Dropout(nn.Dropout):
    """Draws from every client's own generator, as in separate training."""

    at: Pass

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return input
        parts, keep = self.at.apart(input), 1 - self.p
        noise = [
            torch.empty_like(part, memory_format=torch.contiguous_format).bernoulli_(keep, generator=draw)
            for part, draw in zip(parts.detach(), self.at.draws, strict=True)
        ]
        return self.at.joined(parts * torch.stack(noise).div_(keep))


_LAYERS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: _Linear,
    nn.Conv1d: _Conv,
    nn.Conv2d: _Conv,
    Kn2row: _Conv,
    nn.BatchNorm1d: _BatchNorm,
    nn.BatchNorm2d: _BatchNorm,
    nn.GroupNorm: _GroupNorm,
    nn.InstanceNorm1d: _InstanceNorm,
    nn.InstanceNorm2d: _InstanceNorm,
    nn.LayerNorm: _LayerNorm,
    nn.Embedding: _Embedding,
    nn.Dropout: _Dropout,
    SeededDropout: _Dropout,
}
_TENSORS = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}


def obstacle(model: nn.Module) -> str:
    """Return which module of a model has no grouped form, and why; empty if all have one.

    >>> obstacle(nn.Sequential(nn.Linear(4, 2), nn.ReLU()))
    ''
    >>> obstacle(nn.Sequential(nn.LSTM(4, 2)))
    '0 (LSTM) holds tensors that only its own code knows how to use'
    """
    for name, module in model.named_modules():
        reason = _reason(module)
        if reason:
            return f"{name or 'the model'} ({type(module).__name__}) {reason}"
    return ""


def _reason(module: nn.Module) -> str:
    if type(module) not in _LAYERS:
        return "holds tensors that only its own code knows how to use" if _own(module) else ""
    if not _own(module) <= _TENSORS:
        return f"holds more than a plain layer does: {', '.join(sorted(_own(module) - _TENSORS))}"
    if getattr(module, "padding_mode", "zeros") != "zeros":
        return f"pads with something else than zeros: {module.padding_mode}"
    if isinstance(module, nn.Embedding):
        special = module.padding_idx is not None or module.max_norm or module.scale_grad_by_freq or module.sparse
        return "treats some of its rows in a way of their own" if special else ""
    if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
        return "averages over all batches so far" if module.momentum is None else ""
    return ""


def _own(module: nn.Module) -> set[str]:
    """Return the names of the tensors that a module itself adds to the model's state."""
    buffers = module._buffers.keys() - module._non_persistent_buffers_set
    return {name for name, _ in module.named_parameters(recurse=False)} | {
        name for name in buffers if module._buffers[name] is not None
    }


class Grouped:
    """One network instead of up to `room` copies of a model, each with tensors of its own.

    Parameters
    ----------
    model
        The model of one client, in which `obstacle` found nothing.
    room
        The largest number of clients.
    layout
        The layout of activations.

    Examples
    --------
    >>> model = nn.Linear(3, 2)
    >>> states = [{"weight": torch.full((2, 3), float(k)), "bias": torch.zeros(2)} for k in range(4)]
    >>> grouped = Grouped(model, room=4, layout="batch")
    >>> grouped.load(states)
    >>> grouped.run(torch.ones(4, 1, 3))[:, 0]
    tensor([[0., 0.],
            [3., 3.],
            [6., 6.],
            [9., 9.]], grad_fn=<SelectBackward0>)
    """

    def __init__(self, model: nn.Module, room: int, layout: Layout) -> None:
        self.room = room
        self.momenta: list[Tensor] = []  # of the last group, whose memory the next one reuses
        layers = [module for module in model.modules() if type(module) in _LAYERS]
        stacked = {id(value) for layer in layers for value in _direct(layer)}
        transposed = {id(layer.weight) for layer in layers if isinstance(layer, nn.Linear)}

        def swap(_: str, old: Tensor) -> Tensor:
            return _stack(old, room, id(old) in transposed) if id(old) in stacked else old.detach().clone()

        self.net = copy_with(model, swap)
        self.at = Pass(layout, room)
        for module in self.net.modules():
            if type(module) in _LAYERS:
                module.__class__ = _LAYERS[type(module)]
                module.at = self.at  # type: ignore[assignment]
                unguard(module)  # its new class calls safe kernels
        self._names = list(self.net.state_dict())
        self._stacked = {name: tensor for name, tensor in tensors(self.net) if name in self._names}
        self._loaded = room
        self._whole = {name: tensor.data for name, tensor in self._stacked.items()}

    def load(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Load one state per client, at most `room`."""
        self._loaded = len(states)
        self.narrow(self._loaded)
        for name, stacked in self._stacked.items():
            values = [state[name] for state in states]
            if all(value is values[0] for value in values):  # clients with the same slice, which is transposed once
                stacked.data[0] = values[0]
                rows = as_rows(stacked.data, len(values))
                rows[1:] = rows[0]
            else:
                torch.stack(values, out=stacked.data)

    def narrow(self, clients: int) -> None:
        """Continue with only the first clients: the tensors of the others stay as they are."""
        for name, stacked in self._stacked.items():
            stacked.grad = None
            stacked.data = self._whole[name][:clients]

    def parameters(self) -> list[nn.Parameter]:
        """Return the trained parameters, each (clients, …)."""
        return [parameter for parameter in self.net.parameters() if parameter.requires_grad]

    def run(self, parts: Tensor, rows: Tensor | None = None, draws: Sequence[torch.Generator] = ()) -> Tensor:
        """Return the outputs, (clients, batch, …), for such inputs of all clients, or of those at `rows`."""
        at = self.at
        at.clients, at.batch, at.rows, at.draws = parts.shape[0], parts.shape[1], rows, draws
        output = self.net(at.joined(parts))
        if not isinstance(output, Tensor):
            raise TrainingError(f"a grouped network must return logits alone, not a {type(output).__name__}")
        return at.apart(output)

    def states(self) -> list[dict[str, Tensor]]:
        """Return a copy of every client's tensors."""
        return [
            {name: self._whole[name][k].clone(memory_format=torch.contiguous_format) for name in self._names}
            for k in range(self._loaded)
        ]

    @torch.no_grad()
    def mean(self, weights: Sequence[float]) -> dict[str, Tensor]:
        """Return the weighted mean of all clients' tensors; of counters, the highest.

        >>> grouped = Grouped(nn.Linear(1, 1, bias=False), room=2, layout="batch")
        >>> grouped.load([{"weight": torch.tensor([[value]])} for value in (1.0, 5.0)])
        >>> grouped.mean([3, 1])
        {'weight': tensor([[2.]])}
        """
        shares = torch.tensor(weights, dtype=torch.float64)
        shares = shares / shares.sum()
        result = {}
        for name in self._names:
            stacked = self._whole[name][: self._loaded]
            if stacked.is_floating_point():  # values that are equal for all clients stay bitwise the same
                rows = as_rows(stacked, len(stacked))
                mean = torch.addmv(rows[0], (rows - rows[0]).t(), shares.to(stacked.dtype))
                result[name] = mean.as_strided(stacked[0].shape, stacked[0].stride()).contiguous()
            else:
                result[name] = stacked.amax(0)
        return result


def _direct(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


def _stack(old: Tensor, clients: int, transposed: bool) -> Tensor:
    """Return zeros for a tensor of every client, in the memory order that is fastest in forward and backward passes.

    The weights of linear layers are `transposed`, those of image convolutions are channels last.
    """
    if transposed:
        return old.new_zeros(clients, *reversed(old.shape)).transpose(1, 2)
    if old.dim() == 4:
        outputs, inputs, height, width = old.shape
        return old.new_zeros(clients, outputs, height, width, inputs).permute(0, 1, 4, 2, 3)
    return old.new_zeros(clients, *old.shape)
