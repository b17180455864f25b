"""The rules that hold for every method (P1 to P8 of the project's notes), on every net and on random fleets."""

import math

import pytest
import torch
from hypothesis import given
from torch import nn

import nestling
from nestling import Plan, Tally, extract, submodel
from nestling.axes.dims import Leaf, leaves
from tests.cut.cut_cases import (
    DTYPES,
    FLEETS,
    LAWS,
    NETS,
    PLANS,
    RESIDUAL,
    SEEDS,
    addresses,
    case,
    constant,
    copied,
    dropped_names,
    fleet_of,
    large_plans,
    noisy,
    places,
    random_plan,
    reference_extract,
    reference_weights,
    same,
    state_of,
)
from tests.quick import mostly_slow

every_net = pytest.mark.parametrize("name", mostly_slow(NETS, quick=5))
DTYPE_LIST = [torch.float32, torch.float64, torch.bfloat16]


def merged_untrained(axes, state, fleet):
    tally = Tally(axes, state)
    for plan, weight in fleet:
        tally.add(extract(axes, plan, state), plan, weight)
    return tally.value()


# ---- P1: nothing trained, nothing changed


@every_net
@LAWS
@given(drawn=FLEETS, dtype=DTYPES)
def test_p1_identity(name, drawn, dtype):
    it = case(name)
    state = state_of(it, dtype)
    assert same(merged_untrained(it.axes, state, fleet_of(it.axes, drawn)), state) is None


@pytest.mark.parametrize("dtype", DTYPE_LIST)
@pytest.mark.parametrize("weight", ["equal", "fractional", "wild"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "fused-view", "joined", "tied"])
def test_p1_identity_with_more_different_plans_than_are_kept_apart(name, weight, dtype):
    it = case(name)
    state = state_of(it, dtype)
    choose = {"equal": lambda k: 1.0, "fractional": lambda k: 1 / (k + 3), "wild": lambda k: (1e-3, 1e6, 7)[k % 3]}
    fleet = [(plan, choose[weight](k)) for k, plan in enumerate(large_plans(it.axes, 40))]
    assert same(merged_untrained(it.axes, state, fleet), state) is None


@pytest.mark.parametrize("dtype", DTYPE_LIST)
@pytest.mark.parametrize("values", [0.0, -0.0, 1e-30, 3e38, -1 / 3])
def test_p1_identity_of_values_at_the_edges(values, dtype):
    it = case("flatten")
    state = constant(state_of(it, dtype), values)
    fleet = [(random_plan(it.axes, seed), weight) for seed, weight in enumerate([1e6, 1e-3, 0.1, 0.2, 0.7, 3])]
    assert same(merged_untrained(it.axes, state, fleet), state) is None


TOGETHER = {
    "one plan": lambda axes: [nestling.plan(axes, 0.5)] * 2,
    "whole": lambda axes: [Plan()] * 2,
    "nested": lambda axes: [nestling.plan(axes, 0.9), nestling.plan(axes, 0.5)],
    "crossed": lambda axes: [
        Plan({"linear1": [0, 2], "linear2": [0, 1]}),
        Plan({"linear1": [0, 1], "linear2": [1, 3]}),
    ],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weights", [(1e308, 1e308), (1e-320, 1e-320), (5e-324, 5e-324), (1e300, 1e-300)], ids=str)
@pytest.mark.parametrize("together", TOGETHER)
def test_p1_identity_with_weights_at_the_edges_of_what_is_accepted(together, weights, dtype):
    """A weight that `add` takes must not spoil the model, whether or not a sum of weights still has a number."""
    it = case("mlp")
    state = state_of(it, dtype)
    try:
        merged = merged_untrained(it.axes, state, list(zip(TOGETHER[together](it.axes), weights, strict=True)))
    except nestling.NestlingError:
        return  # refusing such a weight is as good
    assert same(merged, state) is None


# ---- P2: constants give their weighted mean wherever they overlap


@every_net
@LAWS
@given(drawn=FLEETS, seed=SEEDS)
def test_p2_weighted_mean_of_constants(name, drawn, seed):
    it = case(name)
    state = state_of(it, torch.float64)
    fleet = fleet_of(it.axes, drawn)
    values = torch.randn(len(fleet), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()
    tally = Tally(it.axes, state)
    for (plan, weight), value in zip(fleet, values, strict=True):
        tally.add(constant(extract(it.axes, plan, state), value), plan, weight)
    weights = reference_weights(it.axes, [(plan, weight, None) for plan, weight in fleet])
    products = reference_weights(
        it.axes, [(plan, weight * value, None) for (plan, weight), value in zip(fleet, values, strict=True)]
    )
    for key, tensor in tally.value().items():
        if tensor.is_floating_point():
            held = torch.as_tensor(weights[key] > 0)
            wanted = torch.as_tensor(products[key])[held] / torch.as_tensor(weights[key])[held]
            torch.testing.assert_close(tensor[held], wanted, rtol=1e-12, atol=1e-12)
            assert torch.equal(tensor[~held], state[key][~held])  # P8 on the way


def test_p2_by_hand():
    net = nn.Sequential(nn.Linear(2, 4, bias=False), nn.Linear(4, 1, bias=False)).double()
    axes = nestling.trace(net, torch.zeros(1, 2, dtype=torch.float64))
    (axis,) = axes.axes
    tally = Tally(axes, constant(net.state_dict(), 100.0))
    for kept, value, weight in (([0, 1], 1.0, 1.0), ([1, 2], 4.0, 2.0)):
        plan = Plan({axis: kept})
        tally.add(constant(extract(axes, plan, net.state_dict()), value), plan, weight)
    assert tally.value()["0.weight"][:, 0].tolist() == [1.0, 3.0, 4.0, 100.0]
    assert tally.value()["1.weight"].tolist() == [[1.0, 3.0, 4.0, 100.0]]
    assert tally.weights("1.weight").tolist() == [[1.0, 3.0, 2.0, 0.0]]


# ---- P3: every tensor is the aligned slice, and slices compute what the whole would


@every_net
@LAWS
@given(which=PLANS, dtype=DTYPES)
def test_p3_extract_is_plain_indexing(name, which, dtype):
    it = case(name)
    plan, state = random_plan(it.axes, *which), state_of(it, dtype)
    small = extract(it.axes, plan, state)
    assert same(small, reference_extract(it.axes, plan, state)) is None
    assert all(tensor.is_contiguous() for tensor in small.values())
    assert not addresses(small) & addresses(state)


@every_net
@LAWS
@given(which=PLANS)
def test_p3_submodel_holds_what_extract_gives(name, which):
    it = case(name)
    plan = random_plan(it.axes, *which)
    small = submodel(it.model, it.axes, plan)
    assert same(small.state_dict(), extract(it.axes, plan, it.model.state_dict())) is None


@every_net
@pytest.mark.parametrize("training", [False, True])
def test_p3_full_submodel_is_the_same_function(name, training):
    it = case(name)
    whole = submodel(it.model, it.axes, Plan()).train(training)
    other = submodel(it.model, it.axes, nestling.plan(it.axes, width=1.0)).train(training)
    outputs = []
    for net in (whole, other, submodel(it.model, it.axes, Plan()).train(training)):
        torch.manual_seed(3)  # for dropout
        outputs.append(net(it.example))
    torch.manual_seed(3)
    copy = nestling.axes.skeleton.copy_with(it.model, lambda _, old: old.detach().clone()).train(training)
    assert torch.equal(outputs[0], copy(it.example))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def zero_filled(axes, plan, state):
    """The whole model's state with nothing but the slice in it."""
    filled = {}
    kept = {axis: [i for start, stop in runs for i in range(start, stop)] for axis, runs in plan.runs.items()}
    for name, dims in axes.dims.items():
        mask = torch.ones(dims.shape, dtype=torch.bool)
        for place, dim in enumerate(dims):
            inside = torch.zeros(dim.size, dtype=torch.bool)
            inside[places(dim, kept)] = True
            mask &= inside.view([-1 if k == place else 1 for k in range(len(dims))])
        filled[name] = torch.where(mask, state[name], torch.zeros_like(state[name]))
        if name.endswith("running_var"):
            filled[name] = torch.where(mask, state[name], torch.ones_like(state[name]))
    return filled


SCALED = (
    "attention",
    "fused-view",
    "fused-chunk",
    "groupnorm",
    "vit-tiny",
    "vit-b16",
    "transformer-mlm",
    "transformer-nwp",
)


@every_net
@LAWS
@given(which=PLANS)
def test_p3_a_slice_computes_what_the_whole_computes_when_the_rest_is_silent(name, which):
    """Units whose weights are all zero say nothing, so the whole model with only the slice in it is the slice.

    Layer norms and the scale of attention look at how many units there are: there, only heads and hidden units of
    the feed-forward parts are cut.
    """
    it = case(name)
    plan = random_plan(it.axes, *which, blocks=False)
    if name in SCALED:
        free = {axis: kept for axis, kept in plan.runs.items() if axis.endswith(("heads", ".up"))}
        if name == "attention" or name == "groupnorm":  # the stream itself is made of heads (groups)
            free = {axis: kept for axis, kept in plan.runs.items() if axis.endswith("groups")}
        plan = Plan({axis: [i for run in runs for i in range(*run)] for axis, runs in free.items()})
    model = submodel(it.model, it.axes, Plan()).double()
    x = it.example.double() if it.example.is_floating_point() else it.example
    small = submodel(model, it.axes, plan)
    given_by_slice = small(x)
    model.load_state_dict(zero_filled(it.axes, plan, model.state_dict()))
    torch.testing.assert_close(model(x), given_by_slice, rtol=1e-10, atol=1e-10)


# ---- P4: what is added shares one index list


def outer_leaf(axes, name, place):
    (leaf,) = leaves(axes.dims[name][place])
    return leaf


@pytest.mark.parametrize("name", [n for n in RESIDUAL if "resnet" in n])
def test_p4_one_axis_per_residual_stream(name):
    it = case(name)
    last = "conv3" if name.startswith("wide") else "conv2"
    streams = {}
    for key in it.axes.dims:
        parts = key.split(".")
        if parts[0] == "stages" and parts[-1] == "weight" and it.axes.dims[key].__len__() == 4:
            out = parts[-2] == last or "skip" in parts
            if out:
                streams.setdefault(parts[1], set()).add(outer_leaf(it.axes, key, 0).name)
            if parts[-2] == "conv1" and parts[2] != "0":  # what later blocks read is the stream too
                streams.setdefault(parts[1], set()).add(outer_leaf(it.axes, key, 1).name)
    assert len(streams) == len(it.model.stages)
    assert all(len(actual) == 1 for actual in streams.values()), streams
    if name not in ("resnet8", "wide-resnet101-2"):  # their first blocks project, so the stem has its own stream
        stem = next(key for key in it.axes.dims if key.startswith("stem") and key.endswith("weight"))
        assert streams["0"] == {outer_leaf(it.axes, stem, 0).name}


@pytest.mark.parametrize("name", [n for n in RESIDUAL if "vit" in n or "transformer" in n])
def test_p4_one_axis_for_the_stream_of_a_transformer(name):
    it = case(name)
    stream = set()
    for key, dims in it.axes.dims.items():
        if key.endswith(("token.weight", "position.weight")) or (".q.weight" in key or ".up.weight" in key):
            stream.add(str(dims[1]))
        if key.endswith((".o.weight", ".down.weight", ".o.bias", ".down.bias")) or ("blocks" in key and "norm" in key):
            stream.add(str(dims[0]))
    assert len(stream) == 1
    assert next(iter(stream)) in it.axes.axes


@every_net
def test_p4_only_axes_of_one_size_share_a_name(name):
    it = case(name)
    for dims in it.axes.dims.values():
        for dim in dims:
            for leaf in leaves(dim):
                assert isinstance(leaf, Leaf)
                assert it.axes.table[leaf.name].size == leaf.size


# ---- P5: rolling windows are fair


@pytest.mark.parametrize("width", [0.05, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("step", [1, 3, 7, 11])
def test_p5_every_unit_is_held_equally_often_over_a_period(width, step):
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 13), nn.Linear(13, 2))
    axes = nestling.trace(net, torch.zeros(1, 3))
    assert sorted(axes.axes.values()) == [8, 10, 13]
    period = math.lcm(8, 10, 13)
    for first in (0, 5):
        held = {name: torch.zeros(size, dtype=torch.long) for name, size in axes.axes.items()}
        for turn in range(first, first + period):
            plan = nestling.plan(axes, width, "rolling", round=turn, step=step)
            for name, counts in held.items():
                counts[plan.index(name) if name in plan.runs else slice(None)] += 1
        for name, counts in held.items():
            size = axes.axes[name]
            assert counts.tolist() == [period * math.ceil(width * size) // size] * size, name


def test_p5_the_weights_of_the_merge_are_fair_too():
    it = case("flatten")
    period = math.lcm(*it.axes.axes.values())
    tally = Tally(it.axes, it.model.state_dict())
    for turn in range(period):
        plan = nestling.plan(it.axes, 0.5, "rolling", round=turn)
        tally.add(extract(it.axes, plan, it.model.state_dict()), plan)
    for name in ("0.weight", "0.bias", "3.bias", "5.weight"):
        weights = tally.weights(name)
        assert weights.min() == weights.max() > 0, name
    # rows and columns of axes whose sizes are coprime meet equally often as well
    assert math.gcd(*it.axes.axes.values()) == 1
    assert tally.weights("3.weight").unique().numel() == 1


def test_p5_the_window_moves_forward_by_its_step():
    it = case("flatten")
    axis = "model.0"
    for turn in range(14):
        plan = nestling.plan(it.axes, 0.5, "rolling", round=turn, step=2)
        assert plan.index(axis).tolist() == sorted((2 * turn + k) % 6 for k in range(3))


# ---- P6: sizes are closed forms; a dropped block is not stored, sent or computed


@every_net
@LAWS
@given(which=PLANS)
def test_p6_size_is_the_product_of_what_is_kept(name, which):
    it = case(name)
    plan = random_plan(it.axes, *which)
    kept = {axis: sum(stop - start for start, stop in runs) for axis, runs in plan.runs.items()}

    def count(dim):
        if isinstance(dim, Leaf):
            return kept.get(dim.name, dim.size)
        if not hasattr(dim, "parts"):
            return dim.size
        sizes = [count(part) for part in dim.parts]
        return math.prod(sizes) if type(dim).__name__ == "Product" else sum(sizes)

    gone = dropped_names(it.axes, plan)
    small = submodel(it.model, it.axes, plan)
    wanted = {key: tuple(map(count, dims)) for key, dims in it.axes.dims.items() if key not in gone}
    assert {key: tuple(tensor.shape) for key, tensor in small.state_dict().items()} == wanted
    parameters = {key for key, _ in it.model.named_parameters()}
    expected = sum(math.prod(shape) for key, shape in wanted.items() if key in parameters)
    assert sum(parameter.numel() for parameter in small.parameters()) == expected


def calls(model, x):
    """The names of the modules with weights that a forward pass runs."""
    seen = []
    handles = [
        module.register_forward_hook(lambda _m, _a, _o, path=path: seen.append(path))
        for path, module in model.named_modules()
        if list(module.parameters(recurse=False))
    ]
    model(x)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("name", [*RESIDUAL, "steps"])
@LAWS
@given(seed=SEEDS)
def test_p6_a_dropped_block_is_neither_stored_nor_run(name, seed):
    it = case(name)
    keep = [block for k, block in enumerate(it.axes.blocks) if seed >> k & 1]
    plan = Plan(blocks=keep)
    gone = dropped_names(it.axes, plan)
    assert len(keep) == len(it.axes.blocks) or gone
    small = submodel(it.model, it.axes, plan)
    assert not gone & set(small.state_dict())
    whole_calls = calls(it.model, it.example)
    owners = {key.rpartition(".")[0] for key in it.axes.dims if key not in gone}
    assert calls(small, it.example) == [path for path in whole_calls if path in owners]


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("name", ["steps", "resnet18"])
def test_p6_blocks_do_not_depend_on_the_batch_of_the_example(name, batch):
    it = case(name)
    x = it.example[:1].expand(batch, *it.example.shape[1:])
    assert dict(nestling.trace(it.model, x).blocks) == dict(it.axes.blocks) != {}


# ---- P7: everything is merged


@every_net
@LAWS
@given(drawn=FLEETS)
def test_p7_every_coordinate_that_a_client_holds_gets_its_weight(name, drawn):
    it = case(name)
    state = state_of(it)
    tally = Tally(it.axes, state)
    fleet = fleet_of(it.axes, drawn)
    for plan, weight in fleet:
        tally.add(extract(it.axes, plan, state), plan, weight)
    wanted = reference_weights(it.axes, [(plan, weight, None) for plan, weight in fleet])
    for key in state:
        if state[key].is_floating_point():
            actual = tally.weights(key)
            assert actual.dtype == torch.float64
            torch.testing.assert_close(actual, torch.as_tensor(wanted[key]), rtol=1e-12, atol=0)
    assert tally.clients == len(fleet)


@pytest.mark.parametrize("name", mostly_slow(NETS, quick=5))
def test_p7_nothing_of_a_full_client_is_left_behind(name):
    """Special rows, biases, norm parameters, step sizes, statistics: all of it moves."""
    it = case(name)
    state = state_of(it)
    tally = Tally(it.axes, state)
    update = noisy(state, 3)
    if name == "tied":
        update["head.weight"] = update["token.weight"]
    tally.add(update, Plan())
    assert same(tally.value(), update) is None


def test_p7_the_mask_row_and_the_padding_row_are_merged():
    it = case("transformer-mlm")
    plan = nestling.plan(it.axes, 0.5)
    state = state_of(it)
    tally = Tally(it.axes, state)
    tally.add(constant(extract(it.axes, plan, state), 2.0), plan)
    merged = tally.value()
    assert merged["token.weight"].shape[0] == 21
    assert (merged["token.weight"][20, :4] == 2).all()
    assert torch.equal(merged["token.weight"][20, 4:], state["token.weight"][20, 4:])
    assert (merged["position.weight"][:, :4] == 2).all()


# ---- P8: what nobody held keeps its value


@every_net
@LAWS
@given(drawn=FLEETS, dtype=DTYPES)
def test_p8_untouched_coordinates_keep_their_bits(name, drawn, dtype):
    it = case(name)
    state = state_of(it, dtype)
    fleet = fleet_of(it.axes, drawn)
    tally = Tally(it.axes, state)
    for k, (plan, weight) in enumerate(fleet):
        tally.add(noisy(extract(it.axes, plan, state), k), plan, weight)
    merged = tally.value()
    weights = reference_weights(it.axes, [(plan, weight, None) for plan, weight in fleet])
    for key, tensor in merged.items():
        held = torch.as_tensor(weights[key] > 0)
        assert tensor.dtype == state[key].dtype
        assert torch.equal(tensor[~held], state[key][~held]), key


@pytest.mark.parametrize("name", RESIDUAL)
def test_p8_a_round_in_which_nobody_trains_the_deepest_blocks(name):
    it = case(name)
    state = state_of(it)
    blocks = list(it.axes.blocks)
    first, deepest = blocks[: len(blocks) // 2], blocks[len(blocks) // 2 :]
    tally = Tally(it.axes, state)
    for seed, width in enumerate((1.0, 0.5, 0.5)):
        plan = nestling.plan(it.axes, width, blocks=first)
        tally.add(noisy(extract(it.axes, plan, state), seed), plan)
    merged = tally.value()
    for block in deepest:
        for key in it.axes.blocks[block]:
            assert torch.equal(merged[key], state[key]), key
    for block in first:
        for key in it.axes.blocks[block]:
            assert not torch.equal(merged[key], state[key]), key


def test_p8_a_merge_of_nobody_is_the_old_model():
    it = case("resnet18")
    state = state_of(it)
    tally = Tally(it.axes, state)
    assert same(tally.value(), state) is None
    assert not addresses(tally.value()) & addresses(state)
    assert all(not tally.weights(key).any() for key in state)


def test_p8_a_value_that_is_not_finite_and_that_nobody_holds_stays():
    """A merge may not turn what it leaves alone into something else, not even what is already broken."""
    it = case("mlp")
    state = copied(state_of(it))
    state["linear1.weight"][5] = float("inf")
    plan = Plan({"linear1": [0, 1]})
    tally = Tally(it.axes, state)
    tally.add(constant(extract(it.axes, plan, state), 1.0), plan)
    assert tally.value()["linear1.weight"][5].eq(float("inf")).all()
    assert tally.value()["linear1.weight"][:2].eq(1).all()
