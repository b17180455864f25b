"""Training at the server: schedules, early stopping, draws, and samples that both sides draw alike."""

import pytest
import torch
from torch import nn

import nestling
from nestling.errors import TrainingError
from nestling.experiment.simulation import Overrides, simulate
from nestling.methods.parts.public_samples import draw_public, inputs_of, public_logits
from nestling.methods.parts.server_training import Objective, Schedule, batch_statistics, fit
from nestling.server.state import ServerState
from nestling.settings import Data
from tests.run_cases import same_state, tiny

DATA = Data(name="digits", max_samples=80, public_share=0.25)


def server_round(model=None):
    simulation = simulate(Overrides(tiny(data=DATA), model))
    return ServerState.start(simulation.setup).context(simulation.setup, simulation.public, number=1)


def logits_loss(round, target):
    """An objective: outputs near a number; on the last five samples, if they are held out."""

    def objective(model):
        def loss(positions):
            inputs = torch.cat(list(inputs_of(round.public, positions, 100)))
            return (model(inputs) - target).square().mean()

        def held_out():
            with batch_statistics(model):
                return loss(torch.arange(15, 20)).item()

        return Objective(loss, held_out)

    return objective


def adam(lr):
    return lambda parameters: torch.optim.Adam(parameters, lr=lr)


def test_only_parameters_change_and_the_model_of_the_setup_does_not():
    round = server_round()
    before = {name: value.clone() for name, value in round.setup.model.state_dict().items()}
    state = fit(round, round.before, logits_loss(round, 1.0), Schedule(3, 8, adam(0.01)), 20)
    assert state.keys() == round.before.keys()
    changed = {name for name in state if not torch.equal(state[name], round.before[name])}
    assert changed == round.setup.parameters
    assert same_state(round.setup.model.state_dict(), before)


@pytest.mark.parametrize(("steps", "batch", "samples"), [(7, 4, 10), (1, 100, 10), (5, 3, 7)])
def test_batches_are_passes_over_all_samples(steps, batch, samples):
    schedule = Schedule(steps, batch, adam(0.1))
    drawn = list(schedule.batches(samples, seed=3))
    assert len(drawn) == steps
    per_pass = max(1, samples // batch + (samples % batch > 1))
    for first in range(0, steps - per_pass + 1, per_pass):
        assert sorted(torch.cat(drawn[first : first + per_pass]).tolist()) == list(range(samples))
    assert all(map(torch.equal, drawn, schedule.batches(samples, seed=3)))


def test_a_cosine_ends_at_zero():
    round = server_round()
    rates = []

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    fit(round, round.before, logits_loss(round, 1.0), Schedule(4, 8, lambda p: Watched(p, lr=1e-3), cosine=True), 20)
    assert rates == pytest.approx([1e-3 * (1 + torch.cos(torch.tensor(k * torch.pi / 4)).item()) / 2 for k in range(4)])


def test_it_stops_when_patience_ends_with_the_best_weights():
    round, looks = server_round(), []

    def objective(model):
        inner = logits_loss(round, 1.0)(model)

        def held_out():
            looks.append(len(looks))
            return [5.0, 4.0, 6.0, 7.0, 8.0, 9.0][len(looks) - 1]

        return Objective(inner.loss, held_out)

    stopped = fit(round, round.before, objective, Schedule(50, 8, adam(0.01), patience=3), 20)
    assert len(looks) == 5  # before the first step, after the first, which is the best, and after three more
    once = fit(round, round.before, logits_loss(round, 1.0), Schedule(1, 8, adam(0.01)), 20)
    assert same_state(stopped, once)


def test_weights_that_are_no_numbers_stop_the_run():
    round = server_round()
    with pytest.raises(TrainingError, match="round 1: the server's weights are no longer numbers: try a smaller lr"):
        fit(round, round.before, logits_loss(round, float("nan")), Schedule(1, 8, adam(0.01)), 20)


def test_models_that_draw_draw_from_the_round_alone():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 10))
    states = []
    for _ in range(2):
        torch.rand(3)  # of the caller
        before = torch.get_rng_state()
        round = server_round(model)
        states.append(fit(round, round.before, logits_loss(round, 1.0), Schedule(3, 8, adam(0.01)), 20))
        assert torch.equal(torch.get_rng_state(), before)
    assert same_state(*states)


def test_public_samples_of_a_round():
    round = server_round()
    setup, public = round.setup, round.public
    assert torch.equal(draw_public(setup, public, 1, 0), torch.arange(20))
    assert torch.equal(draw_public(setup, public, 1, 99), torch.arange(20))
    drawn = [draw_public(setup, public, number, 7) for number in range(30)]
    assert all(len(one.unique()) == 7 and one.max() < 20 for one in drawn)
    assert set(torch.cat(drawn).tolist()) == set(range(20))


def test_logits_have_the_norm_statistics_of_the_same_samples():
    round = server_round()
    setup, chosen = round.setup, torch.arange(20)
    logits = public_logits(setup, nestling.submodel(setup.model, setup.axes, nestling.Plan()), round.public, chosen)
    model = nestling.submodel(setup.model, setup.axes, nestling.Plan()).train()
    inputs = torch.cat(list(inputs_of(round.public, chosen, 100)))
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.momentum = 1.0  # running statistics become those of the batch, with unbiased variance
    with torch.no_grad():
        model(inputs)
        assert torch.allclose(logits, model.eval()(inputs), atol=1e-5)
