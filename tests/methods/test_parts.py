"""Parts: what they add to methods, in which order, and where they refuse."""

import pickle
from dataclasses import dataclass, replace

import pytest
import torch

import nestling
from nestling.errors import ConfigError, MethodError
from nestling.experiment import find
from nestling.experiment.simulation import Overrides, simulate
from nestling.methods import METHODS, Method, Part, PlanPart, make
from nestling.methods.feddyn import FedDyn
from nestling.methods.fjord import OrderedDropout
from nestling.methods.parts.masked_loss import MaskedLoss
from nestling.methods.parts.plans import PrefixPlan
from nestling.methods.parts.private import Private
from nestling.methods.parts.proximal import Proximal
from nestling.methods.parts.static_norms import StaticNorms
from nestling.methods.robust.median import Median
from nestling.methods.robust.trimmed_mean import TrimmedMean
from nestling.methods.standalone import every_tensor
from nestling.settings import Experiment
from nestling.tasks import Regression

SMALL = ["rounds=2", "local.epochs=1", "data.max_samples=200", "fleet.clients=4", "fleet.per_round=3"]


def outcome(preset, *settings):
    """The weights and the record of a short run."""
    result = nestling.run(find(preset).with_settings([*SMALL, *settings]))
    return result.state, result.rounds, result.summary


def same(one, other):
    return all(torch.equal(tensor, other[0][name]) for name, tensor in one[0].items()) and one[1] == other[1]


def test_fedprox_as_a_part_is_fedprox():
    part, paper = outcome("fedavg-digits", "parts=fedprox:0.5"), outcome("fedprox-digits", "options.mu=0.5")
    assert same(part, paper)
    assert (part[2]["method"], part[2]["parts"]) == ("fedavg", ["fedprox:0.5"])
    assert "parts" not in paper[2]
    assert not same(part, outcome("fedavg-digits"))
    assert "parts=fedprox:0.5" in part[2]["command"]


def test_ordered_dropout_as_a_part_is_fjord():
    own = ["options.scaler=false", "options.masked=false", "server.weighting=samples"]
    assert same(outcome("heterofl-digits", "parts=fjord", *own), outcome("fjord-digits", "server.weighting=samples"))


def test_parts_are_added_in_order_and_saved():
    text = "fedprox:0.01, feddyn:0.1"
    assert make("fedavg", {}, text).parts[-2:] == (Proximal(0.01), FedDyn(0.1))
    assert make("fedavg", {}, text).proximal == pytest.approx(0.11)
    assert make("fedavg", {}, "feddyn").parts[-1] == FedDyn(0.1)
    experiment = Experiment().with_settings([f"parts={text}"])
    assert Experiment.from_toml(experiment.to_toml()).parts == text


@pytest.mark.parametrize(
    ("method", "parts", "words"),
    [
        ("heterofl", "feddyn:0.1", "feddyn cannot be combined with heterofl, which has a masked loss"),
        ("fedmorph", "feddyn:0.1", "feddyn cannot be combined with fedmorph, which changes the model after the merge"),
        ("fedavg", "feddyn:0.1,feddyn:0.1", "already keeps tensors at its clients"),
        ("fedavg", "feddyn:0", "above 0, not 0.0"),
        ("fedavg", "fedprox:-1", "at least 0, not -1.0"),
        ("fedavg", "fedprox:much", "the part fedprox takes a number, such as fedprox:0.01, not 'much'"),
        ("heterofl", "fjord", "cannot be combined with the Scaler"),
        ("fedrolex", "fjord", "needs slices that keep the first units of every axis, unlike fedrolex"),
        ("fjord", "fjord", "which has a loss of its own"),
        (
            "fedavg",
            "fedprx:1",
            "there is no part 'fedprx', nor is that of the form module:factory; did you mean 'fedprox'",
        ),
        ("fedavg", "nowhere:part", "there is no module 'nowhere'"),
        ("fedavg", "math:sqrt:4", "the part 'math:sqrt:4' is a float, not a Part"),
        ("fedavg", "math:sqrt:-1", "the part 'math:sqrt:-1' failed: ValueError"),
        (
            "fedavg",
            "nestling.methods.parts.plans:PrefixPlan",
            "is a PrefixPlan, not a Part that goes with another plan",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused_in_one_sentence(method, parts, words):
    with pytest.raises(MethodError) as caught:
        make(method, {}, parts)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_part_of_ones_own_is_named():
    own = "nestling.methods.robust"
    assert make("heterofl", {}, f"fedprox:0.1,{own}.median:Median").parts[-2:] == (Proximal(0.1), Median())
    assert make("heterofl", {}, f"{own}.trimmed_mean:TrimmedMean:0.3").parts[-1] == TrimmedMean(0.3)
    settings = ["rounds=1", "fleet.per_round=4"]
    by_name, own_part = (
        outcome("heterofl-digits", *settings, f"parts={part}") for part in ("median", f"{own}.median:Median")
    )
    assert same(by_name, own_part)
    assert own_part[2]["parts"] == [f"{own}.median:Median"]


@pytest.mark.parametrize("preset", ["nefl-digits", "standalone-digits", "lg-fedavg-digits"])
def test_feddyn_needs_parameters_that_all_share(preset):
    with pytest.raises(ConfigError, match="feddyn needs parameters that all clients share"):
        simulate(Overrides(find(preset).with_settings([*SMALL, "parts=feddyn"])))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_travels_and_is_equal_to_itself_elsewhere(name):
    method = make(name)
    other = pickle.loads(pickle.dumps(method))
    assert other == method
    assert hash(other.plan) == hash(method.plan)
    assert replace(method, name="mine").parts == method.parts
    assert method.with_parts(Proximal(1.0)).parts == (*method.parts, Proximal(1.0))


@dataclass(frozen=True)
class Doubled(Part):
    """A loss twice as large, which says when it was computed."""

    log: list

    def loss(self, client, batch, inner):
        loss = inner(batch)
        self.log.append(loss.value.item())
        return replace(loss, value=2 * loss.value)


def test_later_parts_are_outside_of_earlier_ones():
    first, second = [], []
    method = Method("mine", PrefixPlan(), StaticNorms(), Doubled(first), Doubled(second))
    nestling.run(find("heterofl-digits").with_settings([*SMALL, "rounds=1"]), method=method)
    assert second == pytest.approx([2 * value for value in first])


def test_what_is_no_part_or_too_much_of_one_is_refused():
    with pytest.raises(MethodError, match="made of Parts, and 3 is not one"):
        Method("mine", PrefixPlan(), 3)
    with pytest.raises(MethodError, match="must be a PlanPart, not a StaticNorms"):
        Method("mine", StaticNorms())
    with pytest.raises(MethodError, match="one part with `output_mask`, not MaskedLoss and MaskedLoss"):
        Method("mine", PlanPart(), MaskedLoss(), MaskedLoss())
    assert Method("mine", PlanPart(), None, StaticNorms(), None).parts == (StaticNorms(),)


def test_batch_norms_that_nobody_looks_after_are_refused():
    experiment = find("heterofl-digits").with_settings(SMALL)
    with pytest.raises(MethodError, match=r"batch norm 'blocks\.0\.norm', and mine neither keeps it static"):
        simulate(Overrides(experiment, method=Method("mine", PrefixPlan())))
    simulate(Overrides(experiment, method=Method("mine", PrefixPlan(), Private(every_tensor))))


def test_parts_that_need_classes_say_so():
    experiment = find("heterofl-digits").with_settings(SMALL)
    for part in (MaskedLoss(), OrderedDropout()):
        with pytest.raises(MethodError, match="needs classes, and regression has none"):
            simulate(Overrides(experiment, method=Method("mine", PrefixPlan(), StaticNorms(), part), task=Regression()))
