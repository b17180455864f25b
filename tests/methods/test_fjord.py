"""FjORD's loss: the widths it draws, and what it computes at them."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import nestling
from nestling.client.train import train
from nestling.cut import Plan
from nestling.errors import MethodError
from nestling.methods import fjord as module
from nestling.methods import make
from nestling.methods.parts.masked_loss import MaskedLoss
from nestling.nets import example
from nestling.settings import LocalTraining
from nestling.tasks.class_loss import masked
from nestling.tasks.task import LossResult
from tests.harness import client_of, loss_of, plan_of
from tests.methods.method_cases import net_of

NETS = ["cnn", "preresnet18", "vit-tiny"]
WIDTHS = [0.2, 0.4, 0.6, 0.8, 1.0]


class Fixed:
    """A source of random numbers that always draws the same place."""

    def __init__(self, place):
        self.place = place

    def integers(self, count):
        assert 0 <= self.place < count
        return self.place


def learner_of(name, ratio, draw, method, **more):
    net, axes = net_of(name)
    plan = plan_of(method, axes, ratio)
    model = nestling.submodel(net, axes, plan).double().train()
    return client_of(model, axes, method=method, plan=plan, ratio=ratio, draw=draw, **more)


def assert_answers(loss, logits, targets):
    """A loss counts what was right of these logits."""
    assert (loss.count, loss.correct.item()) == (len(targets), (logits.argmax(-1) == targets).sum().item())


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

    def narrow(client, width):
        drawn[width] += 1
        return torch.nn.Identity(), {}

    def whole(batch):
        drawn[ratio] += 1
        return LossResult(torch.zeros(()), len(batch[1]))

    monkeypatch.setattr(module, "nested_submodel", narrow)
    chosen, levels = (list(widths), (0.1, 0.9)) if named == "as an option" else ([], tuple(sorted(widths)))
    method = make("fjord", {"widths": chosen, "distill": False})
    (dropout,) = method.overriding("loss")
    client = client_of(None, method=method, ratio=ratio, ratios=levels)
    for _ in range(1000):
        dropout.loss(client, (torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)), whole)
    assert sorted(drawn) == possible
    expected = 1000 / len(possible)
    assert sum((often - expected) ** 2 / expected for often in drawn.values()) < 30


@pytest.mark.parametrize("name", NETS)
def test_without_distillation_it_is_the_loss_of_the_width(name):
    inputs, targets = batch_of(name)
    client = learner_of(name, 0.8, Fixed(1), make("fjord", {"distill": False, "widths": WIDTHS}))
    loss = loss_of(client, inputs, targets)
    wanted = explicit(name, 0.4)(inputs)
    torch.testing.assert_close(loss.value, F.cross_entropy(wanted, targets))
    assert_answers(loss, wanted, targets)


@pytest.mark.parametrize("name", NETS)
def test_with_distillation_the_narrow_model_learns_from_the_clients_own(name):
    inputs, targets = batch_of(name)
    client = learner_of(name, 0.8, Fixed(0), make("fjord", {"widths": WIDTHS}))
    loss = loss_of(client, inputs, targets)
    loss.value.backward()
    teacher, student = explicit(name, 0.8), explicit(name, 0.2)
    taught, follows = teacher(inputs), student(inputs)
    hard = F.cross_entropy(taught, targets)
    soft = (
        -(taught.detach().exp() / taught.detach().exp().sum(-1, keepdim=True) * follows.log_softmax(-1)).sum(-1).mean()
    )
    torch.testing.assert_close(loss.value, hard + soft)
    assert_answers(loss, taught, targets)
    # the teacher does not learn from its student: gradients of both, added where they overlap
    hard.backward()
    soft.backward()
    net, axes = net_of(name)
    whole = {key: torch.zeros_like(value, dtype=torch.float64) for key, value in net.state_dict().items()}
    for key, parameter in client.model.named_parameters():
        shape = whole[key].shape
        numbers = whole | {key: torch.arange(whole[key].numel(), dtype=torch.float64).view(shape)}
        mine = nestling.extract(axes, client.plan, numbers)[key]
        inner = nestling.extract(axes, nestling.plan(axes, 0.2), numbers)[key]
        wanted = teacher.get_parameter(key).grad.clone()
        wanted[torch.isin(mine, inner)] += student.get_parameter(key).grad.flatten()
        torch.testing.assert_close(parameter.grad, wanted)


@pytest.mark.parametrize("distill", [True, False])
def test_at_the_clients_own_width_it_is_plain(distill):
    inputs, targets = batch_of("cnn")
    client = learner_of("cnn", 0.4, Fixed(1), make("fjord", {"distill": distill, "widths": WIDTHS}))
    loss = loss_of(client, inputs, targets)
    wanted = explicit("cnn", 0.4)(inputs)
    torch.testing.assert_close(loss.value, F.cross_entropy(wanted, targets))
    assert_answers(loss, wanted, targets)
    assert not client.workspace


@pytest.mark.parametrize("distill", [True, False])
def test_training_with_it_comes_again(distill):
    """The same draws give the same weights, also with modules left from an earlier round."""
    inputs, targets = batch_of("cnn", 9)
    method, training = make("fjord", {"distill": distill, "widths": WIDTHS}), LocalTraining(epochs=3, batch_size=3)
    workspace, states = {}, []
    for _ in range(2):
        random = np.random.default_rng(3)
        client = learner_of("cnn", 0.6, random, method, training=training, workspace=workspace)
        train(
            client,
            torch.arange(9),
            lambda chosen: (inputs[chosen], targets[chosen]),
            lr=0.1,
            generator=torch.Generator().manual_seed(0),
        )
        states.append(client.model.state_dict())
    assert sum(isinstance(key, Plan) for key in workspace) == 2  # narrower networks, once each
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    whole = learner_of("cnn", 0.6, None, method).model.state_dict()
    assert not torch.equal(states[0]["head.weight"], whole["head.weight"])


@pytest.mark.parametrize("distill", [True, False])
def test_composed_with_a_mask_it_masks_every_width(distill):
    inputs, _ = batch_of("cnn")
    labels = torch.tensor([2, 5])
    targets = labels[torch.arange(5) % 2]
    method = make("fjord", {"distill": distill, "widths": WIDTHS}).with_parts(MaskedLoss())
    client = learner_of("cnn", 0.8, Fixed(0), method)
    client = replace(client, mask=method.output_mask(client.setup, labels))
    loss = loss_of(client, inputs, targets)
    student, teacher = (masked(explicit("cnn", width)(inputs), labels) for width in (0.2, 0.8))
    absent = [k for k in range(10) if k not in (2, 5)]
    assert not student[:, absent].any()
    assert not teacher[:, absent].any()
    soft = F.cross_entropy(student, teacher.softmax(-1))
    wanted = F.cross_entropy(teacher, targets) + soft if distill else F.cross_entropy(student, targets)
    torch.testing.assert_close(loss.value, wanted)
    assert_answers(loss, teacher if distill else student, targets)


def test_nefls_version_has_norms_per_submodel_and_draws_nothing():
    """NeFL, B.3: a client trains its own width, in which norms keep running statistics."""
    inputs, targets = batch_of("resnet18")
    method = make("fjord", {"variant": "nefl"})
    client = learner_of("resnet18", 0.8, Fixed(0), method, ratios=tuple(WIDTHS))
    assert not method.overriding("loss")
    assert method.weighting == "none"
    assert client.setup.per_submodel == {name for name in client.setup.axes.dims if "norm" in name}
    assert not client.setup.norm_statistics
    before = client.model.get_buffer("stem.norm.running_mean").clone()
    torch.testing.assert_close(
        loss_of(client, inputs, targets).value, F.cross_entropy(explicit("resnet18", 0.8)(inputs), targets)
    )
    assert not torch.equal(client.model.get_buffer("stem.norm.running_mean"), before)


def test_nefls_version_refuses_widths_and_other_variants():
    with pytest.raises(MethodError, match=r"variant='nefl' draws no widths, such as \(0\.5,\): leave out"):
        make("fjord", {"variant": "nefl", "widths": [0.5]})
    with pytest.raises(MethodError, match=r"no variant 'nelf' of fjord; did you mean 'nefl'"):
        module.fjord(variant="nelf")
    with pytest.raises(MethodError, match=r"cannot be combined with fjord, whose sub-models have norms of their own"):
        make("fjord", {"variant": "nefl"}, "fjord")
