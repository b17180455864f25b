"""Robust merges in whole rounds: what they go with, the same bytes however a run is done, and the hook itself."""

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from nestling.cut.extract import cuts
from nestling.errors import NestlingError
from nestling.events import collect
from nestling.experiment import find, resume
from nestling.experiment.callback import Callback
from nestling.experiment.runner import run
from nestling.experiment.simulation import Overrides, simulate
from nestling.methods import Part, make
from nestling.methods.parts.per_submodel import NORMS
from nestling.methods.robust.median import Median
from nestling.settings import Data, Evaluate, FleetSettings
from tests.harness import rounds_of
from tests.quick import mostly_slow
from tests.run_cases import outcome, same_state, small

RULES = ["median", "trimmed-mean:0.2", "krum:1", "multi-krum:1", "clip-norm:1.0"]
ALL_OF_TWO = FleetSettings(clients=10, per_round=10, levels="a-b")  # five of each
PLAIN = {"options": {"masked": False}, "data": Data(name="digits", max_samples=200), "fleet": ALL_OF_TWO}


def simulated(preset, *settings):
    return simulate(Overrides(find(preset).with_settings(["fleet.clients=10", "fleet.per_round=10", *settings])))


@pytest.mark.parametrize(
    ("preset", "settings", "words"),
    [
        ("ds-fl-digits", ["parts=median"], "median cannot protect ds-fl, whose server also learns from each update"),
        ("feddf-digits", ["parts=krum"], "krum cannot protect feddf"),
        ("fed-et-digits", ["parts=clip-norm"], "clip-norm cannot protect fed-et"),
        ("standalone-digits", ["parts=median"], "clients of standalone share nothing"),
        ("fedavg-digits", ["parts=feddyn,median"], "feddyn needs the plain mean of its clients, and median of fedavg"),
        ("fedavg-digits", ["parts=median,feddyn"], "median of fedavg merges otherwise: leave one out"),
        ("heterofl-digits", ["parts=median", "server.weighting=samples"], "set server.weighting=none"),
        ("heterofl-digits", ["parts=median", "upload.format=topk"], "use upload.format=dense, 8-bit or 1-bit"),
        ("heterofl-digits", ["parts=median,krum"], "one part with `aggregator`, not median and krum"),
        ("heterofl-digits", ["parts=median:3"], "the part median takes no value"),
        ("heterofl-digits", ["parts=krum:1.5"], "the part krum takes a number, such as krum:1"),
        ("heterofl-digits", ["parts=trimmed-mean:0.5"], "above 0 and below 0.5"),
        ("heterofl-digits", ["parts=krum:1"], "set options.masked=false"),
        ("fed-dropout-digits", ["parts=krum", "options.masked=false"], "gives every client one of its own"),
        ("heterofl-digits", ["parts=krum:4", "options.masked=false"], "needs at least 11 clients of one slice"),
        ("heterofl-digits", ["parts=median", "fleet.clients=2", "fleet.per_round=2"], "at least 3 clients"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_sentence(preset, settings, words):
    with pytest.raises(NestlingError) as caught:
        simulated(preset, *settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rule", mostly_slow(RULES, quick=2))
@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        ("fedavg-digits", []),
        ("fedprox-digits", ["upload.format=8-bit"]),
        ("heterofl-digits", ["options.masked=false", "server.optimizer=fedadam", "server.lr=0.01"]),
        ("fedrolex-digits", ["options.masked=false"]),
        ("fjord-digits", []),
        ("lg-fedavg-digits", []),
        ("nefl-digits", []),
        ("depthfl-digits", ["options.feddyn=0"]),
        ("fedmorph-digits", []),
    ],
)
def test_what_goes_together(preset, settings, rule):
    assert simulated(preset, *settings, f"parts={rule}").setup.method.overriding("aggregator")


def test_weights_that_are_not_used_are_an_event():
    with collect() as events:
        simulated("fedavg-digits", "parts=median")
        simulated("fedavg-digits", "parts=clip-norm")
        simulated("heterofl-digits", "parts=median")
    assert [event.kind for event in events] == ["weighting not used"]
    assert "fedavg's weights by samples" in events[0].message


@dataclass(frozen=True, eq=False)
class Watched(Median):
    """The median, and all updates that it got."""

    updates: list = field(default_factory=list)

    def aggregator(self, round, mean):
        kept = super().aggregator(round, mean)
        add = kept.add
        kept.add = lambda update, weight: (self.updates.append(update), add(update, weight))
        return kept


@pytest.mark.parametrize("method", mostly_slow(["heterofl", "nefl", "fedrolex"], quick=2))
def test_a_round_is_the_median_of_what_clients_make_of_their_slices(method):
    """Grouped clients come one by one; norms that stay are left alone, those of sub-models are merged among equals."""
    watched = Watched()
    settings = {**PLAIN, "group_clients": "auto"}
    if method == "nefl":
        chain = make("nefl", {"variant": "W", "inconsistent": [NORMS]})
        settings["options"] = {}
    else:
        chain = make(method, {"masked": False})
    experiment = small(rounds=1, **settings)
    simulation, (before, after), _ = rounds_of(experiment, method=chain.with_parts(watched))
    setup, updates = simulation.setup, watched.updates
    assert [len(update.who) for update in updates] == [1] * 10
    for name in sorted(setup.axes.dims.keys() - setup.stay - setup.per_submodel):
        old = before.model[name].numpy()
        stacked = np.full((10, *old.shape), np.nan)
        for place, update in zip(stacked, updates, strict=True):
            whole = torch.full(old.shape, torch.nan)
            if name in update.state:
                cuts(setup.cut_axes, update.plan)[name].put(whole, update.state[name].float())
            place[...] = whole.numpy()
        with np.errstate(all="ignore"):
            wanted = np.where((~np.isnan(stacked)).sum(0) >= 3, np.nanmedian(stacked, 0), old)
        np.testing.assert_array_equal(after.model[name].numpy(), wanted.astype(old.dtype), err_msg=name)
    for name in setup.stay | setup.per_submodel:
        assert torch.equal(after.model[name], before.model[name])
    assert (set(after.submodels) == {update.plan.key for update in updates}) == bool(setup.per_submodel)
    for key, own in after.submodels.items():
        for name, tensor in own.items():
            same = torch.stack([update.state[name] for update in updates if update.plan.key == key])
            wanted = same.median(0).values  # five values, also of the counters
            assert torch.equal(tensor, wanted), (key, name)


def test_a_rule_of_ones_own_is_asked_anew_in_every_round():
    rounds = []

    @dataclass(frozen=True)
    class Mean(Part):
        """The mean, which is what there is without a rule."""

        def aggregator(self, round, mean):
            rounds.append((round.number, mean.clients))
            return mean

    plain = make("heterofl", {"masked": False})
    one = rounds_of(small(**PLAIN), method=plain)[1]
    two = rounds_of(small(**PLAIN), method=plain.with_parts(Mean()))[1]
    assert same_state(one[-1].model, two[-1].model)
    assert rounds == [(1, 0), (2, 0), (3, 0)]


def test_a_coordinate_with_two_holders_keeps_its_value_and_is_counted():
    fleet = FleetSettings(clients=10, per_round=10, levels="a:0.2,b:0.8")
    simulation, (before, after), _ = rounds_of(small(rounds=1, **{**PLAIN, "fleet": fleet}, parts="median"))
    line = run(small(rounds=1, **{**PLAIN, "fleet": fleet}, parts="median")).rounds[0]
    inside = cuts(simulation.setup.axes, simulation.setup.submodel_plan(0.5))
    few = 0
    for name in simulation.setup.parameters:
        outside = torch.ones_like(before.model[name], dtype=torch.bool)
        inside[name].put(outside, torch.zeros(inside[name].shape, dtype=torch.bool))
        assert torch.equal(before.model[name][outside], after.model[name][outside])
        assert not torch.equal(before.model[name], after.model[name])
        few += int(outside.sum())
    assert line["too_few_holders"] == few > 0


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["median", "multi-krum:1", "clip-norm:1.0"])
def test_workers_and_interruptions_change_no_byte(rule, tmp_path):
    experiment = small(rounds=3, parts=rule, checkpoint_every=1, evaluate=Evaluate(every=3, samples=60), **PLAIN)

    class Stop(Callback):
        def on_round(self, record, state):
            if record["round"] == 2:
                raise KeyboardInterrupt

    run(experiment, out=tmp_path / "whole")
    run(experiment.with_settings(["workers=2"]), out=tmp_path / "two")
    with pytest.raises(KeyboardInterrupt):
        run(experiment, out=tmp_path / "cut", callbacks=[Stop()])
    resume(tmp_path / "cut")
    wanted = outcome(tmp_path / "whole")
    assert outcome(tmp_path / "cut") == wanted
    metrics, _, model = outcome(tmp_path / "two")
    assert (metrics, model) == (wanted[0], wanted[2])
    assert json.loads(metrics.splitlines()[0])["too_few_holders"] == 0
