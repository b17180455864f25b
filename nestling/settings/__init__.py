"""Settings: what an experiment is made of, read, validated and written."""

from nestling.settings.config_file import from_file
from nestling.settings.overrides import as_value
from nestling.settings.renamed import with_new_names
from nestling.settings.schedule import learning_rate
from nestling.settings.structs import (
    Data,
    Evaluate,
    Experiment,
    FleetSettings,
    LocalTraining,
    Model,
    ServerSettings,
    Upload,
    checked,
    read,
)

__all__ = [
    "Data",
    "Evaluate",
    "Experiment",
    "FleetSettings",
    "LocalTraining",
    "Model",
    "ServerSettings",
    "Upload",
    "as_value",
    "checked",
    "from_file",
    "learning_rate",
    "read",
    "with_new_names",
]
