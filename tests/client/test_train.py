"""The training loop against one written out by hand, in double precision."""

import copy
import math

import msgspec
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nestling.client.train import train
from nestling.data.batches import batches
from nestling.errors import TrainingError
from nestling.methods import Method, PlanPart
from nestling.methods.parts.proximal import Proximal
from nestling.methods.parts.static_norms import make_static
from nestling.settings import LocalTraining
from tests.client.training_cases import data, inputs_of, net_of, perceptron
from tests.harness import client_of, slice_of

LAWS = settings(deadline=None, derandomize=True, max_examples=40, database=None)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def dealt(samples, size, random):
    """An epoch's batches the slow way."""
    order = [samples[k] for k in torch.randperm(len(samples), generator=random).tolist()]
    parts = [order[at : at + size] for at in range(0, len(order), size)]
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [parts[-2] + parts[-1]]
    return parts


def by_hand(model, samples, batch, training, lr, mu, random):
    """Train with every formula written out; return samples, loss and correct answers."""
    weights = list(model.parameters())
    start = [weight.detach().clone() for weight in weights]
    first, second = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    seen, total, correct, steps = 0, 0.0, 0, 0
    for _ in range(training.epochs):
        for part in dealt(samples, training.batch_size, random):
            inputs, targets = batch(torch.tensor(part))
            logits = model(inputs)
            loss = -logits.log_softmax(-1)[range(len(part)), targets].mean()
            gradients = list(torch.autograd.grad(loss, weights))
            for k, weight in enumerate(weights):
                gradients[k] = gradients[k] + mu * (weight.detach() - start[k])
            norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
            if training.clip_norm:
                gradients = [gradient * min(1.0, training.clip_norm / (norm + 1e-6)) for gradient in gradients]
            steps += 1
            for k, weight in enumerate(weights):
                change = gradients[k] + training.weight_decay * weight.detach()
                if training.optimizer == "adam":
                    first[k] = 0.9 * first[k] + 0.1 * change
                    second[k] = 0.999 * second[k] + 0.001 * change**2
                    mean, spread = first[k] / (1 - 0.9**steps), second[k] / (1 - 0.999**steps)
                    change = mean / (spread.sqrt() + 1e-8)
                else:
                    first[k] = training.momentum * first[k] + change
                    change = first[k]
                weight.data = weight.data - lr * change
            seen += len(part)
            total += loss.item() * len(part)
            correct += int((logits.argmax(-1) == targets).sum())
    return seen, total, correct


@LAWS
@given(
    training=st.builds(
        LocalTraining,
        optimizer=st.sampled_from(["sgd", "adam"]),
        momentum=st.sampled_from([0.0, 0.5, 0.9]),
        weight_decay=st.sampled_from([0.0, 5e-4, 0.1]),
        clip_norm=st.sampled_from([0.0, 0.05, 1.0, 100.0]),
        epochs=st.integers(1, 3),
        batch_size=st.integers(1, 6),
    ),
    lr=st.sampled_from([1e-3, 0.05, 0.5]),
    mu=st.sampled_from([0.0, 0.01, 3.0]),
    samples=st.lists(st.integers(0, 29), min_size=1, max_size=13, unique=True),
    seed=st.integers(0, 5),
    share=st.sampled_from([0, 0.5, 1]),  # of μ that the settings have; the rest is the method's
)
def test_every_step_is_as_written_by_hand(training, lr, mu, samples, seed, share):
    model = perceptron()
    other = copy.deepcopy(model)
    batch = data(30)[2]
    method = Method("prox", PlanPart(), Proximal((1 - share) * mu))
    client = client_of(model, method=method, training=msgspec.structs.replace(training, proximal=share * mu))
    result = train(client, torch.tensor(samples), batch, lr=lr, generator=generator(seed))
    seen, total, correct = by_hand(other, samples, batch, training, lr, mu, generator(seed))
    for new, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(new, expected, rtol=1e-9, atol=1e-11)
    assert result.samples == seen == training.epochs * len(samples)
    assert result.correct == correct
    if not mu:
        assert result.loss == pytest.approx(total, rel=1e-9)


@LAWS
@given(st.integers(0, 40), st.integers(1, 12), st.booleans())
def test_batches_hold_every_sample_once_and_end_in_no_single_one(count, size, shuffled):
    samples = torch.arange(count) * 7 + 3
    parts = [part.tolist() for part in batches(samples, size, generator() if shuffled else None)]
    assert sorted(value for part in parts for value in part) == samples.tolist()
    assert all(len(part) == size for part in parts[:-1])
    assert len(parts) <= 1 or 2 <= len(parts[-1]) <= size + 1
    if not shuffled:
        assert [value for part in parts for value in part] == samples.tolist()


def trained(seed, model=None, training=None):
    model = perceptron() if model is None else model
    client = client_of(model, training=training or LocalTraining(epochs=2, batch_size=5))
    train(client, torch.arange(23), data(23)[2], lr=0.1, generator=generator(seed))
    return model.state_dict()


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_the_generator_alone_decides_the_order():
    models = [perceptron() for _ in range(3)]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    once = trained(0, models[0])
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert same(once, trained(0, models[1]))
    assert not same(once, trained(1, models[2]))


def test_optimisers_are_fresh_in_every_round():
    twice = perceptron()
    training = LocalTraining(epochs=1, batch_size=23, momentum=0.9, clip_norm=0.0, weight_decay=0.0)
    trained(0, twice, training)
    middle = copy.deepcopy(twice)
    trained(0, twice, training)
    inputs, targets, _ = data(23)
    loss = F.cross_entropy(middle(inputs), targets)
    for gradient, old, new in zip(
        torch.autograd.grad(loss, list(middle.parameters())), middle.parameters(), twice.parameters(), strict=True
    ):
        torch.testing.assert_close(new, old - 0.1 * gradient)


def test_what_is_frozen_or_not_used_stays():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.unused = perceptron(), nn.Linear(2, 2).double()
            self.body[0].requires_grad_(False)

        def forward(self, x):
            return self.body(x)

    model = Net()
    before = copy.deepcopy(model.state_dict())
    trained(0, model)
    changed = {name for name, new in model.state_dict().items() if not torch.equal(new, before[name])}
    assert changed == {"body.2.weight", "body.2.bias"}


def test_a_client_in_evaluation_mode_trains_in_training_mode():
    model = nn.Sequential(perceptron(), nn.Dropout(0.5)).eval()
    trained(0, model)
    assert all(module.training for module in model.modules())


def test_static_norms_keep_their_statistics_while_training():
    net, axes = net_of("cnn")
    client = slice_of(net, axes, 0.5, training=LocalTraining(epochs=1, batch_size=4))
    make_static(client.model)
    before = copy.deepcopy(client.model.state_dict())
    inputs, targets = inputs_of("cnn", 9), torch.arange(9)
    train(
        client,
        torch.arange(9),
        lambda chosen: (inputs[chosen], targets[chosen]),
        lr=0.1,
        generator=generator(),
    )
    parameters = dict(client.model.named_parameters())
    for name, new in client.model.state_dict().items():
        assert torch.equal(new, before[name]) == (name not in parameters), name


@pytest.mark.parametrize("where", ["inputs", "weights"])
def test_a_loss_that_is_no_number_is_refused(where):
    model, (inputs, _, batch) = perceptron(), data(8)
    (inputs if where == "inputs" else model[0].weight.data)[2] = math.nan
    with pytest.raises(TrainingError, match=r"no longer a number.*local\.lr") as caught:
        train(client_of(model, training=LocalTraining(epochs=1)), torch.arange(8), batch, lr=0.1, generator=generator())
    assert "\n" not in str(caught.value)


def test_a_loss_that_grows_without_bound_is_refused():
    model = nn.Sequential(nn.Linear(3, 4)).double()
    training = LocalTraining(epochs=200, batch_size=4, clip_norm=0.0, weight_decay=10.0)
    with pytest.raises(TrainingError):
        train(client_of(model, training=training), torch.arange(8), data(8)[2], lr=1e3, generator=generator())


def test_weights_that_are_no_numbers_after_the_last_step_are_refused():
    """Private weights (standalone) do not pass the merge, which would look at them."""
    model = perceptron().float()
    inputs, targets, _ = data(4)
    training = LocalTraining(epochs=1, batch_size=4, clip_norm=0.0)
    with pytest.raises(TrainingError):
        train(
            client_of(model, training=training),
            torch.arange(4),
            lambda chosen: (inputs[chosen].float() * 1e10, targets[chosen]),
            lr=1e38,
            generator=generator(),
        )


def test_a_client_without_samples_changes_nothing():
    model = perceptron()
    before = copy.deepcopy(model.state_dict())
    result = train(client_of(model), torch.arange(0), data(4)[2], lr=0.1, generator=generator())
    assert (result.samples, result.loss, result.correct) == (0, 0.0, 0.0)
    assert same(model.state_dict(), before)
