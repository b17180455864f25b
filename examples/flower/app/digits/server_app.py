"""The server. Devices hold the samples of simulated clients, so figures are those of the simulation."""

from pathlib import Path

from nestling.experiment.flower_apps import server_app

app = server_app(Path(__file__).with_name("experiment.toml"), own_data=False)
