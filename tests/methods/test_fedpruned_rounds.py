"""FedPruned as a whole: FedAvg on a smaller model, to the bit."""

import torch

import nestling
from nestling.cut.extract import cuts, extract
from nestling.experiment import load
from nestling.experiment.runner import run
from nestling.experiment.simulation import Overrides, simulate
from nestling.settings import Data
from tests.run_cases import same_state, small

CLASSES = Data(name="digits", partition="dirichlet", max_samples=400)


def test_it_is_fedavg_on_the_sub_network(tmp_path):
    pruned = small(method="fedpruned", options={"ratio": 0.5}, data=CLASSES)
    simulation = simulate(Overrides(pruned))
    plan = simulation.setup.global_plan()
    assert plan.runs
    network = nestling.submodel(simulation.setup.model, simulation.setup.axes, plan)
    one = run(pruned, out=tmp_path / "run")
    two = run(small(method="fedavg", data=CLASSES), model=network)
    assert same_state(extract(simulation.setup.axes, plan, one.state), two.state)
    for first, second in zip(one.rounds, two.rounds, strict=True):
        assert first == second  # accuracies, bytes and MACs
    assert one.summary["levels"] == two.summary["levels"]
    for name, value in one.state.items():  # the rest was never touched
        untouched = torch.ones_like(value, dtype=torch.bool)
        cuts(simulation.setup.axes, plan)[name].put(untouched, torch.zeros_like(two.state[name], dtype=torch.bool))
        assert torch.equal(value[untouched], simulation.setup.model.state_dict()[name][untouched])
    # what is saved and taken is the sub-network
    state, same = nestling.unpack((tmp_path / "run" / "model.safetensors").read_bytes())
    assert same == plan
    assert same_state(state, two.state)
    model = load(tmp_path / "run").submodel().double()
    inputs = simulation.dataset.ready(simulation.dataset.test_inputs[:100]).double()
    right = (model(inputs).argmax(-1) == simulation.dataset.test_targets[:100]).double().mean().item()
    assert abs(right - one.summary["final"]["global_accuracy"]) < 0.011  # a tie may fall to the other side in float64


def test_all_of_it_is_fedavg():
    one, two = (run(small(method=name, options=given)) for name, given in (("fedpruned", {"ratio": 1}), ("fedavg", {})))
    assert same_state(one.state, two.state)
    assert one.rounds == two.rounds
