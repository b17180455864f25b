"""What is handed to `nestling.run` in Python is checked as on the command line, before any training."""

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import nestling
from nestling.data import Dataset, Partition
from nestling.errors import ConfigError, DataError, NestlingError
from nestling.experiment.presets import find
from nestling.methods import make
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, LocalTraining, Model, ServerSettings, checked
from tests.run_cases import small


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rounds": -1}, "the setting rounds cannot be -1: expected `int` >= 1"),
        ({"rounds": "5"}, "the setting rounds cannot be '5': expected `int`, got `str`"),
        ({"rounds": 2.5}, "the setting rounds cannot be 2.5"),
        ({"rounds": True}, "the setting rounds cannot be True"),
        ({"rounds": np.int64(5)}, "the setting rounds cannot be"),
        ({"seed": None}, "the setting seed cannot be None"),
        ({"seed": -1}, "the setting seed cannot be -1"),
        ({"engine": "locl"}, "the setting engine cannot be 'locl'; did you mean 'local'?"),
        ({"fleet": {"clients": 3}}, "the setting fleet must be a FleetSettings, not {'clients': 3}"),
        ({"fleet": FleetSettings(clients=3)}, "10 clients cannot take part in a round of a fleet of 3"),
        ({"fleet": FleetSettings(per_round=0)}, "the setting fleet.per_round cannot be 0"),
        ({"local": LocalTraining(lr="high")}, "the setting local.lr cannot be 'high'"),
        ({"local": LocalTraining(lr=float("nan"))}, "the setting local.lr must be a finite number, not nan"),
        ({"local": LocalTraining(milestones=[1, "x"])}, "the setting local.milestones cannot be [1, 'x']"),
        ({"local": LocalTraining(lr=1e10, lr_decay=1e300, milestones=(1,))}, "more than a number holds"),
        ({"server": ServerSettings(beta1=1.0)}, "server.beta1 must be 0 or more and below 1, not 1.0"),
        ({"data": Data(partition="iidd")}, "the setting data.partition cannot be 'iidd'; did you mean 'iid'?"),
        ({"model": Model(options={"widths": None})}, "the setting model.options.widths cannot be None"),
        ({"model": Model(options={"act": nn.ReLU})}, "the setting model.options.act cannot be"),
        ({"options": {"deep": [[[1e400]]]}}, "the setting options.deep[0][0][0] must be a finite number"),
    ],
)
def test_settings_made_in_python(changes, sentence):
    with pytest.raises(ConfigError) as caught:
        Experiment(**changes)
    assert sentence in str(caught.value)
    with pytest.raises(ConfigError):
        msgspec.structs.replace(Experiment(), **changes)


def test_what_is_run_is_what_its_file_says():
    given = Experiment(local=LocalTraining(lr=1, milestones=[3, 4]))
    assert checked(given) == Experiment.from_toml(given.to_toml())
    assert (checked(given).local.lr, checked(given).local.milestones) == (1.0, (3, 4))
    assert isinstance(checked(given).local.lr, float)


def test_settings_that_were_made_past_the_checks_are_refused_when_they_are_run():
    experiment = small()
    msgspec.structs.force_setattr(experiment, "rounds", "5")
    with pytest.raises(ConfigError, match="rounds cannot be '5'"):
        nestling.run(experiment)


# Models


def net(outputs, wrap=lambda logits: logits):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(64, 6), nn.Linear(6, outputs)

        def forward(self, x):
            return wrap(self.last(self.first(x.flatten(1)).relu()))

    return Net()


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (net(3), "the model has 3 outputs, too few for the 10 classes of digits"),
        (net(10, lambda logits: (logits, logits)), "logits alone, of shape (2, 10) for 2 samples, not a tuple of 2"),
        (net(10, lambda logits: {"logits": logits}), "not a dict"),
        (net(10, lambda logits: logits.unsqueeze(1)), "logits of shape (2, 1, 10) for 2 samples"),
        (net(10, lambda logits: logits.sum(0)), "logits of shape (10,) for 2 samples"),
        (net(10, lambda logits: logits.argmax(1)), "not a tensor of torch.int64"),
        ("cnn", "the model must be an nn.Module, not a str"),
    ],
)
def test_models_that_do_not_answer_as_training_needs_it(model, sentence):
    with pytest.raises(NestlingError) as caught:
        nestling.run(small(), model=model)
    assert sentence in str(caught.value)


def test_looking_at_a_model_leaves_it_as_it_was():
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 10)
    )
    model[2].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    drawn = torch.random.get_rng_state()
    nestling.run(small(rounds=1, evaluate=Evaluate(samples=20)), model=model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert [module.training for module in model] == [True, True, False, True, True, True]
    assert torch.equal(drawn, torch.random.get_rng_state())


# Data


IMAGES, LABELS = torch.rand(40, 1, 8, 8), torch.arange(40) % 10


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"targets": LABELS - 1}, "training label -1 is not one of the classes 0 to 9"),
        ({"targets": LABELS + 1}, "training label 10 is not one of the classes 0 to 9"),
        ({"test_targets": LABELS + 5}, "test label 14 is not one of the classes"),
        ({"targets": LABELS[:5]}, "one for every sample"),
        ({"targets": LABELS.float()}, "must be int64"),
        ({"inputs": IMAGES * float("nan")}, "not finite"),
        ({"inputs": IMAGES.double()}, "must be uint8 or float32"),
        ({"inputs": IMAGES.numpy()}, "must be a tensor, not a ndarray: nestling.data.from_arrays converts other types"),
        ({"targets": LABELS.tolist()}, "must be a tensor, not a list"),
        ({"inputs": IMAGES[:0], "targets": LABELS[:0]}, "there are no training samples"),
        ({"classes": 10.0}, "a dataset has a whole number of classes, at least 1, not 10.0"),
    ],
)
def test_data_that_does_not_fit(changes, sentence):
    parts = {"inputs": IMAGES, "targets": LABELS, "test_inputs": IMAGES, "test_targets": LABELS, "classes": 10}
    with pytest.raises(DataError) as caught:
        Dataset("mine", **{**parts, **changes})
    assert sentence in str(caught.value)


def shares(train, test=None, labels=None):
    test = [torch.arange(2)] * 8 if test is None else test
    labels = [torch.arange(10)] * 8 if labels is None else labels
    return Partition(train, test, labels)


@pytest.mark.parametrize(
    ("handed", "sentence"),
    [
        ({"dataset": Dataset("mine", IMAGES, LABELS, IMAGES[:0], LABELS[:0], 10)}, "mine holds nothing to test on"),
        ({"dataset": (IMAGES, LABELS)}, "the dataset must be a Dataset, a Text or a FederatedData, not a tuple"),
        ({"method": "fedavg"}, "the method must be a Method, not a str"),
        ({"partition": [1, 2]}, "the partition must be a Partition, not a list"),
        ({"partition": shares([torch.arange(5)] * 7)}, "7 clients in train, 8 in test and 8 in labels"),
        (
            {"partition": shares([torch.arange(5)] * 7 + [torch.tensor([99999])])},
            "training samples from 99999 to 99999",
        ),
        ({"partition": shares([torch.arange(5)] * 7 + [torch.tensor([-1])])}, "training samples from -1 to -1"),
        ({"partition": shares([torch.arange(5.0)] * 8)}, "must be a tensor (N,) of int64"),
        ({"partition": shares([torch.arange(5)] * 8, labels=[torch.tensor([10])] * 8)}, "classes from 10 to 10"),
        ({"partition": shares([torch.arange(5)] * 7 + [torch.arange(0)])}, "client 7 has no data"),
    ],
)
def test_what_is_handed_in_and_does_not_fit(handed, sentence):
    with pytest.raises(NestlingError) as caught:
        nestling.run(small(), **handed)
    assert sentence in str(caught.value)


def test_methods_of_ones_own_are_taken():
    assert nestling.run(small(rounds=1), method=make("fedavg")).summary["method"] == "fedavg"


def test_heterofls_own_partition_is_a_setting_and_says_what_it_leaves_unused(tmp_path):
    with pytest.raises(ConfigError, match=r"needs data\.classes_per_client"):
        Experiment().with_settings(["data.partition=heterofl-shards"])
    settings = ["data.partition=heterofl-shards", "data.classes_per_client=2", "rounds=1", "local.epochs=1"]
    result = nestling.run(find("fedavg-digits").with_settings(settings), out=tmp_path / "run")
    assert result.summary["partition"] == "heterofl-shards"
    assert result.summary["events"]["partition incomplete"] == 1
