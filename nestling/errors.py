"""All errors that a caller can cause; each message is one sentence with the value and what is accepted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class NestlingError(ValueError):
    """The base class of all errors.

    Attributes
    ----------
    exit_code
        The exit code of the command line: 2 for bad input, 1 for a run that failed.
    """

    exit_code = 2


class TraceError(NestlingError):
    """The model could not be run on the example, or has nothing that can be cut."""


class AxisError(NestlingError):
    """An axis map, or a declaration on top of one, does not fit the model."""


class PlanError(NestlingError):
    """A plan names unknown axes or blocks, or indices that cannot be kept."""


class StateError(NestlingError):
    """A state (a dictionary of tensors) does not fit its plan."""


class BuildError(NestlingError):
    """A smaller module could not be built or run from a plan."""


class ModelError(NestlingError):
    """A model's name or options do not exist."""


class BudgetError(NestlingError):
    """A budget cannot be read, or no sub-model is small enough for it."""


class ExportError(NestlingError):
    """A sub-model cannot be exported, or its file does not give the same outputs."""


class FleetError(NestlingError):
    """The levels, shares, numbers or devices of a fleet are invalid."""


class DataError(NestlingError):
    """Data cannot be found or read, or cannot be partitioned as requested."""


class FetchError(DataError):
    """A file could not be downloaded or stored, although the request was valid."""

    exit_code = 1


class ReportError(NestlingError):
    """A run directory cannot be read, or the page about it cannot be written."""


class ReportFailed(ReportError):
    """A page or figure could not be written because of the disk, although the request was valid."""

    exit_code = 1


class UploadError(NestlingError):
    """A change cannot be encoded, or the bytes of an upload cannot be decoded."""


class MethodError(NestlingError):
    """A method's name or options do not exist."""


class TrainingError(NestlingError):
    """Training cannot continue: the loss is not a finite number."""

    exit_code = 1


class ConfigError(NestlingError):
    """The settings of an experiment do not exist or are invalid."""


class RunError(NestlingError):
    """A run directory cannot be used, or settings do not fit the run."""


class RunFailed(RunError):
    """A run with valid settings could not continue: workers died, the disk is full, memory is exhausted."""

    exit_code = 1


class DeviceError(NestlingError):
    """A message of a device is not what it must be."""

    exit_code = 1


class SecAggError(NestlingError):
    """A step of secure aggregation cannot be taken: a message is wrong, or a value has no code."""

    exit_code = 1


def nearest(name: str, known: Iterable[str]) -> str:
    """Return '; did you mean …?' with the known names closest to `name`, or else a list of known names.

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
    """Return the first line of an error's message, or its type if the message is empty.

    >>> first_line(RuntimeError("too big" + chr(10) + "much more"))
    'too big'
    """
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]
