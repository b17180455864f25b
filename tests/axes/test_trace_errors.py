"""What `trace` says when it cannot: a TraceError, in one sentence, that names the class of the model."""

import pytest
import torch
from torch import nn

import nestling
from nestling.errors import NestlingError, TraceError
from tests.axes.axes_prove import VECTORS, Net, one_sentence


class Perceptron(nn.Sequential):
    def __init__(self, *layers) -> None:
        super().__init__(*(layers or (nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))))


class Talkative(nn.Linear):
    """Fails with more than one line, as torch itself does when keys are missing."""

    def forward(self, _x):
        raise RuntimeError("the first line\n\tthe second line")


class Silent(nn.Linear):
    def forward(self, _x):
        raise KeyError


class Undecided(Perceptron):
    def forward(self, x):
        return super().forward(x) if self[0](x).sum() > 0 else x


class Choosy(Perceptron):
    def forward(self, x):
        hidden = self[0](x)
        return self[2](hidden[hidden[:, 0] > 0])


def trace_error(model, *example, **kwexample):
    with pytest.raises(TraceError) as caught:
        nestling.trace(model, *example, **kwexample)
    assert one_sentence(caught.value)
    return str(caught.value)


EXAMPLES = {
    "too wide": (torch.zeros(2, 5),),
    "missing": (),
    "too many": (*VECTORS, *VECTORS),
    "text": ("four numbers",),
    "nothing": (None,),
    "a list": ([1.0, 2.0, 3.0, 4.0],),
}


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_an_example_that_does_not_fit(example):
    assert "Perceptron" in trace_error(Perceptron(), *example)


def test_an_option_that_does_not_exist():
    assert "Perceptron" in trace_error(Perceptron(), *VECTORS, mask=torch.ones(2))


@pytest.mark.parametrize(
    "model", [Talkative(4, 8), Silent(4, 8), Undecided(), Choosy()], ids=lambda m: type(m).__name__
)
def test_a_forward_that_fails(model):
    assert type(model).__name__ in trace_error(model, *VECTORS)


def test_the_cause_is_kept_for_whoever_debugs():
    with pytest.raises(TraceError) as caught:
        nestling.trace(Talkative(4, 8), *VECTORS)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "the second line" in str(caught.value.__cause__)
    assert "the first line" in str(caught.value)


NOTHING = {
    "no hidden layer": nn.Linear(4, 3),
    "no parameters": nn.ReLU(),
    "a table": nn.Embedding(9, 3),
    "all returned": Net(lambda net, x: (net.two(net.one(x)), net.one(x)), one=nn.Linear(4, 8), two=nn.Linear(8, 3)),
    "all frozen": Net(lambda net, x: net.two(net.one(x).cumsum(1)), one=nn.Linear(4, 8), two=nn.Linear(8, 3)),
    "one unit": nn.Sequential(nn.Linear(4, 1), nn.ReLU(), nn.Linear(1, 3)),
    "never run": Net(lambda net, x: x, one=nn.Linear(4, 8), two=nn.Linear(8, 3)),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_model_with_nothing_to_cut(name):
    model = NOTHING[name]
    example = torch.tensor([1, 2]) if name == "a table" else VECTORS[0]
    sentence = trace_error(model, example)
    assert type(model).__name__ in sentence
    assert "nothing to cut" in sentence


def test_the_reason_given_is_that_of_a_hidden_axis():
    """That the input is the input explains nothing."""
    assert "input of the model" not in trace_error(NOTHING["all returned"], *VECTORS)
    assert "order" in trace_error(NOTHING["all frozen"], *VECTORS)


@pytest.mark.parametrize("what", [nn.Linear, {"weight": 1}, None, "model", lambda x: x, torch.zeros(3)])
def test_what_is_no_module(what):
    assert type(what).__name__ in trace_error(what, *VECTORS)


@pytest.mark.parametrize(
    "model",
    [
        Perceptron(nn.LazyLinear(8), nn.Linear(8, 3)),
        Perceptron(nn.Linear(4, 8), nn.LazyBatchNorm1d(), nn.Linear(8, 3)),
        Perceptron(nn.Unflatten(1, (1, 2, 2)), nn.LazyConv2d(8, 1), nn.Flatten(), nn.Linear(32, 3)),
    ],
    ids=["linear", "batch-norm", "conv"],
)
def test_a_lazy_module_is_told_to_run_first(model):
    sentence = trace_error(model, *VECTORS)
    assert "run" in sentence
    assert "Perceptron" in sentence


def test_a_lazy_module_that_has_run_is_a_module_like_any_other():
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 3))
    model(*VECTORS)
    assert nestling.trace(model, *VECTORS).axes == {"model.0": 8}


def test_a_model_that_cannot_be_copied_is_told_in_one_sentence():
    model = Perceptron()
    model.result = model(*VECTORS)  # a tensor in the middle of a graph
    with pytest.raises(NestlingError, match="Perceptron") as caught:
        nestling.trace(model, *VECTORS)
    assert one_sentence(caught.value)


def test_errors_are_value_errors():
    assert issubclass(TraceError, NestlingError)
    assert issubclass(NestlingError, ValueError)
