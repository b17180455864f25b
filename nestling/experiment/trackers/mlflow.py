"""MLflow: where ``MLFLOW_TRACKING_URI`` says, or else in a store of the current directory."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from nestling.experiment.trackers.tracker import Tracker

_PARAMETERS, _METRICS, _LENGTH = 100, 1000, 6000  # the most that one request may hold, and characters of a value


class MLflow(Tracker):
    """Log to MLflow.

    Parameters
    ----------
    experiment
        MLflow's experiment, which holds runs; by default that of ``MLFLOW_EXPERIMENT_NAME``, or else ``nestling``.
    tracking_uri
        Where runs are stored; by default MLflow's own setting.
    """

    name, package = "mlflow", "mlflow"

    def __init__(self, experiment: str | None = None, tracking_uri: str | None = None) -> None:
        super().__init__()
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "nestling")
        self._uri = tracking_uri

    def start(self, name: str, settings: Mapping[str, Any], identifier: str | None) -> str:
        """Create a run, or open the one of an earlier start; the fluent API's active run is left alone."""
        self._client = self.library.MlflowClient(tracking_uri=self._uri)
        if identifier is not None:
            self._client.update_run(identifier, status="RUNNING")
            self._run_id = identifier
            return identifier
        experiment = self._client.get_experiment_by_name(self._experiment)
        number = experiment.experiment_id if experiment else self._client.create_experiment(self._experiment)
        self._run_id = str(self._client.create_run(number, run_name=name).info.run_id)
        entities = self.library.entities
        parameters = [entities.Param(_key(key), str(value)[:_LENGTH]) for key, value in settings.items()]
        for first in range(0, len(parameters), _PARAMETERS):
            self._client.log_batch(self._run_id, params=parameters[first : first + _PARAMETERS])
        return self._run_id

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round."""
        now, entities = int(time.time() * 1000), self.library.entities
        metrics = [entities.Metric(_key(name), value, now, round) for name, value in figures.items()]
        for first in range(0, len(metrics), _METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[first : first + _METRICS])

    def finish(self, *, done: bool) -> None:
        """Set the state of the run."""
        self._client.set_terminated(self._run_id, "FINISHED" if done else "KILLED")


def _key(name: str) -> str:
    """Return a name with the characters that MLflow accepts.

    >>> _key("evaluation/submodels/a*/accuracy")
    'evaluation/submodels/a_/accuracy'
    """
    return re.sub(r"[^\w\-./ ]", "_", name)
