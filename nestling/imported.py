"""Modules by name: users' own methods and models (``package.module:name``), and optional packages."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from nestling.errors import NestlingError, first_line


def imported(target: str, what: str, error: type[NestlingError]) -> Any:
    """Return the function at ``module:name``; modules are also searched for in the current directory.

    >>> imported("math:sqrt", "method", NestlingError)(9.0)
    3.0
    """
    module, _, name = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as problem:
        raise error(f"the {what} {target!r} cannot be found: {first_line(problem)}") from None
    if not callable(function):
        raise error(f"the {what} {target!r} is not a function that makes one")
    return function


def need(module: str, extra: str, purpose: str, error: type[NestlingError]) -> Any:
    """Import an optional package, which ``nestling[extra]`` installs; raise `error` if it is missing.

    >>> need("no_such_package", "data", "the digits need", NestlingError)
    Traceback (most recent call last):
    nestling.errors.NestlingError: the digits need the package 'no_such_package': pip install 'nestling[data]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as problem:
        package = module.partition(".")[0]
        raise error(f"{purpose} the package {package!r}: pip install 'nestling[{extra}]'") from problem
