"""The three definitions of local accuracy, each against a plain loop over the model's answers."""

import pytest
import torch

from nestling.errors import ConfigError
from nestling.experiment.presets import find
from nestling.experiment.simulation import Overrides, simulate
from nestling.settings import Data, Evaluate, Model
from tests.harness import rounds_of
from tests.run_cases import small

PLAIN = Model(name="cnn", options={"widths": [8, 16], "norm": "none"})  # no statistics, which a plain loop would need
CLASSES = Data(name="digits", max_samples=400, partition="classes", classes_per_client=3)


def evaluated(local):
    """The simulation, its figures after a round, and the global model."""
    evaluate = Evaluate(every=2, samples=100, norm_batch=50, local=local)
    simulation, states, simulator = rounds_of(small(rounds=1, data=CLASSES, evaluate=evaluate, model=PLAIN))
    figures, by_client = simulator.evaluate(states[-1])
    net = simulation.setup.model
    net.load_state_dict(states[-1].model)
    return simulation, figures, by_client, net.eval()


def accuracy(net, simulation, inputs, targets, among=None):
    with torch.no_grad():
        logits = net(simulation.dataset.ready(inputs))
    predicted = logits.argmax(-1) if among is None else among[logits[:, among].argmax(-1)]
    return (predicted == targets).double().mean().item()


@pytest.mark.parametrize("local", ["masked", "unmasked", "own-data"])
def test_local_accuracy_is_what_its_name_says(local):
    simulation, figures, by_client, net = evaluated(local)
    data, partition = simulation.dataset, simulation.partition
    seen, right = 0, 0.0
    for client, held in enumerate(partition.labels):
        if local == "own-data":
            chosen = partition.train[client]
            inputs, targets = data.inputs[chosen], data.targets[chosen]
        else:
            chosen = partition.test[client][partition.test[client] < 100]
            inputs, targets = data.test_inputs[chosen], data.test_targets[chosen]
        if len(chosen):
            expected = accuracy(net, simulation, inputs, targets, None if local == "unmasked" else held)
            assert by_client[str(client)] == pytest.approx(expected, abs=0.05)  # a tie may fall the other way
            seen, right = seen + len(chosen), right + expected * len(chosen)
    assert figures["local_accuracy"] == pytest.approx(right / seen, abs=0.02)


def test_masked_is_the_default_and_changes_nothing():
    plain = small(rounds=1, data=CLASSES, model=PLAIN)
    assert plain.evaluate.local == "masked"
    _, states, simulator = rounds_of(plain)
    _, masked, _, _ = evaluated("masked")
    assert simulator.evaluate(states[-1])[0] == masked


def test_without_masks_local_accuracy_is_lower():
    (_, masked, _, _), (_, unmasked, _, _) = evaluated("masked"), evaluated("unmasked")
    assert masked["global_accuracy"] == unmasked["global_accuracy"]
    assert masked["local_accuracy"] > unmasked["local_accuracy"]


def test_rows_of_table_5_without_masked_loss_are_tested_without_masks():
    for scale in ("", "-laptop"):
        assert find(f"heterofl-mnist-noniid-a-e-unmasked{scale}").evaluate.local == "unmasked"
        assert find(f"heterofl-mnist-noniid-a-e{scale}").evaluate.local == "masked"


def test_definitions_that_do_not_apply_are_refused():
    own = Evaluate(local="own-data")
    with pytest.raises(
        ConfigError, match=r"own-data tests the server's model, but clients of standalone have their own"
    ):
        simulate(Overrides(small(method="standalone", evaluate=own)))
    with pytest.raises(ConfigError, match=r"evaluate.local=unmasked has no effect: only classes have a local accuracy"):
        simulate(Overrides(find("fedavg-words").with_settings(["evaluate.local=unmasked"])))
    with pytest.raises(ConfigError, match=r"the setting evaluate.local cannot be 'auto'"):
        small().with_settings(["evaluate.local=auto"])
