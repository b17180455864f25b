"""The named axes of a model, along which it can be cut; found by running it once."""

from nestling.axes.axismap import Axis, AxisMap
from nestling.axes.trace import trace

__all__ = ["Axis", "AxisMap", "trace"]
