"""Where clients run: engines take jobs and give back replies and failures as they come."""

from nestling.engines.engine import Engine, Failure, Reply, Shared
from nestling.engines.local import LocalEngine
from nestling.engines.ray import RayEngine

__all__ = ["Engine", "Failure", "LocalEngine", "RayEngine", "Reply", "Shared"]
