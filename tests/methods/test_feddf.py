"""FedDF: its teachers, its students at every size, when it stops, and that it learns."""

from dataclasses import replace

import torch

from nestling.cut import Plan
from nestling.experiment import find, run
from nestling.experiment.simulation import Overrides, simulate
from nestling.experiment.simulator import Simulator
from nestling.methods import make
from nestling.methods.context import Merged
from nestling.methods.feddf import EnsembleDistillation
from nestling.methods.messages import TrainJob
from nestling.methods.parts.public_samples import draw_public, teacher_logits
from nestling.methods.parts.soft_labels import divergence_from
from nestling.server.state import ServerState
from nestling.settings import Data
from tests.run_cases import LEARNING, same_state, tiny

DATA = Data(name="digits", max_samples=160, public_share=0.25)


def trained(**options):
    """A round of FedDF whose clients are done: its context, its part, their updates, and what the server remembers."""
    simulation = simulate(Overrides(tiny(method="feddf", data=DATA, options={"patience": 0, **options})))
    setup, before = simulation.setup, ServerState.start(simulation.setup)
    round = before.context(setup, simulation.public)
    jobs = [TrainJob(who, setup.method.client_plan(round, who), 1, 0.1) for who in simulation.participants(1)]
    updates = list(Simulator(simulation).clients.train(jobs, before))
    (part,) = (part for part in setup.method.parts if isinstance(part, EnsembleDistillation))
    ensemble = None
    for update in updates:
        ensemble = part.received(round, update, ensemble)
    return round, part, updates, ensemble


def distilled(round, part, ensemble, model=None):
    merged = Merged(dict(round.before) if model is None else model, lambda name: round.before[name], ensemble)
    return part.after_merge(round, merged).model


def test_logits_of_teachers_add_up():
    round, _, updates, ensemble = trained(samples=12)
    chosen = draw_public(round.setup, round.public, 1, 12)
    assert torch.equal(ensemble.chosen, chosen)
    expected = sum(teacher_logits(round, update, chosen).double() for update in updates)
    assert ensemble.teachers == len(updates) == 2
    assert torch.equal(ensemble.logits, expected)
    assert ensemble.logits.shape == (12, 10)
    assert set(ensemble.plans) == {update.plan for update in updates}


def test_every_size_comes_closer_to_the_ensemble():
    round, part, updates, ensemble = trained(steps=30, batch=16, lr=1e-2)
    ensemble = replace(ensemble, plans=(Plan(key="full"), round.setup.submodel_plan(0.5)))
    targets = (ensemble.logits / ensemble.teachers).softmax(-1).float()
    state = distilled(round, part, ensemble)
    for plan in ensemble.plans:
        distances = []
        for model in (round.before, state):
            logits = teacher_logits(
                replace(round, before=model), replace(updates[0], plan=plan, state={}), ensemble.chosen
            )
            distances.append(divergence_from(targets, logits).mean().item())
        assert distances[1] < 0.5 * distances[0]


def test_a_distillation_that_only_does_harm_changes_nothing():
    """With early stopping, the weights of the lowest held-out loss are those before the first step."""
    round, part, _, ensemble = trained(steps=20, batch=8)
    good = distilled(round, replace(part, steps=60, lr=1e-2), ensemble)
    harmful = replace(part, patience=4, lr=30.0)
    assert same_state(distilled(round, harmful, ensemble, good), good)
    assert not same_state(distilled(round, replace(harmful, patience=0, lr=0.1), ensemble, good), good)


def test_it_learns():
    final = run(find("feddf-digits").with_settings(LEARNING)).summary["final"]
    assert final["global_accuracy"] > 0.8
    assert final["mean_submodel"] > 0.5


def test_without_teachers_nothing_changes():
    round, part, _, _ = trained()
    assert same_state(distilled(round, part, None), round.before)
    assert make("feddf").extendable
