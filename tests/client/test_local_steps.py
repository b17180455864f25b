"""Epochs, steps and parts of an epoch: which batches a client trains on, what that costs, and whole runs."""

import json
import math
import shlex
from itertools import islice

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.data.batches import batches, local_batches, local_samples, local_steps
from nestling.errors import ConfigError
from nestling.experiment import resume
from nestling.experiment.presets import find
from nestling.experiment.record import command
from nestling.experiment.reproductions import expected_cost
from nestling.experiment.runner import run
from nestling.settings import Experiment, FleetSettings, LocalTraining
from tests.run_cases import same_state, small

LAWS = settings(deadline=None, derandomize=True, max_examples=60, database=None)
STEPS = LocalTraining(lr=0.05, epochs=0, steps=7, batch_size=20)


def generator():
    return torch.Generator().manual_seed(0)


def endless(samples, size, random):
    """Epoch after epoch, each shuffled anew."""
    while True:
        yield from batches(samples, size, random)


@LAWS
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 30))
def test_a_number_of_steps_goes_on_with_the_next_epoch(count, size, steps):
    training, samples = LocalTraining(epochs=0, steps=steps, batch_size=size), torch.arange(count)
    parts = [part.tolist() for part in local_batches(samples, training, generator())]
    assert parts == [part.tolist() for part in islice(endless(samples, size, generator()), steps)]
    assert local_steps(training, count) == steps
    assert local_samples(training, count) == sum(map(len, parts))


@LAWS
@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 9))
def test_a_part_of_an_epoch_is_its_first_batches(count, size, tenths):
    training, samples = LocalTraining(epochs=0, steps=tenths / 10, batch_size=size), torch.arange(count)
    parts = [part.tolist() for part in local_batches(samples, training, generator())]
    epoch = [part.tolist() for part in batches(samples, size, generator())]
    assert parts == epoch[: math.ceil(tenths * len(epoch) / 10)]
    assert local_samples(training, count) == sum(map(len, parts))


@LAWS
@given(st.integers(0, 40), st.integers(1, 12), st.integers(1, 3))
def test_epochs_are_what_they_were(count, size, epochs):
    training, samples, random = LocalTraining(epochs=epochs, batch_size=size), torch.arange(count), generator()
    parts = [part.tolist() for part in local_batches(samples, training, generator())]
    assert parts == [part.tolist() for _ in range(epochs) for part in batches(samples, size, random)]
    assert local_samples(training, count) == epochs * count


@pytest.mark.parametrize("steps", [7, 0.5])
def test_clients_without_samples_take_no_step(steps):
    training = LocalTraining(epochs=0, steps=steps)
    assert list(local_batches(torch.arange(0), training, generator())) == []
    assert local_samples(training, 0) == 0


@pytest.mark.parametrize(
    ("given_settings", "epochs", "steps"),
    [
        (["local.steps=20"], 0, 20),
        (["local.steps=0.5"], 0, 0.5),
        (["local.steps=20", "local.epochs=2"], None, "takes the place of local.epochs=2"),
        (["local.steps=1.5"], None, "a whole number of steps up to 1,000,000,000, or a part of an epoch"),
        (["local.steps=1.0"], None, "not 1.0"),
        (["local.steps=-1"], None, "not -1"),
        (["local.epochs=0"], None, "must be above 0, not 0, unless local.steps is"),
    ],
)
def test_either_epochs_or_steps_decide(given_settings, epochs, steps):
    if epochs is None:
        with pytest.raises(ConfigError, match=steps):
            Experiment().with_settings(given_settings)
        return
    experiment = Experiment().with_settings(given_settings)
    assert (experiment.local.epochs, experiment.local.steps) == (epochs, steps)
    assert Experiment.from_toml(experiment.to_toml()) == experiment
    assert experiment.with_settings(["local.epochs=3"]).local == msgspec.structs.replace(Experiment().local, epochs=3)


def test_a_file_needs_to_name_one_of_the_two_only():
    assert Experiment.from_toml("[local]\nsteps = 20").local == LocalTraining(epochs=0, steps=20)
    assert Experiment.from_toml("[local]\nepochs = 2").local == LocalTraining(epochs=2)
    with pytest.raises(ConfigError, match="takes the place"):
        Experiment(local=LocalTraining(steps=20))


def test_the_command_repeats_an_experiment_with_steps():
    experiment = find("heterofl-digits").with_settings(["local.epochs=2"]).with_settings(["local.steps=0.25"])
    assert command(experiment) == "nestling run heterofl-digits local.epochs=0 local.steps=0.25"
    assert find("heterofl-digits").with_settings(shlex.split(command(experiment))[3:]) == experiment


def test_costs_count_the_samples_that_are_read():
    clients = FleetSettings(clients=4, per_round=4, levels="a")
    by_steps, by_epochs = (
        run(small(rounds=1, fleet=clients, local=local)).summary["client_macs"]
        for local in (STEPS, LocalTraining(lr=0.05, epochs=1, batch_size=20))
    )
    assert by_steps / by_epochs == 7 * 20 / 100  # of clients with 100 samples each


def test_expected_costs_know_steps():
    whole, half, ten = (
        expected_cost.run_cost(find("heterofl-mnist-iid-a-e").with_settings([f"local.{amount}"])).client_macs
        for amount in ("epochs=1", "steps=0.5", "steps=10")
    )
    assert (half / whole, ten / whole) == (pytest.approx(0.5), pytest.approx(10 * 10 / 600))


def test_groups_take_the_same_steps_as_single_clients():
    data = msgspec.structs.replace(small().data, partition="dirichlet", alpha=1.0)  # clients of different sizes
    fleet = FleetSettings(clients=8, per_round=8, levels="a-b")
    alone, together = (
        run(small(rounds=1, data=data, fleet=fleet, local=STEPS, group_clients=group)) for group in ("off", 4)
    )
    assert alone.rounds[0]["client_macs"] == together.rounds[0]["client_macs"]
    assert together.rounds[0]["train_loss"] == pytest.approx(alone.rounds[0]["train_loss"], rel=1e-4)
    for name, tensor in alone.state.items():
        torch.testing.assert_close(together.state[name], tensor, rtol=1e-3, atol=1e-4)


def test_a_run_with_steps_goes_on_as_if_never_stopped(tmp_path):
    experiment = small(rounds=2, local=msgspec.structs.replace(STEPS, steps=0.4))
    whole = run(experiment)
    run(experiment.with_settings(["rounds=1"]), out=tmp_path / "run")
    longer = resume(tmp_path / "run", settings=["rounds=2"])
    assert same_state(longer.state, whole.state)
    assert json.dumps(longer.rounds[-1]) == json.dumps(whole.rounds[-1])
