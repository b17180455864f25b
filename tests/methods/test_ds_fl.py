"""DS-FL: what travels, who learns which labels, and that it learns without exchanging weights."""

import torch

from nestling.experiment import find, run
from nestling.experiment.simulation import Overrides, simulate
from nestling.experiment.simulator import Simulator
from nestling.methods import make
from nestling.methods.messages import JobEnvelope, TrainJob
from nestling.methods.parts.public_samples import draw_public
from nestling.methods.parts.soft_labels import entropy_reduction
from nestling.server.state import ServerState
from nestling.settings import Data, FleetSettings
from tests.harness import rounds_of, worker_of
from tests.run_cases import LEARNING, same_state, tiny

DATA = Data(name="digits", max_samples=160, public_share=0.25)
FLEET = FleetSettings(clients=3, per_round=3, levels="a-b")


def exchanging(**options):
    return tiny(method="ds-fl", data=DATA, fleet=FLEET, options={"samples": 16, "epochs": 1, "batch": 8, **options})


def updates_of(simulation, before):
    setup = simulation.setup
    round = before.context(setup, simulation.public)
    jobs = [
        TrainJob(who, setup.method.client_plan(round, who), round.number, round.lr)
        for who in simulation.participants(round.number)
    ]
    return list(Simulator(simulation).clients.train(jobs, before))


def test_labels_are_the_sharpened_mean_of_all_replies():
    for options, sharpened in (({}, True), ({"aggregation": "mean"}, False)):
        simulation, states, _ = rounds_of(exchanging(**options))
        replies = [update.extra["labels"] for update in updates_of(simulation, states[0])]
        assert all(reply.shape == (16, 10) and reply.dtype == torch.float32 for reply in replies)
        mean = torch.stack(replies).double().mean(0)
        expected = entropy_reduction(mean, 0.1) if sharpened else mean
        assert torch.allclose(states[1].method_state["labels"].double(), expected, atol=1e-6)


def test_the_next_round_gets_them_for_the_samples_that_were_drawn():
    simulation, states, _ = rounds_of(exchanging())
    setup, who = simulation.setup, simulation.participants(2)[0]
    sent = setup.method.send(states[1].context(setup), who)
    assert torch.equal(sent["labels"], states[1].method_state["labels"])
    assert setup.method.send(states[0].context(setup), who) == {}
    first, second = (draw_public(setup, simulation.public, number, 16) for number in (1, 2))
    assert not torch.equal(first, second)
    assert torch.equal(first, draw_public(setup, simulation.public, 1, 16))


def test_a_client_learns_the_labels_before_its_own_samples():
    simulation, states, _ = rounds_of(exchanging())
    setup, who = simulation.setup, simulation.participants(2)[0]
    round = states[1].context(setup)
    job = TrainJob(who, setup.method.client_plan(round, who), 2, 0.1)
    private, _ = states[1].clients.get(setup, who.client, job.plan, states[1].model)
    worker, extra = worker_of(simulation), setup.method.send(round, who)
    state = states[1].download(setup, job.plan)
    with_labels = worker(JobEnvelope(job, state, private, extra=extra))
    without = worker(JobEnvelope(job, state, private))
    assert not same_state(with_labels.state, without.state)
    shown = {name: value for name, value in with_labels.state.items() if name in setup.parameters}
    assert all(value.isfinite().all() for value in shown.values())


def test_the_server_learns_what_clients_agree_on():
    final = run(find("ds-fl-digits").with_settings(LEARNING)).summary["final"]
    assert final["global_accuracy"] > 0.8  # it never saw a label, nor a weight


def test_a_round_without_answers_leaves_the_servers_model_and_drops_the_labels():
    simulation, states, _ = rounds_of(exchanging())
    setup = simulation.setup
    round = states[1].context(setup, simulation.public)
    result = setup.method.after_merge(round, _nothing_merged(states[1]))
    assert "labels" not in result.method_state
    server = {name: value for name, value in states[1].method_state.items() if name != "labels"}
    assert same_state(result.method_state, server)


def _nothing_merged(state):
    from nestling.methods.context import Merged  # noqa: PLC0415

    return Merged(dict(state.model), lambda name: torch.zeros_like(state.model[name]))


def test_before_the_first_round_the_server_has_no_model_of_its_own():
    simulation = simulate(Overrides(exchanging()))
    start = ServerState.start(simulation.setup)
    assert start.separate_global_model(simulation.setup) == {}
    assert make("ds-fl").public_work(simulation.setup, simulation.public).bytes_up == min(1000, 40) * 10 * 4
