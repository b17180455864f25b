"""DepthFL: which stages and blocks a client gets, what its classifiers learn, and what they say together."""

import functools
import math
import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import nn

import nestling
from nestling.errors import ConfigError, MethodError
from nestling.methods.depthfl import depthfl, exits, ramp_up
from nestling.nets.exits import Exits
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, LocalTraining, Model
from tests.harness import client_of, loss_of, plan_of, rounds_of, submodel_plan_of
from tests.methods.method_cases import LAWS, net_of

RATIOS = st.floats(0.001, 1.0)
ORDINARY = ["preresnet18", "resnet18", "vit-tiny", "transformer-mlm"]


@functools.cache
def with_exits(stages=4):
    torch.manual_seed(0)
    net = Exits(depths=(1, 2, 1, 1)[:stages], widths=(4, 6, 8, 12)[:stages], channels=1).double()
    return net, nestling.trace(net, torch.zeros(2, 1, 8, 8, dtype=torch.float64))


def size_of(net, axes, plan):
    return sum(p.numel() for p in nestling.submodel(net, axes, plan).parameters())


@functools.cache
def prefixes(name):
    """All that DepthFL could hand out of a net, each with its number of parameters: written out by hand."""
    if name == "exits":
        net, axes = with_exits()
        groups, start = [[block] for block in ("deeper", "deeper.deeper", "deeper.deeper.deeper")], 0
    else:
        net, axes = net_of(name)
        second = {"vit-tiny": "mlp", "transformer-mlm": "feedforward"}.get(name)
        if second:
            groups = [[f"blocks.{i}.attention", f"blocks.{i}.{second}"] for i in range(2)]
        else:
            groups = [
                [block for block in axes.blocks if block.startswith(f"stages.{i}.{j}")]
                for i in range(4)
                for j in range(2)
            ]
        start = 1
    assert sorted(block for group in groups for block in group) == sorted(axes.blocks)
    sizes = {}
    for count in range(start, len(groups)):
        kept = tuple(sorted(block for group in groups[:count] for block in group))
        sizes[kept] = size_of(net, axes, nestling.Plan(blocks=kept))
    sizes[None] = sum(p.numel() for p in net.parameters())
    return net, axes, sizes


def prefix_of(name, ratio):
    net, axes = with_exits() if name == "exits" else net_of(name)
    method = depthfl("full" if name == "exits" else "plain")
    plan = plan_of(method, axes, ratio, model=net)
    assert submodel_plan_of(method, axes, ratio, model=net) == plan
    return plan


# ---- which slice


@pytest.mark.parametrize("name", ["exits", *ORDINARY])
@LAWS
@given(ratio=RATIOS)
def test_a_client_gets_the_prefix_nearest_to_its_level(name, ratio):
    _, _, possible = prefixes(name)
    plan = prefix_of(name, ratio)
    assert not plan.runs
    whole = possible[None]
    nearest = min(abs(size - ratio * whole) for size in possible.values())
    assert abs(possible[plan.blocks] - ratio * whole) == pytest.approx(nearest)
    assert (plan.key == "full") == (plan.blocks is None)


@pytest.mark.parametrize("name", ["exits", *ORDINARY])
@LAWS
@given(ratios=st.lists(RATIOS, min_size=2, max_size=5))
def test_smaller_levels_lie_inside_larger_ones(name, ratios):
    axes = prefixes(name)[1]
    kept = [
        set(plan.blocks) if plan.blocks is not None else set(axes.blocks)
        for plan in (prefix_of(name, r) for r in sorted(ratios))
    ]
    assert all(small <= large for small, large in pairwise(kept))


@pytest.mark.parametrize("name", ["exits", *ORDINARY])
def test_every_prefix_is_handed_out_and_has_a_key_of_its_own(name):
    _, _, possible = prefixes(name)
    plans = {prefix_of(name, size / possible[None]) for size in possible.values()}
    assert {plan.blocks for plan in plans} == set(possible)
    assert len({plan.key for plan in plans}) == len(plans) == len(possible)
    assert prefix_of(name, 1.0) == nestling.Plan(key="full")


@pytest.mark.parametrize("name", ["resnet18", "vit-tiny"])
def test_plain_submodels_run_and_merge(name):
    net, axes, possible = prefixes(name)
    x = torch.randn(2, 3, 32, 32)
    state = net.state_dict()
    tally = nestling.Tally(axes, state)
    for size in possible.values():
        plan = prefix_of(name, size / possible[None])
        small = nestling.submodel(net, axes, plan)
        assert small(x).shape == (2, 10)
        tally.add(nestling.extract(axes, plan, state), plan)
    assert all(torch.equal(tensor, state[key]) for key, tensor in tally.value().items())


# ---- which loss


class Says(nn.Module):
    """Classifiers that say the same whatever they are shown."""

    def __init__(self, *logits, gone=0):
        super().__init__()
        self.logits = nn.ParameterList(logits)
        self.gone = gone

    def forward(self, _x):
        outputs = tuple(logits * 1 for logits in self.logits)
        return outputs + outputs[-1:] * self.gone


def loss_by(method, model, targets, inputs=None, **more):
    """The loss of a client that trains a model by a method."""
    return loss_of(client_of(model, method=method, **more), torch.zeros(5) if inputs is None else inputs, targets)


def by_hand(outputs, targets, weight):
    """The loss, number by number."""
    chances = [np.exp(one) / np.exp(one).sum(1, keepdims=True) for one in outputs]
    rows = range(len(targets))
    hard = sum(-np.log(p[rows, targets]).mean() for p in chances)
    soft = 0.0
    for i, student in enumerate(chances):
        for j, teacher in enumerate(chances):
            if i != j:
                soft += sum(
                    t * (math.log(t) - math.log(s)) for t, s in zip(teacher.flat, student.flat, strict=True)
                ) / len(targets)
    return hard + (weight * soft / (len(outputs) - 1) if len(outputs) > 1 else 0.0)


def drawn(count, samples=5, classes=4):
    return [torch.randn(samples, classes, dtype=torch.float64) for _ in range(count)]


@pytest.mark.parametrize("gone", [0, 2])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize(("round", "ramp"), [(1, 300), (7, 10), (10, 10), (11, 10), (1, 0)])
def test_the_loss_is_that_of_the_paper(count, gone, round, ramp):
    outputs, targets = drawn(count), torch.tensor([0, 3, 1, 1, 2])
    method, model = depthfl(ramp=ramp), Says(*outputs, gone=gone)
    loss = loss_by(method, model, targets, round=round)
    weight = math.exp(-5 * (1 - round / ramp) ** 2) if round < ramp else 1.0
    arrays = [one.detach().numpy() for one in outputs]
    assert loss.value.item() == pytest.approx(by_hand(arrays, targets.numpy(), weight), rel=1e-12)
    mean = sum(one.softmax(1) for one in outputs) / count
    torch.testing.assert_close(method.predict(model(None)).exp(), mean)
    assert (loss.count, loss.correct.item()) == (5, (mean.argmax(1) == targets).sum().item())


def test_without_distillation_classifiers_learn_apart():
    outputs, targets = drawn(3), torch.tensor([0, 3, 1, 1, 2])
    loss = loss_by(depthfl(distill=False, ramp=0), Says(*outputs), targets)
    assert loss.value.item() == pytest.approx(by_hand([one.detach().numpy() for one in outputs], targets.numpy(), 0.0))


def test_gradients_reach_the_student_and_not_the_teacher():
    """By the logits of i, with p_j held: of KL(p_j ‖ p_i), p_i − p_j; of cross-entropy, p_i − the target."""
    model, targets = Says(*drawn(3)), torch.tensor([0, 3, 1, 1, 2])
    loss_by(depthfl(ramp=4), model, targets, round=2).value.backward()
    chances = [one.detach().softmax(1) for one in model.logits]
    for i, one in enumerate(model.logits):
        hard = chances[i] - nn.functional.one_hot(targets, 4)
        soft = sum(chances[i] - chances[j] for j in range(3) if j != i) / 2
        torch.testing.assert_close(one.grad, (hard + math.exp(-5 / 4) * soft) / 5)


def test_a_mask_masks_every_classifier():
    outputs, targets, labels = drawn(2), torch.tensor([1, 3, 1, 1, 3]), torch.tensor([1, 3])
    loss = loss_by(depthfl(ramp=0), Says(*outputs), targets, held=labels)
    kept = [one.detach().numpy() * np.array([0, 1, 0, 1]) for one in outputs]
    assert loss.value.item() == pytest.approx(by_hand(kept, targets.numpy(), 1.0))


@pytest.mark.parametrize("ramp", [1, 10, 300])
def test_the_ramp_rises_to_one_and_stays(ramp):
    weights = [ramp_up(round, ramp) for round in range(1, ramp + 50)]
    assert all(0 < low <= high <= 1 for low, high in pairwise(weights))
    assert weights[ramp - 1 :] == [1.0] * 50
    assert ramp == 1 or weights[0] == pytest.approx(math.exp(-5 * (1 - 1 / ramp) ** 2))


def test_every_parameter_of_a_submodel_learns():
    net, axes = with_exits()
    for ratio in (0.02, 0.3, 0.6, 1.0):
        plan = plan_of(depthfl(), axes, ratio, model=net)
        small = nestling.submodel(net, axes, plan).train()
        x = torch.randn(4, 1, 8, 8, dtype=torch.float64)
        loss_by(depthfl(), small, torch.arange(4), x).value.backward()
        assert all(parameter.grad.any() for parameter in small.parameters())


# ---- what is said together


@LAWS
@given(
    count=st.integers(1, 4), gone=st.integers(0, 3), scale=st.sampled_from([0.1, 1.0, 300.0]), seed=st.integers(0, 99)
)
def test_the_ensemble_is_the_mean_of_the_classifiers_there_are(count, gone, scale, seed):
    torch.manual_seed(seed)
    outputs = [scale * one for one in drawn(count)]
    logits = depthfl().predict((*outputs, *outputs[-1:] * gone))
    torch.testing.assert_close(logits.exp(), torch.stack([one.softmax(1) for one in outputs]).mean(0))
    assert logits.isfinite().all()
    assert len(exits((*outputs, *outputs[-1:] * gone))) == count


def test_classifiers_that_agree_by_chance_are_still_two():
    one = torch.zeros(2, 3)
    assert len(exits((one, one.clone(), one))) == 2


# ---- whole rounds


def experiment(rounds=2, samples=160, epochs=1):
    return Experiment(
        rounds=rounds,
        data=Data(name="digits", max_samples=samples),
        fleet=FleetSettings(clients=6, per_round=4, levels="1-0.4-0.05", assign="dynamic"),
        local=LocalTraining(lr=0.05, epochs=epochs, batch_size=20),
        evaluate=Evaluate(every=rounds, samples=200, norm_batch=40),
    )


def residual(variant):
    """A round of one of the variants with a single classifier."""
    net = Model(name="resnet18", options={"widths": [8, 8, 12, 12], "pool": False, "learn_steps": False})
    return replace(experiment(rounds=1), method="depthfl", model=net, options={"variant": variant})


def played(variant, ramp=2, norm="bn", **settings):
    torch.manual_seed(3)
    if variant == "full":
        model = Exits(depths=(1, 1, 1), widths=(8, 12, 16), channels=1, norm=norm)
    else:
        model = nestling.nets.build("resnet18", widths=(8, 8, 12, 12), channels=1, pool=False)
    return nestling.run(experiment(**settings), model=model, method=depthfl(variant, ramp=ramp))


@functools.cache
def twice(variant):
    return played(variant), played(variant)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["full", "plain"])
def test_two_rounds_come_again_bit_for_bit(variant):
    one, other = twice(variant)
    assert one.state.keys() == other.state.keys()
    assert all(torch.equal(one.state[name], other.state[name]) for name in one.state)
    assert one.rounds == other.rounds
    start = one.simulation.setup.model.state_dict()
    assert any(not torch.equal(one.state[name], start[name]) for name in one.simulation.setup.parameters)
    final = one.summary["final"]
    assert len(final["submodels"]) == 3
    assert all(math.isfinite(figures["loss"]) for figures in final["submodels"].values())


@pytest.mark.slow
def test_levels_learn_and_the_deeper_the_more():
    final = played("full", rounds=5, samples=0, epochs=2).summary["final"]["submodels"]
    deep, middle, shallow = (final[level]["accuracy"] for level in ("1", "0.4", "0.05"))
    assert deep > middle > shallow > 0.25  # of ten classes
    assert deep > 0.75


def test_what_is_tested_is_the_ensemble_of_the_level():
    """The figures of a run, computed again from its state; its norms have no statistics that would be asked for."""
    result = played("full", norm="ln")
    simulation, depths = result.simulation, []
    dataset = simulation.dataset
    inputs, targets = dataset.ready(dataset.test_inputs[:200]), dataset.test_targets[:200]
    whole = Exits(depths=(1, 1, 1), widths=(8, 12, 16), channels=1, norm="ln").eval()
    whole.load_state_dict(result.state)
    with torch.no_grad():
        outputs = [logits.softmax(1) for logits in whole(inputs)]
    for level, ratio in simulation.levels.items():
        plan = simulation.setup.submodel_plan(ratio)
        depths.append(3 if plan.blocks is None else 1 + len(plan.blocks))
        mean = sum(outputs[: depths[-1]]) / depths[-1]
        figures = result.summary["final"]["submodels"][level]
        assert figures["accuracy"] == pytest.approx((mean.argmax(1) == targets).double().mean().item())
        assert figures["loss"] == pytest.approx(nn.functional.nll_loss(mean.log(), targets).item(), rel=1e-5)
    assert depths == [3, 2, 1]


def test_the_ramp_counts_rounds_from_one():
    """Of two rounds, a ramp of one has distillation in both; a long one has next to none, and other weights."""
    assert ramp_up(1, 1) == 1.0
    long, short = played("full", ramp=300), played("full", ramp=1)
    assert any(not torch.equal(long.state[name], short.state[name]) for name in long.state)
    assert long.rounds[0]["train_loss"] < short.rounds[0]["train_loss"]  # a divergence is never below zero


def test_nefls_version_is_plain_with_norms_per_submodel():
    """NeFL, B.3: the same prefixes of blocks, but every sub-model has norms and running statistics for itself."""
    plain, nefl = (rounds_of(residual(variant)) for variant in ("plain", "nefl"))
    setup, state = nefl[0].setup, nefl[1][-1]
    for ratio in nefl[0].levels.values():
        assert setup.submodel_plan(ratio) == plain[0].setup.submodel_plan(ratio)
    norms = {name for name in setup.axes.dims if "norm" in name}
    assert setup.per_submodel == norms
    assert not setup.norm_statistics
    assert not plain[0].setup.per_submodel
    assert len(state.submodels) > 1
    for own in state.submodels.values():
        assert own.keys() <= norms
        assert all(bool(tensor.any()) for name, tensor in own.items() if name.endswith("running_mean"))


def test_nefls_version_cannot_have_feddyn():
    chosen = replace(residual("nefl"), options={"variant": "nefl", "feddyn": 0.1})
    with pytest.raises(ConfigError, match="feddyn needs parameters that all clients share"):
        nestling.run(chosen)


@pytest.mark.parametrize("variant", ["full", "plain", "nefl"])
def test_it_can_be_sent_to_workers(variant):
    method = pickle.loads(pickle.dumps(depthfl(variant)))
    assert method == depthfl(variant)
    assert method.name == "depthfl"


# ---- what cannot be


@pytest.mark.parametrize("name", ["mlp", "cnn", *ORDINARY])
@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_full_needs_exits(name, ratio):
    net, axes = net_of(name)
    with pytest.raises(MethodError, match=r"a classifier after every stage.*variant='plain'"):
        plan_of(depthfl(), axes, ratio, model=net)


class Blocks(nn.Module):
    """Residual blocks side by side, and some classifiers after the last of them."""

    def __init__(self, blocks, heads):
        super().__init__()
        self.enter = nn.Linear(5, 6)
        self.blocks = nn.Sequential(*(nestling.nets.Residual(nn.Linear(6, 6)) for _ in range(blocks)))
        self.heads = nn.ModuleList(nn.Linear(6, 3) for _ in range(heads))

    def forward(self, x):
        outputs = tuple(head(self.blocks(self.enter(x))) for head in self.heads)
        return outputs if len(outputs) > 1 else outputs[0]


@pytest.mark.parametrize(("blocks", "heads"), [(1, 1), (2, 1), (2, 2)])
def test_blocks_side_by_side_are_no_stages_however_few_and_whatever_is_returned(blocks, heads):
    net = Blocks(blocks, heads)
    axes = nestling.trace(net, torch.zeros(2, 5))
    assert len(axes.blocks) == blocks
    with pytest.raises(MethodError, match="a classifier after every stage"):
        plan_of(depthfl(), axes, 0.5, model=net)
    assert plan_of(depthfl("plain"), axes, 0.01, model=net).blocks == (("blocks.0",) if blocks > 1 else None)


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_plain_refuses_exits(stages, ratio):
    net, axes = with_exits(stages)
    plan_of(depthfl(), axes, ratio, model=net)
    for variant in ("plain", "nefl"):
        with pytest.raises(MethodError, match="variant='full'"):
            plan_of(depthfl(variant), axes, ratio, model=net)


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_plain_needs_blocks(ratio):
    net, axes = net_of("cnn")
    with pytest.raises(MethodError, match="this model has none"):
        plan_of(depthfl("plain"), axes, ratio, model=net)


def test_bad_options_and_outputs_are_told_in_a_sentence():
    with pytest.raises(MethodError, match=r"no variant 'ful' of depthfl; did you mean 'full'"):
        depthfl("ful")
    with pytest.raises(MethodError, match=r"at least 0, not -1"):
        depthfl(ramp=-1)
    with pytest.raises(MethodError, match=r"a tuple of logits, and not a Tensor"):
        depthfl().predict(torch.zeros(2, 3))


def test_a_run_without_exits_ends_before_it_begins():
    with pytest.raises(MethodError, match="a classifier after every stage"):
        nestling.run(experiment(), method=depthfl())
