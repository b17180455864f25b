"""Engines run jobs, in this process, in worker processes or on Ray, and yield replies and failures as they arrive."""

from nestling.engines.engine import Engine, Failure, Reply, Shared
from nestling.engines.local import LocalEngine
from nestling.engines.ray import RayEngine

__all__ = ["Engine", "Failure", "LocalEngine", "RayEngine", "Reply", "Shared"]
