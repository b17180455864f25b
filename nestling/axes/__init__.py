"""What may be cut: the named axes of a model, found by running it once."""

from nestling.axes.axismap import Axis, AxisMap
from nestling.axes.trace import trace

__all__ = ["Axis", "AxisMap", "trace"]
