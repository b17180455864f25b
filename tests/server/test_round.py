"""Rounds end to end: what must be equal is equal to the last bit, and what must be learned is learned."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import nestling
from nestling import extract
from nestling.cut import Plan
from nestling.cut.extract import cuts
from nestling.data import from_arrays, load
from nestling.errors import NestlingError
from nestling.experiment.runner import run
from nestling.experiment.simulation import Overrides, simulate
from nestling.methods import make, names
from nestling.server.client_files import ClientFiles
from nestling.server.client_store import _get, _put
from nestling.settings import Data, Evaluate, FleetSettings, LocalTraining, Model
from tests.harness import rounds_of, train_job, worker_of
from tests.quick import mostly_slow
from tests.run_cases import WITH_PUBLIC, same_state, small

CLASSES = Data(name="digits", max_samples=400, partition="classes", classes_per_client=3)


@pytest.mark.parametrize("method", mostly_slow(names(), quick=4))
def test_every_method_runs_and_tells_the_same_again(method):
    own = {}
    if method in ("nefl", "depthfl"):  # these need residual blocks
        own["model"] = Model(name="resnet18", options={"widths": [8, 8, 16, 16], "pool": False})
        own["options"] = {"variant": "plain"} if method == "depthfl" else {}
    if method == "lora":  # which needs adapters
        own["model"] = Model(name="mlp", options={"widths": [16, 16], "rank": 4})
    if method in ("feddf", "fed-et"):
        own["options"] = {"steps": 4}
    data = msgspec.structs.replace(CLASSES, public_share=0.2) if method in WITH_PUBLIC else CLASSES
    results = [run(small(method=method, rounds=2, data=data, group_clients="auto", **own)) for _ in range(2)]
    assert same_state(results[0].state, results[1].state)
    assert json.dumps(results[0].rounds) == json.dumps(results[1].rounds)
    final = results[0].summary["final"]
    assert 0 <= final["worst_submodel"] <= final["mean_submodel"] <= 1
    assert math.isfinite(final["global_loss"])


def test_another_seed_is_another_experiment():
    one, two = (run(small(rounds=1, seed=seed)) for seed in (0, 1))
    assert not same_state(one.state, two.state)
    assert one.rounds != two.rounds


@pytest.mark.slow
def test_the_number_of_workers_changes_no_bit():
    data = replace_data(CLASSES, validation=0.1)
    results = [run(small(method="fed-dropout", data=data, workers=workers)) for workers in (1, 2)]
    for result in results[1:]:
        assert same_state(result.state, results[0].state)
        assert json.dumps(result.rounds) == json.dumps(results[0].rounds)
        assert result.summary["local"] == results[0].summary["local"]


def replace_data(data, **changes):
    return Data(**{**{name: getattr(data, name) for name in data.__struct_fields__}, **changes})


def test_heterofl_with_everybody_at_level_a_is_fedavg():
    fleet = FleetSettings(clients=8, per_round=4, levels="a")
    server = small().server
    equal = type(server)(weighting="none")
    one = run(small(method="heterofl", fleet=fleet, data=CLASSES, options={"masked": False}))
    two = run(small(method="fedavg", fleet=fleet, data=CLASSES, server=equal))
    assert same_state(one.state, two.state)
    assert [line["train_loss"] for line in one.rounds] == [line["train_loss"] for line in two.rounds]
    assert one.summary["final"]["global_accuracy"] == two.summary["final"]["global_accuracy"]


@pytest.mark.slow
def test_fedrolex_with_step_zero_is_heterofl():
    one = run(small(method="heterofl", data=CLASSES))
    two = run(small(method="fedrolex", data=CLASSES, options={"step": 0}))
    assert same_state(one.state, two.state)
    assert one.rounds == two.rounds
    three = run(small(method="fedrolex", data=CLASSES))
    assert not same_state(one.state, three.state)


def test_fedrolex_covers_every_unit_alike_over_a_period():
    everybody = FleetSettings(clients=4, per_round=4, levels="b-d")
    experiment = small(
        method="fedrolex",
        rounds=16,  # every axis has 8 or 16 units
        fleet=everybody,
        local=LocalTraining(lr=0.01, epochs=1, batch_size=200),
        evaluate=Evaluate(every=16, submodels=False),
    )
    coverage = run(experiment).summary["coverage"]
    assert all(len(set(counts)) == 1 for counts in coverage.values()), coverage
    nested = run(small(rounds=1, fleet=everybody)).summary["coverage"]
    assert all(counts == sorted(counts, reverse=True) and counts[0] > counts[-1] for counts in nested.values())


def test_a_round_is_the_mean_of_what_clients_make_of_their_slices():
    """Against the round written out by hand: extract, train, merge with plain tensors."""
    experiment = small(rounds=1, data=CLASSES)
    simulation, (before, after), _ = rounds_of(experiment)
    worker, axes = worker_of(simulation), simulation.setup.axes
    total = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in before.model.items()}
    weight = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in before.model.items()}
    for client in simulation.fleet.sample(1):
        ratio = simulation.fleet.level(client, 1).ratio
        plan = nestling.plan(axes, ratio)
        update = worker(train_job(simulation, client, ratio, plan, extract(axes, plan, before.model), lr=0.05))
        for name, tensor in update.state.items():
            where = tuple(slice(0, n) for n in tensor.shape)
            labels = simulation.partition.labels[client]
            part = tensor[labels] if name.startswith("head.") else tensor
            where = (labels, *where[1:]) if name.startswith("head.") else where
            total[name][where] += part.double()
            weight[name][where] += 1
    for name in simulation.setup.parameters:
        wanted = torch.where(weight[name] > 0, total[name] / weight[name], before.model[name].double())
        torch.testing.assert_close(after.model[name].double(), wanted, rtol=1e-6, atol=1e-7)
        held = weight[name] == 0
        assert torch.equal(after.model[name][held], before.model[name][held])
    assert bool((weight["head.bias"] == 0).any()) or len(set(map(int, torch.cat(simulation.partition.labels)))) == 10


def test_rounds_leave_the_state_they_began_with_alone():
    _, (first, _), simulator = rounds_of(small(rounds=1, method="standalone"))
    kept = {name: tensor.clone() for name, tensor in first.model.items()}
    simulator.run_round(first)
    assert same_state(first.model, kept)
    assert first.round == 0
    assert first.clients.private.clients() == []
    assert first.totals.bytes_up == 0
    assert all(int(counts.sum()) == 0 for counts in first.totals.coverage.values())


def test_evaluation_is_what_a_plain_loop_would_find():
    """Batch norms with statistics over all batches of all clients, computed by PyTorch's cumulative average."""
    simulation, states, simulator = rounds_of(small(rounds=1))
    figures, local = simulator.evaluate(states[-1])
    net = simulation.setup.model.double()
    net.load_state_dict({name: tensor.double() for name, tensor in states[-1].model.items()})
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    net.train()
    with torch.no_grad():
        for samples in simulation.partition.train:
            for chosen in samples.split(50):
                net(simulation.dataset.ready(simulation.dataset.inputs[chosen]).double())
        net.eval()
        logits = net(simulation.dataset.ready(simulation.dataset.test_inputs[:100]).double())
    targets = simulation.dataset.test_targets[:100]
    assert figures["global_accuracy"] == pytest.approx((logits.argmax(1) == targets).double().mean().item(), abs=0.011)
    assert figures["global_loss"] == pytest.approx(F.cross_entropy(logits, targets).item(), rel=1e-3)
    shares = [share[share < 100] for share in simulation.partition.test]
    hits = sum(int((logits[share].argmax(1) == targets[share]).sum()) for share in shares)
    assert figures["local_accuracy"] == pytest.approx(hits / sum(map(len, shares)), abs=0.011)
    assert set(local) == {str(client) for client, share in enumerate(shares) if len(share)}
    assert figures["submodels"]["a"]["accuracy"] == figures["global_accuracy"]


def test_local_accuracy_chooses_among_the_clients_own_classes():
    result = run(small(data=CLASSES, rounds=1, local=LocalTraining(lr=1e-6, epochs=1, batch_size=50)))
    final = result.summary["final"]
    assert final["local_accuracy"] > 0.2 > final["global_accuracy"]  # guessing one of 3 against one of 10


@pytest.mark.parametrize("assign", ["dynamic", "tiers"])
@pytest.mark.parametrize("method", ["standalone", "lg-fedavg"])
def test_what_clients_keep_outlives_other_levels(method, assign, tmp_path):
    """A narrower turn trains a part of what a client keeps, a wider one goes on from where the model began."""
    fleet = FleetSettings(clients=4, per_round=4, levels="a-d", assign=assign)
    result = run(
        small(method=method, rounds=5, fleet=fleet, data=Data(name="digits", max_samples=160)), out=tmp_path / "run"
    )
    assert result.summary["final"]["global_accuracy"] is not None


def test_a_narrower_turn_trains_a_part_of_what_a_client_keeps():
    fleet = FleetSettings(clients=4, per_round=4, levels="a-d", assign="dynamic")
    data = Data(name="digits", max_samples=160)
    simulation, states, _ = rounds_of(small(method="standalone", rounds=6, fleet=fleet, data=data))
    setup, seen = simulation.setup, 0
    for client in range(4):
        for before, after in pairwise(states[1:]):
            level = simulation.fleet.level(client, after.round)
            start = setup.model.state_dict()
            full = [one.clients.get(setup, client, Plan(key="full"), start)[0] for one in (before, after)]
            if level.name != "d":
                continue
            seen += 1
            cut = cuts(setup.axes, setup.submodel_plan(level.ratio))["blocks.0.conv.weight"]
            old, new = (one["blocks.0.conv.weight"].clone() for one in full)
            assert not torch.equal(cut.take(old), cut.take(new))
            for one in (old, new):
                cut.put(one, torch.zeros(cut.shape))
            assert torch.equal(old, new)
    assert seen > 3


def test_what_version_0_1_kept_without_a_plan_is_found_again(tmp_path):
    """It always was of the slice that the client got."""
    simulation, states, _ = rounds_of(
        small(method="standalone", rounds=1, fleet=FleetSettings(clients=2, per_round=2, levels="d"))
    )
    plan, axes, start = simulation.setup.submodel_plan(1 / 8), simulation.setup.cut_axes, states[0].model
    held, files = states[1].clients.private.get(0)[0], ClientFiles(tmp_path)
    files.put(0, 1, held)
    assert same_state(_get(axes, files, 0, plan, start), held)
    _put(axes, files, 0, plan, held, round=2, model=start)
    assert files.get(0)[1] == plan


def test_bytes_are_those_of_the_parameters():
    simulation, states, _ = rounds_of(small(rounds=1))
    wanted = 0
    for client in simulation.fleet.sample(1):
        plan = nestling.plan(simulation.setup.axes, simulation.fleet.level(client, 1).ratio)
        sub = nestling.submodel(simulation.setup.model, simulation.setup.axes, plan)
        wanted += sum(parameter.nbytes for parameter in sub.parameters())
    assert states[-1].totals.bytes_up == states[-1].totals.bytes_down == wanted


def test_standalone_shares_nothing_and_lg_fedavg_a_little():
    simulation, states, _ = rounds_of(small(method="standalone", rounds=2))
    assert same_state(states[0].model, states[-1].model)
    assert states[-1].totals.bytes_up == 0
    assert states[-1].clients.private.clients() == sorted({*simulation.fleet.sample(1), *simulation.fleet.sample(2)})
    simulation, states, _ = rounds_of(small(method="lg-fedavg", rounds=1))
    changed = {name for name in states[0].model if not torch.equal(states[0].model[name], states[-1].model[name])}
    assert changed == set(simulation.setup.axes.dims) - simulation.setup.private - simulation.setup.norm_statistics
    assert {name.rpartition(".")[0] for name in changed} == {"blocks.3.conv", "blocks.3.norm", "head"}


def test_a_client_finds_again_what_it_keeps_to_itself():
    everybody = FleetSettings(clients=3, per_round=3, levels="a")
    _, states, _ = rounds_of(small(method="standalone", rounds=2, fleet=everybody))
    first, second = states[1].clients.private.get(0)[0], states[2].clients.private.get(0)[0]
    assert not same_state(first, second)
    still = LocalTraining(
        lr=0.05, epochs=1, batch_size=20, weight_decay=0.0, schedule="steps", milestones=(1,), lr_decay=0.0
    )
    _, states, _ = rounds_of(small(method="standalone", rounds=2, fleet=everybody, local=still))
    assert same_state(
        states[1].clients.private.get(0)[0], states[2].clients.private.get(0)[0]
    )  # with a rate of zero, the second round changes nothing


@pytest.mark.parametrize("optimizer", ["fedavgm", "fedadam", "fedyogi"])
def test_server_optimisers_learn_and_leave_alone_what_nobody_held(optimizer):
    server = type(small().server)(optimizer=optimizer, lr=1.0 if optimizer == "fedavgm" else 0.01)
    fleet = FleetSettings(clients=8, per_round=4, levels="b")  # the upper half of every axis is never held
    simulation, states, _ = rounds_of(small(server=server, fleet=fleet, rounds=2))
    inside = nestling.plan(simulation.setup.axes, 0.5)
    for name in simulation.setup.parameters:
        old, new = states[0].model[name], states[-1].model[name]
        where = tuple(slice(0, n) for n in extract(simulation.setup.axes, inside, {**states[0].model})[name].shape)
        outside = torch.ones_like(old, dtype=torch.bool)
        outside[where] = False
        assert torch.equal(old[outside], new[outside])
        assert not torch.equal(old[~outside], new[~outside])


def test_devices_decide_levels_and_the_clock():
    fleet = FleetSettings(clients=8, per_round=8, levels="a-b-d", devices="phone-low,workstation")
    slow = run(small(fleet=fleet, rounds=2))
    assert slow.rounds[-1]["simulated_seconds"] > 0
    seconds = slow.rounds[0]["simulated_seconds"] / 2
    late = FleetSettings(clients=8, per_round=8, levels="a-b-d", devices="phone-low,workstation", deadline=seconds)
    quick = run(small(fleet=late, rounds=2))
    assert quick.rounds[-1]["dropped"] > slow.rounds[-1]["dropped"]
    assert quick.rounds[-1]["simulated_seconds"] < slow.rounds[-1]["simulated_seconds"]


def test_a_users_own_model_data_and_method():
    torch.manual_seed(0)
    x = torch.randn(200, 6)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    data = from_arrays(x, y, test=(x[:50], y[:50]))
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    method = replace(make("heterofl"), name="mine", weighting="width")
    experiment = small(data=Data(), local=LocalTraining(lr=0.1, epochs=5), rounds=5)
    result = nestling.run(experiment, model=net, dataset=data, method=method)
    assert result.summary["final"]["global_accuracy"] > 0.75
    assert set(result.state) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert result.summary["method"] == "mine"


def test_validation_chooses_the_best_round():
    data = Data(name="digits", max_samples=400, validation=0.25)
    result = run(small(data=data, rounds=6, evaluate=Evaluate(every=1, samples=100)))
    simulation = result.simulation
    assert len(simulation.data.validation) == 100
    held = set(simulation.data.validation.numbers.tolist())
    assert not held & {sample for share in simulation.partition.train for sample in share.tolist()}
    line = [(row["evaluation"]["validation_accuracy"], row["round"]) for row in result.rounds]
    best = max(line, key=lambda pair: (pair[0], -pair[1]))
    assert result.summary["best"]["round"] == best[1]


@pytest.mark.slow
def test_methods_learn():
    """Mixed levels against everybody training the smallest, on digits."""
    sizes = {"fleet": FleetSettings(clients=10, per_round=5, levels="a-b-c-d-e"), "rounds": 8}
    common = {**sizes, "data": Data(name="digits"), "local": LocalTraining(lr=0.05, epochs=2, batch_size=20)}
    common["evaluate"] = Evaluate(every=8, norm_batch=100)
    wide = {"name": "cnn", "options": {"widths": [32, 32, 64, 64]}}
    smallest = run(small(method="fedavg", **common, model=Model(**wide, width=1 / 16)))
    assert smallest.summary["final"]["global_accuracy"] < 0.75
    for method in ("heterofl", "fedrolex", "fed-dropout", "fjord"):
        result = run(small(method=method, **common, model=Model(**wide)))
        assert result.summary["final"]["global_accuracy"] > 0.85, method


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["data.partition=classes", "data.classes_per_client=11"], "class"),
        (["fleet.clients=500"], "client"),
        (["fleet.per_round=50"], "50 clients cannot take part"),
        (["data.partition=classes"], "classes_per_client"),
        (["local.lr=-1"], "local.lr must be above 0"),
        (["local.batch_size=0"], "local.batch_size must be above 0"),
        (["rounds=0"], "the setting rounds cannot be 0"),
        (["method=heterofll"], "did you mean 'heterofl'"),
        (["model.name=cnm"], "did you mean 'cnn'"),
        (["data.name=digit"], "did you mean 'digits'"),
        (["fleet.levels=a-f"], "'f'"),
        (["fleet.levles=a"], "did you mean 'levels'"),
        (["local.momentum=fast"], "local.momentum"),
        (["options.spet=1"], "no option 'spet'"),
        (["options.scaler=3"], "scaler"),
        (["server.optimizer=adam"], "server.optimizer"),
        (["fleet.deadline=3"], "fleet.deadline needs fleet.devices"),
        (["rounds"], "key=value"),
        (["data.max_samples=100000"], "data.max_samples"),
        (["data.alpha=-1"], "data.alpha"),
        (["data.augment=flip"], "data.augment"),
        (["model.options.depth=3"], "depth"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(changes, words):
    with pytest.raises(NestlingError) as caught:
        run(small().with_settings(changes))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_trained_submodel_is_taken_out_and_used_alone(tmp_path):
    result = run(small(rounds=2, evaluate=Evaluate(every=2, norm_batch=50)), out=tmp_path / "run")
    for level in ("a", "d"):
        model = nestling.load(tmp_path / "run").submodel(level)
        data = result.simulation.dataset
        with torch.no_grad():
            predicted = model(data.ready(data.test_inputs)).argmax(1)
        accuracy = (predicted == data.test_targets).double().mean().item()
        assert accuracy == pytest.approx(result.summary["final"]["submodels"][level]["accuracy"], abs=1e-9)
    assert next(nestling.load(tmp_path / "run").submodel("d").parameters()).shape[0] == 1
    with pytest.raises(NestlingError, match="no level 'c'"):
        nestling.load(tmp_path / "run").submodel("c")


def test_models_of_ones_own_by_name_and_starts_from_a_file(tmp_path):
    """DepthFL in full, on a model with exits named by where it is, or by its name."""
    options = {"depths": [1, 1, 1], "widths": [8, 12, 16]}
    exits = Model(name="nestling.nets.exits:Exits", options=options)
    fleet = FleetSettings(clients=8, per_round=4, levels="0.2-1")
    result = run(small(method="depthfl", model=exits, rounds=2, fleet=fleet))
    assert set(result.summary["final"]["submodels"]) == {"0.2", "1"}
    named = run(small(method="depthfl", model=Model(name="resnet18-exits", options=options), rounds=2, fleet=fleet))
    assert named.summary["final"] == result.summary["final"]
    with pytest.raises(NestlingError, match="there is no module 'nowhere'"):
        run(small(model=Model(name="nowhere:make")))
    first = run(small(rounds=1), out=tmp_path / "run")
    file = tmp_path / "run" / "model.safetensors"
    net = Model(name="cnn", options=small().model.options, weights=str(file))
    setup = simulate(Overrides(small(model=net))).setup
    started = setup.model.state_dict()
    assert all(torch.equal(started[name], tensor) for name, tensor in first.state.items() if name in setup.parameters)
    with pytest.raises(NestlingError, match=r"nothing\.pt"):
        run(small(model=Model(name="cnn", weights=str(tmp_path / "nothing.pt"))))


def test_data_without_a_test_set_is_refused_before_any_work():
    with pytest.raises(NestlingError, match="arrays holds nothing to test on"):
        run(small(), dataset=from_arrays(torch.randn(400, 6), torch.arange(400) % 2))


def test_images_are_resized_for_the_model():
    """Eight pixels become sixteen: a vision transformer then sees 4 × 4 patches."""
    options = {"patch": 4, "width": 12, "depth": 1, "heads": 2}
    experiment = small(rounds=2, model=Model(name="vit-tiny", options=options), data=Data(max_samples=200, resize=16))
    simulation = simulate(Overrides(experiment))
    assert simulation.setup.model.position.weight.shape == (4 * 4 + 1, 12)
    assert simulation.setup.example.shape == (2, 1, 16, 16)
    assert simulation.dataset.inputs.shape[1:] == (1, 8, 8), "only batches are large"
    assert run(experiment).summary["final"] == run(experiment, dataset=load("digits")).summary["final"]
    with pytest.raises(NestlingError, match="only images"):
        run(experiment, dataset=from_arrays(torch.randn(40, 6), torch.arange(40) % 2))
