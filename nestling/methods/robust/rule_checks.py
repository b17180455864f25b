"""What robust merges do not go with, each refused in one sentence."""

from __future__ import annotations

from nestling.errors import ConfigError, MethodError
from nestling.methods.context import Setup
from nestling.methods.parts.equal_clients import check_equal_clients
from nestling.methods.parts.holders import LEAST, shared_names


def check_rule(setup: Setup, rule: str, *, weighted: bool = False, sparse: bool = False) -> None:
    """Raise unless a merge rule can work with an experiment, and withstands there what it promises.

    Parameters
    ----------
    setup
        The experiment.
    rule
        The name of the rule.
    weighted
        Whether the rule uses the weights of clients.
    sparse
        Whether the rule works with changes of which most are zero.
    """
    method, upload = setup.method, setup.upload.format
    learning = method.overriding("received")
    if learning:
        raise MethodError(
            f"{rule} cannot protect {method.name}, whose server also learns from each update beside the merge "
            f"({learning[0].label}): {learning[0].instead}, or leave out {rule}"
        )
    if not shared_names(setup) and not setup.per_submodel:
        raise MethodError(f"{rule} merges what clients share, and clients of {method.name} share nothing")
    if setup.clients < LEAST:
        raise ConfigError(f"{rule} needs at least {LEAST} clients to compare, and fleet.clients is {setup.clients}")
    if not sparse and upload.startswith("topk"):
        raise ConfigError(
            f"{rule} compares the values of all holders, of which upload.format={upload} sends few: "
            "use upload.format=dense, 8-bit or 1-bit"
        )
    complex_names = [name for name, tensor in setup.model.state_dict().items() if tensor.is_complex()]
    if complex_names:
        raise MethodError(f"{rule} compares real numbers, and the tensor {complex_names[0]!r} is complex")
    if not weighted:
        check_equal_clients(setup, rule)
