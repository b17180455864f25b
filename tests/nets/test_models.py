"""Names, options, examples and the sentences of the complaints."""

import pytest
import torch

from nestling.errors import ModelError
from nestling.nets import MODELS, Residual, build, example, names
from nestling.nets.norms import norm_layer

CONTRACT = [
    "mlp",
    "cnn",
    "cnn1d",
    "lstm",
    "preresnet18",
    "preresnet18-paper",
    "resnet8",
    "resnet18",
    "resnet34",
    "resnet18-exits",
    "resnet34-exits",
    "resnet56",
    "resnet110",
    "wide-resnet101-2",
    "vgg16",
    "vit-tiny",
    "vit-b16",
    "transformer-mlm",
    "transformer-nwp",
]


def test_names_are_the_contract():
    assert names() == CONTRACT == list(MODELS)


@pytest.mark.parametrize("name", CONTRACT)
def test_parameter_names_are_deterministic(name):
    with torch.device("meta"):
        once, again = build(name), build(name)
    shapes = [{key: value.shape for key, value in net.state_dict().items()} for net in (once, again)]
    assert shapes[0] == shapes[1]
    assert list(shapes[0]) == list(shapes[1])


def test_block_names_follow_the_tables():
    with torch.device("meta"):
        net = build("resnet18")
        pre = build("preresnet18-paper")
        vit = build("vit-tiny")
    paths = [[path for path, m in n.named_modules() if isinstance(m, Residual)] for n in (net, pre, vit)]
    assert paths[0] == [f"stages.{stage}.{block}" for stage in range(4) for block in range(2)]
    assert paths[1] == [
        "stages.0.0",
        "stages.1.0.residual",
        "stages.2.0.residual",
        "stages.3.0.residual",
        "stages.3.1",
    ]
    assert paths[2] == [f"blocks.{i}.{part}" for i in range(12) for part in ("attention", "mlp")]


@pytest.mark.parametrize("name", CONTRACT)
def test_every_entry_says_where_it_comes_from_in_one_line(name):
    about = MODELS[name].about
    assert about.endswith(".")
    assert "\n" not in about
    assert any(source in about for source in ("FedAvg", "DepthFL", "HeteroFL", "FedRolex", "NeFL", "FedMorph"))


@pytest.mark.parametrize("name", CONTRACT)
def test_every_option_has_a_default(name):
    options = MODELS[name].options
    assert {"classes", "vocabulary"} & set(options)
    assert "dimensions" not in options


def test_build_is_seeded_by_torch():
    nets = []
    for _ in range(2):
        torch.manual_seed(3)
        nets.append(build("cnn", widths=(4, 4, 4, 4)).state_dict())
    assert all(torch.equal(a, b) for a, b in zip(*map(dict.values, nets), strict=True))


def test_example_is_the_same_every_time_and_leaves_the_random_stream_alone():
    torch.manual_seed(0)
    untouched = torch.rand(3)
    torch.manual_seed(0)
    first, again = example("cnn"), example("cnn")
    assert torch.equal(torch.rand(3), untouched)
    assert torch.equal(first[0], again[0])


def test_example_follows_the_options():
    assert example("mlp", batch=3, size=8)[0].shape == (3, 1, 8, 8)
    assert example("resnet8", channels=3)[0].shape == (2, 3, 28, 28)
    assert example("transformer-mlm", positions=16)[0].shape == (2, 16)
    assert example("transformer-nwp", positions=16)[0].shape == (2, 16)
    (ids,) = example("lstm", batch=50, vocabulary=4)
    assert ids.dtype == torch.long
    assert ids.unique().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("call", [build, example])
@pytest.mark.parametrize(("bad", "near"), [("resnet81", "resnet8"), ("ViT_Tiny", "vit-tiny"), ("vgg", "vgg16")])
def test_unknown_name(call, bad, near):
    with pytest.raises(ModelError) as caught:
        call(bad)
    sentence = str(caught.value)
    assert f"there is no model {bad!r}; did you mean " in sentence
    assert repr(near) in sentence
    assert sentence.endswith("?")
    assert isinstance(caught.value, ValueError)


def test_name_like_nothing_lists_all():
    with pytest.raises(ModelError, match=r"^there is no model 'qqq': there are 'mlp', 'cnn', .*nwp'$"):
        build("qqq")


@pytest.mark.parametrize("call", [build, example])
def test_unknown_option(call):
    with pytest.raises(ModelError) as caught:
        call("cnn", colour=3)
    assert str(caught.value) == (
        "model 'cnn' has no option 'colour': there are 'channels', 'classes', 'norm', 'widths'"
    )


def test_unknown_values():
    with pytest.raises(ModelError, match=r"^there is no norm 'batch'; choose one of bn, gn, ln, in, none$"):
        norm_layer("batch", 4)
    with pytest.raises(ModelError, match=r"^there is no activation 'tanh'; choose one of gelu, relu$"):
        build("transformer-mlm", activation="tanh")
