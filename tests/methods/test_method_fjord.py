"""FjORD's loss: the widths it draws, and what it computes at them."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from method_cases import net_of, turn_of

import nestling
from nestling.client.train import train
from nestling.cut import Plan
from nestling.methods import fjord as module
from nestling.methods import make
from nestling.methods.context import ClientContext
from nestling.nets import example
from nestling.settings import LocalTraining

NETS = ["cnn", "preresnet18", "vit-tiny"]
WIDTHS = [0.2, 0.4, 0.6, 0.8, 1.0]


class Fixed:
    """A source of random numbers that always draws the same place."""

    def __init__(self, place):
        self.place = place

    def integers(self, count):
        assert 0 <= self.place < count
        return self.place


def learner_of(name, ratio, draw, labels=None):
    net, axes = net_of(name)
    plan = make("fjord").plan(turn_of(axes, ratio))
    model = nestling.submodel(net, axes, plan).double().train()
    return ClientContext(model=model, axes=axes, plan=plan, ratio=ratio, labels=labels, draw=draw)


def batch_of(name, count=5):
    inputs = example(name, batch=count)[0].double()
    return inputs, torch.arange(count) % 10


def explicit(name, width):
    net, axes = net_of(name)
    return nestling.submodel(net, axes, nestling.plan(axes, width)).double().train()


@pytest.mark.parametrize("named", ["as an option", "by the fleet"])
@pytest.mark.parametrize(
    ("ratio", "widths", "possible"),
    [
        (1.0, (0.2, 0.4, 0.6, 0.8, 1.0), [0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.6, (0.2, 0.4, 0.6, 0.8, 1.0), [0.2, 0.4, 0.6]),
        (0.5, (1.0, 0.4, 0.2), [0.2, 0.4, 0.5]),  # its own width is always possible
        (1 / 16, (0.2, 1.0), [1 / 16]),
    ],
)
def test_widths_are_drawn_evenly_up_to_the_clients_own(monkeypatch, ratio, widths, possible, named):
    drawn = Counter()

    def narrow(context, width):
        drawn[width] += 1
        return torch.nn.Identity(), {}

    def whole(context, inputs, targets):
        drawn[ratio] += 1
        return torch.zeros(()), inputs

    monkeypatch.setattr(module, "narrower", narrow)
    monkeypatch.setattr(module, "cross_entropy", whole)
    chosen, levels = (list(widths), (0.1, 0.9)) if named == "as an option" else ([], tuple(sorted(widths)))
    loss = make("fjord", {"widths": chosen, "distill": False}).loss
    context = ClientContext(
        model=None, axes=None, plan=None, ratio=ratio, labels=None, draw=np.random.default_rng(0), levels=levels
    )
    for _ in range(1000):
        loss(context, torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))
    assert sorted(drawn) == possible
    expected = 1000 / len(possible)
    assert sum((often - expected) ** 2 / expected for often in drawn.values()) < 30


@pytest.mark.parametrize("name", NETS)
def test_without_distillation_it_is_the_loss_of_the_width(name):
    inputs, targets = batch_of(name)
    context = learner_of(name, 0.8, Fixed(1))
    loss, logits = make("fjord", {"distill": False, "widths": WIDTHS}).loss(context, inputs, targets)
    wanted = explicit(name, 0.4)(inputs)
    torch.testing.assert_close(logits, wanted)
    torch.testing.assert_close(loss, F.cross_entropy(wanted, targets))


@pytest.mark.parametrize("name", NETS)
def test_with_distillation_the_narrow_model_learns_from_the_clients_own(name):
    inputs, targets = batch_of(name)
    context = learner_of(name, 0.8, Fixed(0))
    loss, logits = make("fjord", {"widths": WIDTHS}).loss(context, inputs, targets)
    loss.backward()
    teacher, student = explicit(name, 0.8), explicit(name, 0.2)
    said, follows = teacher(inputs), student(inputs)
    hard = F.cross_entropy(said, targets)
    soft = -(said.detach().exp() / said.detach().exp().sum(-1, keepdim=True) * follows.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(logits, said)
    torch.testing.assert_close(loss, hard + soft)
    # the teacher does not learn from its student: gradients of both, added where they overlap
    hard.backward()
    soft.backward()
    net, axes = net_of(name)
    whole = {key: torch.zeros_like(value, dtype=torch.float64) for key, value in net.state_dict().items()}
    for key, parameter in context.model.named_parameters():
        shape = whole[key].shape
        numbers = whole | {key: torch.arange(whole[key].numel(), dtype=torch.float64).view(shape)}
        mine = nestling.extract(axes, context.plan, numbers)[key]
        inner = nestling.extract(axes, nestling.plan(axes, 0.2), numbers)[key]
        wanted = teacher.get_parameter(key).grad.clone()
        wanted[torch.isin(mine, inner)] += student.get_parameter(key).grad.flatten()
        torch.testing.assert_close(parameter.grad, wanted)


@pytest.mark.parametrize("distill", [True, False])
def test_at_the_clients_own_width_it_is_plain(distill):
    inputs, targets = batch_of("cnn")
    context = learner_of("cnn", 0.4, Fixed(1))
    loss, logits = make("fjord", {"distill": distill, "widths": WIDTHS}).loss(context, inputs, targets)
    wanted = explicit("cnn", 0.4)(inputs)
    torch.testing.assert_close(logits, wanted)
    torch.testing.assert_close(loss, F.cross_entropy(wanted, targets))
    assert not context.scratch


@pytest.mark.parametrize("distill", [True, False])
def test_training_with_it_comes_again(distill):
    """The same draws give the same weights, also with modules left from an earlier round."""
    inputs, targets = batch_of("cnn", 9)
    scratch, states = {}, []
    for _ in range(2):
        context = replace(learner_of("cnn", 0.6, np.random.default_rng(3)), scratch=scratch)
        train(
            context,
            torch.arange(9),
            lambda chosen: (inputs[chosen], targets[chosen]),
            LocalTraining(epochs=3, batch=3),
            lr=0.1,
            generator=torch.Generator().manual_seed(0),
            loss=make("fjord", {"distill": distill, "widths": WIDTHS}).loss,
        )
        states.append(context.model.state_dict())
    assert sum(isinstance(key, Plan) for key in scratch) == 2  # narrower networks, once each
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    whole = learner_of("cnn", 0.6, None).model.state_dict()
    assert not torch.equal(states[0]["head.weight"], whole["head.weight"])


def test_composed_with_a_mask_it_masks_every_width():
    inputs, _ = batch_of("cnn")
    labels = torch.tensor([2, 5])
    targets = labels[torch.arange(5) % 2]
    context = learner_of("cnn", 0.8, Fixed(0), labels)
    _, logits = replace(make("fjord", {"distill": False, "widths": WIDTHS}), masked=True).loss(context, inputs, targets)
    absent = [k for k in range(10) if k not in (2, 5)]
    assert not logits[:, absent].any()
