"""Partial merges: trees of tallies are the flat merge; what comes from outside is checked before anything changes."""

import functools
import json
import random
import struct

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nestling
from nestling import Plan, Tally, extract
from nestling.cut.partial_merge import PartialMean, PartialMerge, PartialSum
from nestling.errors import NestlingError, StateError
from tests.cut.cut_cases import (
    DTYPES,
    FLEETS,
    LAWS,
    NETS,
    SEEDS,
    assert_close,
    case,
    copied,
    fleet_of,
    large_plans,
    noisy,
    same,
    some_units,
    state_of,
    tallied,
    updates_of,
)
from tests.quick import mostly_slow

every_net = pytest.mark.parametrize("name", mostly_slow(NETS, quick=2))
MANY = settings(LAWS, max_examples=200)


def tree(it, state, updates, random_, *, packed=False):
    """Merge updates by tallies of tallies: a tree of random shape whose leaves are in the order of the updates."""
    tally = Tally(it.axes, state)
    if len(updates) == 1 or random_.random() < 0.2:
        return tallied(it.axes, state, updates, tally)
    borders = sorted(random_.sample(range(1, len(updates)), random_.randint(1, min(3, len(updates) - 1))))
    for start, stop in zip([0, *borders], [*borders, len(updates)], strict=True):
        branch = tree(it, state, updates[start:stop], random_, packed=packed)
        tally.merge(PartialMerge.unpack(branch.pack()) if packed else branch)
    return tally


# ---- laws


@every_net
@LAWS
@given(drawn=FLEETS, dtype=DTYPES, seed=SEEDS, touch=st.booleans())
def test_a_tree_is_the_flat_merge(name, drawn, dtype, seed, touch):
    it = case(name)
    state = state_of(it, dtype)
    parts = (lambda plan, k: some_units(it.axes, plan, k)) if touch else None
    updates = updates_of(it.axes, state, fleet_of(it.axes, drawn), parts)
    flat = tallied(it.axes, state, updates)
    wanted = flat.value()
    for packed in (False, True):
        other = tree(it, state, updates, random.Random(seed), packed=packed)
        assert other.clients == flat.clients
        merged = other.value()
        for key, value in wanted.items():
            torch.testing.assert_close(other.weights(key), flat.weights(key), rtol=1e-12, atol=0)
            if dtype == torch.float64:
                torch.testing.assert_close(merged[key], value, rtol=1e-12, atol=1e-12)
        assert_close(merged, wanted, dtype, ulps=12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("crowd", [False, True])
@LAWS
@given(seed=SEEDS)
def test_what_nobody_changed_stays_to_the_last_bit(dtype, crowd, seed):
    """In trees of any shape, with any weights; in a crowd, slices are summed because there is no room for means."""
    it, random_ = case("joined"), random.Random(seed)
    state = state_of(it, dtype, seed)
    plans = (
        large_plans(it.axes, 30) if crowd else [nestling.plan(it.axes, 2.0 ** -random_.randrange(3)) for _ in range(9)]
    )
    updates = [(extract(it.axes, plan, state), plan, random_.uniform(1e-3, 1e3), None) for plan in plans]
    merged = tree(it, state, updates, random_, packed=True)
    assert bool(merged.partial().sums) == crowd
    assert same(merged.value(), state) is None


@every_net
@LAWS
@given(drawn=FLEETS, dtype=DTYPES, seed=SEEDS)
def test_what_nobody_held_stays_to_the_last_bit(name, drawn, dtype, seed):
    it = case(name)
    state = state_of(it, dtype)
    merged = tree(it, state, updates_of(it.axes, state, fleet_of(it.axes, drawn)), random.Random(seed), packed=True)
    for key, value in merged.value().items():
        nobody = merged.weights(key) == 0
        if value.is_floating_point():
            assert torch.equal(value[nobody], state[key][nobody])


@LAWS
@given(dtype=DTYPES, drawn=st.lists(FLEETS, min_size=3, max_size=3))
def test_merging_is_associative_up_to_last_bits(dtype, drawn):
    it = case("cnn")
    state = state_of(it, dtype)
    updates = [updates_of(it.axes, state, fleet_of(it.axes, fleet)) for fleet in drawn]

    def tallies():
        return [tallied(it.axes, state, part) for part in updates]

    a, b, c = tallies()
    a.merge(b)
    a.merge(c)
    d, e, f = tallies()
    e.merge(f)
    d.merge(e)
    left, right = a.value(), d.value()
    assert_close(left, right, dtype, ulps=12)
    if dtype == torch.float64:
        for key, value in left.items():
            torch.testing.assert_close(value, right[key], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["cnn", "tied", "fused-chunk"])
def test_the_way_of_a_partial_merge_changes_no_bit(name):
    it = case(name)
    state = state_of(it)
    fleet = [(plan, 1 + k) for k, plan in enumerate([Plan(), *large_plans(it.axes, 12)])]
    updates = updates_of(it.axes, state, fleet)
    branch = tallied(it.axes, state, updates[3:])
    one, other = (tallied(it.axes, state, updates[:3]) for _ in range(2))
    data = branch.pack()
    one.merge(branch)
    other.merge(PartialMerge.unpack(data), trusted=True)
    assert same(one.value(), other.value()) is None
    assert PartialMerge.unpack(data).pack() == data == branch.pack()
    assert len(data) < branch.partial().nbytes * 1.1 + 20_000


def test_a_merge_of_nothing_changes_nothing_and_one_of_itself_only_weights():
    it = case("cnn")
    state = state_of(it)
    updates = updates_of(it.axes, state, [(plan, 2.5) for plan in large_plans(it.axes, 12)])
    tally = tallied(it.axes, state, updates)
    before, weights = tally.value(), tally.weights("head.weight")
    tally.merge(Tally(it.axes, state))
    tally.merge(PartialMerge.unpack(Tally(it.axes, state).pack()))
    assert same(tally.value(), before) is None
    tally.merge(tally)
    assert torch.equal(tally.weights("head.weight"), 2 * weights)
    assert_close(tally.value(), before, torch.float32, ulps=2)


def test_counters_take_the_highest_value_of_all_branches():
    it = case("joined")
    state = state_of(it)
    tallies = [Tally(it.axes, state) for _ in range(3)]
    for tally, count in zip(tallies, (120, 500, 130), strict=True):
        tally.add({**state, "norm.num_batches_tracked": torch.tensor(count)}, Plan())
    for tally in tallies[1:]:
        tallies[0].merge(tally)
    assert tallies[0].value()["norm.num_batches_tracked"] == 500


def test_half_precision_is_not_rounded_on_the_way():
    """The mean of 256 and 257 is not a bfloat16; two branches of such means must not be rounded twice."""
    it = case("mlp")
    state = {name: torch.zeros_like(tensor) for name, tensor in state_of(it, torch.bfloat16).items()}
    server = Tally(it.axes, state)
    for values in ((256.0, 258.0), (258.0, 256.0)):
        edge = Tally(it.axes, state)
        for value in values:
            edge.add({name: torch.full_like(tensor, value) for name, tensor in state.items()}, Plan())
        (mean,) = PartialMerge.unpack(edge.pack()).means
        assert all(bool((tensor == 257).all()) and tensor.dtype == torch.float32 for tensor in mean.tensors.values())
        server.merge(PartialMerge.unpack(edge.pack()))
    server.add({name: torch.full_like(tensor, 257 + 1) for name, tensor in state.items()}, Plan(), 1e6)
    assert float(next(iter(server.value().values())).flatten()[0]) == 258


class Waves(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)
        self.phase = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))

    def forward(self, x):
        return (self.head(self.enter(x).relu()) * self.phase).real


def test_complex_parameters_travel():
    net = Waves()
    axes, state = nestling.trace(net, torch.zeros(1, 3)), net.state_dict()
    edge, server = Tally(axes, state), Tally(axes, state)
    for value in (1 + 1j, 3 - 1j):
        edge.add(state | {"phase": torch.full((2,), value, dtype=torch.complex64)}, Plan())
    server.merge(PartialMerge.unpack(edge.pack()))
    assert server.value()["phase"].tolist() == [2 + 0j, 2 + 0j]


def test_rows_that_nobody_held_do_not_travel():
    it = case("transformer-nwp")
    state = state_of(it)
    edge = Tally(it.axes, state)
    rows = Plan({it.axes.dims["token.weight"][0].name: [3, 4]}) if "token.weight" in it.axes.dims else None
    assert rows is not None
    edge.add(noisy(state, 1), Plan(), touched=rows)
    held = [one for one in PartialMerge.unpack(edge.pack()).sums if "token.weight" in one.totals]
    assert [one.rows.numel() * next(iter(one.totals.values())).shape[1] for one in held] == [
        2 * state["token.weight"].shape[1]
    ]


def test_changes_of_another_model_are_refused():
    it = case("cnn")
    state = state_of(it, torch.float64)
    updates = updates_of(it.axes, state, [(plan, 1.0) for plan in large_plans(it.axes, 20)])
    edge = tallied(it.axes, state, updates)
    assert edge.partial().sums
    server = Tally(it.axes, {name: tensor + 1 for name, tensor in state.items()})
    for part in (edge, PartialMerge.unpack(edge.pack())):
        with pytest.raises(StateError, match="sums changes of another model"):
            server.merge(part)


# ---- from outside


OWN = frozenset(f"norm.{name}" for name in ("weight", "bias", "running_mean", "num_batches_tracked"))


@functools.cache
def packed(name="joined", dtype=torch.float32):
    """A net, its state, and a packed partial merge with means, sums of some rows, and counters."""
    it = case(name)
    state = state_of(it, dtype)
    fleet = [(Plan(), 2.0), *((plan, 1.5) for plan in large_plans(it.axes, 9))]
    updates = updates_of(it.axes, state, fleet)
    updates.append((noisy(state, 3), Plan(), 4.0, Plan({next(iter(it.axes.axes)): [1]})))
    return it, state, tallied(it.axes, state, updates, Tally(it.axes, state, own=OWN)).pack()


def refused_or_fits(it, state, data):
    """Merge bytes into a tally that holds something: it is unchanged, or holds a finite model."""
    tally = Tally(it.axes, state, own=OWN)
    tally.add(state, Plan(key="full"))
    before, clients = copied(tally.value()), tally.clients
    try:
        tally.merge(PartialMerge.unpack(data))
    except NestlingError as problem:
        assert same(tally.value(), before) is None
        assert tally.clients == clients
        return str(problem) if "\n" not in str(problem) else pytest.fail(f"more than one line: {problem}")
    value = tally.value()
    assert value.keys() == before.keys()
    for name, tensor in value.items():
        assert (tensor.shape, tensor.dtype) == (before[name].shape, before[name].dtype)
        assert torch.isfinite(tensor).all(), name
    for own in tally.submodels().values():
        assert own.keys() == OWN
        assert all(torch.isfinite(tensor).all() for tensor in own.values())
    return ""


def parsed(data):
    (length,) = struct.unpack_from("<Q", data)
    return safetensors.torch.load(data), json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["nestling"])


def repacked(tensors, about):
    return safetensors.torch.save(
        {name: tensor.contiguous().clone() for name, tensor in tensors.items()}, {"nestling": json.dumps(about)}
    )


def test_what_is_packed_fits():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        it, state, data = packed(dtype=dtype)
        tensors, about = parsed(data)
        assert {name.partition("/")[0].rstrip("0123456789") for name in tensors} == {
            "mean",
            "own",
            "sum",
            "rows",
            "counter",
        }
        assert refused_or_fits(it, state, data) == ""
        assert refused_or_fits(it, state, repacked(tensors, about)) == ""


@MANY
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data):
    with pytest.raises(StateError, match=r"not a packed partial merge|not a partial merge packed"):
        PartialMerge.unpack(data)


@MANY
@given(seed=SEEDS, flips=st.integers(1, 5))
def test_flipped_bits_do_no_harm(seed, flips):
    it, state, data = packed()
    random_, forged = random.Random(seed), bytearray(data)
    (length,) = struct.unpack_from("<Q", data)
    for _ in range(flips):
        place = random_.randrange(length + 8) if random_.random() < 0.7 else random_.randrange(len(data))
        forged[place] ^= 1 << random_.randrange(8)
    refused_or_fits(it, state, bytes(forged))
    assert refused_or_fits(it, state, data[: random_.randrange(len(data))])


VALUES = [0.0, -1.0, 1e-300, 1e200, 1e308, 3e38, float("nan"), float("inf"), -float("inf"), 2.0**63]
ANY = [None, True, -1, 0, 1, 2**70, 1e400, "", "a/b", [], {}, [[]], {"axes": {}}, {"axes": {"x": [[0, 1]]}}, "full"]


def forge(tensors, about, random_):
    """Change one thing about a partial merge, as somebody who knows the format would."""
    names = sorted(tensors)
    name = random_.choice(names)
    tensor = tensors[name]
    match random_.randrange(9):
        case 0:
            flat = tensor.reshape(-1)
            if flat.numel():
                value = random_.choice(VALUES)
                flat[random_.randrange(flat.numel())] = (
                    value if tensor.is_floating_point() else random_.choice([-1, 0, 2**40, 7])
                )
        case 1:
            tensors[name] = tensor.to(random_.choice([torch.float16, torch.float32, torch.float64, torch.int64]))
        case 2:
            shapes = [tensor.unsqueeze(0), tensor.reshape(-1), tensor.reshape(-1)[:0], torch.zeros(()), tensor.t()]
            tensors[name] = random_.choice(shapes) if tensor.dim() < 3 else tensor.flatten(1)
        case 3:
            del tensors[name]
        case 4:
            tensors[random_.choice(names).replace("0", "1")] = tensors.pop(name)
        case 5:
            tensors[random_.choice(["mean9/x", "x", "", "rows0/x", "sum0/x", "counter/x", "mean0/", "mean0"])] = tensor
        case 6:
            about[random_.choice(sorted(about))] = random_.choice(ANY)
        case 7:
            several = about[random_.choice(["means", "submodels"])]
            several[random_.randrange(len(several))][random_.choice(["plan", "weight"])] = random_.choice(
                [*ANY, *VALUES[:6], several[0]["plan"]]
            )
        case 8:
            rows = next(key for key in names if key.endswith("/rows"))
            tensors[rows] = tensors[rows].flip(0) if random_.random() < 0.5 else tensors[rows] * 0


@settings(LAWS, max_examples=300)
@given(seed=SEEDS, changes=st.integers(1, 3), dtype=DTYPES)
def test_forged_merges_do_no_harm(seed, changes, dtype):
    it, state, data = packed(dtype=dtype)
    tensors, about = parsed(data)
    random_ = random.Random(seed)
    try:
        for _ in range(changes):
            forge(tensors, about, random_)
    except (StopIteration, KeyError, TypeError, IndexError, RuntimeError):
        return  # an earlier change took away what this one would have changed
    refused_or_fits(it, state, repacked(tensors, about))


def test_what_is_wrong_is_said():
    it = case("joined")
    state = state_of(it)
    server = Tally(it.axes, state)
    axis = next(iter(it.axes.axes))
    means = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
    one = next(iter(means))
    edge = Tally(it.axes, state)
    edge.add(state, Plan(), touched=Plan({axis: [1, 2]}))
    (part, *_), all_sums = edge.partial().sums, edge.partial().sums
    bad_rows = PartialSum(part.totals, part.weights, torch.zeros_like(part.rows))
    for merge, words in (
        (PartialMerge(0, (PartialMean(Plan(), 1.0, means),)), "names no clients"),
        (PartialMerge(1, (PartialMean(Plan(), -1.0, means),)), "weight -1.0"),
        (PartialMerge(1, (PartialMean(Plan(), float("nan"), means),)), "weight nan"),
        (PartialMerge(1, (PartialMean(Plan(), 1.0, {"x": torch.zeros(1)}),)), "holds 'x', which is not merged"),
        (PartialMerge(1, (PartialMean(Plan({axis: [0]}), 1.0, means),)), "but it must have"),
        (PartialMerge(1, (PartialMean(Plan({"no axis": [0]}), 1.0, means),)), "no axis"),
        (PartialMerge(1, (PartialMean(Plan(), 1.0, {**means, one: means[one] * torch.nan}),)), "not finite"),
        (PartialMerge(1, (PartialMean(Plan(), 1.0, {**means, one: means[one].double()}),)), "torch.float64"),
        (PartialMerge(1, counters={"x": torch.tensor(1)}), "the counter 'x'"),
        (PartialMerge(1, (), (bad_rows,)), "must be increasing"),
        (PartialMerge(1, (), (PartialSum(part.totals, part.weights * 0, part.rows),)), "must be from 1e-100"),
        (PartialMerge(1, (), (PartialSum({}, part.weights, part.rows),)), "nothing cannot be one sum"),
        (PartialMerge(1, (), all_sums, base="another"), "another model"),
    ):
        with pytest.raises(NestlingError) as caught:
            server.merge(merge)
        assert words in str(caught.value)
        assert same(server.value(), state) is None


# ---- tensors that every sub-model has for itself


def with_own(it, state):
    own = frozenset(name for name in state if ".norm." in name)
    return own, (lambda: Tally(it.axes, state, own=own))


def test_means_of_sub_models_travel_and_stay_exact():
    it = case("cnn")
    state = state_of(it)
    own, tally = with_own(it, state)
    plans = [nestling.plan(it.axes, width) for width in (1.0, 0.5)]
    flat, edges = tally(), [tally(), tally()]
    for k in range(8):
        plan = plans[k % 2]
        update = noisy(extract(it.axes, plan, state), k) if k > 3 else extract(it.axes, plan, state)
        flat.add(update, plan, 1 + k)
        edges[k // 4].add(update, plan, 1 + k)
        if k == 3:  # nobody has changed anything so far
            assert all(same(own_of, extract_own(it, own, plan, state)) is None for plan, own_of in by_plan(flat, plans))
    server = tally()
    for edge in edges:
        server.merge(PartialMerge.unpack(edge.pack()))
    assert server.submodels().keys() == {plan.key for plan in plans}
    for key, tensors in flat.submodels().items():
        assert tensors.keys() == own
        assert_close(server.submodels()[key], tensors, torch.float32, ulps=12)
    assert PartialMerge.unpack(server.pack()).pack() == server.pack()


def extract_own(it, own, plan, state):
    return {name: tensor for name, tensor in extract(it.axes, plan, state).items() if name in own}


def by_plan(tally, plans):
    return [(plan, tally.submodels()[plan.key]) for plan in plans]


def test_sub_models_that_do_not_fit_are_refused():
    it = case("cnn")
    state = state_of(it)
    _, tally = with_own(it, state)
    half, quarter = (nestling.plan(it.axes, width, key="mine") for width in (0.5, 0.25))
    server, edge = tally(), tally()
    server.add(extract(it.axes, half, state), half)
    edge.add(extract(it.axes, quarter, state), quarter)
    before = server.submodels()["mine"]
    with pytest.raises(StateError, match="in two shapes: give each plan its key"):
        server.merge(edge)
    with pytest.raises(StateError, match="in two shapes: give each plan its key"):
        server.add(extract(it.axes, quarter, state), quarter)
    with pytest.raises(StateError, match="has 0 tensors for itself"):
        Tally(it.axes, state).merge(edge)
    (mean,) = edge.partial().submodels
    for tensors, words in (
        ({name: tensor * torch.nan for name, tensor in mean.tensors.items()}, "not finite|must have"),
        (dict(list(mean.tensors.items())[1:]), "tensors for itself"),
    ):
        with pytest.raises(StateError, match=words):
            tally().merge(PartialMerge(1, submodels=(PartialMean(quarter, 1.0, tensors),)))
    other = extract_own(it, mean.tensors.keys(), half, state)
    for twice in ((mean, mean), (mean, PartialMean(half, 1.0, other))):
        with pytest.raises(StateError, match="holds a sub-model twice"):
            tally().merge(PartialMerge(1, submodels=twice))
    assert same(server.submodels()["mine"], before) is None
    assert server.clients == 1
