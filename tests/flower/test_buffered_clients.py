"""Steps that wait for nobody, and rounds that wait for the first, over real messages."""

import json
import random
from dataclasses import replace

import pytest
import torch

from nestling.errors import RunFailed
from nestling.experiment import run
from nestling.experiment.device_run import run_on_devices
from nestling.flower.nodes import RoundRules
from tests.flower.federation import Federation, make_app, needs_flower, rounds_in
from tests.flower.loopback import SETTINGS, Loopback, Silent, experiment

RULES = RoundRules(poll=0.01, wait=0.2, deadline=60.0, norm_bound=0.0)


class Shuffled(Loopback):
    """Nodes whose answers come in any order, a few at a time; those of `slow` nodes come after many others."""

    def __init__(self, *given, slow=()):
        super().__init__(*given)
        self._random, self._slow, self._asked, self.jobs = random.Random(0), slow, {}, 0

    def push(self, request):
        self.jobs += request.kind == "train"
        return super().push(request)

    def pull(self, requests):
        ready = []
        for name in requests:
            self._asked[name] = self._asked.get(name, 0) + 1
            request = self.requests.get(name)
            wait = 12 if request is not None and request.kind == "train" and request.node - 100 in self._slow else 1
            if self._asked[name] >= wait:
                ready.append(name)
        ready = self._random.sample(ready, len(ready))[:3]
        return super().pull(ready)


def events(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_if_all_train_at_once_and_are_waited_for_steps_are_rounds(tmp_path):
    settings = experiment("server.buffer=10", "evaluate.every=1")
    result = run_on_devices(settings, Shuffled(settings, 10), RULES, out=tmp_path / "run", own_data=False)
    rounds = run(experiment("evaluate.every=1"))
    for name, tensor in result.state.items():
        torch.testing.assert_close(tensor, rounds.state[name], rtol=1e-4, atol=1e-5)  # merged in another order
    assert [line["staleness_max"] for line in result.rounds] == [0, 0]
    assert [line["in_training"] for line in result.rounds] == [0, 0]


@pytest.mark.slow
def test_slow_devices_come_late_and_nobody_waits_for_them(tmp_path):
    settings = experiment("server.buffer=3", "rounds=5", "fleet.per_round=6", "evaluate.every=5", "model.width=0.1")
    link = Shuffled(settings, 10, slow={0, 1, 2})
    result = run_on_devices(settings, link, RULES, out=tmp_path / "run", own_data=False)
    assert [line["clients"] for line in result.rounds] == [3] * 5
    assert max(line["staleness_max"] for line in result.rounds) >= 2
    assert all(line["in_training"] <= 6 for line in result.rounds)
    assert link.jobs == 5 * 3 + result.rounds[-1]["in_training"]  # every other reply is merged, once


def test_devices_that_fail_are_replaced(tmp_path):
    def broken(_request, _packet):
        raise RuntimeError("out of battery")

    def silent(_request, _packet):
        raise Silent

    settings = experiment("server.buffer=4", "fleet.per_round=6", "rounds=2", "evaluate.every=9", "model.width=0.1")
    link = Loopback(settings, 10, dict.fromkeys((0, 1), broken) | dict.fromkeys((2, 3), silent))
    rules = replace(RULES, deadline=0.5)
    result = run_on_devices(settings, link, rules, out=tmp_path / "run", own_data=False)
    assert [line["clients"] for line in result.rounds] == [4, 4]
    kinds = {event["kind"] for event in events(tmp_path / "run")}
    assert "client failed" in kinds
    assert sum(line["dropped"] for line in result.rounds) > 0


def test_a_run_whose_devices_all_fail_ends(tmp_path):
    def broken(_request, _packet):
        raise RuntimeError("out of battery")

    settings = experiment("server.buffer=4", "fleet.clients=4", "fleet.per_round=4", "model.width=0.1")
    link = Loopback(settings, 4, dict.fromkeys(range(4), broken))
    with pytest.raises(RunFailed):
        run_on_devices(settings, link, replace(RULES, tries=2), out=tmp_path / "run", own_data=False)


def test_a_round_waits_for_the_first_and_counts_the_others(tmp_path):
    settings = experiment("fleet.over_selection=1.4", "fleet.per_round=7", "rounds=1", "model.width=0.1")
    link = Shuffled(settings, 10, slow={4, 5})
    result = run_on_devices(settings, link, RULES, out=tmp_path / "run", own_data=False)
    for line in result.rounds:
        assert (line["clients"], line["discarded"], line["dropped"]) == (7, 3, 0)
    totals = result.summary
    assert totals["clients_discarded"] == 3
    assert totals["bytes_down"] > totals["bytes_up"]


@needs_flower
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_on_flower(tmp_path):
    """Ten nodes in Flower's simulation: steps of five, then a server that is started again."""
    with Federation(tmp_path / "federation", simulation=True) as federation:
        federation.superlink()
        settings = [*SETTINGS, "server.buffer=5", "fleet.per_round=8", "rounds=4", "evaluate.every=4"]
        app = make_app(tmp_path / "app", settings, {"min-nodes": 8, "norm-bound": 0.0})
        runs = ["--federation-config", "num-supernodes=10 client-resources-num-cpus=1"]
        said = federation.complete(app, *runs)
        lines = rounds_in(tmp_path / "app" / "run")
        assert [line["clients"] for line in lines] == [5] * 4, said
        assert max(line["staleness_max"] for line in lines) >= 1, lines
        assert all(line["in_training"] <= 8 for line in lines)
