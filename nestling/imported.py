"""What users name as ``package.module:name``: their own methods and models."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from nestling.errors import NestlingError, first_line


def imported(target: str, what: str, error: type[NestlingError]) -> Any:
    """Return the function at ``module:name``; modules are also found in the folder where the program was started.

    >>> imported("math:sqrt", "method", NestlingError)(9.0)
    3.0
    """
    module, _, name = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as problem:
        raise error(f"the {what} {target!r} cannot be found: {first_line(problem)}") from None
    if not callable(found):
        raise error(f"the {what} {target!r} is not a function that makes one")
    return found
