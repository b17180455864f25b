"""Every method by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import msgspec

from nestling.errors import MethodError, nearest
from nestling.imported import imported
from nestling.methods.depthfl import depthfl
from nestling.methods.fed_dropout import fed_dropout
from nestling.methods.fedavg import fedavg
from nestling.methods.fedmorph import fedmorph
from nestling.methods.fedmorphprox import fedmorphprox
from nestling.methods.fedprox import fedprox
from nestling.methods.fedpruned import fedpruned
from nestling.methods.fedrolex import fedrolex
from nestling.methods.fjord import fjord
from nestling.methods.heterofl import heterofl
from nestling.methods.lg_fedavg import lg_fedavg
from nestling.methods.method import Method
from nestling.methods.nefl import nefl
from nestling.methods.standalone import standalone

METHODS: dict[str, Callable[..., Method]] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "standalone": standalone,
    "lg-fedavg": lg_fedavg,
    "fedpruned": fedpruned,
    "heterofl": heterofl,
    "fed-dropout": fed_dropout,
    "fedrolex": fedrolex,
    "fjord": fjord,
    "depthfl": depthfl,
    "nefl": nefl,
    "fedmorph": fedmorph,
    "fedmorphprox": fedmorphprox,
}

_BASES: dict[Callable[..., Method], Callable[..., Method]] = {fedmorphprox: fedmorph}  # which pass options on to others


def names() -> list[str]:
    """Return the names of all methods.

    >>> "heterofl" in names()
    True
    """
    return list(METHODS)


def make(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """Return the method called `name`, made with its own options.

    A method of your own is named by where it is: ``package.module:factory``.

    >>> make("fedrolex", {"step": 2}).plan.keywords
    {'step': 2}
    """
    if ":" not in name and name not in METHODS:
        raise MethodError(
            f"there is no method {name!r}, nor is that of the form module:factory{nearest(name, METHODS)}"
        )
    factory = imported(name, "method", MethodError) if ":" in name else METHODS[name]
    known, hints = _options(factory), get_type_hints(_BASES.get(factory, factory)) | get_type_hints(factory)
    given = {}
    for key, value in (options or {}).items():
        if key not in known:
            raise MethodError(f"the method {name} has no option {key!r}{nearest(key, known)}")
        try:
            given[key] = msgspec.convert(value, hints[key])
        except msgspec.ValidationError as problem:
            raise MethodError(f"the option {key!r} of {name} cannot be {value!r}: {problem}") from None
    made = factory(**given)
    if not isinstance(made, Method):
        raise MethodError(f"{name} returned a {type(made).__name__}, not a Method")
    return made


def about(name: str) -> str:
    """Return what a method does, in one line: the first of its file's docstring.

    >>> about("fedavg")
    'FedAvg: everybody trains the whole model.'
    """
    module = inspect.getmodule(METHODS[name])
    return (module.__doc__ or "").strip().splitlines()[0] if module else ""


def options(name: str) -> list[str]:
    """Return the options of a method with their defaults.

    >>> options("fedprox")
    ['mu=0.01', 'masked=False']
    """
    return [f"{option.name}={option.default!r}" for option in _options(METHODS[name]).values()]


def _options(factory: Callable[..., Method]) -> dict[str, inspect.Parameter]:
    """The options of a factory, and of the one that it builds on."""
    own = inspect.signature(factory).parameters
    named = {name: option for name, option in own.items() if option.kind is not option.VAR_KEYWORD}
    return named | (_options(_BASES[factory]) if factory in _BASES else {})
