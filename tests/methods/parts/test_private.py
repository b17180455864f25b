"""What clients keep to themselves."""

import pytest
import torch

import nestling
from nestling.errors import NestlingError
from nestling.methods import make, names
from tests.harness import setup_of
from tests.methods.method_cases import NETS, Tied, net_of

LAST_TWO = {
    "mlp": {"linear2", "head"},
    "cnn": {"blocks.3.conv", "head"},
    "lstm": {"layers.1", "head"},
    "preresnet18": {"stages.3.1.body.conv2", "head"},
    "vit-tiny": {"blocks.1.mlp.body.down", "head"},
    "transformer-mlm": {"decoder.linear", "head"},
}


def shared_by(axes, layers=2):
    return set(axes.dims) - setup_of(None, axes, make("lg-fedavg", {"layers": layers})).private


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("name", names())
def test_private_names_are_names_of_the_state(name, net):
    model, axes = net_of(net)
    private = setup_of(model, axes, make(name)).private
    assert isinstance(private, frozenset)
    assert private <= set(model.state_dict())
    if name in ("standalone", "ds-fl"):
        assert private == set(model.state_dict())
    elif name == "lg-fedavg":
        assert 0 < len(private) < len(model.state_dict())
    else:
        assert private == frozenset()


@pytest.mark.parametrize("net", list(LAST_TWO))
def test_lg_fedavg_shares_the_last_matrices_with_their_biases(net):
    model, axes = net_of(net)
    shared = shared_by(axes)
    assert LAST_TWO[net] <= {name.rpartition(".")[0] for name in shared}
    assert {name.rpartition(".")[0] for name in shared if len(axes.dims[name]) > 1} == LAST_TWO[net]
    for layer in LAST_TWO[net]:
        assert {f"{layer}.{name}" for name in model.get_submodule(layer).state_dict()} <= shared


@pytest.mark.parametrize("net", NETS)
def test_lg_fedavg_shares_more_with_every_layer_and_never_all(net):
    _, axes = net_of(net)
    layers = len({name.rpartition(".")[0] for name, dims in axes.dims.items() if len(dims) > 1})
    before = set()
    for count in range(1, layers):
        shared = shared_by(axes, count)
        assert before < shared < set(axes.dims)
        before = shared
    with pytest.raises(NestlingError, match=f"cannot share {layers} layers of a model that has {layers}"):
        shared_by(axes, layers)


@pytest.mark.parametrize("net", ["mlp", "lstm", "cnn", "preresnet18", "vit-tiny"])
def test_lg_fedavg_shares_the_end_of_the_net_without_holes(net):
    """Clients share the *last* layers: no parameter after the first shared one is private."""
    model, axes = net_of(net)
    shared = shared_by(axes)
    sides = [name in shared for name, _ in model.named_parameters()]
    assert sides == sorted(sides)


def test_lg_fedavg_does_not_tear_tied_tensors():
    axes = nestling.trace(Tied(), torch.zeros(2, 3, dtype=torch.long))
    assert axes.tied == {"head.weight": "token.weight"}
    shared = shared_by(axes, 1)
    for name, first in axes.tied.items():
        assert (name in shared) == (first in shared)
