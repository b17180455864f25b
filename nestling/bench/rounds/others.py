"""Other systems, in environments of their own beside the repository: Flower's simulation, and pfl.

Their programs, and what these need, are in the folder ``bench`` of the repository; ``make bench`` makes environments.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nestling.bench.rounds.contest import Contestant


@dataclass(frozen=True)
class Other:
    """Another system: its name, its program and environment, and the workloads that it plays."""

    name: str
    program: str
    environment: str
    workloads: tuple[str, ...]
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
        return Contestant([str(python), self.program, workload, "quick" if quick else "full"], dict(self.variables))


_OFFLINE = (
    ("FLWR_TELEMETRY_ENABLED", "0"),
    ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    ("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
    ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"),
)
FLOWER = Other("Flower", "bench/with_flower_lean.py", ".venv-flower", ("cifar10", "mnist", "cnn-e", "mlp"), _OFFLINE)
PFL = Other("pfl", "bench/with_pfl.py", ".venv-pfl", ("cnn-e", "mlp", "mlp-e"))
