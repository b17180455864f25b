"""Secure aggregation, whatever slices clients hold: the server learns sums of their changes alone.

The protocol of Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017
(`nestling.secagg`), adds vectors of one length. So the clients of a round form cohorts: of one slice each, or of all
slices, padded to the coordinates that enough clients hold. What the server knows anyway is not masked: who takes part
with which slice and how many samples, from which the divisors of the sums follow, and training losses.

A simulation runs the whole protocol, with keys that follow from the seed of the run: whoever knows it can take off
every mask. On a device they must come from its operating system.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from nestling.cut import Plan
from nestling.data.federated import ClientData
from nestling.errors import MethodError
from nestling.imported import need
from nestling.methods.aggregator import Aggregator, Mean
from nestling.methods.context import RoundContext, Setup
from nestling.methods.method import Method
from nestling.methods.part import Part
from nestling.methods.parts.holders import LEAST
from nestling.methods.parts.part_settings import with_settings
from nestling.methods.secure.cohort_vectors import vector_length
from nestling.methods.secure.masked_sum import MaskedSum
from nestling.methods.secure.secure_checks import check_secure
from nestling.secagg.mask_stream import BITS

_SHARE = {"slice": 2 / 3, "union": 0.9}


@dataclass(frozen=True)
class SecureAggregation(Part):
    """Merge sums over cohorts of clients, which are computed from masked vectors.

    Attributes
    ----------
    cohort
        Who forms a cohort: clients of one ``slice``, or of all slices (``union``), whose vectors are padded with zeros.
    size
        About how many clients a cohort has at most: work grows with the square of it.
    threshold
        The share of a cohort that must remain at every step, above 0.5; never fewer than three clients. 0 for two
        thirds with ``slice`` and 0.9 with ``union``. A coordinate is summed if three clients hold it however many of
        the others drop out, which with ``union`` are fewer coordinates the lower the threshold.
    range
        The largest magnitude of a value's change (times the weight of its client over the largest in the cohort);
        larger ones are clipped.
    bits
        k: vectors are of whole numbers modulo 2^k, of 16, 32 or 64 bits.
    dropout
        The probability that a simulated client drops out of the protocol, at a step drawn at random.
    """

    label: ClassVar[str] = "secagg"
    cohort: Literal["slice", "union"] = "slice"
    size: int = 32
    threshold: float = 0.0
    range: float = 8.0
    bits: int = 32
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.cohort not in _SHARE:
            raise MethodError(f"secagg's cohort is slice or union, not {self.cohort!r}")
        if self.size < LEAST:
            raise MethodError(f"secagg's size must be {LEAST} clients or more, not {self.size!r}")
        if self.threshold and not 0.5 < self.threshold <= 1:
            raise MethodError(f"secagg's threshold must be above 0.5 and at most 1, not {self.threshold!r}")
        if not 0 < self.range < math.inf:
            raise MethodError(f"secagg's range must be a finite number above 0, not {self.range!r}")
        if self.bits not in BITS:
            raise MethodError(f"secagg's bits are 16, 32 or 64, not {self.bits!r}")
        if not 0 <= self.dropout < 1:
            raise MethodError(f"secagg's dropout must be a probability below 1, not {self.dropout!r}")

    @property
    def extendable(self) -> bool:
        """Return True: nothing depends on the number of rounds."""
        return True

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise an error if the server would learn more than sums, or could not learn what it needs from sums."""
        del public
        check_secure(setup, union=self.cohort == "union")
        need("cryptography", "secagg", "the part secagg needs", MethodError)

    def aggregator(self, round: RoundContext, mean: Mean) -> Aggregator:
        """Return what runs the protocol at the end of a round."""
        return MaskedSum(self, round, mean)

    def upload_bytes(self, setup: Setup, plan: Plan) -> int:
        """Return the bytes of a client's masked vector; of a padded one, the most that it can have."""
        return vector_length(setup, plan if self.cohort == "slice" else Plan()) * self.bits // 8

    def least(self, clients: int) -> int:
        """Return how many of a cohort's clients must remain at every step.

        >>> [SecureAggregation().least(clients) for clients in (3, 4, 6, 32)]
        [3, 3, 4, 22]
        """
        share = self.threshold or _SHARE[self.cohort]
        return max(LEAST, math.ceil(round(share * clients, 9)))  # the rounding keeps 0.7 · 10 from becoming 8


def with_secure_aggregation(method: Method, text: str) -> Method:
    """Return a method whose server learns sums alone; `text` is such as ``cohort=union:dropout=0.1``.

    >>> from nestling.methods.fedavg import fedavg
    >>> with_secure_aggregation(fedavg(), "size=16:bits=64").parts[-1].bits
    64
    """
    return method.with_parts(with_settings(SecureAggregation(), "secagg", text))
