"""Exported files: the same outputs in a fresh process, no pickles, and nothing is kept that answers differently."""

import importlib.util
import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import nestling
from nestling.cli import main
from nestling.errors import ExportError, NestlingError
from nestling.export import FORMATS, TrainingStep, write_verified
from nestling.nets import build, example
from nestling.settings import Evaluate, Model
from tests.run_cases import small

TINY = {"rounds": 1, "evaluate": Evaluate(every=1, samples=50)}
RESNET = {"widths": [4, 8, 8, 16], "learn_steps": True}
NEEDS = {"onnx": "onnxruntime", "executorch": "executorch", "executorch-training": "executorch"}
INSTALLED = [name for name in FORMATS if name not in NEEDS or importlib.util.find_spec(NEEDS[name])]

LOADERS = {
    "safetensors": """
import nestling
from nestling.nets import build, example
model = build("resnet8", widths=[4, 8, 8, 16], learn_steps=True, channels=1).eval()
state, plan = nestling.unpack(open(path, "rb").read())
small = nestling.submodel(model, nestling.trace(model, torch.zeros(2, 1, 8, 8)), plan)
small.load_state_dict(state)
answer = small(torch.from_numpy(inputs)).detach().numpy()
above = ("tasks", "methods", "client", "server", "experiment", "kernels", "export")
assert not [name for name in sys.modules if name.startswith("nestling.") and name.split(".")[1] in above]
""",
    "torch": """
answer = torch.export.load(path).module()(torch.from_numpy(inputs)).detach().numpy()
assert "nestling" not in sys.modules
""",
    "onnx": """
import onnxruntime
session = onnxruntime.InferenceSession(path)
(answer,) = session.run(None, {session.get_inputs()[0].name: inputs})
assert "nestling" not in sys.modules
""",
    "executorch": """
from executorch.runtime import Runtime
method = Runtime.get().load_program(path).load_method("forward")
answer = np.concatenate([method.execute([torch.from_numpy(row[None])])[0].numpy() for row in inputs])
assert "nestling" not in sys.modules
""",
}


@pytest.fixture(scope="module")
def nefl(tmp_path_factory):
    """A run whose sub-models have norms and step sizes of their own."""
    folder = tmp_path_factory.mktemp("runs") / "nefl"
    experiment = small(method="nefl", model=Model(name="resnet8", options=RESNET), **TINY)
    nestling.run(experiment.with_settings(["fleet.levels=0.4-1", "fleet.per_round=8"]), out=folder)
    return folder


def need_installed(name):
    if name not in INSTALLED:
        pytest.skip(f"{NEEDS[name]} is not installed: pip install 'nestling[{NEEDS[name].removesuffix('runtime')}]'")


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADERS)
def test_a_fresh_process_gets_the_same_outputs(name, nefl, tmp_path):
    need_installed(name)
    path = tmp_path / f"small{FORMATS[name].suffix}"
    loaded = nestling.load(nefl)
    exported = loaded.export(path, "0.4")
    assert exported.difference <= 1e-5
    inputs = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = loaded.submodel("0.4")(inputs).numpy()
    np.save(tmp_path / "inputs.npy", inputs.numpy())
    script = (
        f"import sys\nimport numpy as np\nimport torch\npath = {str(path)!r}\n"
        f"inputs = np.load({str(tmp_path / 'inputs.npy')!r})\n{LOADERS[name]}\n"
        f"np.save({str(tmp_path / 'answer.npy')!r}, answer)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=250)
    assert np.abs(np.load(tmp_path / "answer.npy") - expected).max() <= 1e-5


TRAIN = """
from executorch.extension.training import _load_for_executorch_for_training, get_sgd_optimizer
program = _load_for_executorch_for_training(path)
losses = [program.forward_backward("forward", (torch.from_numpy(inputs), targets))[0].item()]
gradients = {name: one.clone() for name, one in program.named_gradients().items()}
for _ in range(5):
    get_sgd_optimizer(program.named_parameters(), 0.1).step(program.named_gradients())
    losses.append(program.forward_backward("forward", (torch.from_numpy(inputs), targets))[0].item())
assert "nestling" not in sys.modules
np.savez(answer, losses=np.array(losses), **{name: one.numpy() for name, one in gradients.items()})
"""


@pytest.mark.slow
def test_a_training_program_has_the_gradients_of_a_client_and_learns(tmp_path):
    need_installed("executorch-training")
    model = Model(name="mlp")
    nestling.run(small(method="heterofl", model=model, **TINY), out=tmp_path / "run")
    loaded, path = nestling.load(tmp_path / "run"), tmp_path / "small.train.pte"
    exported = loaded.export(path, "b")
    assert (exported.format, exported.difference <= 1e-5) == ("executorch-training", True)
    assert "no more and no fewer" in exported.card.read_text()
    rows = loaded._simulation.setup.training.batch_size
    inputs = torch.randn(rows, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    targets = torch.arange(rows) % 10
    np.save(tmp_path / "inputs.npy", inputs.numpy())
    script = f"import sys, torch, numpy as np\npath, answer = {str(path)!r}, {str(tmp_path / 'answer.npz')!r}\n"
    script += f"inputs, targets = np.load({str(tmp_path / 'inputs.npy')!r}), torch.arange({rows}) % 10\n{TRAIN}"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=250)
    answer = np.load(tmp_path / "answer.npz")
    net = loaded.submodel("b")
    loaded._simulation.setup.method.build(net, loaded._simulation.setup, 0.5)
    loss = nn.functional.cross_entropy(net.train()(inputs), targets)
    loss.backward()
    assert answer["losses"][0] == pytest.approx(loss.item(), abs=1e-5)
    for name, parameter in net.named_parameters():
        assert np.abs(answer[f"model.{name}"] - parameter.grad.numpy()).max() <= 1e-5
    assert answer["losses"][-1] < answer["losses"][0] * 0.9


def test_a_training_step_with_dropout_is_refused():
    with pytest.raises(ExportError, match="random numbers of the dropout layer '1'"):
        TrainingStep(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), nn.functional.cross_entropy)
    TrainingStep(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0)), nn.functional.cross_entropy)


def test_the_command_and_the_model_card(nefl, tmp_path, capsys):
    path = tmp_path / "small.safetensors"
    assert main(["export", str(nefl), "--budget", "1 GB", "--budget", "1 GMACs", "--out", str(path), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["level"], row["trained"], row["largest_difference"]) == ("1", True, 0)
    state, plan = nestling.unpack(path.read_bytes())
    assert plan.key == "full"
    assert sum(tensor.nbytes for tensor in state.values()) == row["bytes"]
    card = (tmp_path / "small.safetensors.md").read_text()
    assert f"{row['bytes']:,} bytes of tensors" in card
    assert f"{row['macs']:,} for one sample" in card
    assert f"| accuracy | {row['accuracy']:.4g} on the test samples of digits |" in card
    assert "minus [" in card or "(1, 8, 8) of float32" in card
    final = json.loads((nefl / "summary.json").read_text())["final"]
    assert row["accuracy"] == pytest.approx(final["global_accuracy"])
    assert nestling.Experiment.from_toml(card.partition("```toml\n")[2].partition("```")[0]).method == "nefl"


def test_a_level_has_its_own_norms_steps_and_accuracy(nefl, tmp_path):
    loaded = nestling.load(nefl)
    exported = loaded.export(tmp_path / "small.safetensors", "0.4")
    state, plan = nestling.unpack(exported.path.read_bytes())
    own = loaded._state.submodels[plan.key]
    assert any(name.endswith(".step") for name in own)
    assert all(torch.equal(state[name], value) for name, value in own.items())
    assert exported.value == pytest.approx(loaded.summary["final"]["submodels"]["0.4"]["accuracy"])


def test_a_program_is_no_pickle_and_takes_any_batch(tmp_path):
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).eval()
    path = tmp_path / "net.pt2"
    assert write_verified(net, nestling.Plan(), torch.zeros(2, 4), path, FORMATS["torch"]) <= 1e-5
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    assert not [name for name in contents if name.endswith((".pkl", ".pickle"))]
    assert not [name for name, data in contents.items() if data[:1] == b"\x80" and data[-1:] == b"."]
    for rows in (1, 7):
        assert torch.export.load(path).module()(torch.ones(rows, 4)).shape == (rows, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer-mlm", "resnet18-exits"])
@pytest.mark.parametrize("form", [name for name in INSTALLED if "executorch" not in name])
def test_words_and_several_outputs(name, form, tmp_path):
    options = {"resnet18-exits": {"widths": (4, 4, 4, 4)}}.get(
        name, {"width": 8, "head_width": 4, "hidden": 8, "vocabulary": 20, "depth": 1, "positions": 6}
    )
    net, (x,) = build(name, **options).eval(), example(name, **options)
    path = tmp_path / f"net{FORMATS[form].suffix}"
    assert write_verified(net, nestling.Plan(), x, path, FORMATS[form], tokens=12) <= 1e-5
    assert path.stat().st_size > 0


@dataclass
class Answer:
    """What models of Hugging Face return: logits among others."""

    logits: torch.Tensor
    extra: torch.Tensor


torch.export.register_dataclass(Answer, serialized_type_name="tests.export.Answer")


class Several(nn.Module):
    """Words and a mask, by name or in this order."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, ids, mask):
        states = (self.embedding(ids) * mask[..., None]).sum(1)
        return Answer(self.head(states), states)


@pytest.mark.slow
@pytest.mark.parametrize("form", [name for name in INSTALLED if "executorch" not in name])
@pytest.mark.parametrize("named", [True, False])
def test_several_inputs_and_logits_among_others(form, named, tmp_path):
    ids, mask = torch.zeros(1, 5, dtype=torch.long), torch.ones(1, 5)
    inputs = {"ids": ids, "mask": mask} if named else (ids, mask)
    path = tmp_path / f"net{FORMATS[form].suffix}"
    assert write_verified(Several().eval(), nestling.Plan(), inputs, path, FORMATS[form], tokens=7) <= 1e-5
    if form == "torch":
        program, four = torch.export.load(path).module(), (ids.expand(4, 5), mask.expand(4, 5))
        answer = program(ids=four[0], mask=four[1]) if named else program(*four)
        assert answer.shape == (4, 3)


def test_a_file_that_answers_differently_is_refused_and_not_kept(tmp_path):
    def wrong(path, model, inputs):
        return [model(inputs) + 2e-5]

    net, path = nn.Linear(4, 2).eval(), tmp_path / "net.pt2"
    form = replace(FORMATS["torch"], answers=wrong)
    with pytest.raises(ExportError, match=r"differ from the sub-model's by .*, more than 1e-05"):
        write_verified(net, nestling.Plan(), torch.zeros(1, 4), path, form)
    form = replace(FORMATS["torch"], answers=lambda path, model, inputs: [model(inputs) * torch.nan])
    with pytest.raises(ExportError, match="by nan"):
        write_verified(net, nestling.Plan(), torch.zeros(1, 4), path, form)
    form = replace(FORMATS["torch"], answers=lambda path, model, inputs: [])
    with pytest.raises(ExportError, match=r"returns outputs of shapes \[\]"):
        write_verified(net, nestling.Plan(), torch.zeros(1, 4), path, form)
    assert list(tmp_path.iterdir()) == []


class Untraceable(nn.Module):
    def forward(self, x):
        return x * float(x.sum().item() > 0) if x.sum().item() > 0 else -x


def test_a_model_that_cannot_be_exported_is_refused(tmp_path):
    with pytest.raises(ExportError, match="cannot be exported as torch: "):
        write_verified(Untraceable().eval(), nestling.Plan(), torch.zeros(1, 4), tmp_path / "n.pt2", FORMATS["torch"])
    assert list(tmp_path.iterdir()) == []


def test_bad_requests(nefl, tmp_path, capsys):
    loaded = nestling.load(nefl)
    for arguments, message in (
        ({"out": tmp_path / "small.xyz"}, "the format does not follow from the name 'small.xyz'"),
        ({"out": tmp_path / "small.bin", "format": "pickle"}, "there is no format 'pickle'"),
        ({"out": tmp_path / "no" / "small.onnx"}, "there is no directory"),
        ({"out": tmp_path / "small.pt2", "level": "c"}, "the run has no level 'c'"),
        ({"out": tmp_path / "small.pt2", "budget": "1 kB"}, "no sub-model meets the budget 1 kB"),
        ({"out": tmp_path / "small.pt2", "budget": "1 MB", "level": "1"}, "not both"),
    ):
        with pytest.raises(NestlingError, match=message):
            loaded.export(**arguments)
    assert main(["export", str(tmp_path), "--out", "x.pt2"]) == 2
    assert "is not a run directory" in capsys.readouterr().err


def test_a_missing_package_is_named(nefl, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ExportError, match=r"needs the package 'onnxscript': pip install 'nestling\[onnx\]'"):
        nestling.load(nefl).export(tmp_path / "small.onnx")


def test_clients_that_keep_their_models_leave_nothing_to_export(tmp_path):
    nestling.run(small(method="standalone", **TINY), out=tmp_path / "run")
    with pytest.raises(ExportError, match=r"clients of standalone keep .* tensors to themselves"):
        nestling.load(tmp_path / "run").export(tmp_path / "small.pt2")
