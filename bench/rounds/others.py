"""Other systems, in environments of their own beside the repository: Flower's simulation, twice, and pfl.

Their programs, and what these need, are in the folder ``bench`` of the repository; ``make bench`` makes environments.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.rounds.contest import Contestant


@dataclass(frozen=True)
class Other:
    """Another system.

    Attributes
    ----------
    name
        What it is called in tables.
    program, environment
        What to start, and the environment that has what it needs.
    workloads
        Those that it plays.
    least
        How many times as fast as it Nestling should be where clients are alike; 0 for no bound.
    variables
        Of the program's environment, on top of ours.
    """

    name: str
    program: str
    environment: str
    workloads: tuple[str, ...]
    least: float = 0.0
    variables: tuple[tuple[str, str], ...] = ()

    def missing(self) -> str:
        """Say why it cannot be measured here, if so.

        >>> Other("Nobody", "bench/with_nobody.py", ".venv-nobody", ()).missing()
        'Nobody was not measured: there is no .venv-nobody here (make bench makes it, if it can reach the network)'
        """
        if not (Path(self.environment) / ".ready").exists():
            return (
                f"{self.name} was not measured: there is no {self.environment} here (make bench makes it, if it can "
                "reach the network)"
            )
        if not Path(self.program).exists():
            return f"{self.name} was not measured: its program {self.program} is in the repository, and this is not it"
        return ""

    def start(self, workload: str, quick: bool) -> Contestant:
        """Start its program on a workload."""
        python = Path.cwd() / self.environment / "bin" / "python"  # not resolved: what it links to has no packages
        return Contestant(
            [str(python), "-P", self.program, workload, "quick" if quick else "full"], dict(self.variables)
        )


_OFFLINE = (
    ("FLWR_TELEMETRY_ENABLED", "0"),
    ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    ("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
    ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"),
)
_ALIKE = ("cnn-e", "mlp", "mlp-e")  # a hundred clients of one size
FLOWER = Other("Flower", "bench/with_flower.py", ".venv-flower", ("cifar10", "mnist", *_ALIKE), 10.0, _OFFLINE)
LEAN = Other("Flower, lean", "bench/with_flower_lean.py", ".venv-flower", _ALIKE, variables=_OFFLINE)
PFL = Other("pfl", "bench/with_pfl.py", ".venv-pfl", _ALIKE, 1.0)
OTHERS = (FLOWER, LEAN, PFL)
