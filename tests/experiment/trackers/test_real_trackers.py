"""The real libraries, on this machine alone: what a run logs arrives, and a resumed run goes on in the same place."""

import importlib.util
import json
import sqlite3
import struct

import pytest

from nestling.errors import NestlingError
from nestling.experiment import resume, run
from nestling.experiment.trackers import MLflow, TensorBoard, Trackio, WeightsAndBiases
from nestling.settings import Evaluate
from tests.experiment.test_resume import Stop
from tests.run_cases import tiny


def stopped_and_resumed(folder, tracker):
    """Track a run that is stopped after two rounds, and resumed; return its records."""
    settings = tiny(rounds=3, evaluate=Evaluate(samples=20), checkpoint_every=10, seed=3)
    with pytest.raises(KeyboardInterrupt):
        run(settings, out=folder, track=tracker(), callbacks=[Stop(rounds=2)], quiet=True)
    result = resume(folder, track=tracker(), quiet=True)
    return [record["evaluation"]["global_accuracy"] for record in result.rounds]


def need(package):
    """Skip a test without its package; the others here are imported in tests, too, so that each needs its own only."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: it has many dependencies, so dev leaves out nestling[{package}]")


def test_tensorboard(tmp_path):
    need("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    accuracies = stopped_and_resumed(tmp_path / "run", TensorBoard)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    scalars = events.Scalars("evaluation/global_accuracy")
    assert [scalar.step for scalar in scalars] == [1, 2, 3]
    assert [scalar.value for scalar in scalars] == pytest.approx(accuracies)
    assert "settings/text_summary" in events.Tags()["tensors"]
    with pytest.raises(NestlingError, match="needs a folder"):
        run(tiny(), track="tensorboard", quiet=True)


def leveldb_records(content, block=2**15):
    """Yield the records of a LevelDB log: after a header, parts of records, each with checksum, length and kind."""
    place, record = 7, b""
    while place + 7 <= len(content):
        if block - place % block < 7:
            place += block - place % block  # padding
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield record
            record = b""


@pytest.mark.slow
def test_wandb(tmp_path, monkeypatch):
    need("wandb")
    from wandb.proto import wandb_internal_pb2  # noqa: PLC0415

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    accuracies = stopped_and_resumed(tmp_path / "run", lambda: WeightsAndBiases(project="tests"))
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert len({file.stem for file in files}) == 1  # parts of one run: `wandb sync` joins them
    logged, config = {}, {}
    for file in files:
        for data in leveldb_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
            }
            if values:
                assert values["round"] not in logged
                logged[values["round"]] = values["evaluation/global_accuracy"]
    assert list(logged) == [1, 2, 3]
    assert list(logged.values()) == pytest.approx(accuracies)
    assert config["seed"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "file"])
def test_mlflow(tmp_path, monkeypatch, store):
    need("mlflow")
    import mlflow  # noqa: PLC0415

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"sqlite:///{tmp_path}/mlflow.db" if store == "sqlite" else (tmp_path / "mlruns").as_uri()
    accuracies = stopped_and_resumed(tmp_path / "run", lambda: MLflow(experiment="tests", tracking_uri=uri))
    client = mlflow.MlflowClient(tracking_uri=uri)
    (tracked,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    history = client.get_metric_history(tracked.info.run_id, "evaluation/global_accuracy")
    assert [entry.step for entry in history] == [1, 2, 3]
    assert [entry.value for entry in history] == pytest.approx(accuracies)
    assert tracked.data.params["seed"] == "3"
    assert tracked.info.status == "FINISHED"
    assert tracked.info.run_name == "heterofl-digits"


@pytest.mark.slow
def test_trackio(tmp_path, monkeypatch):
    need("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    import trackio  # noqa: PLC0415

    accuracies = stopped_and_resumed(tmp_path / "run", lambda: Trackio(project="tests"))
    name = json.loads((tmp_path / "run" / "tracking.json").read_text())["trackio"]["id"]
    (tracked,) = trackio.Api().runs("tests")
    assert tracked.name == name
    logged = sqlite3.connect(next((tmp_path / "trackio").glob("*.db"))).execute("select step, metrics from metrics")
    history = {step: json.loads(metrics)["evaluation/global_accuracy"] for step, metrics in logged}
    assert history == dict(zip([1, 2, 3], accuracies, strict=True))
