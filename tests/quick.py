"""Which cases of a test `make test` runs, and which only `make check`: the marker `slow` on the others."""

import pytest


def mostly_slow(values, quick=8):
    """Return parameters for `pytest.mark.parametrize`: `quick` of them, evenly spread, and the others marked slow.

    >>> [bool(parameter.marks) for parameter in mostly_slow("abcdef", quick=2)]
    [False, True, True, False, True, True]
    """
    values = list(values)
    kept = {k * len(values) // quick for k in range(quick)}
    return [_parameter(value, slow=k not in kept) for k, value in enumerate(values)]


def _parameter(value, *, slow):
    marks = pytest.mark.slow if slow else ()
    if isinstance(value, type(pytest.param(0))):
        return pytest.param(*value.values, id=value.id, marks=[*value.marks, *([marks] if slow else [])])
    return pytest.param(*value, marks=marks) if isinstance(value, tuple) else pytest.param(value, marks=marks)
