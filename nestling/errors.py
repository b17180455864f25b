"""Every error a caller can cause: one sentence saying what, where, and what is accepted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class NestlingError(ValueError):
    """The root of all errors that bad input to Nestling raises.

    Attributes
    ----------
    exit_code
        What the command line exits with: 2 for bad input, 1 for a run that failed.
    """

    exit_code = 2


class TraceError(NestlingError):
    """The model could not be run on the example, or holds nothing that can be cut."""


class AxisError(NestlingError):
    """An axis map, or a declaration on top of one, does not fit the model."""


class PlanError(NestlingError):
    """A plan names unknown axes or blocks, or indices that cannot be kept."""


class StateError(NestlingError):
    """A state (a dictionary of tensors) does not fit the plan it is said to follow."""


class BuildError(NestlingError):
    """A smaller module could not be built or run from a plan."""


class ModelError(NestlingError):
    """A model was asked for by a name or with options that do not exist."""


class FleetError(NestlingError):
    """A fleet was described by levels, shares, numbers or devices that cannot be."""


class DataError(NestlingError):
    """Data cannot be found or read, or cannot be dealt out to clients as asked."""


class FetchError(DataError):
    """A file could not be downloaded, or not be written where downloads go: nothing is wrong with what was asked."""

    exit_code = 1


class ReportError(NestlingError):
    """A run directory cannot be read, or the page about it cannot be written."""


class UploadError(NestlingError):
    """A change cannot be uploaded as asked, or the bytes of an upload cannot be read."""


class MethodError(NestlingError):
    """A method was asked for by a name or with options that do not exist."""


class TrainingError(NestlingError):
    """Training went where it cannot go on: the loss is no number any more."""

    exit_code = 1


class ConfigError(NestlingError):
    """An experiment was described by settings that do not exist or cannot be."""


class RunError(NestlingError):
    """A run directory cannot be used, or settings do not fit what a run needs."""


class RunFailed(RunError):
    """A run with good settings could not go on: workers died, the disk is full, memory is exhausted."""

    exit_code = 1


def nearest(name: str, known: Iterable[str]) -> str:
    """Return '; did you mean …?' with the known names nearest to `name`, or what is known at all.

    >>> nearest("conv", ["conv1", "fc"])
    "; did you mean 'conv1'?"
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(map(repr, close)) + "?"
    if not names:
        return ": there are none"
    shown = ", ".join(map(repr, names[:20])) + (", …" if len(names) > 20 else "")
    return f": there are {shown}"


def first_line(problem: BaseException) -> str:
    """Return the first line of what an error says, or its type where it says nothing.

    >>> first_line(RuntimeError("too big" + chr(10) + "much more"))
    'too big'
    """
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]
