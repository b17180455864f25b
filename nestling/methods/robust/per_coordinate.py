"""Rules that merge every coordinate by itself, from the sorted values of those who hold it.

All updates of a round are kept until it ends, as the slices that arrived: memory grows with the clients of a round, by
the size of their slices and not of the model. Tensors are merged one by one, in parts of bounded size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nestling.cut import Plan
from nestling.cut.accept import averaged
from nestling.cut.extract import State, cuts
from nestling.cut.slices import Cut, places_of
from nestling.data.federated import ClientData
from nestling.events import report
from nestling.methods.aggregator import Aggregator, Mean
from nestling.methods.context import RoundContext, Setup
from nestling.methods.messages import Update
from nestling.methods.part import Part
from nestling.methods.parts.holders import LEAST, Holders, accepted, shared_values
from nestling.methods.robust.rule_checks import check_rule

MergeRule = Callable[[Tensor, Tensor], Tensor]
_AT_ONCE = 2**22  # values that are merged at a time: 32 MB in double precision


class CoordinateRule(Part):
    """A merge of every coordinate over its holders, each of which has one vote; a subclass defines `merge`.

    A coordinate with fewer than three holders keeps its value; the round's line counts such coordinates as
    ``too_few_holders``. Tensors that belong to one sub-model are merged among its clients by the same rule. Counters
    (integers) become the median that one of the holders returned.
    """

    label: ClassVar[str]  # the name of the rule in messages

    def merge(self, values: Tensor, holders: Tensor) -> Tensor:
        """Return the merged values, (coordinates,).

        Parameters
        ----------
        values
            The values of the holders in increasing order, (coordinates, clients), float64. Where fewer clients hold a
            coordinate, the last values of its row are infinite.
        holders
            The number of holders of every coordinate, (coordinates,), int64; at least three.
        """
        raise NotImplementedError

    @property
    def extendable(self) -> bool:
        """Return True: nothing depends on the number of rounds."""
        return True

    @property
    def takes_stale_updates(self) -> bool:
        """Return True: a discounted change is one that moves less."""
        return True

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise an error if the rule cannot work with an experiment."""
        del public
        check_rule(setup, self.label)

    def aggregator(self, round: RoundContext, mean: Mean) -> Aggregator:
        """Return the merge of a round by this rule."""
        del mean
        return KeptUpdates(round, self.merge)


class KeptUpdates:
    """All updates of a round, as sparse slices, and their merge by a rule.

    Parameters
    ----------
    round
        The round.
    rule
        Merges sorted values, as `CoordinateRule.merge`.
    """

    def __init__(self, round: RoundContext, rule: MergeRule) -> None:
        self._round, self._rule = round, rule
        self._holders = Holders(round.setup)
        self._slices: dict[str, list[tuple[Cut, Tensor]]] = {}
        self._own: dict[str, list[State]] = {}
        self.clients = 0

    def add(self, update: Update, weight: float) -> None:
        """Keep the update of one client; its weight is not used."""
        del weight
        setup, state = self._round.setup, accepted(self._round, update)
        self._holders.add(update)
        for name, pair in shared_values(setup, update, state).items():
            self._slices.setdefault(name, []).append(pair)
        own = {name: state[name] for name in sorted(setup.per_submodel & state.keys())}
        if own:
            self._own.setdefault(update.plan.key, []).append(own)
        self.clients += 1

    @torch.no_grad()
    def value(self) -> dict[str, Tensor]:
        """Return the merged model; coordinates with too few holders keep their values."""
        tied, before = self._round.setup.axes.tied, self._round.before
        names = [name for name in self._round.setup.axes.dims if name not in tied]
        merged = {name: self._merged(name) if name in self._slices else before[name].clone() for name in names}
        if 0 < self.clients < LEAST:
            report(
                "round without merge",
                f"{self.clients} clients returned updates, of {LEAST} that are needed: nothing merges",
            )
        return {name: merged[tied.get(name, name)] for name in self._round.setup.axes.dims}

    def gathered(self, name: str) -> Tensor:
        """Return the number of holders of each coordinate; 0 where they were too few."""
        return self._holders.gathered(name)

    @torch.no_grad()
    def submodels(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors of sub-models that at least three clients trained."""
        return {
            key: {name: self._together([state[name] for state in states]) for name in states[0]}
            for key, states in self._own.items()
            if len(states) >= LEAST
        }

    def recorded(self) -> dict[str, Any]:
        """Return the number of coordinates that keep their values because fewer than three clients hold them."""
        alone = [states[0] for states in self._own.values() if len(states) < LEAST]
        own = sum(tensor.numel() for state in alone for tensor in state.values())
        return {"too_few_holders": self._holders.too_few() + own}

    def _merged(self, name: str) -> Tensor:
        """Merge a tensor, some rows of `Cut.width` values at a time."""
        old, slices = self._round.before[name].detach(), self._slices[name]
        width, holders = cuts(self._round.setup.cut_axes, Plan())[name].width, self._holders.rows(name).long()
        new = old.clone(memory_format=torch.contiguous_format)
        rows = new.view(-1, width)
        parts = [(_rows(where), values.reshape(-1, width)) for where, values in slices]
        step = max(1, _AT_ONCE // (width * len(parts)))
        for start in range(0, len(rows), step):
            here = holders[start : start + step]
            enough = here >= LEAST
            if enough.any():
                values = torch.full((len(here), width, len(parts)), torch.inf, dtype=torch.float64)
                for client, (places, mine) in enumerate(parts):
                    first, last = np.searchsorted(places, (start, start + step))
                    values[torch.from_numpy(places[first:last] - start), :, client] = mine[first:last].double()
                counts = here[enough].repeat_interleave(width)
                merged = self._apply(values[enough].flatten(0, 1), counts, old)
                rows[start : start + step][enough] = merged.view(-1, width)
        return new

    def _together(self, tensors: Sequence[Tensor]) -> Tensor:
        """Merge tensors of one shape."""
        values = torch.stack([tensor.double().flatten() for tensor in tensors], -1)
        return self._apply(values, torch.full((len(values),), len(tensors)), tensors[0]).view(tensors[0].shape)

    def _apply(self, values: Tensor, holders: Tensor, like: Tensor) -> Tensor:
        rule = self._rule if averaged(like) else middle
        return rule(values.sort(-1).values, holders).to(like.dtype)


def middle(values: Tensor, holders: Tensor) -> Tensor:
    """Return the lower median of sorted values, (coordinates, clients): one that a holder returned.

    >>> middle(torch.tensor([[1.0, 2.0, 5.0, 7.0], [1.0, 2.0, 5.0, torch.inf]]), torch.tensor([4, 3]))
    tensor([2., 2.])
    """
    return values.gather(-1, ((holders - 1) // 2)[:, None]).squeeze(-1)


def _rows(where: Cut) -> NDArray[np.int64]:
    """Return the places of a slice in the whole tensor, in increasing order, as rows of `Cut.width` values."""
    return np.add.outer(*places_of(where)).ravel()
