"""The clip that follows a quantile: where it goes, what its count costs, and that a resumed run goes on with it."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nestling.errors import NestlingError
from nestling.events import collect
from nestling.experiment import find, resume
from nestling.experiment.callback import Callback
from nestling.experiment.runner import run
from nestling.experiment.simulation import Overrides, simulate
from nestling.fleet import Fleet, Participation, parse_mix
from nestling.methods import make
from nestling.methods.context import Merged
from nestling.methods.privacy.adaptive_clip import AdaptiveDP
from tests.cut.cut_cases import LAWS, SEEDS
from tests.methods.privacy.test_central_dp import private
from tests.methods.robust.robust_cases import FLEETS, example_of, round_of, update_of, updates_of
from tests.quick import mostly_slow
from tests.run_cases import outcome

pytest.importorskip("dp_accounting")


def everybody(clients=20):
    return Participation.of(Fleet(clients, clients, parse_mix("a")))


def first_round(part, given_, clients=20):
    round = round_of(given_.it, part, state=given_.state, participation=everybody(clients))
    return replace(round, method_state=part.init(round.setup, 0))


def merged_in(round, updates):
    """The merge of these updates, and the state of the method after it."""
    (part,) = round.setup.method.parts
    rule = part.aggregator(round, None)
    for update in updates:
        rule.add(update, 1.0)
    return rule, part.after_merge(round, Merged({}, rule.gathered, rule=rule)).method_state


def norms_of(given_, updates):
    names = [name for name, _ in given_.it.model.named_parameters()]
    squares = [sum(float((u.state[n] - given_.state[n]).square().sum()) for n in names) for u in updates]
    return sorted(math.sqrt(square) for square in squares)


@pytest.mark.parametrize("quantile", mostly_slow([0.5, 0.2, 0.8], quick=1))
def test_without_noise_the_clip_goes_to_the_quantile_of_the_norms(quantile):
    """Algorithm 1, written out for the first round; after many rounds it is among the norms around the quantile."""
    given_ = example_of("tied", torch.float64)
    updates = updates_of(given_.it, given_.state, [(seed, "full") for seed in range(10)])
    for k, update in enumerate(updates):  # norms that are far apart
        for name, old in given_.state.items():
            update.state[name] = old + (1 + k) * (update.state[name] - old)
    norms = norms_of(given_, updates)
    round = first_round(AdaptiveDP(noise=0.0, clip=norms[3], quantile=quantile, rate=0.5), given_, clients=10)
    _, state = merged_in(round, updates)
    assert float(state["dp/clip"]) == pytest.approx(norms[3] * math.exp(-0.5 * (4 / 10 - quantile)))
    for _ in range(20):
        _, state = merged_in(replace(round, method_state=state), updates)
    assert norms[int(10 * quantile) - 2] < float(state["dp/clip"]) < norms[int(10 * quantile) + 1]


@LAWS
@given(drawn=FLEETS, clip=st.sampled_from([1e-3, 0.5, 3.0, 100.0]), z=st.sampled_from([0.3, 1.0, 4.0]), seed=SEEDS)
def test_sum_and_count_together_move_by_no_more_than_the_accountant_is_told(drawn, clip, z, seed):
    """In deviations of their noises: by 1/z if a client is added or removed, by 2/z if it is replaced."""
    given_ = example_of("cnn", torch.float64)
    updates = updates_of(given_.it, given_.state, drawn)
    other = update_of(given_.axes, given_.state, updates[-1].plan, seed, client=99)
    part = AdaptiveDP(noise=z, clip=clip)
    round = first_round(part, given_)
    setup = round.setup

    def vector(some):
        rule, _ = merged_in(round, some)
        total = torch.cat([tensor.flatten() for tensor in rule._sums.values()])
        count = torch.tensor([rule.within / part.noise_on_count(setup)], dtype=torch.float64)
        return torch.cat([total / (part.noise_on_sum(setup) * clip), count])

    whole = vector(updates)
    assert torch.linalg.vector_norm(whole - vector(updates[:-1])) <= (1 + 1e-9) / z
    assert torch.linalg.vector_norm(whole - vector([*updates[:-1], other])) <= 2 * (1 + 1e-9) / z


def test_the_count_is_noised():
    given_ = example_of("mlp", torch.float64)
    part = AdaptiveDP(noise=1.0, clip=1.0, rate=1.0, count_noise=3.0)
    round = first_round(part, given_)
    states = [merged_in(replace(round, number=number), [])[1] for number in range(1, 401)]
    shares = torch.stack([0.5 - state["dp/clip"].log() for state in states])  # nobody took part: 1/2 and noise
    assert shares.mean().item() == pytest.approx(0.5, abs=4 * 0.15 / 20)
    assert shares.std().item() == pytest.approx(3 / 20, rel=4 / math.sqrt(800))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("dp:noise=1:rate=0.3", "dp's rate is of an adaptive clip: add its quantile"),
        ("dp:noise=1:quantile=1", "dp's quantile must be above 0 and below 1, not 1.0"),
        ("dp:noise=1:quantile=0.5:rate=0", "dp's rate must be a finite number, above 0, not 0.0"),
        ("dp:noise=1:quantile=0.5:count_noise=-1", "dp's count_noise must be a finite number, 0 or more, not -1.0"),
        ("dp:noise=1:quantile=0.5:count_noise=0.5", "dp's count_noise must be above 0.5, half of the noise, not 0.5"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(settings, words):
    with pytest.raises(NestlingError) as caught:
        simulate(Overrides(private(parts=settings)))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


class Stop(Callback):
    def on_round(self, record, state):
        if record["round"] == 2:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_the_clip_of_every_round_is_recorded_and_a_resumed_run_goes_on_with_it(tmp_path):
    experiment = private(rounds=3, parts="dp:clip=0.5:epsilon=8:quantile=0.5", checkpoint_every=1)
    with collect():
        whole = run(experiment, out=tmp_path / "whole")
        with pytest.raises(KeyboardInterrupt):
            run(experiment, out=tmp_path / "cut", callbacks=[Stop()])
        resume(tmp_path / "cut")
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")
    spent = [line["privacy"] for line in whole.rounds]
    assert spent[0]["clip"] == 0.5
    assert len({one["clip"] for one in spent}) == 3
    assert 7.9 < spent[-1]["epsilon"] <= 8
    for one in spent:  # what is spent on sum and count is what the accountant is told
        assert one["noise_on_sum"] ** -2 + (2 * one["noise_on_count"]) ** -2 == pytest.approx(one["noise"] ** -2)


@pytest.mark.slow
def test_morphs_keep_the_clip():
    """FedMorph keeps a state of its own at the server, beside that of other parts."""
    settings = ["rounds=2", "options.every=1", "model.options.norm=gn", "fleet.per_round=20", "evaluate.every=2"]
    result = run(find("fedmorph-digits").with_settings([*settings, "parts=dp:noise=1:quantile=0.5"]))
    assert len({line["privacy"]["clip"] for line in result.rounds}) == 2
    assert make("fedavg", {}, "dp:noise=1:quantile=0.5").extendable
