"""A clip that follows the clients: from round to round it moves towards a quantile of the norms of their changes.

Andrew, Thakkar, McMahan, Ramaswamy, Differentially Private Learning with Adaptive Clipping, NeurIPS 2021, Algorithm 1.
The server counts the clients whose changes were within the clip C, adds noise to their number b̃, and moves the clip:
C ← C · exp(−η (b̃/m − γ)), where m is the expected number of clients, which is public.

The count costs privacy, too. Counted as ±1/2, it moves by 1/2 where the sum moves by C, so both together are a Gaussian
mechanism with z⁻² = z_Δ⁻² + (2 σ_b)⁻² (the paper's Theorem 1). z is what the accountant is told; the noise on the sum,
z_Δ, follows from it, a little larger than z.

Departure: by default σ_b is the paper's m/20, but at least z. With few clients in a round, m/20 alone would leave
nothing of z for the sum; this way z_Δ exceeds z by 16 % at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nestling.data.federated import ClientData
from nestling.errors import ConfigError, MethodError
from nestling.methods.context import AfterMerge, Merged, RoundContext, Setup
from nestling.methods.privacy.central_dp import CentralDP
from nestling.methods.privacy.noised_sum import NoisedSum, noise_stream

_CLIP = "dp/clip"  # in the server state of the method


@dataclass(frozen=True)
class AdaptiveDP(CentralDP):
    """Merge by the noised sum of changes, clipped at a quantile of their norms; `clip` is that of the first round.

    Attributes
    ----------
    quantile
        γ: the share of clients whose changes shall be within the clip.
    rate
        η: how fast the clip moves.
    count_noise
        σ_b, the standard deviation of the noise on the number of clients within the clip; 0 for a twentieth of the
        clients of a round, but at least z.
    """

    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.quantile < 1:
            raise MethodError(f"dp's quantile must be above 0 and below 1, not {self.quantile!r}")
        if not 0 < self.rate < math.inf:
            raise MethodError(f"dp's rate must be a finite number, above 0, not {self.rate!r}")
        if not 0 <= self.count_noise < math.inf:
            raise MethodError(f"dp's count_noise must be a finite number, 0 or more, not {self.count_noise!r}")

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise an error as `CentralDP` does, or if the count takes all of the privacy that there is."""
        super().check(setup, public)
        z, on_count = self.z(setup), self.noise_on_count(setup)
        if z and 2 * on_count <= z:
            raise ConfigError(
                f"dp's count_noise must be above {z / 2:.3g}, half of the noise, not {on_count!r}: counting clients "
                "within the clip would cost as much as all rounds may"
            )

    def init(self, setup: Setup, seed: int) -> dict[str, Tensor]:
        """Return the clip of the first round."""
        del setup, seed
        return {_CLIP: torch.tensor(self.clip, dtype=torch.float64)}

    def clip_in(self, round: RoundContext) -> float:
        """Return the clip of a round."""
        return float(round.method_state[_CLIP])

    def noise_on_sum(self, setup: Setup) -> float:
        """Return z_Δ: what z leaves for the sum.

        >>> AdaptiveDP(noise=1.0, count_noise=1.0).noise_on_sum(None)
        1.1547005383792517
        """
        z = self.z(setup)
        return z / math.sqrt(1 - (z / (2 * self.noise_on_count(setup))) ** 2) if z else 0.0

    def noise_on_count(self, setup: Setup) -> float:
        """Return σ_b, the noise on the number of clients within the clip."""
        z = self.z(setup)
        return self.count_noise or (max(self._expected_clients(setup) / 20, z) if z else 0.0)

    def recorded(self, round: RoundContext) -> dict[str, Any]:
        """Return what the round's line says of the mechanism, with the noise on the sum and on the count."""
        setup = round.setup
        noises = {"noise_on_sum": self.noise_on_sum(setup), "noise_on_count": self.noise_on_count(setup)}
        return super().recorded(round) | noises

    def after_merge(self, round: RoundContext, merged: Merged) -> AfterMerge:
        """Move the clip by the noised share of clients that were within it."""
        setup, rule = round.setup, merged.rule
        assert isinstance(rule, NoisedSum)  # this part's own
        stream = noise_stream(setup, "privacy of the clip", round.number)
        noise = self.noise_on_count(setup) * torch.randn((), generator=stream, dtype=torch.float64)
        share = 0.5 + (rule.within + noise) / self._expected_clients(setup)
        clip = self.clip_in(round) * torch.exp(-self.rate * (share - self.quantile))
        return AfterMerge(merged.model, {**round.method_state, _CLIP: clip})

    def _expected_clients(self, setup: Setup) -> int:
        assert setup.participation is not None  # `check` requires it
        return setup.participation.per_round
