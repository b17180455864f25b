"""Parameters that the user froze are neither trained nor merged, and travel once."""

import math

import pytest
import torch
from torch import nn

import nestling
from nestling.client.submodels import build
from nestling.errors import ConfigError
from nestling.experiment.callback import Callback
from nestling.methods.frozen import frozen_names
from nestling.settings import Data, Evaluate, FleetSettings, Model
from nestling.upload import Upload
from tests.run_cases import same_state, small

QUICK = {"rounds": 2, "data": Data(name="digits", max_samples=160), "evaluate": Evaluate(every=2, samples=60)}
TRAINED = {"3.weight", "3.bias", "6.weight", "6.bias"}


def frozen_net(norm=True):
    """A frozen convolution and batch norm in front of layers that are trained."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8) if norm else nn.Identity(),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 9, 10),
        )
        if norm:
            model[1].running_mean.normal_()
            model[1].running_var.uniform_(0.5, 2)
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    return model


def check(result, model, trained=frozenset(TRAINED)):
    before = model.state_dict()
    for name, value in result.state.items():
        assert torch.equal(value, before[name]) != (name in trained), name


def bytes_of(model, names):
    return sum(math.prod(value.shape) * value.itemsize for name, value in model.state_dict().items() if name in names)


METHODS = ["fedavg", "heterofl", "fedrolex", "fed-dropout", "fedpruned", "fjord", "standalone", "lg-fedavg", "fedprox"]


@pytest.mark.parametrize("method", METHODS)
def test_frozen_layers_stay_whatever_the_method(method):
    model = frozen_net()
    result = nestling.run(small(method=method, **QUICK), model=model)
    before = model.state_dict()
    assert all(torch.equal(result.state[name], before[name]) for name in frozen_names(model))
    if method != "standalone":  # whose global model is never trained
        assert not torch.equal(result.state["6.weight"], before["6.weight"])
    assert result.summary["bytes_setup"] > 0


def test_nothing_of_a_frozen_norm_changes_and_sub_models_are_tested_with_its_statistics():
    model = frozen_net()
    assert frozen_names(model) == set(model.state_dict()) - TRAINED
    result = nestling.run(small(method="fedavg", **QUICK), model=model)
    check(result, model)
    model.load_state_dict(result.state)
    data = result.simulation.dataset
    wanted = (model.eval()(data.ready(data.test_inputs[:60])).argmax(1) == data.test_targets[:60]).double().mean()
    assert result.summary["final"]["global_accuracy"] == pytest.approx(wanted.item())


def test_clients_do_not_train_frozen_layers_either():
    """What is frozen is not returned, so only the model that a client trains can show it."""
    simulation = nestling.run(small(**QUICK | {"rounds": 1}), model=frozen_net()).simulation
    client = build(simulation.setup, simulation.setup.submodel_plan(0.5), 0.5).train()
    assert {name for name, value in client.named_parameters() if value.requires_grad} == TRAINED
    client(simulation.dataset.example(4) + 1)
    assert torch.equal(client[1].running_mean, simulation.setup.model.state_dict()["1.running_mean"][:4])


def test_bytes_of_frozen_tensors_count_once_per_client():
    model = frozen_net()
    settings = small(**QUICK | {"rounds": 3}, method="fedavg", fleet=FleetSettings(clients=3, per_round=3, levels="a"))
    lines = nestling.run(settings, model=model).rounds
    each = bytes_of(model, TRAINED)
    assert [line["bytes_down"] for line in lines] == [3 * each, 6 * each, 9 * each]
    assert [line["bytes_up"] for line in lines] == [3 * each, 6 * each, 9 * each]
    assert [line["bytes_setup"] for line in lines] == [3 * bytes_of(model, frozen_names(model))] * 3


def test_a_window_that_rolls_over_frozen_tensors_is_handed_out_anew():
    settings = small(**QUICK, method="fedrolex", fleet=FleetSettings(clients=2, per_round=2, levels="b"))
    one, two = (line["bytes_setup"] for line in nestling.run(settings, model=frozen_net()).rounds)
    assert two == 2 * one > 0


def test_uploads_hold_no_frozen_tensors():
    model = frozen_net()
    settings = small(**QUICK, upload=Upload(format="topk", fraction=0.5, feedback=True))
    result = nestling.run(settings, model=model)
    check(result, model)
    assert result.summary["bytes_up"] < result.summary["bytes_down"]


@pytest.mark.slow
def test_alone_in_groups_and_on_two_workers():
    model = frozen_net()
    alone = nestling.run(small(**QUICK, group_clients="off"), model=model)
    check(alone, model)
    assert same_state(nestling.run(small(**QUICK, group_clients="off", workers=2), model=model).state, alone.state)
    together = nestling.run(small(**QUICK, group_clients=3), model=model)
    check(together, model)
    for name in TRAINED:
        torch.testing.assert_close(together.state[name], alone.state[name], rtol=1e-3, atol=1e-4)


def test_a_run_that_is_resumed_has_handed_out_what_it_had(tmp_path):
    model = frozen_net()
    settings = small(**QUICK | {"rounds": 4}, checkpoint_every=2)
    whole = nestling.run(settings, model=model)

    class Stop(Callback):
        def on_round(self, record, state):
            if record["round"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nestling.run(settings, model=model, out=tmp_path / "run", callbacks=[Stop()])
    assert nestling.resume(tmp_path / "run", model=model).rounds == whole.rounds


def test_adapters_on_frozen_weights():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(64, 32).requires_grad_(False)
            self.down, self.up = nn.Linear(64, 4, bias=False), nn.Linear(4, 32, bias=False)
            self.head = nn.Linear(32, 10)

        def forward(self, x):
            x = x.flatten(1)
            return self.head((self.base(x) + self.up(self.down(x))).relu())

    model = Adapted()
    result = nestling.run(small(**QUICK), model=model)
    check(result, model, {"down.weight", "up.weight", "head.weight", "head.bias"})


def test_the_server_neither_distils_nor_decays_frozen_layers():
    model = frozen_net(norm=False)
    settings = small(
        method="fedmorph",
        options={"ratio": 0.5, "every": 1, "epochs": 1},
        rounds=2,
        data=Data(name="digits", max_samples=160, public_share=0.3),
        evaluate=Evaluate(every=2, samples=60),
    )
    result = nestling.run(settings, model=model)
    for name in ("0.weight", "0.bias"):
        assert torch.equal(result.state[name], model.state_dict()[name])


def test_fedadam_moves_no_frozen_layer():
    model = frozen_net()
    settings = nestling.Experiment.with_settings(small(**QUICK), ["server.optimizer=fedadam"])
    check(nestling.run(settings, model=model), model)


def test_a_model_of_which_everything_is_frozen_is_refused():
    with pytest.raises(ConfigError, match="every parameter of the model is frozen"):
        nestling.run(small(**QUICK), model=frozen_net().requires_grad_(False))


def test_nefl_keeps_fixed_step_sizes_counted_as_sent():
    fleet = FleetSettings(clients=2, per_round=2, levels="0.4-1")
    net = Model(name="resnet18", options={"widths": [4, 4, 4, 4], "pool": False})
    options = {"variant": "W", "learn_steps": False}
    result = nestling.run(small(**QUICK | {"rounds": 1}, method="nefl", options=options, fleet=fleet, model=net))
    assert result.summary["bytes_setup"] == 0
