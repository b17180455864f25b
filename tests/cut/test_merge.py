"""`Tally` against a dense reference, and what it promises about order, memory, dtypes and what it is given."""

import functools
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import nestling
from nestling import Plan, Tally, extract
from nestling.axes.dims import leaves
from tests.cut.cut_cases import (
    DTYPES,
    FLEETS,
    LAWS,
    NETS,
    PLANS,
    SEEDS,
    ULP,
    GatedStep,
    Step,
    addresses,
    assert_close,
    case,
    constant,
    copied,
    fleet_of,
    large_plans,
    noisy,
    random_plan,
    reference_merge,
    same,
    shared_steps,
    some_units,
    state_of,
    tallied,
    updates_of,
)
from tests.quick import mostly_slow

every_net = pytest.mark.parametrize("name", mostly_slow(NETS, quick=5))


# ---- against the reference


@every_net
@LAWS
@given(drawn=FLEETS, dtype=DTYPES)
def test_merge_is_the_dense_weighted_mean(name, drawn, dtype):
    it = case(name)
    state = state_of(it, dtype)
    updates = updates_of(it.axes, state, fleet_of(it.axes, drawn))
    actual = tallied(it.axes, state, updates).value()
    assert_close(actual, reference_merge(it.axes, state, updates), dtype, ulps=12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["cnn", "joined", "fused-chunk", "tied", "lstm2"])
def test_merge_of_more_different_plans_than_are_kept_apart(name, dtype):
    it = case(name)
    state = state_of(it, dtype)
    fleet = [(plan, 1 + k % 5) for k, plan in enumerate(large_plans(it.axes, 30))]
    updates = updates_of(it.axes, state, fleet)
    actual = tallied(it.axes, state, updates).value()
    assert_close(actual, reference_merge(it.axes, state, updates), dtype)


@pytest.mark.parametrize("name", ["cnn", "resnet18", "transformer-mlm", "attention", "gru"])
@LAWS
@given(seed=SEEDS, counts=st.lists(st.sampled_from([1.0, 0.5, 0.25]), min_size=1, max_size=8))
def test_merge_of_levels(name, seed, counts):
    """Prefixes of a few levels: the common case, which may take a shorter way through the code."""
    it = case(name)
    state = state_of(it, torch.float64, seed)
    fleet = [(nestling.plan(it.axes, width), 1 + k % 3) for k, width in enumerate(counts)]
    updates = updates_of(it.axes, state, fleet)
    assert_close(
        tallied(it.axes, state, updates).value(), reference_merge(it.axes, state, updates), torch.float64, ulps=12
    )


@pytest.mark.parametrize("name", mostly_slow(NETS, quick=5))
def test_full_plans_are_fedavg(name):
    it = case(name)
    state = state_of(it)
    weights = [600, 1, 37.5, 0.25]
    updates = updates_of(it.axes, state, [(Plan(), weight) for weight in weights])
    actual = tallied(it.axes, state, updates).value()
    for key, tensor in actual.items():
        if tensor.is_floating_point():
            mean = sum(w * u[key].double() for (u, *_), w in zip(updates, weights, strict=True)) / sum(weights)
            torch.testing.assert_close(tensor, mean.float(), rtol=3e-7, atol=1e-6)


def test_many_clients_of_one_plan():
    """A thousand clients: the mean must not drift away as a running mean in single precision could."""
    it = case("mlp")
    state = state_of(it)
    tally, total = Tally(it.axes, state), {}
    for k in range(1000):
        update = {name: tensor + 0.01 * (k % 7) for name, tensor in state.items()}
        tally.add(update, Plan(), 1 + k % 3)
        for name, tensor in update.items():
            total[name] = total.get(name, 0) + tensor.double() * (1 + k % 3)
    weight = sum(1 + k % 3 for k in range(1000))
    for name, tensor in tally.value().items():
        torch.testing.assert_close(tensor.double(), total[name] / weight, rtol=0, atol=64 * ULP[torch.float32])


# ---- order, streaming, memory


@every_net
@LAWS
@given(drawn=FLEETS, seed=SEEDS)
def test_order_does_not_matter(name, drawn, seed):
    it = case(name)
    for dtype, ulps in ((torch.float64, 0), (torch.float32, 12)):
        state = state_of(it, dtype)
        updates = updates_of(it.axes, state, fleet_of(it.axes, drawn))
        one = tallied(it.axes, state, updates).value()
        random.Random(seed).shuffle(updates)
        other = tallied(it.axes, state, updates).value()
        if ulps:
            assert_close(one, other, dtype, ulps)
        else:
            for key, tensor in one.items():
                torch.testing.assert_close(tensor, other[key], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", mostly_slow(["cnn", "joined", "tied", "resnet18"], quick=2))
def test_value_may_be_asked_for_at_any_time(name, dtype):
    it = case(name)
    state = state_of(it, dtype)
    updates = updates_of(it.axes, state, [(random_plan(it.axes, seed), 0.5 + seed) for seed in range(12)])
    tally = Tally(it.axes, state)
    for k, update in enumerate(updates):
        tally.add(*update)
        first, weights = copied(tally.value()), {key: tally.weights(key) for key in state}
        assert same(tally.value(), first) is None
        assert all(torch.equal(tally.weights(key), old) for key, old in weights.items())
        assert same(tallied(it.axes, state, updates[: k + 1]).value(), first) is None


@every_net
@LAWS
@given(drawn=st.lists(FLEETS, min_size=2, max_size=3), dtype=DTYPES)
def test_restart_gives_the_numbers_of_a_new_tally(name, drawn, dtype):
    it = case(name)
    tally = None
    for k, fleet in enumerate(drawn):
        state = state_of(it, dtype, seed=k + 5)  # every round starts from another model
        updates = updates_of(it.axes, state, fleet_of(it.axes, fleet))
        if tally is None:
            tally = Tally(it.axes, state)
        else:
            tally.restart(state)
            assert tally.clients == 0
            assert same(tally.value(), state) is None
            assert not any(tally.weights(key).any() for key in state)
        tallied(it.axes, state, updates, tally)
        assert same(tally.value(), tallied(it.axes, state, updates).value()) is None
        assert tally.clients == len(updates)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["cnn", "mlp", "fused-view"])
def test_restart_after_a_crowded_round(name, dtype):
    """Rounds that go beyond what is kept apart, and clients that touched a part, each from a new model."""
    it = case(name)
    tally = None
    for turn in range(3):
        state = state_of(it, dtype, seed=turn)
        fleet = [(plan, 1 + k % 2) for k, plan in enumerate(large_plans(it.axes, 20))]
        updates = updates_of(it.axes, state, fleet, functools.partial(some_units, it.axes))
        if tally is None:
            tally = Tally(it.axes, state)
        else:
            tally.restart(state)
        actual = tallied(it.axes, state, updates, tally).value()
        assert_close(actual, reference_merge(it.axes, state, updates), dtype)


def test_restart_with_a_model_of_another_dtype():
    it = case("mlp")
    tally = Tally(it.axes, state_of(it))
    tally.add(state_of(it), Plan())
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        state = state_of(it, dtype, seed=9)
        tally.restart(state)
        tally.add(state, Plan())
        assert same(tally.value(), state) is None


class NewMemory(TorchDispatchMode):
    """Counts the bytes of all tensors that operations make."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in known:
                self.bytes += tensor.nbytes
        return out


def test_restart_needs_no_new_memory():
    it = case("resnet18")
    state = state_of(it)
    fleet = [(nestling.plan(it.axes, width), 1.0) for width in (1.0, 0.5, 0.25)]
    updates = updates_of(it.axes, state, fleet)
    size = sum(tensor.nbytes for tensor in state.values())
    tally, taken = Tally(it.axes, state), []
    for _ in range(3):
        tally.restart(state)
        with NewMemory() as new:
            tallied(it.axes, state, updates, tally)
        taken.append(new.bytes)
    assert taken[0] > size  # the first round needs its rooms, the next ones use them again
    assert max(taken[1:]) < 0.2 * size


def test_a_refused_restart_changes_nothing():
    it = case("mlp")
    state = state_of(it)
    tally = tallied(it.axes, state, updates_of(it.axes, state, [(Plan(), 1.0)]))
    before = copied(tally.value())
    with pytest.raises(nestling.NestlingError):
        tally.restart({"linear1.weight": torch.zeros(1)})
    assert same(tally.value(), before) is None
    assert tally.clients == 1


# ---- touched: less trained than received


@every_net
@LAWS
@given(drawn=FLEETS, dtype=DTYPES)
def test_touched_part_is_merged_and_nothing_else(name, drawn, dtype):
    it = case(name)
    state = state_of(it, dtype)
    updates = updates_of(it.axes, state, fleet_of(it.axes, drawn), functools.partial(some_units, it.axes))
    actual = tallied(it.axes, state, updates).value()
    assert_close(actual, reference_merge(it.axes, state, updates), dtype, ulps=12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1.0, 0.5])
def test_only_the_class_rows_that_a_client_owns_change(width, dtype):
    it = case("cnn")
    state = state_of(it, dtype)
    plan = nestling.plan(it.axes, width)
    classes = [1, 2, 7]
    tally = Tally(it.axes, state)
    tally.add(constant(extract(it.axes, plan, state), 5.0), plan, 3.0, touched=Plan({"head": classes}))
    merged = tally.value()
    rest = [k for k in range(10) if k not in classes]
    kept = 8 if width == 1 else 4
    torch.testing.assert_close(merged["head.weight"][classes][:, :kept], torch.full((3, kept), 5.0, dtype=dtype))
    torch.testing.assert_close(merged["head.bias"][classes], torch.full((3,), 5.0, dtype=dtype))
    assert torch.equal(merged["head.weight"][rest], state["head.weight"][rest])
    assert torch.equal(merged["head.bias"][rest], state["head.bias"][rest])
    assert torch.equal(merged["head.weight"][:, kept:], state["head.weight"][:, kept:])
    assert (merged["blocks.3.norm.weight"][:kept] == 5).all()
    assert tally.weights("head.bias").tolist() == [3.0 if k in classes else 0.0 for k in range(10)]


def test_clients_of_one_plan_that_touched_different_parts():
    """FjORD narrows per batch and masked classes differ per client: same plan, other parts, in one merge."""
    it = case("mlp")
    state = state_of(it, torch.float64)
    parts = [{"linear1": [0, 2]}, {"linear2": [1]}, {"head": [3]}, {}, {"linear1": [0], "linear2": [0], "head": [9]}]
    updates = [
        (noisy(state, k), Plan(), 1.0 + k, Plan(parts[which])) for k, which in enumerate([0, 1, 2, 3, 4, 0, 1, 1, 3])
    ]
    actual = tallied(it.axes, state, updates).value()
    assert_close(actual, reference_merge(it.axes, state, updates), torch.float64)


def test_a_client_that_touched_a_part_of_every_tensor():
    it = case("mlp")
    state = state_of(it)
    touched = Plan({name: [0] for name in it.axes.table})
    tally = Tally(it.axes, state)
    for _ in range(2):
        tally.add(constant(state, 7.0), Plan(), touched=touched)
    merged = tally.value()
    assert tally.clients == 2
    assert merged["head.bias"].tolist() == [7.0, *state["head.bias"][1:].tolist()]
    moved = merged["linear1.weight"] != state["linear1.weight"]
    assert merged["linear1.weight"][0, 0] == 7
    assert moved.sum() == 1


def test_touched_as_wide_as_the_plan_is_the_plan():
    it = case("cnn")
    state = state_of(it)
    plan = nestling.plan(it.axes, 0.5)
    update = noisy(extract(it.axes, plan, state), 0)
    one, other = Tally(it.axes, state), Tally(it.axes, state)
    one.add(update, plan, 2.0)
    other.add(update, plan, 2.0, touched=plan)
    assert same(one.value(), other.value()) is None
    assert all(torch.equal(one.weights(key), other.weights(key)) for key in state if state[key].is_floating_point())


def test_blocks_that_were_not_touched_are_not_merged():
    """`touched` is a plan, and a plan names blocks: it may be refused, but not half read."""
    it = case("resnet18")
    state = state_of(it)
    first, *rest = it.axes.blocks
    tally = Tally(it.axes, state)
    try:
        tally.add(constant(state, 5.0), Plan(), touched=Plan(blocks=[first]))
    except nestling.NestlingError:
        assert same(tally.value(), state) is None
        return
    merged = tally.value()
    for block in rest:
        for key in it.axes.blocks[block]:
            assert torch.equal(merged[key], state[key]), key


# ---- what is not an ordinary parameter


def test_counters_take_the_largest_value_and_statistics_the_mean():
    it = case("cnn")
    state = state_of(it)
    tally = Tally(it.axes, state)
    counter, statistic = "blocks.0.norm.num_batches_tracked", "blocks.0.norm.running_mean"
    for count, value, weight in ((7, 1.0, 1), (5, 4.0, 2)):
        update = constant(state, value)
        update[counter] = torch.tensor(count)
        tally.add(update, Plan(), weight)
    merged = tally.value()
    assert merged[counter].item() == 7
    assert merged[counter].dtype == torch.int64
    torch.testing.assert_close(merged[statistic], torch.full_like(state[statistic], 3.0))
    torch.testing.assert_close(merged[statistic.replace("mean", "var")], torch.full_like(state[statistic], 3.0))


def test_a_counter_that_nobody_returned_keeps_its_value():
    it = case("resnet18")
    state = state_of(it)
    blocks = list(it.axes.blocks)
    plan = Plan(blocks=blocks[:-1])
    tally = Tally(it.axes, state)
    tally.add(extract(it.axes, plan, state), plan)
    keys = [key for key in it.axes.blocks[blocks[-1]] if key.endswith("num_batches_tracked")]
    assert keys
    assert all(torch.equal(tally.value()[key], state[key]) for key in keys)


def test_boolean_buffers_are_kept():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    net.register_buffer("seen", torch.tensor([True, False, False]))
    axes = nestling.trace(net, torch.zeros(1, 3))
    tally = Tally(axes, net.state_dict())
    for flags in ([False, True, False], [False, False, False]):
        tally.add(net.state_dict() | {"seen": torch.tensor(flags)}, Plan())
    assert tally.value()["seen"].tolist() == [False, True, False]


def test_complex_parameters_are_averaged_or_refused():
    class Waves(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
            self.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))

        def forward(self, x):
            return (self.head(self.enter(x).relu()) * self.phase).real

    net = Waves()
    axes = nestling.trace(net, torch.zeros(1, 3))
    try:
        tally = Tally(axes, net.state_dict())
        for value in (1 + 1j, 3 - 1j):
            tally.add(net.state_dict() | {"phase": torch.full((2,), value, dtype=torch.complex64)}, Plan())
    except nestling.NestlingError:
        return
    assert tally.value()["phase"].tolist() == [2 + 0j, 2 + 0j]


# ---- tied weights


@pytest.mark.parametrize("alias", [True, False])
@pytest.mark.parametrize("width", [1.0, 0.5])
def test_tied_weights_are_one_tensor(alias, width):
    it = case("tied")
    assert dict(it.axes.tied) == {"head.weight": "token.weight"}
    state = copied(it.model.state_dict())
    if not alias:
        del state["head.weight"]
    plan = nestling.plan(it.axes, width)
    small = extract(it.axes, plan, state)
    assert small["head.weight"] is small["token.weight"]
    update = constant(small, 3.0)
    update["head.weight"] = update["token.weight"]
    if not alias:
        del update["head.weight"]
    tally = Tally(it.axes, state)
    tally.add(update, plan)
    tally.add(update, plan)
    merged = tally.value()
    assert merged["head.weight"] is merged["token.weight"]
    kept = small["token.weight"].shape[1]
    assert (merged["token.weight"][:, :kept] == 3).all()
    assert torch.equal(merged["token.weight"][:, kept:], state["token.weight"][:, kept:])
    assert torch.equal(tally.weights("head.weight"), tally.weights("token.weight"))
    assert tally.weights("token.weight").max() == 2


def test_tied_class_rows_can_be_touched():
    it = case("tied")
    frozen = next(name for name in it.axes.frozen if it.axes.table[name].size == 11)
    state = state_of(it)
    tally = Tally(it.axes, state)
    tally.add(constant(state, 3.0), Plan(), touched=Plan({frozen: [2, 4]}))
    merged = tally.value()
    assert (merged["token.weight"][[2, 4]] == 3).all()
    rest = [k for k in range(11) if k not in (2, 4)]
    assert torch.equal(merged["head.weight"][rest], state["head.weight"][rest])


def sharing(kind, drop, width=0.5):
    """A net whose blocks 1 and 2 share matrices, its map, and a plan without the block `drop`."""
    torch.manual_seed(0)
    net = shared_steps(kind)
    axes = nestling.trace(net, torch.zeros(2, 5))
    assert set(axes.blocks) == {"1", "2", "3"}
    return axes, copied(net.state_dict()), nestling.plan(axes, width, blocks=[b for b in axes.blocks if b != drop])


@pytest.mark.parametrize("drop", ["1", "2"])
@pytest.mark.parametrize("kind", [Step, GatedStep])
def test_a_block_that_shares_its_weights_with_a_dropped_one_is_merged(kind, drop):
    """As in ALBERT: the matrices stay as long as one of the blocks that use them does."""
    axes, state, plan = sharing(kind, drop)
    tally = Tally(axes, state)
    tally.add(constant(extract(axes, plan, state), 9.0), plan)
    merged = tally.value()
    assert merged["1.up.weight"] is merged["2.up.weight"]
    assert (merged["1.up.weight"][:3, :4] == 9).all()
    assert torch.equal(merged["2.up.weight"][3:], state["2.up.weight"][3:])
    assert tally.weights("2.up.weight").sum() == 12
    assert torch.equal(merged[f"{drop}.up.bias"], state[f"{drop}.up.bias"])


def test_what_was_touched_of_weights_shared_with_a_dropped_block():
    axes, state, plan = sharing(Step, "1", width=1.0)
    (hidden,) = {leaf.name for leaf in leaves(axes.dims["2.up.weight"][0])}
    tally = Tally(axes, state)
    tally.add(constant(extract(axes, plan, state), 9.0), plan, touched=Plan({hidden: [0]}))
    assert tally.weights("2.up.weight").tolist() == [[1.0] * 8, *[[0.0] * 8] * 5]
    assert torch.equal(tally.value()["2.up.weight"][1:], state["2.up.weight"][1:])


def test_weights_shared_with_a_dropped_block_cannot_be_left_out():
    """Their first name is gone with its block, so the other one is no mere alias any more."""
    axes, state, plan = sharing(Step, "1")
    tally = Tally(axes, state)
    update = noisy(extract(axes, plan, state), 0)
    del update["2.up.weight"]
    with pytest.raises(nestling.NestlingError, match=r"'2\.up\.weight'"):
        tally.add(update, plan)
    assert same(tally.value(), state) is None
    assert tally.clients == 0


def test_one_module_in_two_places_is_merged_when_one_place_is_dropped():
    block = Step()
    net = nn.Sequential(nn.Linear(5, 8), block, block, Step(), nn.Linear(8, 3))
    axes = nestling.trace(net, torch.zeros(2, 5))
    kept = [name for name in axes.blocks if name != "1"]
    plan = Plan(blocks=kept)
    tally = Tally(axes, net.state_dict())
    tally.add(constant(extract(axes, plan, net.state_dict()), 9.0), plan)
    assert (tally.value()["2.up.weight"] == 9).all()


# ---- what clients send, and what becomes of it


def strided(tensor):
    """The same values with gaps between them."""
    room = tensor.new_zeros([*tensor.shape, 2])
    room[..., 0] = tensor
    return room[..., 0]


LAYOUTS = {
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t,
    "transposed": lambda t: t.t().contiguous().t() if t.dim() == 2 else t,
    "strided": strided,
    "expanded": lambda t: t.flatten()[:1].expand(t.numel()).view(t.shape) if t.dim() == 1 else t,
    "parameter": lambda t: nn.Parameter(t) if t.is_floating_point() else t,
    "in a graph": lambda t: nn.Parameter(t) * 1 if t.is_floating_point() else t,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [1.0, 0.5, "random"])
def test_layout_of_client_tensors_does_not_matter(layout, width):
    it = case("cnn")
    state = state_of(it)
    plan = random_plan(it.axes, 4) if width == "random" else nestling.plan(it.axes, width)
    shaped, plain = Tally(it.axes, state), Tally(it.axes, state)
    for seed in range(3):
        update = {key: LAYOUTS[layout](tensor) for key, tensor in noisy(extract(it.axes, plan, state), seed).items()}
        shaped.add(update, plan, 1.0 + seed)
        plain.add({key: tensor.detach().contiguous() for key, tensor in update.items()}, plan, 1.0 + seed)
    merged = shaped.value()
    assert same(merged, plain.value()) is None
    assert not any(tensor.requires_grad for tensor in merged.values())


@pytest.mark.parametrize("layout", ["channels_last", "strided", "parameter"])
def test_layout_of_the_whole_model_does_not_matter(layout):
    it = case("cnn")
    state = {key: LAYOUTS[layout](tensor) for key, tensor in state_of(it).items()}
    updates = updates_of(it.axes, state, [(random_plan(it.axes, seed), 1.0 + seed) for seed in range(4)])
    actual = tallied(it.axes, state, updates).value()
    plain = {key: tensor.detach().contiguous() for key, tensor in state.items()}
    assert same(actual, tallied(it.axes, plain, updates).value()) is None


def test_extract_of_parameters_drags_no_graph_along():
    """The state may be live parameters; what is cut out of them is plain values to send."""
    it = case("cnn")
    state = it.model.state_dict(keep_vars=True)
    for plan in (Plan(), nestling.plan(it.axes, 0.5), random_plan(it.axes, 1)):
        assert not any(tensor.requires_grad for tensor in extract(it.axes, plan, state).values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("crowd", [1, 3, 24])
def test_clients_states_are_neither_kept_nor_changed(crowd, dtype):
    it = case("joined")
    state = state_of(it, dtype)
    untouched = copied(state)
    tally, plain = Tally(it.axes, state), Tally(it.axes, copied(state))
    for k, plan in enumerate(large_plans(it.axes, crowd)):
        for part in (None, Plan({"head": [0, 1]})):
            update = noisy(extract(it.axes, plan, state), k)
            before = copied(update)
            plain.add(before, plan, 3.0, part)
            tally.add(update, plan, 3.0, part)
            assert same(update, before) is None
            for tensor in update.values():
                tensor.fill_(77)  # the client goes on with its own memory
    assert same(tally.value(), plain.value()) is None
    assert same(state, untouched) is None


@pytest.mark.parametrize("crowd", [0, 1, 2, 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_result_is_nobodys_memory(crowd, dtype):
    it = case("joined")
    state = state_of(it, dtype)
    tally, given_to = Tally(it.axes, state), addresses(state)
    updates = []
    for k, plan in enumerate([Plan(), *large_plans(it.axes, crowd)][:crowd]):
        updates.append(noisy(extract(it.axes, plan, state), k))
        given_to |= addresses(updates[-1])
        tally.add(updates[-1], plan)
    first = tally.value()
    wanted = copied(first)
    assert not addresses(first) & given_to
    assert not addresses(first) & addresses(tally.value())
    for tensor in first.values():
        tensor.fill_(5)
    assert same(tally.value(), wanted) is None


def test_trusted_skips_only_the_search_for_values_that_are_not_finite():
    it = case("mlp")
    state = state_of(it)
    update = noisy(state, 0)
    one, other = Tally(it.axes, state), Tally(it.axes, state)
    one.add(update, Plan(), 2.0)
    other.add(update, Plan(), 2.0, trusted=True)
    assert same(one.value(), other.value()) is None
    broken = update | {"head.bias": torch.full((10,), float("nan"))}
    other.add(broken, Plan(), trusted=True)
    assert other.value()["head.bias"].isnan().all()
    with pytest.raises(nestling.NestlingError, match="shape"):
        other.add(update | {"head.bias": torch.zeros(3)}, Plan(), trusted=True)


@pytest.mark.parametrize("which", ["full", "levels"])
def test_merging_on_another_device(which):
    """No such device is here, but torch can act as if: mixing devices would raise (what asks for values cannot run)."""
    it = case("mlp")
    shapes = {key: tuple(tensor.shape) for key, tensor in it.model.state_dict().items()}
    plans = [nestling.plan(it.axes, 1.0 if which == "full" else width) for width in (1.0, 0.5, 0.25)]
    with FakeTensorMode():
        state = {key: torch.empty(shape, device="cuda") for key, shape in shapes.items()}
        tally = Tally(it.axes, state)
        for plan in plans:
            tally.add(extract(it.axes, plan, state), plan, trusted=True)
        assert {tensor.device.type for tensor in tally.value().values()} == {"cuda"}


@every_net
@LAWS
@given(which=PLANS)
def test_names_and_order_of_the_result_are_always_the_same(name, which):
    it = case(name)
    state, plan = state_of(it), random_plan(it.axes, *which)
    tally = Tally(it.axes, state)
    before = list(tally.value())
    tally.add(extract(it.axes, plan, state), plan)
    assert list(tally.value()) == before
    assert set(before) == set(state)
