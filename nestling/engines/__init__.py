"""Where clients run: engines take jobs and give back replies and failures as they come."""

from nestling.engines.engine import Engine, Failure, Reply, Shared
from nestling.engines.local import LocalEngine

__all__ = ["Engine", "Failure", "LocalEngine", "Reply", "Shared"]
