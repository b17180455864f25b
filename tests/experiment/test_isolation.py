"""What a caller has switched on, drawn or started elsewhere changes nothing of a run, and is as before afterwards."""

import threading
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import nestling
from nestling.errors import ConfigError, RunError
from nestling.experiment.isolation import clean_torch
from nestling.settings import Data, Evaluate, FleetSettings
from tests.quick import mostly_slow
from tests.run_cases import same_state, small

# one client of a group draws from its own generator anyway: they train one by one here
DRAWN = {"group_clients": "off", "rounds": 2, "fleet": FleetSettings(clients=4, per_round=2, levels="a-b")}
DRAWN |= {"data": Data(name="digits", max_samples=120), "evaluate": Evaluate(every=2, samples=60, norm_batch=50)}


class Dropping(nn.Module):
    """Draws by a layer of dropout, by one of another kind, and by itself."""

    def __init__(self, kinds=("layer", "channels", "code")):
        super().__init__()
        self.kinds = kinds
        self.one, self.two = nn.Conv2d(1, 8, 3), nn.Linear(8 * 36, 10)
        self.layer, self.channels = nn.Dropout(0.3), nn.Dropout2d(0.3)

    def forward(self, x):
        x = self.one(x).relu()
        if "channels" in self.kinds:
            x = self.channels(x)
        if "layer" in self.kinds:
            x = self.layer(x)
        if "code" in self.kinds and self.training:
            x = x * (1 + 0.1 * torch.rand_like(x))
        return self.two(x.flatten(1))


def model(kinds=("layer", "channels", "code")):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Dropping(kinds)


@pytest.fixture(scope="module")
def alone():
    return {
        kinds: nestling.run(small(**DRAWN), model=model(kinds)) for kinds in (("layer",), ("layer", "channels", "code"))
    }


@pytest.mark.parametrize("kinds", [("layer",), ("layer", "channels", "code")])
def test_runs_in_two_threads_give_the_bytes_of_one_while_a_third_draws(alone, kinds):
    results, stop, models = {}, threading.Event(), [model(kinds), model(kinds)]

    def disturb():
        while not stop.is_set():
            torch.rand(3)

    def run(k):
        results[k] = nestling.run(small(**DRAWN), model=models[k])

    threads = [threading.Thread(target=run, args=(k,)) for k in (0, 1)]
    noise = threading.Thread(target=disturb)
    for thread in (*threads, noise):
        thread.start()
    for thread in threads:
        thread.join(120)
    stop.set()
    noise.join(60)
    for k in (0, 1):
        assert same_state(results[k].state, alone[kinds].state)
        assert results[k].rounds == alone[kinds].rounds


@pytest.mark.slow
def test_the_caller_s_generator_is_as_before_and_workers_draw_the_same(alone):
    before = torch.get_rng_state()
    assert same_state(
        nestling.run(small(**DRAWN, workers=2), model=model()).state, alone["layer", "channels", "code"].state
    )
    nestling.run(small(**DRAWN), model=model())
    nestling.run(small(rounds=1))  # a model of our own is built, and tried in groups
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_that_runs_its_forward_again_in_the_backward_pass_trains_right(caplog):
    class Checkpointed(Dropping):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)

    given = Checkpointed()
    given.load_state_dict(model().state_dict())
    again = nestling.run(small(**DRAWN), model=given)
    assert same_state(again.state, nestling.run(small(**DRAWN), model=model()).state)


@pytest.mark.parametrize("draws", ["later", "in tests"])
def test_draws_that_a_trial_does_not_see_are_seeded_as_well(draws):
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model(())
            self.calls = 0

        def forward(self, x):
            x = self.inner(x)
            self.calls += 1
            if draws == "later":
                return x * torch.rand(()) if self.training and self.calls > 5 else x
            return x if self.training else x + torch.rand_like(x)

    torch.manual_seed(1)
    one = nestling.run(small(**DRAWN), model=Late())
    torch.manual_seed(2)
    other = nestling.run(small(**DRAWN), model=Late())
    assert same_state(one.state, other.state)
    assert one.rounds == other.rounds


@pytest.fixture(scope="module")
def plain():
    return nestling.run(small(rounds=1))


CONTEXTS = {
    "autocast": lambda: torch.autocast("cpu"),
    "inference": torch.inference_mode,
    "no grad": torch.no_grad,
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "device": lambda: torch.device("cpu"),
}
SWITCHES = {
    "dtype": (torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "deterministic": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
        True,
    ),
    "products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
    "threads": (torch.get_num_threads, torch.set_num_threads, 3),
}


@pytest.mark.parametrize("name", mostly_slow([*CONTEXTS, *SWITCHES], quick=4))
def test_what_the_caller_has_switched_on_changes_no_number_and_stays_on(plain, name):
    read, write, value = SWITCHES.get(name, (lambda: None, lambda _: None, None))
    before = read()
    write(value)
    try:
        with CONTEXTS.get(name, nullcontext)():
            result = nestling.run(small(rounds=1))
        assert read() == value
    finally:
        write(before)
    assert same_state(result.state, plain.state)
    assert result.rounds == plain.rounds


def test_a_model_made_under_inference_mode_can_be_trained():
    with torch.inference_mode():
        given = model(())
    result = nestling.run(small(**DRAWN), model=given)
    assert not torch.equal(result.state["one.weight"], given.one.weight)


def test_a_default_device_that_cannot_be_served_is_named():
    torch.set_default_device("meta")
    try:
        with pytest.raises(ConfigError, match="default device is meta, but this run computes on cpu"):
            nestling.run(small(rounds=1))
    finally:
        torch.set_default_device(None)


def test_two_runs_cannot_have_different_threads_at_once():
    with clean_torch(1, "cpu"):
        with pytest.raises(RunError, match="another run in this process has threads=1"), clean_torch(2, "cpu"):
            pass
        with clean_torch(1, "cpu"):
            pass
        assert torch.get_num_threads() == 1
