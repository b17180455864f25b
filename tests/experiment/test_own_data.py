"""Own data: every kind of source gives the same run, and what cannot be right is refused in one sentence."""

import json
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import nestling
from nestling.data.own.sources import own_data
from nestling.errors import NestlingError
from nestling.experiment import find
from tests.experiment import own_source
from tests.experiment.own_families import dealt, digits
from tests.run_cases import same_state

FEW = {"method": "heterofl", "levels": "a-b", "rounds": 2, "per_round": 4}


def net(inputs=64, outputs=10):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


@pytest.fixture(scope="module")
def parts():
    images, classes = digits()
    return dealt(4, images[:200, None], classes[:200]), (images[1500:, None], classes[1500:])


class ByIndex(Dataset):
    """Samples that are read one by one."""

    def __init__(self, images, classes):
        self.images, self.classes = images, classes

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], int(self.classes[index])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


class AsDictionary(ByIndex):
    def __getitem__(self, index):
        return {"input": self.images[index], "label": int(self.classes[index])}


@dataclass
class Partitioner:
    num_partitions: int


class Divided:
    """What flwr-datasets' FederatedDataset has, for a data set that is on this machine."""

    def __init__(self, clients, test):
        self.clients, self.tested = clients, test
        self.partitioners = {"train": Partitioner(len(clients))}

    def load_partition(self, number, split):
        assert split == "train"
        return self.clients[number]

    def load_split(self, split):
        assert split == "test"
        return self.tested


def hugging_face(part):
    datasets = pytest.importorskip("datasets")
    images, classes = part
    pixels = images[:, 0].numpy().astype(np.float32)
    features = datasets.Features(
        {"image": datasets.Array3D((1, 8, 8), "float32"), "label": datasets.ClassLabel(num_classes=10)}
    )
    return datasets.Dataset.from_dict({"image": pixels[:, None], "label": classes.numpy()}, features=features)


class WithTensors(ByIndex):
    """Classes as tensors, in a list."""

    def __getitem__(self, index):
        return [self.images[index], self.classes[index]]


SOURCES = {
    "arrays": lambda clients: [(images.numpy().astype(np.float64), classes.tolist()) for images, classes in clients],
    "dictionaries": lambda clients: [{"input": images, "labels": classes} for images, classes in clients],
    "tensor datasets": lambda clients: [TensorDataset(*part) for part in clients],
    "datasets by index": lambda clients: [ByIndex(*part) for part in clients],
    "datasets of tensors": lambda clients: [Subset(WithTensors(*part), range(len(part[1]))) for part in clients],
    "datasets of dictionaries": lambda clients: [AsDictionary(*part) for part in clients],
    "Hugging Face datasets": lambda clients: [hugging_face(part) for part in clients],
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_source_trains_the_same_model(parts, kind):
    clients, test = parts
    expected = nestling.federate(net(), clients, test, **FEW)
    given = SOURCES[kind]([*clients, test])
    result = nestling.federate(net(), given[:-1], given[-1], **FEW)
    assert same_state(result.model.state_dict(), expected.model.state_dict())


def test_a_federated_dataset_is_known_by_what_it_has(parts):
    clients, test = parts
    expected = nestling.federate(net(), clients, test, **FEW)
    divided = Divided([hugging_face(part) for part in clients], hugging_face(test))
    result = nestling.federate(net(), divided, **FEW)
    assert same_state(result.model.state_dict(), expected.model.state_dict())


def read(client):
    images, classes = digits()
    return dealt(4, images[:200, None], classes[:200])[client]


def test_a_function_is_called_where_clients_train(parts):
    clients, test = parts
    expected = nestling.federate(net(), clients, test, **FEW)
    result = nestling.federate(net(), read, test, num_clients=4, **FEW)
    assert same_state(result.model.state_dict(), expected.model.state_dict())


@pytest.mark.slow
def test_workers_read_their_clients_themselves(parts):
    _, test = parts
    one = nestling.federate(own_source.net(), own_source.read, test, num_clients=8, **FEW)
    two = nestling.federate(own_source.net(), own_source.read, test, num_clients=8, **FEW, settings=["workers=2"])
    assert same_state(one.model.state_dict(), two.model.state_dict())


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "classes", "user", "own"])
def test_one_dataset_is_divided(parts, scheme):
    images, classes = digits()
    test, users = parts[1], torch.arange(300) % 5
    partition = [range(100), range(100, 150), range(150, 300)] if scheme == "own" else scheme
    users = users if scheme == "user" else None
    data = (images[:300, None], classes[:300])
    number = len(partition) if scheme == "own" else 5
    result = nestling.federate(net(), data, test, partition=partition, num_clients=number, users=users, **FEW)
    sizes = [result._simulation.data.size(k) for k in range(len(result._simulation.data))]
    assert sum(sizes) == 300
    if scheme == "own":
        assert sizes == [100, 50, 150]
    elif scheme != "dirichlet":
        assert sizes == [60] * 5 or scheme == "classes"


def test_several_inputs_and_pixels():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other, self.head = nn.Linear(64, 8), nn.Linear(3, 8), nn.Linear(8, 10)

        def forward(self, pixels, more):
            assert pixels.dtype == torch.float32
            assert pixels.max() <= 1
            return self.head((self.one(pixels.flatten(1)) + self.other(more)).relu())

    images, classes = digits()
    pixels, more = (images * 255).to(torch.uint8), torch.randn(len(images), 3)
    by_place = [((pixels[k::9], more[k::9]), classes[k::9]) for k in range(9)]
    by_name = [{"more": more[k::9], "pixels": pixels[k::9], "label": classes[k::9]} for k in range(9)]
    models = []
    for given in (by_place, by_name):
        torch.manual_seed(0)
        models.append(nestling.federate(Two(), given[:8], given[8], **FEW).model.state_dict())
    assert same_state(*models)


def test_a_loss_and_metrics_of_ones_own(parts):
    clients, test = parts
    result = nestling.federate(net(), clients, test, loss=own_source.smooth, metrics={"hits": own_source.hits}, **FEW)
    final = result.summary["final"]
    assert result.summary["metrics"][0] == {"name": "hits", "better": "higher", "percent": False}
    with torch.no_grad():
        assert final["hits"] == pytest.approx(own_source.hits(result.model, test).item())
        assert final["global_loss"] == pytest.approx(own_source.smooth(result.model, test).item(), rel=1e-5)
        assert final["submodels"]["b"]["hits"] == pytest.approx(own_source.hits(result.submodel("b"), test).item())


def test_a_loss_without_targets():
    def rebuild(model, images):
        return (model(images) - images.flatten(1)).square().mean()

    images, _ = digits()
    flat = [images[k:400:4] for k in range(4)]
    result = nestling.federate(net(outputs=64), flat, images[1500:], loss=rebuild, **FEW, lr=0.01)
    losses = [line["train_loss"] for line in result.rounds]
    assert losses[-1] < losses[0]


def vector_loss(model, batch):
    images, classes = batch
    return nn.functional.cross_entropy(model(images), classes, reduction="none")


class Constant(nn.Module):
    """A net whose forward draws the size of a hidden layer from a constant."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, images):
        hidden = self.first(images.flatten(1)).relu()
        return self.last(hidden + torch.ones(16))


class Uneven(ByIndex):
    def __getitem__(self, index):
        return super().__getitem__(index) + (1,) * index


def spoilt(parts, change):
    """The data of four clients, of which the third is changed."""
    clients = list(parts[0])
    clients[2] = change(*clients[2])
    return clients


def with_nan(images, classes):
    images = images.clone()
    images[3, 0, 1, 1] = torch.nan
    return images, classes


REFUSED = {
    "client 2: the inputs of 1 samples hold NaN": with_nan,
    "client 2: the label 10 is not one of the 10 classes": lambda x, y: (x, y + (y == y.max()) * (10 - y)),
    "client 2: the label -1 is not one of the 10 classes": lambda x, y: (x, y - 1 - y.min()),
    "client 2: one sample's targets are float32": lambda x, y: (x, y.float()),
    "client 2: one sample's inputs are float32 of shape \\(1, 8, 7\\)": lambda x, y: (x[..., 1:], y),
    "client 2: there are 50 inputs, but 49 targets": lambda x, y: (x, y[1:]),
    "client 2 has no data: leave it out": lambda x, y: (x[:0], y[:0]),
    "client 2: samples are arrays": lambda x, y: "text",
    "client 2: the inputs are not numbers in a regular array": lambda x, y: ([[1.0, 2.0], [3.0]], [0, 1]),
    "client 2: an IterableDataset has no samples by index": lambda x, y: Stream(),
    "client 2: sample 1 has shape": lambda x, y: ByIndex([x[0], x[1, :, 1:]], y[:2]),
    "client 2: samples are .* not a list: give \\(inputs, targets\\) as a tuple": lambda x, y: [x, y],
    "client 2: samples are .* not a DataLoader: give its dataset": lambda x, y: DataLoader(ByIndex(x, y)),
    "client 2: the inputs are sparse tensors: convert": lambda x, y: (x.to_sparse(), y),
    "client 2: the targets are not numbers .* they are texts": lambda x, y: (x, np.array(["a"] * len(y))),
    "client 2: sample 1 has 3 parts, but sample 0 has 2 parts": Uneven,
    "client 2: a sample holds a str": lambda x, y: ByIndex(["one", "two"], y[:2]),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_data_that_cannot_be_right_is_refused(parts, sentence):
    with pytest.raises(NestlingError, match=sentence) as problem:
        nestling.federate(net(), spoilt(parts, REFUSED[sentence]), parts[1], **FEW)
    assert problem.value.exit_code == 2
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("sentence", "changes"),
    [
        ("must return one number, the mean over the batch, not a tensor of shape \\(4,\\)", {"loss": vector_loss}),
        ("the loss does not depend on any parameter", {"loss": lambda model, batch: model(batch[0]).detach().mean()}),
        ("give a task or a loss function, not both", {"loss": vector_loss, "task": "classification"}),
        ("there is no task 'classificaton'; did you mean 'classification'", {"task": "classificaton"}),
        ("needs the id of the mask token", {"task": "masked-token"}),
        ("the targets of a regression are floating-point numbers", {"task": "regression"}),
        ("metrics of your own go with a loss", {"metrics": {"hits": own_source.hits}}),
        ("a metric cannot be computed: ZeroDiv", {"loss": own_source.smooth, "metrics": {"a": lambda m, b: 1 / 0}}),
        ("setting data.partition cannot be 'dirichlte'; did you mean 'dirichlet'", {"partition": "dirichlte"}),
        ("data.partition has no effect on own data", {"partition": "dirichlet"}),
        ("num_clients=7 does not fit own data, which is divided among 4 clients", {"num_clients": 7}),
        ("data.public_share has no effect .* give public=… beside", {"settings": ["data.public_share=0.1"]}),
        ("feddf needs samples without labels .* public=… beside data of your own", {"method": "feddf"}),
        (
            "the public samples: one sample's inputs are float32 of shape \\(64,\\)",
            {"method": "feddf", "public": torch.zeros(9, 64)},
        ),
        ("partition=… is for samples that are not divided", {"partition": [[0, 1], [2]]}),
        ("there is no setting 'locl.lr'", {"settings": ["locl.lr=1"]}),
        ("there is no method 'fedrolx'", {"method": "fedrolx"}),
    ],
)
def test_arguments_that_cannot_be_right_are_refused(parts, sentence, changes):
    with pytest.raises(NestlingError, match=sentence) as problem:
        nestling.federate(net(), *parts, **FEW | changes)
    assert problem.value.exit_code == 2


def test_models_that_do_not_fit_are_refused(parts):
    with pytest.raises(
        NestlingError, match="the model cannot be run on 2 test samples, float32 of shape \\(1, 8, 8\\): RuntimeError"
    ):
        nestling.federate(net(inputs=63), *parts, **FEW)
    with pytest.raises(NestlingError, match=r"nothing to cut|size is written"):
        nestling.federate(Constant(), *parts, **FEW)
    with pytest.raises(NestlingError, match="there is nothing to test on"):
        nestling.federate(net(), parts[0], **FEW)
    with pytest.raises(NestlingError, match=r"wrapped in DataParallel: give the module inside, model[.]module"):
        nestling.federate(nn.DataParallel(net()), *parts, **FEW)
    with pytest.raises(NestlingError, match=r"must be an nn[.]Module"):
        nestling.federate(lambda x: x, *parts, **FEW)
    images, _ = digits()
    wide = [(images[:50], torch.randn(50)), (images[50:99], torch.randn(49))]
    with pytest.raises(NestlingError, match="regression needs outputs of the targets' shape \\(4,\\), not \\(4, 1\\)"):
        nestling.federate(net(outputs=1), wide, wide[0], **FEW)


def test_only_classes_of_samples_divide_them():
    images, _ = digits()
    maps = (images[:100, None], (images[:100] > 0.5).long())
    with pytest.raises(NestlingError, match="has no classes of samples to divide it by"):
        nestling.federate(nn.Conv2d(1, 2, 1), maps, maps, task="segmentation", partition="dirichlet", **FEW)


def test_clients_in_a_form_that_is_not_ours_are_refused(parts):
    clients, test = parts
    for given, instead in (
        (dict(enumerate(clients)), "not a dict: give the samples of all clients as a list"),
        (iter(clients), "not a list_iterator: give a list"),
        ([], "not an empty list"),
        ({"train": clients[0], "test": test}, r"give clients=data\['train'\] and test=data\['test'\]"),
    ):
        with pytest.raises(NestlingError, match=instead):
            nestling.federate(net(), given, test, **FEW)
    with pytest.raises(NestlingError, match=r"of shape \(N, 1\) is not known: .*targets of shape \(N,\)"):
        nestling.federate(net(), [(x, y[:, None]) for x, y in clients], (test[0], test[1][:, None]), **FEW)


def test_levels_are_a_text_a_list_or_a_mapping(parts):
    few = {key: value for key, value in FEW.items() if key != "levels"} | {"rounds": 1}
    for levels, expected in ((["a", 0.25], [2, 2]), ({"a": 1, "c": 3}, [1, 3])):
        result = nestling.federate(net(), *parts, levels=levels, **few)
        assert list(result.rounds[0]["levels"].values()) == expected
        assert sorted(result.levels.values()) == [0.25, 1.0]


def test_masks_stay_masks_and_a_masked_loss_is_left_out():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 1))

        def forward(self, images, ink):
            assert ink.dtype == torch.bool
            return self.net(images.flatten(1).masked_fill(~ink, 0))

    images, classes = digits()
    ink, number = images.flatten(1) > 0.2, classes.float()[:, None] / 10
    given = [((images[k:200:5], ink[k:200:5]), number[k:200:5]) for k in range(5)]
    result = nestling.federate(Masked(), given[:4], given[4], **FEW | {"method": "fedrolex"}, options={"step": 2})
    assert result.experiment.options == {"masked": False, "step": 2}
    classified = [(images[k:200:5], classes[k:200:5]) for k in range(5)]
    few = FEW | {"method": "fedrolex", "rounds": 1}
    result = nestling.federate(net(), classified[:4], classified[4], **few, options={"step": 2})
    assert result.experiment.options == {"step": 2}


def test_the_server_has_public_samples(parts, tmp_path):
    clients, test = parts
    images, classes = digits()
    few = FEW | {"method": "ds-fl", "rounds": 1, "out": tmp_path / "run"}
    result = nestling.federate(net(), clients, test, public=(images[400:450, None], classes[400:450]), **few)
    assert len(result._simulation.public) == 50
    assert not result._simulation.public.targets().numel()  # nobody knows their labels
    with pytest.raises(NestlingError, match="its public samples differ"):
        nestling.federate(net(), clients, test, public=images[450:500, None], **few | {"rounds": 2})


def test_functions_that_cannot_be_sent_are_refused(parts):
    _, test = parts
    with pytest.raises(NestlingError, match="define it with def at the top level of a module"):
        nestling.federate(net(), lambda client: test, test, num_clients=3, **FEW)
    with pytest.raises(NestlingError, match="give num_clients="):
        nestling.federate(net(), own_source.read, test, **FEW)


def test_functions_of_a_notebook_are_refused_for_workers(parts, monkeypatch):
    clients, test = parts
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)

    def at_a_prompt(model, batch):
        return own_source.hits(model, batch)

    at_a_prompt.__module__, at_a_prompt.__qualname__ = "__main__", "at_a_prompt"
    monkeypatch.setattr(sys.modules["__main__"], "at_a_prompt", at_a_prompt, raising=False)
    own = {"loss": own_source.smooth, "metrics": {"hits": at_a_prompt}}
    with pytest.raises(NestlingError, match=r"'at_a_prompt' is defined in a notebook .* or use workers=1"):
        nestling.federate(net(), clients, test, **own, **FEW, settings=["workers=2"])
    assert nestling.federate(net(), clients, test, **own, **FEW | {"rounds": 1}).rounds


def test_a_client_with_one_class_is_reported(parts, tmp_path):
    clients = spoilt(parts, lambda x, y: (x[y == 3], y[y == 3]))
    nestling.federate(net(), clients, parts[1], **FEW, out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert any(line["kind"] == "client with one class" for line in lines)


def test_events_before_the_run_are_in_its_log(parts, tmp_path):
    class Random(ByIndex):
        def __getitem__(self, index):
            return self.images[index] + torch.rand(()), int(self.classes[index])

    nestling.federate(net(), [Random(*part) for part in parts[0]], parts[1], **FEW, out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert sum(line["kind"] == "random samples read once" for line in lines) == 4


def test_the_best_round_is_chosen_by_validation_samples(parts):
    clients, test = parts
    result = nestling.federate(net(), clients[:3], test, validation=clients[3], **FEW)
    assert 0 <= result.summary["final"]["validation_accuracy"] <= 1


def test_our_own_data_sets_serve_as_they_are():
    from nestling.data import load  # noqa: PLC0415

    result = nestling.federate(net(), load("digits"), num_clients=20, partition="dirichlet", **FEW)
    assert result.summary["partition"] == "dirichlet"
    assert result.summary["final"]["local_accuracy"] is not None
    with pytest.raises(NestlingError, match="has its own test samples"):
        nestling.federate(net(), load("digits"), test=(torch.zeros(1, 64), [0]), **FEW)


def test_an_empty_client_may_be_wanted(parts):
    clients = spoilt(parts, lambda x, y: (x[:0], y[:0]))
    result = nestling.federate(net(), clients, parts[1], **FEW, settings=["data.min_samples=0"])
    assert result.rounds[0]["empty"] == 1


# ---- by name


@pytest.mark.parametrize("factory", ["by_client", "undivided", "with_own_loss"])
def test_data_of_ones_own_is_named(factory, tmp_path):
    settings = [
        "rounds=2",
        "evaluate.every=1",
        "fleet.clients=8",
        "fleet.per_round=4",
        "fleet.levels=a-b",
        "options.masked=false",
    ]
    names = [f"data.name=tests.experiment.own_source:{factory}", "model.name=tests.experiment.own_source:net"]
    experiment = find("heterofl-digits").with_settings([*settings, *names])
    result = nestling.run(experiment, out=tmp_path / "run")
    first = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    identity = json.loads((tmp_path / "run" / "identity.json").read_text())
    assert identity["objects"] == {}
    assert identity["dataset"]["name"] == f"tests.experiment.own_source:{factory}"
    again = nestling.run(nestling.Experiment.from_toml((tmp_path / "run" / "config.toml").read_text()))
    assert same_state(again.state, result.state)
    longer = nestling.resume(tmp_path / "run", rounds=3)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes().startswith(first)
    assert len(longer.rounds) == 3


def test_a_run_goes_on_with_the_same_data_only(tmp_path, monkeypatch):
    names = ["data.name=tests.experiment.own_source:undivided", "model.name=tests.experiment.own_source:net"]
    experiment = find("heterofl-digits").with_settings([*names, "rounds=1"])
    nestling.run(experiment, out=tmp_path / "run")
    other = own_source.undivided()
    monkeypatch.setattr(
        own_source, "undivided", lambda: other | {"clients": (other["clients"][0] + 1e-3, other["clients"][1])}
    )
    with pytest.raises(NestlingError, match=r"is not the one that .* was started with: its samples differ"):
        nestling.resume(tmp_path / "run", rounds=2)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("tests.experiment.own_source:wrong", "is a list: its factory returns the arguments of nestling.federate"),
        ("tests.experiment.own_source:misspelt", "has no 'tests'; did you mean 'test'"),
        ("tests.experiment.own_source:nothing", "has no factory 'nothing'"),
        ("tests.experiment.own_source:by_client", "has 8 clients, but fleet.clients is 100: set fleet.clients=8"),
    ],
)
def test_factories_of_data_that_cannot_be_right(name, sentence):
    with pytest.raises(NestlingError, match=sentence) as problem:
        nestling.run(find("heterofl-digits").with_settings([f"data.name={name}", "fleet.clients=100"]))
    assert problem.value.exit_code == 2


def test_own_data_is_looked_at_once():
    part = torch.zeros(4, 2), torch.arange(4)
    data = own_data([part, part], test=part).with_targets("classes", 4)
    assert (len(data), data.classes, data.client(1).held().tolist()) == (2, 4, [0, 1, 2, 3])


def test_budgets_take_the_place_of_levels(parts, tmp_path):
    clients, test = parts
    few = {"rounds": 1, "per_round": 4}
    result = nestling.federate(net(), clients, test=test, budgets=["3 kB", "900 B"], out=tmp_path / "run", **few)
    levels = list(result.summary["final"]["submodels"])
    sizes = [sum(t.numel() * 4 for t in result.submodel(level).parameters()) for level in levels]
    assert len(sizes) == 2
    assert 2700 < sizes[0] <= 3000
    assert 600 < sizes[1] <= 900
    chosen = result.submodel(budget="900 B").state_dict()
    assert same_state(chosen, result.submodel(levels[1]).state_dict())
    again = nestling.federate(net(), clients, test=test, budgets=["3 kB", "900 B"], out=tmp_path / "run", **few)
    assert again.summary == result.summary  # the same budgets: the run is finished
    uneven = nestling.federate(net(), clients, test=test, budgets={"3 kB": 0.25, "900 B": 0.75}, **few)
    assert sorted(uneven.rounds[0]["levels"].values()) == [1, 3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"levels": "a-b", "budgets": ["2 kB"]}, "not both"),
        ({"budgets": "2 kB"}, "must be a list such as"),
        ({"budgets": ["2 parsecs"]}, "the budget '2 parsecs' cannot be read"),
        ({"budgets": ["20 ms"]}, "a limit of time"),
        ({"budgets": ["10 B"]}, "smallest"),
        ({"budgets": ["2 kB"], "method": "fedavg"}, "one size for all clients"),
    ],
)
def test_budgets_that_are_refused(parts, settings, message):
    with pytest.raises(NestlingError, match=message):
        nestling.federate(net(), parts[0], test=parts[1], rounds=1, **settings)
