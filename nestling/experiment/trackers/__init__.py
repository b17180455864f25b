"""Trackers of experiments: TensorBoard, Weights & Biases, Trackio and MLflow, one small adapter each."""

from nestling.errors import ConfigError, nearest
from nestling.experiment.trackers.mlflow import MLflow
from nestling.experiment.trackers.tensorboard import TensorBoard
from nestling.experiment.trackers.tracker import Tracker
from nestling.experiment.trackers.trackio import Trackio
from nestling.experiment.trackers.wandb import WeightsAndBiases

__all__ = ["TRACKERS", "MLflow", "TensorBoard", "Tracker", "Trackio", "WeightsAndBiases", "make_tracker"]

TRACKERS: dict[str, type[Tracker]] = {
    tracker.name: tracker for tracker in (TensorBoard, WeightsAndBiases, Trackio, MLflow)
}


def make_tracker(name: str) -> Tracker:
    """Return a tracker by its name, with its own defaults.

    >>> make_tracker("tensorbord")
    Traceback (most recent call last):
    nestling.errors.ConfigError: there is no tracker 'tensorbord'; did you mean 'tensorboard'?
    """
    if name not in TRACKERS:
        raise ConfigError(f"there is no tracker {name!r}{nearest(name, TRACKERS)}")
    return TRACKERS[name]()
