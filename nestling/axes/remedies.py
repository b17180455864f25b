"""What to do about an axis that is frozen, by the reason that `trace` gives."""

from __future__ import annotations

import re

_NOTHING = "nothing: every size of the model has it whole"
_INDEXED = "nothing, if units have a fixed meaning; else compute this on an axis that may stay whole"
_WRITTEN = "let the code read the size from a tensor (x.shape[1]) or a layer, or write -1 in a view"
_BY_HAND = "write this with operations that trace follows, or declare its dims by hand (AxisMap.declare)"

# The first pattern that matches the beginning of a reason counts.
_REMEDIES = (
    (r"input of the model|output of the model|one$|kernel|spatial|vocabulary|repeated|pixels of a block", _NOTHING),
    (r"units are numbered|order matters|sorted|units are taken|picked by number|a table of numbers", _INDEXED),
    (r"its size is written|meets a constant|how many there are|the number of queries|padded|sliced", _WRITTEN),
    (r"never used", "remove what is not used, or trace with a longer example (all positions of a table)"),
    (r"meets a buffer that is not saved", "register the buffer as persistent, so that it is cut with the model"),
    (
        r"complex values|a buffer of whole numbers",
        "keep the values as floating-point numbers, in two tensors if complex",
    ),
    (r"a recurrent layer with projections", "build the recurrent layer without proj_size"),
    (r"no rule for", _BY_HAND),
    (r"stacked|a view |a product |a size |joined segments|sizes |a reduction |a rule gave", _BY_HAND),
    (r"frozen by hand|declared as a number", "nothing, or leave out what froze it (AxisMap.freeze, AxisMap.declare)"),
)


def remedy(reason: str) -> str:
    """Return what a user can do about an axis that is frozen for a reason.

    >>> remedy("meets a constant of the model's code")
    'let the code read the size from a tensor (x.shape[1]) or a layer, or write -1 in a view'
    >>> remedy("the sensor reads it")
    'nothing, or leave out what froze it (AxisMap.freeze, AxisMap.declare)'
    """
    return next((text for pattern, text in _REMEDIES if re.match(pattern, reason)), _REMEDIES[-1][1])
