"""Modules by name: users' own methods and models (``package.module:name``), and optional packages."""

from __future__ import annotations

import importlib
import operator
import os
import sys
from collections.abc import Callable
from typing import Any

from nestling.errors import NestlingError, first_line, nearest


def imported(target: str, error: type[NestlingError], form: str = "") -> Callable[..., Any]:
    """Return the factory at ``module:name``; the module is searched for in the current directory first.

    Parameters
    ----------
    target
        The module and, after a colon, the name in it, which may have dots.
    error
        The type of the error that is raised if there is no such factory.
    form
        What a factory takes and returns, for the message.

    Examples
    --------
    >>> imported("math:sqrt", NestlingError)(9.0)
    3.0
    """
    module, _, name = target.partition(":")
    if not (module and name):
        raise error(f"{target!r} does not name a factory: write package.module:factory")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if module.endswith(".py") or "/" in module:
        own = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise error(f"{module!r} is a file, not a module: write {own}:{name}")
    try:
        loaded = importlib.import_module(module)
    except (Exception, SystemExit) as problem:  # a script without a guard may end the program when imported
        if isinstance(problem, ModuleNotFoundError) and f"{module}.".startswith(f"{problem.name}."):
            place = f"in {os.getcwd()} or among the installed packages"
            raise error(f"there is no module {module!r} {place}") from problem
        reason = f"{type(problem).__name__}: {first_line(problem)}"
        raise error(f"the module {module!r} cannot be imported: {reason}") from problem
    try:
        factory: Callable[..., Any] = operator.attrgetter(name)(loaded)
    except AttributeError as problem:
        known = [key for key, value in vars(loaded).items() if callable(value) and not key.startswith("_")]
        raise error(f"the module {module!r} has no factory {name!r}{nearest(name, known)}") from problem
    if not callable(factory):
        raise error(f"{target!r} is of type {type(factory).__name__}, which is not a factory{form and f': {form}'}")
    return factory


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
