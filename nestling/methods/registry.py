"""Every method by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import msgspec

from nestling.docstrings import entries
from nestling.errors import MethodError, NestlingError, first_line, nearest
from nestling.imported import imported
from nestling.methods.depthfl import depthfl
from nestling.methods.ds_fl import ds_fl
from nestling.methods.fed_dropout import fed_dropout
from nestling.methods.fed_et import fed_et
from nestling.methods.fedavg import fedavg
from nestling.methods.feddf import feddf
from nestling.methods.feddyn import with_feddyn
from nestling.methods.fedmorph import fedmorph
from nestling.methods.fedmorphprox import fedmorphprox
from nestling.methods.fedprox import fedprox
from nestling.methods.fedpruned import fedpruned
from nestling.methods.fedrolex import fedrolex
from nestling.methods.fjord import fjord, with_ordered_dropout
from nestling.methods.heterofl import heterofl
from nestling.methods.lg_fedavg import lg_fedavg
from nestling.methods.lora import lora
from nestling.methods.method import Method
from nestling.methods.nefl import nefl
from nestling.methods.part import Part, PlanPart
from nestling.methods.parts.proximal import Proximal
from nestling.methods.privacy.named_dp import with_central_dp
from nestling.methods.robust.clip_norm import ClipNorm
from nestling.methods.robust.krum import Krum
from nestling.methods.robust.median import Median
from nestling.methods.robust.trimmed_mean import TrimmedMean
from nestling.methods.secure.secure_aggregation import with_secure_aggregation
from nestling.methods.standalone import standalone
from nestling.settings.overrides import as_value
from nestling.settings.reference import accepted

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
    "feddf": feddf,
    "ds-fl": ds_fl,
    "fed-et": fed_et,
    "lora": lora,
}

# The parts that ``parts=NAME:VALUE`` adds to a method: a function of the method and the value, and the default value;
# None for parts that take no value.
PARTS: dict[str, tuple[Callable[[Method, Any], Method], Any]] = {
    "fedprox": (lambda method, mu: method.with_parts(Proximal(mu)), 0.01),
    "feddyn": (with_feddyn, 0.1),
    "fjord": (with_ordered_dropout, True),
    "median": (lambda method, _: method.with_parts(Median()), None),
    "trimmed-mean": (lambda method, share: method.with_parts(TrimmedMean(share)), 0.2),
    "krum": (lambda method, attackers: method.with_parts(Krum(attackers)), 1),
    "multi-krum": (lambda method, attackers: method.with_parts(Krum(attackers, multi=True)), 1),
    "clip-norm": (lambda method, limit: method.with_parts(ClipNorm(limit)), 1.0),
    "dp": (with_central_dp, ""),
    "secagg": (with_secure_aggregation, ""),
}

_BASES: dict[Callable[..., Method], Callable[..., Method]] = {
    fedmorphprox: fedmorph
}  # factories that pass options on to another one


def names() -> list[str]:
    """Return the names of all methods.

    >>> "heterofl" in names()
    True
    """
    return list(METHODS)


def make(name: str, options: Mapping[str, Any] | None = None, parts: str = "") -> Method:
    """Return the method called `name` with its own options, and with some of `PARTS` added to it.

    A method of your own is named by its import path: ``package.module:factory``.

    >>> make("fedrolex", {"step": 2}).plan
    RollingPlan(step=2)
    >>> make("depthfl", {"variant": "plain"}, "fedprox:0.01,feddyn:0.1").parts[1:]
    (Proximal(mu=0.01), FedDyn(alpha=0.1))
    """
    if ":" not in name and name not in METHODS:
        raise MethodError(
            f"there is no method {name!r}, nor is that of the form module:factory{nearest(name, METHODS)}"
        )
    factory = imported(name, MethodError) if ":" in name else METHODS[name]
    known, hints = _options(factory), get_type_hints(_BASES.get(factory, factory)) | get_type_hints(factory)
    converted = {}
    for key, value in (options or {}).items():
        if key not in known:
            raise MethodError(f"the method {name} has no option {key!r}{nearest(key, known)}")
        try:
            converted[key] = msgspec.convert(value, hints[key])
        except msgspec.ValidationError as problem:
            raise MethodError(f"the option {key!r} of {name} cannot be {value!r}: {problem}") from None
    method = factory(**converted)
    if not isinstance(method, Method):
        raise MethodError(f"{name} returned a {type(method).__name__}, not a Method")
    return with_named_parts(method, parts)


def part_names(parts: str) -> list[str]:
    """Return the parts of a comma-separated list.

    >>> part_names("fedprox:0.01, feddyn:0.1,")
    ['fedprox:0.01', 'feddyn:0.1']
    """
    return [part.strip() for part in parts.split(",") if part.strip()]


def with_named_parts(method: Method, parts: str) -> Method:
    """Return a method with the parts of a list such as ``fedprox:0.01,mymodule:factory`` added to it, in that order."""
    for text in part_names(parts):
        name, colon, value = text.partition(":")
        if name not in PARTS:
            method = method.with_parts(_own_part(text))
            continue
        add, default = PARTS[name]
        if default is None and colon:
            raise MethodError(f"the part {name} takes no value, such as {value!r}: write {name}")
        try:
            converted = msgspec.convert(value, type(default), strict=False) if colon else default
        except msgspec.ValidationError:
            kind = "true or false" if isinstance(default, bool) else "a number"
            raise MethodError(f"the part {name} takes {kind}, such as {name}:{default}, not {value!r}") from None
        method = add(method, converted)
    return method


def _own_part(text: str) -> Part:
    """Return the part that ``module:factory`` makes, or ``module:factory:value`` of one value."""
    module, _, rest = text.partition(":")
    name, colon, value = rest.partition(":")
    if not name.isidentifier():  # fedprx:0.1
        raise MethodError(
            f"there is no part {module!r}, nor is that of the form module:factory{nearest(module, PARTS)}"
        )
    factory = imported(f"{module}:{name}", MethodError)
    try:
        part = factory(*([as_value(value)] if colon else []))
    except NestlingError:
        raise
    except Exception as problem:  # whatever a user's own code raises
        raise MethodError(f"the part {text!r} failed: {type(problem).__name__}: {first_line(problem)}") from problem
    if not isinstance(part, Part) or isinstance(part, PlanPart):
        raise MethodError(f"the part {text!r} is a {type(part).__name__}, not a Part that goes with another plan")
    return part


def about(name: str) -> str:
    """Return a description of a method in one line: the first of its module's docstring.

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


def described_options(name: str) -> list[dict[str, Any]]:
    """Return a row for every option of a method, as JSON-compatible values: name, default, accepted values, meaning.

    >>> described_options("fedprox")[0]["meaning"]
    'μ, the weight of the proximal term (Eq. 2).'
    """
    factory = METHODS[name]
    base = _BASES.get(factory, factory)
    hints = get_type_hints(base) | get_type_hints(factory)
    meanings = entries(base.__doc__, "Parameters") | entries(factory.__doc__, "Parameters")
    return [
        {
            "name": option.name,
            "default": option.default,
            "accepted": accepted(hints[option.name]),
            "meaning": meanings.get(option.name, ""),
        }
        for option in _options(factory).values()
    ]


def has_option(name: str, option: str) -> bool:
    """Return whether a method of ours has an option.

    >>> has_option("fedrolex", "masked"), has_option("standalone", "step")
    (True, False)
    """
    return name in METHODS and option in _options(METHODS[name])


def _options(factory: Callable[..., Method]) -> dict[str, inspect.Parameter]:
    """Return the options of a factory, and of the one that it passes options on to."""
    own = inspect.signature(factory).parameters
    named = {name: option for name, option in own.items() if option.kind is not option.VAR_KEYWORD}
    return named | (_options(_BASES[factory]) if factory in _BASES else {})
