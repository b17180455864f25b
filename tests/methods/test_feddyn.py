"""FedDyn: at rest where the sum of all clients' losses is, whatever slices they hold and who takes part."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nestling.data import Partition, from_arrays
from nestling.errors import ConfigError, MethodError
from nestling.experiment import resume
from nestling.experiment.callback import Callback
from nestling.experiment.runner import run
from nestling.experiment.simulation import Overrides, simulate
from nestling.experiment.simulator import Simulator
from nestling.methods import RoundContext, make
from nestling.methods.context import Merged
from nestling.methods.fedavg import fedavg
from nestling.methods.feddyn import FedDyn, with_feddyn
from nestling.methods.heterofl import heterofl
from nestling.methods.parts.per_submodel import Untrained
from nestling.server.state import ServerState
from nestling.settings import Evaluate, Experiment, FleetSettings, LocalTraining, Model
from nestling.tasks.task import LossResult
from tests.harness import NO_AXES, client_of, setup_of

FEW = settings(deadline=None, derandomize=True, max_examples=6, database=None)


class Weights(nn.Module):
    """Nothing but one vector."""

    def __init__(self, values):
        super().__init__()
        self.w = nn.Parameter(values.clone())


def corrected(before, merged, count, method_state, alpha, clients):
    """What the server makes of merged weights, of which every one was held by so many clients."""
    setup = setup_of(Weights(before), NO_AXES, with_feddyn(fedavg(), alpha), clients=clients)
    round = RoundContext(setup, 1, 0.1, {"w": before}, method_state)
    return setup.method.after_merge(round, Merged({"w": merged}, lambda _: count))


@FEW
@given(seed=st.integers(0, 1000), part=st.integers(2, 5))
def test_slices_of_a_quadratic_come_to_rest_where_the_sum_of_losses_does(seed, part):
    """Client k holds the first n_k of six weights, L_k = ½‖A_k w − b_k‖², solved exactly; some take part each round."""
    random = torch.Generator().manual_seed(seed)
    held = [2, 3, 6, 6, 6]
    tables = [torch.randn(8, n, generator=random, dtype=torch.float64) for n in held]
    wanted = [torch.randn(8, generator=random, dtype=torch.float64) for _ in held]
    alpha, w = 2.0, torch.zeros(6, dtype=torch.float64)
    kept, state = [{} for _ in held], {}
    for _ in range(900 // part):
        drawn = torch.randperm(5, generator=random)[:part].tolist()
        total, count = torch.zeros(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
        for k in drawn:
            n, a, b = held[k], tables[k], wanted[k]
            g = kept[k].get("feddyn/w", torch.zeros(n, dtype=torch.float64))
            best = torch.linalg.solve(a.T @ a + alpha * torch.eye(n), a.T @ b + g + alpha * w[:n])
            client = client_of(Weights(best), sent={"w": w[:n]}, client_state=kept[k])
            kept[k] = FedDyn(alpha).finish(client)
            total[:n] += best
            count[:n] += 1
        merged = torch.where(count > 0, total / count.clamp(min=1), w)
        after = corrected(w, merged, count, state, alpha, clients=5)
        assert torch.equal(after.model["w"][count == 0], w[count == 0])
        w, state = after.model["w"], after.method_state
    normal, right = torch.zeros(6, 6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    for n, a, b in zip(held, tables, wanted, strict=True):
        normal[:n, :n] += a.T @ a
        right[:n] += a.T @ b
    torch.testing.assert_close(w, torch.linalg.solve(normal, right), rtol=0, atol=1e-7)
    for n, a, b, mine in zip(held, tables, wanted, kept, strict=True):  # g became the gradient, h its mean
        torch.testing.assert_close(mine["feddyn/w"], a.T @ (a @ w[:n] - b), rtol=0, atol=1e-5)


class Softmax(nn.Module):
    """A linear classifier of fixed features in double precision: with some weight decay, its loss has one minimum."""

    def __init__(self):
        super().__init__()
        self.features, self.linear = nn.Linear(4, 5).double(), nn.Linear(5, 3).double()

    def forward(self, x):
        return self.linear(self.features(x.double()).relu())


@pytest.mark.slow
def test_a_run_finds_the_minimum_of_all_data_where_fedavg_does_not():
    """Three clients whose classes differ, two of them a round, eight steps each."""
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 4, generator=random), torch.arange(60) % 3
    x = x + torch.eye(3, 4)[y]
    shares = Partition(
        train=tuple(torch.cat([torch.arange(k * 3, 60, 9), torch.arange(k, 30, 3)]).unique() for k in range(3)),
        test=tuple(torch.arange(0) for _ in range(3)),
        labels=tuple(torch.arange(3) for _ in range(3)),
    )
    decay = 0.05
    experiment = Experiment(
        rounds=100,
        fleet=FleetSettings(clients=3, per_round=2, levels="a"),
        local=LocalTraining(lr=0.3, momentum=0, weight_decay=decay, clip_norm=0, epochs=8, batch_size=60),
        evaluate=Evaluate(every=100),
    )
    left = {}
    plain = replace(fedavg(), weighting="none").with_parts(Untrained(("features.*",)))
    for method in (plain, with_feddyn(plain, 0.5)):
        state = run(
            experiment, model=Softmax(), dataset=from_arrays(x, y, test=(x, y)), partition=shares, method=method
        )
        net = Softmax()
        net.load_state_dict(state.state)
        losses = [nn.functional.cross_entropy(net(x[part]), y[part]) for part in shares.train]
        value = torch.stack(losses).mean() + decay / 2 * sum(p.square().sum() for p in net.linear.parameters())
        value.backward()
        left[bool(method.overriding("after_merge"))] = max(p.grad.abs().max().item() for p in net.linear.parameters())
    assert left[True] < 1e-5
    assert left[False] > 1e-3


DEPTHFL = Experiment(
    method="depthfl",
    options={"feddyn": 0.1},
    rounds=3,
    model=Model(name="resnet18-exits", options={"depths": [1, 1, 1], "widths": [4, 6, 8]}),
    fleet=FleetSettings(clients=6, per_round=3, levels="0.2-0.5-1", assign="tiers"),
    local=LocalTraining(lr=0.05, epochs=1, batch_size=20),
    evaluate=Evaluate(every=3, samples=20, norm_clients=1),
).with_settings(["data.max_samples=120"])


class Stop(Callback):
    """Stops a run in the middle of its second round."""

    left = 4

    def on_client(self):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_depthfl_with_feddyn_is_another_run_and_the_same_after_a_break(tmp_path):
    whole = run(DEPTHFL, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(DEPTHFL, out=tmp_path / "cut", callbacks=[Stop()])
    resume(tmp_path / "cut")
    for file in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "cut" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    plain = run(DEPTHFL.with_settings(["options.feddyn=0"]))
    assert not all(torch.equal(whole.state[name], plain.state[name]) for name in whole.state)


def test_what_nobody_held_keeps_its_value():
    """Only the shallowest take part in the third round: deeper stages stay to the last bit, though their h is not 0."""
    simulation = simulate(Overrides(DEPTHFL))
    simulator, before = Simulator(simulation), ServerState.start(simulation.setup)
    for _ in range(2):
        before, _ = simulator.run_round(before)
    shallow = simulate(Overrides(DEPTHFL.with_settings(["fleet.levels='0.2'", "fleet.assign=fixed"])))
    after, _ = Simulator(shallow).run_round(before)
    deep = [name for name in before.model if name.startswith("deeper.")]
    assert all(torch.equal(after.model[name], before.model[name]) for name in deep)
    kept = [f"feddyn/{name}" for name in deep if name in simulation.setup.parameters]
    assert all(torch.equal(after.method_state[name], before.method_state[name]) for name in kept)
    assert any(before.method_state[name].any() for name in kept)
    assert not torch.equal(after.model["stem.conv.weight"], before.model["stem.conv.weight"])


def test_clients_that_change_nothing_change_nothing():
    w = torch.randn(5)
    assert torch.equal(corrected(w, w, torch.ones(5), {}, 0.1, clients=3).model["w"], w)
    tilted = FedDyn(0.1).loss(client_of(Weights(w)), None, lambda _: LossResult(torch.tensor(1.5), 1))
    assert tilted.value == 1.5


@pytest.mark.parametrize("alpha", [0, -0.1, float("nan"), float("inf")])
def test_alpha_is_above_zero(alpha):
    with pytest.raises(MethodError, match="above 0, not"):
        with_feddyn(fedavg(), alpha)


def test_other_refusals():
    with pytest.raises(MethodError, match="above 0, not -1"):
        make("depthfl", {"feddyn": -1})
    with pytest.raises(MethodError, match="cannot be combined with heterofl"):
        with_feddyn(heterofl(), 0.1)
    with pytest.raises(MethodError, match="cannot be combined with fedavg"):
        with_feddyn(with_feddyn(fedavg(), 0.1), 0.1)
    for server in ("server.optimizer=fedavgm", "server.weighting=samples"):
        with pytest.raises(ConfigError, match=r"plain mean of its clients: .*, not"):
            simulate(Overrides(DEPTHFL.with_settings([server])))
    assert not make("depthfl", {"feddyn": 0}).overriding("finish")
    assert with_feddyn(fedavg(), 0.1).weighting == "none", "clients count alike, though FedAvg's do not"
