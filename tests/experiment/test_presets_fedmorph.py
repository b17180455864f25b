"""FedMorph's presets have the numbers of its Tables 3 and B.2, and every row of Tables 1 and 4 to 6."""

import msgspec
import pytest
import torch

from nestling.data import from_arrays
from nestling.experiment.presets import PRESETS, find
from nestling.experiment.simulation import Overrides, simulate
from nestling.methods import make
from tests.experiment.test_presets import price

ROWS = [
    preset
    for preset in PRESETS.values()
    if preset.repeats.startswith("FedMorph") and not preset.name.endswith(("-laptop", "-evening"))
]


def test_every_row_is_there():
    # Tables 1 and 4: two tasks, four methods, three uploads each; so do Tables 5 and 6
    count = {table: sum(row.repeats.endswith(f"Table {table}") for row in ROWS) for table in "1456"}
    assert count == {"1": 24, "4": 24, "5": 24, "6": 24}


@pytest.mark.parametrize(
    ("name", "rate", "penalty", "ratio", "epochs", "rounds", "clients", "batch"),
    [
        ("fedmorph-mnist-resnet8-iid", 0.1, 1.6e-6, 0.1, 1, 1500, 100, 50),
        ("fedmorph-emnist-byclass-resnet8-iid", 0.1, 2e-5, 0.2, 5, 3000, 5000, 500),
        ("fedmorph-cifar10-resnet18-iid", 0.05, 1.2e-6, 0.3, 1, 4000, 100, 50),
        ("fedmorph-cifar10-vgg16-iid", 0.05, 1e-6, 0.3, 1, 4000, 100, 50),
    ],
)
def test_table_3(name, rate, penalty, ratio, epochs, rounds, clients, batch):
    chosen = find(name)
    local = chosen.local
    assert (local.lr, local.epochs, chosen.rounds, chosen.fleet.clients) == (rate, epochs, rounds, clients)
    assert chosen.options == {"ratio": ratio, "penalty": penalty, "batch": batch}
    assert (local.momentum, local.weight_decay, local.batch_size) == (0.9, 5e-4, 100)
    assert find(f"{name}-top10").upload.fraction == 0.1
    assert chosen.data.public_share > 0
    assert not chosen.data.public_from_test


def test_ablations_change_one_option_of_the_same_row():
    same = find("fedmorph-cifar10-resnet18-iid")
    rows = [row for row in ROWS if "Figure" in row.repeats]
    assert len(rows) == 8
    for row in rows:
        option, text = row.name.removeprefix(f"{same.name}-").split("-", 1)
        key = {"v": "ratio", "lambda": "penalty"}[option]
        assert row().options == same.options | {key: float(text)}
        assert msgspec.structs.replace(row(), name=same.name, options=same.options) == same
        small, base = find(f"{row.name}-laptop"), find(f"{same.name}-laptop")
        expected = float(text) if key == "ratio" else 16 * float(text)
        assert small.options == base.options | {key: pytest.approx(expected)}


def test_gradients_are_not_clipped():
    assert {row().local.clip_norm for row in ROWS} == {0}


def test_cifar_is_augmented_and_has_rows_beside_that_are_not():
    for row in ROWS:
        experiment = row()
        plain = experiment.data.name != "cifar10" or row.name.endswith("-unaugmented")
        assert experiment.data.augment == ("none" if plain else "crop-flip")
    beside = [row for row in ROWS if row.name.endswith("-unaugmented")]
    assert len(beside) == 16  # two models, two partitions, four methods, whole uploads
    for row in beside:
        same = find(row.name.removesuffix("-unaugmented"))
        data = msgspec.structs.replace(row().data, augment="crop-flip")
        assert msgspec.structs.replace(row(), name=same.name, data=data) == same
        assert row.repeats.endswith(", without augmentation")


@pytest.mark.parametrize(("task", "ratio"), [("mnist-resnet8", 0.25), ("cifar10-vgg16", 0.6)])
def test_baselines_keep_as_much(task, ratio):
    assert find(f"fedpruned-{task}-iid").options["ratio"] == ratio
    assert find(f"fed-dropout-{task}-iid").fleet.levels == str(ratio)


def test_proximal_rows_are_of_mixed_clients():
    chosen = find("fedmorphprox-mnist-resnet8-dirichlet")
    assert (chosen.data.partition, chosen.data.alpha, chosen.local.lr) == ("dirichlet", 0.4, 0.01)
    assert find("fedmorphprox-cifar10-resnet18-dirichlet").local.lr == 0.05


@pytest.mark.parametrize("name", ["mnist-resnet8", "emnist-byclass-resnet8"])
def test_a_lower_local_rate_leaves_the_rate_of_the_distillation(name):
    for method in ("fedmorph", "fedmorphprox"):
        mixed, even = find(f"{method}-{name}-dirichlet"), find(f"fedmorph-{name}-iid")
        assert mixed.local.lr * mixed.options["distil_lr"] == pytest.approx(0.01)
        assert even.local.lr * make("fedmorph", even.options).plan.distillation.lr == pytest.approx(0.01)  # Table 3


@pytest.mark.parametrize(("model", "count"), [("resnet18", 11_173_962), ("vgg16", 14_728_266)])
def test_golden_sizes(model, count):
    inputs, targets = torch.zeros(100, 3, 32, 32), torch.arange(100) % 10
    dataset = from_arrays(inputs, targets, (inputs, targets))
    simulation = simulate(
        Overrides(find(f"fedmorph-cifar10-{model}-iid").with_settings(["fleet.clients=10"]), dataset=dataset)
    )
    assert sum(tensor.numel() for tensor in simulation.setup.model.parameters()) == count


def test_the_first_network_has_about_the_square_of_its_ratio():
    experiment = find("fedmorph-mnist-resnet8-iid").with_settings(["data.name=digits", "fleet.clients=10"])
    simulation = simulate(Overrides(experiment))
    setup, cost = simulation.setup, simulation.costs.cost
    share = cost(setup.submodel_plan(1.0)).parameters / cost(setup.global_plan({})).parameters
    assert share == pytest.approx(0.01, rel=0.5)  # Table 4: 0.0120 on average


def test_small_ones_are_cheap():
    """Twice as many rounds as other small presets: about three minutes of one core, at 30e9 operations a second."""
    names = [f"{method}-mnist-resnet8-iid-laptop" for method in ("fedavg", "fedpruned", "fedmorph")]
    assert max(price(find(name))[0] for name in names) < 5.5e12
    assert find(names[2]).rounds // 10 == 6
