"""Training several clients of one shape as a single grouped network: for each, the same steps as alone.

Every client keeps its own samples, shuffles, augmentation, dropout, gradient clip and optimiser state. Clients may have
different numbers of samples: in a step where their batches differ in size, those of equal size go through the network
together, so that no sample is padded and a norm sees only a client's own batch. A client without batches left leaves
the network.

In double precision the result is that of `nestling.client.train`; in single precision the last bits differ, as sums are
computed in another order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn

from nestling.client.samples import GroupBatches
from nestling.client.train import check_finite
from nestling.data.batches import local_batches
from nestling.kernels.cross_entropy import correct, cross_entropy_rows
from nestling.kernels.grouped_layers import Grouped
from nestling.methods.messages import Progress
from nestling.methods.sgd import Optimizer
from nestling.settings import LocalTraining
from nestling.tasks.task import Batch

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class Member:
    """One client of a group.

    Attributes
    ----------
    state
        The weights that it received.
    samples
        The indices of its samples, (samples,).
    shuffle
        The generator that shuffles them.
    dropout
        The generator of its dropout.
    labels
        The classes that it holds, if the loss is masked; else None.
    """

    state: Mapping[str, Tensor]
    samples: Tensor
    shuffle: torch.Generator
    dropout: torch.Generator
    labels: Tensor | None = None


class Trained:
    """A group after training: the `progress` and weights of every member, until the network trains another group."""

    def __init__(self, progress: Sequence[Progress], grouped: Grouped, order: Sequence[int]) -> None:
        self._grouped, self._order = grouped, order  # the members, in the order of the network
        self.progress = self._by_member(progress)

    def states(self) -> list[dict[str, Tensor]]:
        """Return the weights of every member."""
        return self._by_member(self._grouped.states())

    def mean(self, weights: Sequence[float]) -> dict[str, Tensor]:
        """Return the weighted mean of all members; of counters, the highest."""
        return self._grouped.mean([weights[member] for member in self._order])

    def _by_member(self, values: Sequence[_T]) -> list[_T]:
        by_member = dict(zip(self._order, values, strict=True))
        return [by_member[member] for member in range(len(by_member))]


def train_group(
    grouped: Grouped,
    members: Sequence[Member],
    batch: GroupBatches,
    training: LocalTraining,
    *,
    lr: float,
    proximal: float = 0.0,
) -> Trained:
    """Train all members of a group by cross-entropy.

    Parameters
    ----------
    grouped
        The network, for as many clients as there are members.
    members
        The clients.
    batch
        Returns the inputs and targets of some members' batches.
    training, lr, proximal
        The settings of local training, this round's learning rate, and FedProx's μ.
    """
    work = [list(local_batches(one.samples, training, one.shuffle)) for one in members]
    # members with most steps first: those at the end finish first, and the network gets narrower
    order = sorted(range(len(members)), key=lambda k: -len(work[k]))
    members, work = [members[k] for k in order], [work[k] for k in order]
    grouped.load([one.state for one in members])
    grouped.net.train()
    parameters = grouped.parameters()
    start = [parameter.detach().clone() for parameter in parameters] if proximal else []
    optimizer = Optimizer(parameters, training, lr, buffers=grouped.momenta)
    clip = partial(_clip, limit=training.clip_norm) if training.clip_norm else None
    seen, total, correct = torch.zeros(3, len(members), dtype=torch.float64)
    active = len(members)

    def batch_at(positions: Sequence[int], chosen: Sequence[Tensor]) -> Batch:
        return batch([order[position] for position in positions], chosen)

    for step in range(len(work[0]) if work else 0):
        now = [parts[step] for parts in work if len(parts) > step]
        if len(now) < active:
            active = len(now)
            grouped.narrow(active)
            start = [old[:active] for old in start]
            optimizer.narrow(active)
        values, counts, hits = _losses(grouped, members[:active], now, batch_at)
        if start:
            values = values + proximal / 2 * _distances(parameters, start)
        optimizer.step(values.sum(), clip)
        values = values.detach()  # frees the graph, which refers to the shapes of this step
        seen[:active] += counts
        total[:active] += values * counts
        correct[:active] += hits
    grouped.narrow(len(members))
    check_finite(total, grouped.net)
    sums = zip(seen.tolist(), total.tolist(), correct.tolist(), strict=True)
    return Trained([Progress(int(count), loss, right) for count, loss, right in sums], grouped, order)


def _losses(
    grouped: Grouped, members: Sequence[Member], now: Sequence[Tensor], batch: GroupBatches
) -> tuple[Tensor, Tensor, Tensor]:
    """Return every member's loss on its batch of this step, its targets and its correct ones: (members,) each.

    A loss is the mean over all targets, as in `nestling.tasks.class_loss`; targets of −100 do not count.
    """
    by_size: dict[int, list[int]] = {}
    for position, chosen in enumerate(now):
        by_size.setdefault(len(chosen), []).append(position)
    losses, counts, hits = [], [], []
    for size, positions in by_size.items():
        inputs, targets = batch(positions, [now[position] for position in positions])
        inputs, targets = (joined.unflatten(0, (len(positions), size)) for joined in (inputs, targets))
        some = [members[position] for position in positions]
        rows = torch.tensor(positions) if len(by_size) > 1 else None
        logits = _masked(grouped.run(inputs, rows, [one.dropout for one in some]), [one.labels for one in some])
        each = cross_entropy_rows(logits.flatten(0, -2), targets.flatten()).view(targets.shape)
        counts.append((targets >= 0).flatten(1).sum(1))
        losses.append(each.flatten(1).sum(1) / counts[-1])
        hits.append(correct(logits.detach(), targets).flatten(1).sum(1))
    if len(by_size) == 1:
        return losses[0], counts[0], hits[0]
    order = torch.tensor(list(chain.from_iterable(by_size.values()))).argsort()
    return torch.cat(losses)[order], torch.cat(counts)[order], torch.cat(hits)[order]


def _masked(logits: Tensor, labels: Sequence[Tensor | None]) -> Tensor:
    """Set the logits of classes that a client does not hold to zero, as `nestling.tasks.class_loss.masked` does."""
    if all(held is None for held in labels):
        return logits
    absent = torch.zeros(len(labels), logits.shape[-1], dtype=torch.bool)
    for row, held in zip(absent, labels, strict=True):
        if held is not None:
            row.fill_(True)[held] = False
    return logits.masked_fill(absent.view(len(labels), *[1] * (logits.dim() - 2), -1), 0)


def _distances(parameters: Sequence[nn.Parameter], start: Sequence[Tensor]) -> Tensor:
    """Return every client's squared distance from the weights that it received (FedProx, Eq. 2)."""
    return torch.stack(
        [(new - old).square().flatten(1).sum(1) for new, old in zip(parameters, start, strict=True)]
    ).sum(0)


@torch.no_grad()
def _clip(parameters: Sequence[Tensor], limit: float) -> None:
    """Clip the gradient norm of every client to `limit`, as `clip_grad_norm_` does for one."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    squares = [torch.linalg.vector_norm(one, dim=tuple(range(1, one.dim()))) for one in gradients]
    factors = (limit / (torch.linalg.vector_norm(torch.stack(squares), dim=0) + 1e-6)).clamp(max=1)
    for one in gradients if (factors < 1).any() else ():
        one.mul_(factors.view(-1, *[1] * (one.dim() - 1)))
