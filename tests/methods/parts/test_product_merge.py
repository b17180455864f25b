"""Adapters merged by product: the mean of what units compute at the clients, and what of it a rank holds."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import nestling
from nestling.cut import Plan
from nestling.errors import ConfigError
from nestling.events import collect
from nestling.experiment import find
from nestling.experiment.simulation import Overrides, simulate
from nestling.fleet.levels import parse_level
from nestling.methods import Method, Participant, RoundContext
from nestling.methods.context import Merged
from nestling.methods.fedrolex import RollingPlan
from nestling.methods.lora import RankPlan, lora
from nestling.methods.messages import Progress, Update
from nestling.methods.parts.masked_loss import MaskedLoss
from nestling.methods.parts.product_merge import ProductMerge
from nestling.methods.registry import with_named_parts
from nestling.nets.adapted import AdaptedLinear
from nestling.settings import ServerSettings, Upload
from tests.harness import setup_of
from tests.methods.method_cases import LAWS

INPUTS, OUTPUTS = 7, 5


class WordAdapter(nn.Module):
    """An embedding with an adapter whose A begins at zero, as in peft."""

    def __init__(self, rank):
        super().__init__()
        self.words = nn.Embedding(INPUTS, OUTPUTS).requires_grad_(False)
        self.lora_embedding_A = nn.Parameter(torch.zeros(rank, INPUTS))
        self.lora_embedding_B = nn.Parameter(torch.randn(OUTPUTS, rank))

    def forward(self, ids):
        return self.words(ids) + nn.functional.embedding(ids, self.lora_embedding_A.T) @ self.lora_embedding_B.T


class ImageAdapter(nn.Module):
    """A convolution with an adapter of two convolutions, as in peft."""

    def __init__(self, rank):
        super().__init__()
        self.base = nn.Conv2d(3, OUTPUTS, 3).requires_grad_(False)
        self.lora_A, self.lora_B = nn.Conv2d(3, rank, 3, bias=False), nn.Conv2d(rank, OUTPUTS, 1, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x):
        return self.base(x) + self.lora_B(self.lora_A(x))


KINDS = {
    "linear": (lambda rank: AdaptedLinear(INPUTS, OUTPUTS, rank), torch.zeros(1, INPUTS)),
    "embedding": (WordAdapter, torch.zeros(1, 2, dtype=torch.long)),
    "convolution": (ImageAdapter, torch.zeros(1, 3, 6, 6)),
}


def net_of(kind, rank, seed=0, trained=True):
    """A model with one adapter in double precision, its setup, and the names of A, B and the rank axis."""
    torch.manual_seed(seed)
    make, example = KINDS[kind]
    model = make(rank).double()
    if trained:
        for value in model.parameters():
            nn.init.normal_(value) if value.requires_grad else None
    axes = nestling.trace(model, example if not example.is_floating_point() else example.double())
    setup = setup_of(model, axes, lora())
    (a,) = [name for name in axes.dims if "_A" in name]
    (b,) = [name for name in axes.dims if "_B" in name]
    (rank_axis,) = axes.axes
    return setup, a, b, rank_axis


def merged(setup, updates):
    """The model after a round of these updates, (units of the rank, A, B, samples), and its figures."""
    a, b = (next(name for name in setup.axes.dims if f"_{letter}" in name) for letter in "AB")
    (rank_axis,) = setup.axes.axes
    before = {name: tensor.clone() for name, tensor in setup.model.state_dict().items()}
    round, part, remembered = RoundContext(setup, 1, 0.1, before, {}), ProductMerge(), None
    for client, (units, new_a, new_b, samples) in enumerate(updates):
        who = Participant(client, parse_level("a"), samples)
        update = Update((who,), Plan({rank_axis: units}), None, {a: new_a, b: new_b}, Progress())
        remembered = part.received(round, update, remembered)
    return part.after_merge(round, Merged(dict(before), lambda name: before[name], remembered))


def computed(a, b):
    """What an adapter computes, (outputs, inputs …), as a matrix of NumPy."""
    return b.flatten(1).double().numpy() @ a.flatten(1).double().numpy()


def mean_of(setup, a, b, updates):
    """The sum over units of the mean of what clients that held it made of it; without any, of what it was."""
    old_a, old_b = (setup.model.state_dict()[name].clone() for name in (a, b))
    total = 0.0
    for unit in range(len(old_a)):
        held = [
            (new_a[[units.index(unit)]], new_b[:, [units.index(unit)]], samples)
            for units, new_a, new_b, samples in updates
            if unit in units
        ] or [(old_a[[unit]], old_b[:, [unit]], 1)]
        products = [samples * computed(new_a, new_b) for new_a, new_b, samples in held]
        total = total + sum(products) / sum(samples for *_, samples in held)
    return total


@st.composite
def rounds(draw):
    """An adapter and what some clients made of some of its units."""
    kind, rank = draw(st.sampled_from(list(KINDS))), draw(st.integers(2, 6))
    setup, a, b, _ = net_of(kind, rank, draw(st.integers(0, 99)), trained=draw(st.booleans()))
    random = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    shape_a, shape_b = (setup.model.state_dict()[name].shape for name in (a, b))
    updates = []
    for _ in range(draw(st.integers(1, 4))):
        units = sorted(draw(st.sets(st.integers(0, rank - 1), min_size=1)))
        new_a = torch.randn(len(units), *shape_a[1:], generator=random, dtype=torch.float64)
        new_b = torch.randn(shape_b[0], len(units), *shape_b[2:], generator=random, dtype=torch.float64)
        updates.append((units, new_a, new_b, draw(st.integers(1, 50))))
    return setup, a, b, rank, updates


@LAWS
@given(rounds())
def test_the_merged_adapter_is_the_best_one_for_the_mean_of_what_clients_compute(case):
    setup, a, b, rank, updates = case
    result = merged(setup, updates)
    expected = mean_of(setup, a, b, updates)
    left, values, right = np.linalg.svd(expected, full_matrices=False)
    best = (left * values)[:, :rank] @ right[:rank]
    scale = np.linalg.norm(expected)
    np.testing.assert_allclose(computed(result.model[a], result.model[b]), best, rtol=0, atol=1e-10 * scale)
    lost = np.linalg.norm(values[rank:]) / scale
    np.testing.assert_allclose(result.figures["lost_norm"], lost, rtol=0, atol=1e-10)
    # the first units of it, which small clients get, are the best adapter of their own rank
    few = (left * values)[:, :1] @ right[:1]
    first = computed(result.model[a][:1], result.model[b][:, :1])
    if len(values) == 1 or values[0] > 1.01 * values[1]:  # else there is no first one
        np.testing.assert_allclose(first, few, rtol=0, atol=1e-8 * scale)


@LAWS
@given(rounds())
def test_every_unit_can_learn_on(case):
    setup, _, _, _, updates = case
    model = merged(setup, updates).model
    a, b = (model[next(name for name in model if f"_{letter}" in name)] for letter in "AB")
    assert all(a[unit].any() or b[:, unit].any() for unit in range(len(a)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_without_training_changes_nothing_that_is_computed(kind):
    for trained in (True, False):
        setup, a, b, _ = net_of(kind, rank=4, trained=trained)
        old_a, old_b = (setup.model.state_dict()[name] for name in (a, b))
        updates = [(units, old_a[units], old_b[:, units], 5) for units in ([0], [0, 1, 2], [2, 3], [0, 1, 2, 3])]
        result = merged(setup, updates)
        np.testing.assert_allclose(computed(result.model[a], result.model[b]), computed(old_a, old_b), atol=1e-12)
        assert result.figures["lost_norm"] == pytest.approx(0, abs=1e-12)
        if not trained:  # one factor is still zero: not a bit changes
            assert torch.equal(result.model[a], old_a)
            assert torch.equal(result.model[b], old_b)


def test_the_loss_of_norm_is_reported():
    setup, _, _, rank_axis = net_of("linear", rank=2)
    random = torch.Generator().manual_seed(0)
    updates = [
        (
            [0, 1],
            torch.randn(2, INPUTS, generator=random, dtype=torch.float64),
            torch.randn(OUTPUTS, 2, generator=random, dtype=torch.float64),
            1,
        )
        for _ in range(3)
    ]
    with collect() as events:
        figures = merged(setup, updates).figures
    (event,) = events
    assert event.kind == "adapter truncated"
    assert f"{figures['lost_norm']:.2%} of its norm" in event.message
    assert rank_axis in event.message
    assert 0 < figures["lost_norm"] < 1
    with collect() as events:
        assert merged(setup, updates[:1]).figures["lost_norm"] < 1e-12
    assert not events


def test_steps_keep_their_size():
    """Clients' factor A keeps its norm, and the products' norm goes to B, where LoRA begins at zero."""
    setup, a, b, _ = net_of("linear", rank=3, trained=False)
    before = setup.model.state_dict()[a]
    update = ([0, 1, 2], before, 1e-3 * torch.ones(OUTPUTS, 3, dtype=torch.float64), 1)
    model = merged(setup, [update]).model
    assert model[a].norm() == pytest.approx(before.norm().item(), rel=0.5)
    assert model[b].norm() < 1e-2


def refused(method, *words, **settings):
    setup, *_ = net_of("linear", rank=2)
    setup = replace(setup, method=method, ratios=(0.5, 1.0), **settings)
    with pytest.raises(ConfigError) as caught:
        method.check(setup, None)
    assert "\n" not in str(caught.value)
    for word in ("cannot be merged by product", "options.merge=factors", *words):
        assert word in str(caught.value)


def test_what_is_about_single_factors_is_refused():
    refused(lora(), "server.optimizer=fedadam", server=ServerSettings(optimizer="fedadam"))
    refused(lora(), "upload.feedback", upload=Upload(format="topk", fraction=0.5, feedback=True))
    refused(lora().with_parts(MaskedLoss()), "a masked loss")


def test_feddyn_goes_with_factors_only():
    with pytest.raises(nestling.NestlingError, match="changes the model after the merge"):
        with_named_parts(lora(), "feddyn")
    assert with_named_parts(lora(merge="factors"), "feddyn").proximal == 0.1


def test_other_axes_must_stay_whole():
    net = nn.Sequential(AdaptedLinear(6, 8, rank=2), nn.ReLU(), AdaptedLinear(8, 4, rank=2))
    axes = nestling.trace(net, torch.zeros(1, 6))
    widths = Method("widths", RollingPlan(), ProductMerge())
    with pytest.raises(ConfigError, match="a plan that cuts more than ranks"):
        widths.check(setup_of(net, axes, widths, ratios=(0.5, 1.0)), None)
    lora().check(setup_of(net, axes, lora(), ratios=(0.5, 1.0)), None)


def test_a_rank_that_is_no_axis_of_both_factors_is_refused():
    class Grouped(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(4, 4).requires_grad_(False)
            self.lora_A = nn.Parameter(torch.randn(2, 4))
            self.lora_B = nn.Parameter(torch.zeros(4, 3))  # of another rank: it is padded
            self.other = AdaptedLinear(4, 4, rank=2)

        def forward(self, x):
            down = nn.functional.pad(x @ self.lora_A.T, (0, 1))
            return self.other(self.base(x) + down @ self.lora_B.T)

    net = Grouped()
    method = Method("mine", RankPlan(), ProductMerge())
    with pytest.raises(ConfigError, match="lora_A cannot be merged by product, because its rank is not an axis"):
        method.check(setup_of(net, nestling.trace(net, torch.zeros(1, 4)), method), None)


def test_a_run_records_what_was_lost():
    experiment = find("lora-digits").with_settings(["rounds=1", "data.max_samples=400"])
    result = nestling.run(experiment)
    assert 0 < result.rounds[0]["lost_norm"] < 1
    assert result.summary["events"]["adapter truncated"] >= 1
    factors = nestling.run(experiment.with_settings(["options.merge=factors"]))
    assert "lost_norm" not in factors.rounds[0]
    assert simulate(Overrides(experiment)).setup.method.extendable


def test_adapters_of_rank_one_are_merged_too():
    net = nn.Sequential(AdaptedLinear(6, 8, rank=1), nn.ReLU(), AdaptedLinear(8, 4, rank=2))
    axes = nestling.trace(net, torch.zeros(1, 6))
    setup = setup_of(net, axes, lora(), ratios=(0.5, 1.0))
    lora().check(setup, None)
    before = net.state_dict()
    who, ones = Participant(0, parse_level("a"), 1), torch.ones(8, 1)
    update = Update((who,), setup.submodel_plan(1.0), None, before | {"0.lora_B": ones}, Progress())
    round = RoundContext(setup, 1, 0.1, before, {})
    remembered = ProductMerge().received(round, update, None)
    model = ProductMerge().after_merge(round, Merged(dict(before), lambda name: before[name], remembered)).model
    torch.testing.assert_close(model["0.lora_B"] @ model["0.lora_A"], ones @ before["0.lora_A"])
