"""Packages that only some datasets and pictures need: asked for when used, with a sentence where one is missing."""

from __future__ import annotations

import importlib
from typing import Any

from nestling.errors import DataError


def need(module: str, extra: str, purpose: str) -> Any:
    """Import `module`, which comes with ``nestling[extra]``.

    >>> need("json", "data", "nothing").dumps([1])
    '[1]'
    >>> need("no_such_package", "data", "the digits")
    Traceback (most recent call last):
    nestling.errors.DataError: the digits need the package 'no_such_package': pip install 'nestling[data]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as problem:
        package = module.partition(".")[0]
        raise DataError(f"{purpose} need the package {package!r}: pip install 'nestling[{extra}]'") from problem
