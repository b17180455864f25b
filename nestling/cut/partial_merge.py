"""`PartialMerge`: the updates that one tally has merged, as a value that another tally adds to its own.

It holds what a tally holds: means of equal slices, double-precision sums of different ones, and counters. Packed, it is
a safetensors file with its structure as JSON in the metadata, like a packed slice (`nestling.cut.wire`). Nothing is
ever unpickled; `Tally.merge`, which knows the model, checks everything before anything changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import torch
from torch import Tensor

from nestling.cut.plan import Plan
from nestling.cut.wire import decode, encode
from nestling.errors import StateError

_FORMAT = "nestling-partial-1"
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}


@dataclass(frozen=True, eq=False)
class PartialMean:
    """The mean of clients with one slice.

    Attributes
    ----------
    plan
        The slice.
    weight
        The sum of the clients' weights.
    tensors
        The mean of every tensor, by name; of half precision, in single precision.
    """

    plan: Plan
    weight: float
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class PartialSum:
    """Sums over clients with different slices, of tensors that are cut alike.

    Attributes
    ----------
    totals
        The weighted sum of every tensor, by name: (rows, width) in double precision. Of float64 tensors, the sum of
        changes.
    weights
        The total weight of every row, (rows,).
    rows
        The indices of the rows that some client held, increasing; None for all.
    """

    totals: Mapping[str, Tensor]
    weights: Tensor
    rows: Tensor | None = None


@dataclass(frozen=True, eq=False)
class PartialMerge:
    """What a tally has merged.

    Attributes
    ----------
    clients
        The number of clients.
    means, sums
        The merged tensors.
    submodels
        The means of tensors that every sub-model has for itself, and the highest values of its counters.
    counters
        The highest value of every integer buffer, by name.
    base
        A digest of the tensors whose changes are summed, as they were before; empty if there are none.

    Examples
    --------
    >>> import nestling
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> axes, state = nestling.trace(net, torch.zeros(1, 4)), net.state_dict()
    >>> edge, server = nestling.Tally(axes, state), nestling.Tally(axes, state)
    >>> edge.add(state, Plan(), weight=3.0)
    >>> server.merge(PartialMerge.unpack(edge.pack()))
    >>> server.clients, server.weights("0.bias")[0].item()
    (1, 3.0)
    """

    clients: int
    means: tuple[PartialMean, ...] = ()
    sums: tuple[PartialSum, ...] = ()
    submodels: tuple[PartialMean, ...] = ()
    counters: Mapping[str, Tensor] = field(default_factory=dict)
    base: str = ""

    @property
    def nbytes(self) -> int:
        """The bytes of all its tensors."""
        return sum(tensor.nbytes for _, tensor in self._named())

    def pack(self) -> bytes:
        """Return this merge as safetensors bytes; equal merges are equal bytes."""
        tensors = dict(self._named())
        parted = [name for name, tensor in tensors.items() if tensor.is_complex()]
        tensors |= {name: torch.view_as_real(tensors[name].resolve_conj()) for name in parted}
        means, own = ([_Mean.of(mean) for mean in several] for several in (self.means, self.submodels))
        return encode(tensors, _About(_FORMAT, self.clients, means, len(self.sums), own, parted, self.base))

    @staticmethod
    def unpack(data: bytes) -> PartialMerge:
        """Return the merge in `data`, which may be untrusted: it is validated, never executed."""
        tensors, about = decode(data, _About, _FORMAT, "partial merge")
        for name in about.complex:
            pairs = tensors.get(name)
            if pairs is None or pairs.dtype not in _REAL.values() or not pairs.dim() or pairs.shape[-1] != 2:
                raise StateError(f"the partial merge calls {name!r} complex, and it does not hold pairs of numbers")
            tensors[name] = torch.view_as_complex(pairs)
        places: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            place, _, name = key.partition("/")
            places.setdefault(place, {})[name] = tensor
        means, own = (
            tuple(one.mean(places.pop(f"{place}{k}", {})) for k, one in enumerate(several))
            for place, several in (("mean", about.means), ("own", about.submodels))
        )
        sums = []
        for k in range(about.sums):
            counts = places.pop(f"rows{k}", {})
            if "weights" not in counts or counts.keys() > {"weights", "rows"}:
                raise StateError(f"the partial merge announces {about.sums} sums, and has no weights of sum {k}")
            sums.append(PartialSum(places.pop(f"sum{k}", {}), counts["weights"], counts.get("rows")))
        counters = places.pop("counter", {})
        if places:
            raise StateError(f"the partial merge holds {min(places)!r}, which is no part of it")
        return PartialMerge(about.clients, means, tuple(sums), own, counters, about.base)

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all tensors under the names that they have when packed."""
        for place, means in (("mean", self.means), ("own", self.submodels)):
            for k, mean in enumerate(means):
                yield from ((f"{place}{k}/{name}", tensor) for name, tensor in mean.tensors.items())
        for k, one in enumerate(self.sums):
            yield from ((f"sum{k}/{name}", total) for name, total in one.totals.items())
            yield f"rows{k}/weights", one.weights
            if one.rows is not None:
                yield f"rows{k}/rows", one.rows
        yield from ((f"counter/{name}", tensor) for name, tensor in self.counters.items())


class _Mean(msgspec.Struct):
    plan: msgspec.Raw
    weight: float

    @classmethod
    def of(cls, mean: PartialMean) -> _Mean:
        return cls(msgspec.Raw(mean.plan.to_json()), mean.weight)

    def mean(self, tensors: dict[str, Tensor]) -> PartialMean:
        return PartialMean(Plan.from_json(bytes(self.plan)), self.weight, tensors)


class _About(msgspec.Struct):
    format: str
    clients: Annotated[int, msgspec.Meta(ge=0, le=10**15)]
    means: list[_Mean]
    sums: Annotated[int, msgspec.Meta(ge=0)]
    submodels: list[_Mean]
    complex: list[str]
    base: str
