"""Ten million clients: nothing is stored or asked for those that do not take part."""

import pytest
import torch
from torch import nn

import nestling
from bench.apart import apart
from bench.populations import MILLIONS, set_up_and_tell, words
from nestling.data.own.own_clients import OwnClients
from nestling.data.text import synthetic
from nestling.experiment.simulator import Simulator
from nestling.server.state import ServerState

DRAWN = 20


def test_a_round_reads_the_clients_that_take_part(monkeypatch):
    read = set()
    sentences = synthetic._sentences

    def noted(*arguments):
        read.add(arguments[-1])
        return sentences(*arguments)

    monkeypatch.setattr(synthetic, "_sentences", noted)
    simulation = words(MILLIONS, DRAWN)
    assert len(simulation.data) == simulation.fleet.clients == MILLIONS
    assert len(read) <= 10  # to look at their form
    before = set(read)
    _, line = Simulator(simulation).run_round(ServerState.start(simulation.setup))
    assert line["clients"] == DRAWN
    assert read - before <= set(simulation.fleet.sample(1))


def samples_of(client):
    """The samples of a client of one's own: computed from its number."""
    source = torch.Generator().manual_seed(client)
    return torch.randn(4, 6, generator=source), torch.randint(3, (4,), generator=source)


def test_data_of_ones_own_is_read_for_those_that_take_part(monkeypatch):
    asked = []
    share = OwnClients.test_share
    monkeypatch.setattr(OwnClients, "test_share", lambda data, client: asked.append(client) or share(data, client))
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    result = nestling.federate(
        net,
        samples_of,
        samples_of(MILLIONS),
        num_clients=MILLIONS,
        per_round=DRAWN,
        rounds=2,
        levels="a-b",
        task="classification",
    )
    assert [line["clients"] for line in result.rounds] == [DRAWN] * 2
    assert len(asked) <= DRAWN


@pytest.mark.slow
def test_the_set_up_of_ten_million_clients_takes_little_memory():
    figures = apart(set_up_and_tell, MILLIONS)
    assert figures["more"] * 1024 <= 300e6
