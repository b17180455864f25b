"""The model that a command works on: one of `nestling.nets` by name, or the result of a user's own factory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestling.cli.completion import complete
from nestling.cli.screen import one_line
from nestling.errors import ModelError, NestlingError, nearest
from nestling.imported import imported

if TYPE_CHECKING:
    from torch import nn

FACTORY = (
    "a factory takes no arguments and returns (model, example), where the example is a tensor, a tuple of tensors "
    "or a dictionary of keyword arguments, or it returns a model that has such an example as its attribute "
    "'example_inputs'"
)

_BOOLEANS = {"true": "true", "false": "false"}  # in any case

ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        autocompletion=complete("models"),
        help="A name from 'nestling list models', or package.module:factory.",
    ),
]
ModelOptions = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set an option of the model; may be repeated."),
]


@dataclass(frozen=True)
class Target:
    """A model and an example to call it with: ``model(*args, **kwargs)``."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def load(target: str, options: Mapping[str, Any], shapes_only: bool = False) -> Target:
    """Return the model that `target` names, built with `options` for its class or factory.

    With `shapes_only`, a model of `nestling.nets` is built without values, which takes no memory, however large it is.
    """
    return _from_factory(target, options) if ":" in target else _built_in(target, options, shapes_only)


def parse_options(pairs: Iterable[str]) -> dict[str, Any]:
    """Read ``key=value`` pairs; values are whole numbers, numbers, true or false, text, or several with commas.

    >>> parse_options(["classes=100", "dropout=0.1", "causal=true", "norm=gn", "depths=1,1,2"])
    {'classes': 100, 'dropout': 0.1, 'causal': True, 'norm': 'gn', 'depths': (1, 1, 2)}
    """
    from nestling.settings.overrides import as_value  # noqa: PLC0415

    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (equals and key.strip().isidentifier()):
            raise ModelError(f"the option {pair!r} cannot be read: write --set key=value, such as --set classes=100")
        parts = [as_value(_BOOLEANS.get(part.strip().lower(), part)) for part in value.split(",")]
        options[key.strip()] = parts[0] if len(parts) == 1 else tuple(part for part in parts if part != "")
    return options


def _built_in(name: str, options: Mapping[str, Any], shapes_only: bool) -> Target:
    import torch  # noqa: PLC0415

    from nestling import nets  # noqa: PLC0415

    if name not in nets.MODELS:
        known = nearest(name.lower().replace("_", "-"), nets.MODELS)
        raise ModelError(f"there is no model {name!r}, nor is that of the form package.module:factory{known}")

    def make() -> Target:
        with torch.device("meta" if shapes_only else "cpu"):
            model = nets.build(name, **options)
        return Target(model, nets.example(name, **options), {})

    result: Target = _call(make, f"the model {name!r}", options)
    return result


def _from_factory(target: str, options: Mapping[str, Any]) -> Target:
    factory = imported(target, ModelError, FACTORY)
    import torch  # noqa: PLC0415

    if isinstance(factory, torch.nn.Module):
        raise ModelError(f"{target!r} is of type {type(factory).__name__}, which is not a factory: {FACTORY}")
    result = _call(lambda: factory(**options), f"the factory {target!r}", options)
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], torch.nn.Module):
        model, example = result
    elif isinstance(result, torch.nn.Module) and getattr(result, "example_inputs", None) is not None:
        model, example = result, result.example_inputs
    else:
        raise ModelError(f"the factory {target!r} returned {_describe(result)}: {FACTORY}")
    if isinstance(example, torch.Tensor):
        return Target(model, (example,), {})
    if isinstance(example, tuple) and example:
        return Target(model, example, {})
    if isinstance(example, Mapping) and example and all(isinstance(key, str) for key in example):
        return Target(model, (), dict(example))
    raise ModelError(f"the factory {target!r} gave {_describe(example)} as its example: {FACTORY}")


def _call(make: Callable[[], Any], what: str, options: Mapping[str, Any]) -> Any:
    try:
        return make()
    except NestlingError:
        raise
    except (Exception, SystemExit) as problem:
        pairs = ", ".join(f"{key}={value!r}" for key, value in options.items())
        with_options = f" with {pairs}" if pairs else ""
        raise ModelError(f"{what} failed{with_options}: {one_line(problem)}") from problem


def _describe(result: object) -> str:
    """Return the type of an object for an error message; of a tuple, the types of its elements.

    >>> _describe((1, "two"))
    'a tuple (int, str)'
    """
    if isinstance(result, tuple):
        return f"a tuple ({', '.join(type(part).__name__ for part in result)})"
    return "None" if result is None else f"an object of type {type(result).__name__}"
