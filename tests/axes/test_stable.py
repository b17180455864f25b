"""Tracing is a look, not a touch: the same map every time, and the model, its mode and the random stream as before."""

import copy

import pytest
import torch
from torch import nn

import nestling
from nestling.nets import build, example, names
from tests.axes.axes_prove import VECTORS, Net
from tests.axes.axes_zoo import ZOO
from tests.quick import mostly_slow

# the widths of a test, not of a paper: enough to tell axes apart
TINY = {
    "mlp": {"widths": (6, 5)},
    "cnn": {"widths": (4, 8, 12, 16)},
    "cnn1d": {"widths": (4, 8, 12, 16)},
    "lstm": {"embedding": 3, "widths": (6, 5)},
    "preresnet18": {"widths": (4, 8, 12, 16), "depths": (1, 2, 1, 1)},
    "preresnet18-paper": {"widths": (4, 8, 12, 16)},
    "resnet8": {"widths": (4, 8, 12, 16)},
    "resnet18": {"widths": (4, 8, 12, 16)},
    "resnet34": {"widths": (4, 8, 12, 16), "depths": (1, 2, 1, 1)},
    "resnet18-exits": {"widths": (4, 8, 12, 16), "depths": (1, 2, 1, 1)},
    "resnet56": {"widths": (4, 8, 12), "depths": (2, 1, 1)},
    "vgg16": {"widths": ((4,), (8,), (12,), (12,), (16,))},
    "vit-tiny": {"width": 12, "head_width": 3, "hidden": 20, "depth": 2},
    "transformer-mlm": {"width": 8, "heads": 2, "head_width": 3, "hidden": 20, "vocabulary": 50, "depth": 2},
    "transformer-nwp": {"width": 8, "heads": 2, "head_width": 3, "hidden": 20, "vocabulary": 50, "depth": 2},
}
nets = pytest.mark.parametrize("name", mostly_slow(TINY, quick=4))


def given_to(name, batch=2):
    (one,) = example(name, batch, **TINY[name])
    return (one[:, :6],) if name == "lstm" else (one,)  # eighty steps, one operation at a time, tell no more than six


def tiny(name):
    return build(name, **TINY[name]), given_to(name)


def fingerprint(model):
    """All of a model that tracing could change."""
    return {
        "state": {name: (tensor.clone(), tensor.data_ptr()) for name, tensor in model.state_dict().items()},
        "modes": [module.training for module in model.modules()],
        "classes": [type(module) for module in model.modules()],
        "plain": [
            {key: value for key, value in vars(module).items() if isinstance(value, int | float | str | tuple)}
            for module in model.modules()
        ],
        "hooks": [
            len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks)
            for module in model.modules()
        ],
        "gradients": [parameter.grad is None and parameter.requires_grad for parameter in model.parameters()],
    }


def assert_untouched(model, before):
    after = fingerprint(model)
    assert after["state"].keys() == before["state"].keys()
    for name, (tensor, place) in after["state"].items():
        assert torch.equal(tensor, before["state"][name][0]), name
        assert place == before["state"][name][1], name
    for key in before.keys() - {"state"}:
        assert after[key] == before[key], key


@pytest.mark.parametrize("name", mostly_slow(ZOO, quick=40))
def test_two_traces_give_the_same_map(name):
    case = ZOO[name]
    model, axes, given, kwgiven = case
    again = nestling.trace(copy.deepcopy(model), *given, **kwgiven)
    assert again == axes
    assert again.to_json() == axes.to_json()  # the order of axes and tensors too


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "name", ["conv-bn", "lstm-2-both-ways-embedded", "encoder", "tied", "weight-norm-beside", "vit"]
)
def test_the_model_is_not_touched(name, training):
    case = ZOO[name]
    model = case.build().train(training)
    before = fingerprint(model)
    axes = nestling.trace(model, *case.example, **case.kwexample)
    assert_untouched(model, before)
    nestling.check(model, axes, *case.example, **case.kwexample)
    assert_untouched(model, before)
    nestling.submodel(model, axes, nestling.plan(axes, width=0.5))
    assert_untouched(model, before)


def test_what_a_model_counts_is_not_counted():
    """A forward that changes the module itself changes only the copy."""

    def run(net, x):
        net.calls += 1
        net.mean.mul_(0.9).add_(net.one(x).mean(0).detach() * 0.1)
        return net.head(net.one(x) - net.mean)

    model = Net(run, one=nn.Linear(4, 8), mean=torch.zeros(8), head=nn.Linear(8, 3), calls=0)
    axes = nestling.trace(model, *VECTORS)
    assert model.calls == 0
    assert not model.mean.any()
    assert axes.axes == {"one": 8}
    assert str(axes.dims["mean"]) == "one"


def test_hooks_of_the_user_stay_and_no_other_is_left():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    handle = model[0].register_forward_hook(lambda _module, _args, out: out * 2)
    nestling.trace(model, *VECTORS)
    assert list(model[0]._forward_hooks) == [handle.id]
    assert not model._forward_hooks
    assert not model[2]._forward_hooks


def test_fast_attention_is_as_it_was():
    for setting in (True, False):
        torch.backends.mha.set_fastpath_enabled(setting)
        try:
            nestling.trace(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), *VECTORS)
            assert torch.backends.mha.get_fastpath_enabled() is setting
            with pytest.raises(nestling.NestlingError):
                nestling.trace(nn.Sequential(nn.Linear(5, 8)), *VECTORS)
            assert torch.backends.mha.get_fastpath_enabled() is setting
        finally:
            torch.backends.mha.set_fastpath_enabled(True)


def by_chance(net, x):
    return net.head(net.one(x) * (torch.rand(()) < 2))  # as LayerDrop does


@pytest.mark.parametrize("look", ["trace", "check"])
@pytest.mark.parametrize(
    "build_model",
    [
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
        lambda: Net(by_chance, one=nn.Linear(4, 8), head=nn.Linear(8, 3)),
    ],
    ids=["dropout", "layer-drop"],
)
def test_the_random_stream_is_left_alone(build_model, look):
    """The same seed gives the same run, whether or not the model was looked at in between."""
    model = build_model().train()
    axes = nestling.trace(model, *VECTORS)
    before = torch.get_rng_state()
    nestling.trace(model, *VECTORS) if look == "trace" else nestling.check(model, axes, *VECTORS)
    assert torch.equal(torch.get_rng_state(), before)


@nets
def test_the_batch_size_does_not_matter(name):
    model, _ = tiny(name)
    maps = [nestling.trace(model.eval(), *given_to(name, batch)) for batch in (1, 2, 5)]
    assert maps[0].axes == maps[1].axes == maps[2].axes
    assert maps[0].dims == maps[1].dims == maps[2].dims
    assert maps[1] == maps[2]


@pytest.mark.parametrize(
    "name", ["encoder", "encoder-layer", "gru-1-batch-first", "attention-timm-like", "vit", "tied"]
)
def test_the_batch_size_does_not_matter_to_blocks_and_views(name):
    """A batch of one has dims of one all over, which must not hide what is the same."""
    case = ZOO[name]
    model, axes, given, _ = case
    alone = nestling.trace(model, *(tensor[:1] for tensor in given))
    assert alone.axes == axes.axes
    assert alone.dims == axes.dims
    assert alone.blocks == axes.blocks


@nets
def test_training_and_evaluation_have_the_same_axes(name):
    model, given = tiny(name)
    assert nestling.trace(model.train(), *given) == nestling.trace(model.eval(), *given)


@nets
def test_values_do_not_matter(name):
    """The map is that of the architecture: another start, no values at all, another precision give the same."""
    model, given = tiny(name)
    axes = nestling.trace(model, *given)
    with torch.device("meta"):
        bare = build(name, **TINY[name])
    assert nestling.trace(bare, *given) == axes
    assert nestling.trace(build(name, **TINY[name]), *given) == axes
    doubled = [given[0].double()] if given[0].is_floating_point() else given
    assert nestling.trace(copy.deepcopy(model).double(), *doubled) == axes


@nets
def test_the_papers_nets_are_proved(name):
    model, given = tiny(name)
    axes = nestling.trace(model, *given)
    report = nestling.check(model, axes, *given)
    report.raise_if_bad()
    # nothing but step sizes and the bias of the classes is out of reach of a width cut
    sizes = {key: parameter.numel() for key, parameter in model.named_parameters()}
    whole = sum(size for key, size in sizes.items() if key.endswith(("step", "head.bias")))
    assert report.coverage == pytest.approx(1 - whole / sum(sizes.values()))


def test_every_net_but_the_large_is_here():
    assert set(names()) - set(TINY) == {"resnet34-exits", "resnet110", "wide-resnet101-2", "vit-b16"}


WHAT_A_PERSON_FINDS = {
    "mlp": {"linear1": 6, "linear2": 5},
    "cnn": {"blocks.0.conv": 4, "blocks.1.conv": 8, "blocks.2.conv": 12, "blocks.3.conv": 16},
    "lstm": {"token": 3, "layers.0": 6, "layers.1": 5},
    # one stream a stage, and what stands between the two convolutions of every block
    "resnet18": {
        "stem.conv": 4,
        "stages.0.0.body.conv1": 4,
        "stages.0.1.body.conv1": 4,
        "stages.1.0.body.conv1": 8,
        "stages.1.0.body.conv2": 8,
        "stages.1.1.body.conv1": 8,
        "stages.2.0.body.conv1": 12,
        "stages.2.0.body.conv2": 12,
        "stages.2.1.body.conv1": 12,
        "stages.3.0.body.conv1": 16,
        "stages.3.0.body.conv2": 16,
        "stages.3.1.body.conv1": 16,
    },
    "vit-tiny": {
        "patch": 12,
        **{
            f"blocks.{k}.{where}": size
            for k in range(2)
            for where, size in {
                "attention.body.attention.q.heads": 3,
                "attention.body.attention.q.head_dim": 3,
                "mlp.body.up": 20,
            }.items()
        },
    },
}


@pytest.mark.parametrize("name", WHAT_A_PERSON_FINDS)
def test_axes_of_the_papers_nets(name):
    model, given = tiny(name)
    assert nestling.trace(model, *given).axes == WHAT_A_PERSON_FINDS[name]
