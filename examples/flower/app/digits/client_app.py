"""A device: it holds the samples of the client whose number its owner gave it."""

from pathlib import Path

from nestling.experiment.flower_apps import client_app

app = client_app(Path(__file__).with_name("experiment.toml"))
