"""Data of one's own, read client by client, with numbers instead of classes: each sensor learns a part of one curve.

python own_data.py
"""

import torch
from torch import Tensor, nn

import nestling
from nestling.data.function_clients import FunctionClients
from nestling.settings import Evaluate, Experiment, FleetSettings


def read(sensor: int) -> tuple[Tensor, Tensor]:
    """Return the inputs (N, 1) and targets (N, 1) of a sensor; this could read a file or a database."""
    random = torch.Generator().manual_seed(sensor)
    x = torch.rand(60, 1, generator=random) * 2 - 1
    return x, torch.sin(3 * x) + 0.1 * torch.randn(60, 1, generator=random)


def main(rounds: int = 20) -> nestling.Result:
    """Train a small net on twenty sensors, of which half can carry a quarter of its width."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    experiment = Experiment(
        method="fedrolex",
        options={"masked": False},
        rounds=rounds,
        fleet=FleetSettings(clients=20, per_round=10, levels="a:1,c:1"),
        evaluate=Evaluate(every=10),
    ).with_settings(["local.lr=0.05"])
    return nestling.run(experiment, model=net, dataset=FunctionClients(read, clients=20, tested=read(-1)))


if __name__ == "__main__":
    print(f"RMSE {main().summary['final']['rmse']:.3f} (noise alone: 0.100)")
