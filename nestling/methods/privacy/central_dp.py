"""Central differential privacy of clients, whatever slices they hold: who took part, and with which data, stays hidden.

The server is trusted: it sees the changes of clients, and hides each of them in the noised sum (`noised_sum`). What
leaves the server, the model of every round, is (ε, δ)-private (`accounting`), however long it is trained on afterwards.

All that clients tell beside their changes would be outside of the mechanism and is refused: norm statistics, tensors of
sub-models, masked losses and selected rows (they tell which classes a client holds), replies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from nestling.data.federated import ClientData
from nestling.errors import ConfigError, MethodError
from nestling.events import report
from nestling.methods.aggregator import Aggregator, Mean
from nestling.methods.context import RoundContext, Setup
from nestling.methods.part import Part
from nestling.methods.parts.equal_clients import check_equal_clients
from nestling.methods.parts.holders import shared_names
from nestling.methods.parts.plans_by_client import draws_by_client
from nestling.methods.privacy.accounting import Accountant
from nestling.methods.privacy.noised_sum import NoisedSum

EXAMPLE = "parts=dp:clip=0.5:epsilon=8"


@dataclass(frozen=True)
class CentralDP(Part):
    """Merge by the noised sum of clipped changes.

    Attributes
    ----------
    clip
        The largest norm of a client's change, over all coordinates that it holds.
    noise, epsilon
        z, the standard deviation of the noise on a sum over the clip; or the ε that all rounds may cost, from which z
        follows. One of them is given.
    delta
        δ; 0 for clients^−1.1.
    counts
        What sums are divided by: the ``fixed`` expected number of holders, which is public; or the ``real`` number,
        which then is public, so that neighbours have a client replaced by one of the same level.
    """

    label: ClassVar[str] = "dp"
    clip: float = 1.0
    noise: float | None = None
    epsilon: float | None = None
    delta: float = 0.0
    counts: Literal["fixed", "real"] = "fixed"

    def __post_init__(self) -> None:
        if (self.noise is None) == (self.epsilon is None):
            raise MethodError(f"dp needs either noise or epsilon, such as {EXAMPLE} or parts=dp:clip=0.5:noise=1.0")
        for name, least in (("clip", "above 0"), ("noise", "0 or more"), ("epsilon", "above 0")):
            value = getattr(self, name)
            if value is not None and not (0 < value < math.inf or (name == "noise" and value == 0)):
                raise MethodError(f"dp's {name} must be a finite number, {least}, not {value!r}")
        if self.counts not in ("fixed", "real"):
            raise MethodError(f"dp's counts are fixed or real, not {self.counts!r}")
        if not 0 <= self.delta < 1:
            raise MethodError(f"dp's delta must be above 0 and below 1, or 0 for clients^-1.1, not {self.delta!r}")

    @property
    def extendable(self) -> bool:
        """Whether the noise is given: one that follows from ε depends on the number of rounds."""
        return self.epsilon is None

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise an error if clients tell more than the noised sum, or ε could not be computed."""
        del public
        self._check_method(setup)
        fleet, method = setup.participation, setup.method
        if fleet is None:
            raise ConfigError(
                "dp needs to know how clients are drawn, and simulated devices come and go: leave out fleet.devices"
            )
        if self.counts == "real" and not fleet.sampled:
            raise ConfigError(
                "dp with counts=real needs as many clients in every round, and devices come and go: use counts=fixed"
            )
        if self.counts == "real" and fleet.poisson:
            raise ConfigError("dp with counts=real has no bound for fleet.sampling=poisson: use counts=fixed")
        if draws_by_client(setup):
            raise MethodError(
                f"dp needs to know who may hold what, and {method.name} gives every client a slice of its own"
            )
        if self._delta(setup) >= 1 / setup.clients:
            raise ConfigError(f"dp's delta must be below 1/clients = {1 / setup.clients:g}, not {self._delta(setup):g}")
        if self.z(setup) == 0:
            report("no privacy", "dp has noise=0: changes are clipped, and nothing is private")
        else:
            self._accountant(setup).epsilon(self.z(setup), 1, self._delta(setup))  # the package is there
        check_equal_clients(setup, "dp")

    def _check_method(self, setup: Setup) -> None:
        """Raise if clients of the method tell more than their changes."""
        method = setup.method
        leaks = [
            (setup.select_rows, "rows that clients select tell which classes they hold", "set select_rows=false"),
            (
                method.overriding("output_mask"),
                "a masked loss tells which classes a client holds",
                "set options.masked=false",
            ),
            (
                setup.norm_statistics - setup.private,
                "clients tell norm statistics without noise",
                "use a model without batch norms, such as model.options.norm=gn",
            ),
            (
                setup.per_submodel,
                "the tensors of sub-models, which few clients train, are merged without noise",
                "use a method without them",
            ),
            (method.overriding("reply"), "clients reply more than their changes", "use another method"),
            (
                any(tensor.is_complex() for tensor in setup.model.state_dict().values()),
                "its noise is for real numbers",
                "use a model without complex tensors",
            ),
            *((part, "the server learns from each update", part.instead) for part in method.overriding("received")),
        ]
        for present, reason, remedy in leaks:
            if present:
                raise MethodError(f"dp does not go with {method.name} here, as {reason}: {remedy}")
        if not shared_names(setup):
            raise MethodError(f"dp hides what clients share, and clients of {method.name} share nothing")

    def aggregator(self, round: RoundContext, mean: Mean) -> Aggregator:
        """Return the noised sum of a round."""
        del mean
        noise, real = self.noise_on_sum(round.setup), self.counts == "real"
        return NoisedSum(round, self.clip_in(round), noise, real_counts=real, record=self.recorded(round))

    def clip_in(self, round: RoundContext) -> float:
        """Return the clip of a round."""
        del round
        return self.clip

    def noise_on_sum(self, setup: Setup) -> float:
        """Return the standard deviation of the noise on a sum, over the clip."""
        return self.z(setup)

    def recorded(self, round: RoundContext) -> dict[str, Any]:
        """Return what the round's line says: what this and all earlier rounds cost, and by which noise."""
        setup, z = round.setup, self.z(round.setup)
        accountant, delta = self._accountant(setup), self._delta(setup)
        epsilon = accountant.epsilon(z, round.number, delta)  # by the number of the round: a resume counts none twice
        return {
            "epsilon": epsilon if math.isfinite(epsilon) else None,
            "delta": delta,
            "adjacency": accountant.adjacency,
            "clip": self.clip_in(round),
            "noise": z,
        }

    def z(self, setup: Setup) -> float:
        """Return the noise multiplier: as given, or the smallest with which all rounds cost at most `epsilon`."""
        if self.epsilon is None:
            assert self.noise is not None
            return self.noise
        return self._accountant(setup).noise_for(self.epsilon, setup.rounds, self._delta(setup))

    def _accountant(self, setup: Setup) -> Accountant:
        assert setup.participation is not None  # `check` requires it
        return Accountant.of(setup.participation, self.counts == "real")

    def _delta(self, setup: Setup) -> float:
        return self.delta or float(setup.clients**-1.1)
