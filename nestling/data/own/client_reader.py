"""Own data that a function returns, client by client: it is called where the client trains, and checked there."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nestling.data.own.own_samples import OwnSamples, check_form, check_targets, check_values
from nestling.errors import DataError, first_line


@dataclass(frozen=True, eq=False)
class ClientReader:
    """Reads the samples of a client.

    Attributes
    ----------
    read
        The user's function from the number of a client to its samples.
    convert
        Makes `OwnSamples` of what it returns, given what errors call them.
    first
        Samples whose form all others must have; None for any form.
    kind, classes
        What targets must be, as `check_targets` takes them.
    """

    read: Callable[[int], Any]
    convert: Callable[[Any, str], OwnSamples]
    first: OwnSamples | None = None
    kind: str = "any"
    classes: int = 0

    def __call__(self, number: int) -> OwnSamples:
        """Return the samples of a client."""
        what = f"client {number}"
        try:
            source = self.read(number)
        except Exception as problem:  # whatever the user's own code raises
            raise DataError(f"{what} could not be read: {type(problem).__name__}: {first_line(problem)}") from problem
        samples = self.convert(source, what)
        check_values(samples, what)
        if self.first is not None and len(samples):
            check_form(samples, what, self.first, "the test samples")
        check_targets(samples, what, self.kind, self.classes)
        return samples

    def check_sendable(self) -> None:
        """Raise `DataError` unless the function can be sent to where clients train."""
        try:
            pickle.dumps(self.read)
        except Exception as problem:  # pickling fails in many ways
            name = getattr(self.read, "__name__", type(self.read).__name__)
            raise DataError(
                f"the function {name!r} that reads clients cannot be sent to where they train ({first_line(problem)}): "
                "define it with def at the top level of a module"
            ) from None
