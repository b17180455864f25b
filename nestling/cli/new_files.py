"""The files that ``nestling new`` writes; NAME stands for the name of the app, in paths, too."""

_README = """\
# NAME

A federated experiment with Nestling: ten clients train slices of one model.

| file | holds |
|---|---|
| `NAME/data.py` | the samples of every client, and those to test on |
| `NAME/model.py` | the model |
| `NAME/experiment.toml` | everything else: method, levels, rounds, learning rate |

```
nestling run NAME/experiment.toml --out runs/first     # in simulation
nestling report runs/first                             # one page about it
python -m pytest
```
"""

_README_FLOWER = (
    _README
    + """
On devices, in an environment with `pip install 'nestling[flower,data]'` (`NAME/server_app.py` and
`NAME/client_app.py` say which experiment; `[tool.flwr.app.config]` in `pyproject.toml` how long rounds wait):

```
flwr run . --stream                                    # Flower's simulation
flower-superlink --insecure                            # or: a server,
flower-supernode --insecure --superlink HOST:8000 --node-config 'client=0'   # a device, and
flwr run . my-superlink --stream                       # a run
```

Nestling's docs/devices.md goes on from here: certificates, keys, firewalls, and what to watch.
"""
)

_DATA = '''\
"""The samples: handwritten digits, of which every client has a tenth. Replace them by your own."""

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor

CLIENTS = 10


def data() -> dict[str, Any]:
    """Return the data of the experiment: the arguments of `nestling.federate` that are data."""
    return {"clients": client, "test": _part(1500, 1797), "task": "classification"}


def client(number: int) -> tuple[Tensor, Tensor]:
    """Return the samples of a client. On a device, read its own here.

    The server calls this for client 0, to see what samples look like: there, a few made-up ones will do.
    """
    return _part(150 * number, 150 * (number + 1))


def _part(start: int, stop: int) -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images[start:stop], dtype=torch.float32).view(-1, 1, 8, 8) / 16
    return inputs, torch.tensor(labels[start:stop])
'''

_MODEL = '''\
"""The model: any module of PyTorch. Nestling finds out by itself which of its widths can be cut."""

from torch import nn


def make(classes: int = 10) -> nn.Module:
    """Return the whole model; devices get slices of it."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )
'''

_EXPERIMENT = """\
method = "heterofl"
rounds = 10

[model]
name = "NAME.model:make"

[data]
name = "NAME.data:data"

[fleet]
clients = 10
per_round = 10
levels = "a-b-c"          # the whole width, a half, a quarter

[local]
epochs = 2
lr = 0.1

[evaluate]
every = 2
"""

_TEST = '''\
"""The experiment learns; run this with pytest, in the folder above."""

import nestling
from NAME.data import CLIENTS, client, data


def test_every_client_has_samples():
    for number in range(CLIENTS):
        inputs, targets = client(number)
        assert len(inputs) == len(targets) > 0
    assert len(data()["test"][1]) > 0


def test_it_learns():
    experiment = nestling.Experiment.from_toml(open("NAME/experiment.toml", encoding="utf-8").read())
    result = nestling.run(experiment.with_settings(["rounds=4"]))
    assert result.summary["final"]["global_accuracy"] > 0.5
    assert list(result.summary["levels"]) == ["a", "b", "c"]
'''

_PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.25"]
build-backend = "hatchling.build"

[project]
name = "NAME"
version = "0.1.0"
description = "A federated experiment with Nestling."
dependencies = ["nestling[data,report]"]

[tool.hatch.build.targets.wheel]
packages = ["NAME"]

[tool.pytest.ini_options]
pythonpath = ["."]
"""

_PYPROJECT_FLOWER = (
    _PYPROJECT.replace("nestling[data,report]", "nestling[data,flower]")
    + """
[tool.flwr.app]
publisher = "me"

[tool.flwr.app.components]
serverapp = "NAME.server_app:app"
clientapp = "NAME.client_app:app"

[tool.flwr.app.config]
out = "nestling-run"      # the run directory, on the server
settings = ""             # of the experiment, as on the command line: "rounds=3 local.lr=0.05"
min-nodes = 2             # devices that must be online before a round begins
deadline = 600.0          # seconds of a round
min-replies = 1           # updates that it needs
"""
)

_SERVER_APP = '''\
"""The server: runs the experiment, or goes on with it after its last whole round."""

from pathlib import Path

from nestling.experiment.flower_apps import server_app

app = server_app(Path(__file__).with_name("experiment.toml"))
'''

_CLIENT_APP = '''\
"""A device: trains the slices that it is sent, on its own samples (`NAME.data.client`)."""

from pathlib import Path

from nestling.experiment.flower_apps import client_app

app = client_app(Path(__file__).with_name("experiment.toml"))
'''

FILES = {
    "README.md": _README,
    "pyproject.toml": _PYPROJECT,
    "NAME/__init__.py": '"""A federated experiment with Nestling."""\n',
    "NAME/data.py": _DATA,
    "NAME/model.py": _MODEL,
    "NAME/experiment.toml": _EXPERIMENT,
    "tests/test_NAME.py": _TEST,
}

FLOWER_FILES = {
    "README.md": _README_FLOWER,
    "pyproject.toml": _PYPROJECT_FLOWER,
    "NAME/server_app.py": _SERVER_APP,
    "NAME/client_app.py": _CLIENT_APP,
}
