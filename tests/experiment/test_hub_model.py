"""Sub-models for the Hugging Face Hub, offline: saved to a folder and loaded from it in a fresh process."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import nestling
from nestling.errors import ExportError
from nestling.experiment.hub_model import HubModel
from nestling.settings import Evaluate, Model
from tests.run_cases import small

TINY = {"rounds": 1, "evaluate": Evaluate(every=1, samples=50)}


@pytest.mark.slow
def test_a_submodel_is_saved_and_loaded_with_its_own_norms_and_steps(tmp_path):
    model = Model(name="resnet8", options={"widths": [4, 8, 8, 16], "learn_steps": True})
    experiment = small(method="nefl", model=model, **TINY).with_settings(["fleet.levels=0.4-1", "fleet.per_round=8"])
    nestling.run(experiment, out=tmp_path / "run")
    loaded = nestling.load(tmp_path / "run")
    packed = loaded.hub_model("0.4")
    packed.save_pretrained(tmp_path / "hub")
    config = json.loads((tmp_path / "hub" / "config.json").read_text())
    assert (config["model"], config["options"]["widths"], config["options"]["channels"]) == (
        "resnet8",
        [4, 8, 8, 16],
        1,
    )
    inputs = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path / "inputs.npy", inputs.numpy())
    script = (
        "import numpy as np, torch\nfrom nestling.experiment.hub_model import HubModel\n"
        f"model = HubModel.from_pretrained({str(tmp_path / 'hub')!r})\n"
        f"answer = model(torch.from_numpy(np.load({str(tmp_path / 'inputs.npy')!r}))).detach().numpy()\n"
        f"np.save({str(tmp_path / 'answer.npy')!r}, answer)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=250)
    with torch.no_grad():
        expected = loaded.submodel("0.4")(inputs).numpy()
    assert np.abs(np.load(tmp_path / "answer.npy") - expected).max() <= 1e-5


def test_what_is_refused(tmp_path):
    with pytest.raises(ExportError, match="there is no model 'os:system' to load from the Hub"):
        HubModel("os:system", {}, [2, 1, 8, 8], "float32", "{}")
    with pytest.raises(ExportError, match="inputs of type 'complex64' are not known"):
        HubModel("mlp", {}, [2, 1, 8, 8], "complex64", "{}")
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    nestling.run(small(**TINY), model=net, out=tmp_path / "run")
    with pytest.raises(ExportError, match="models for the Hub are those of 'nestling list models'"):
        nestling.load(tmp_path / "run", model=net).hub_model("a")
