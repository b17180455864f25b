"""pfl's simulated backend with federated averaging, on workloads of `make bench PARTS=rounds` whose clients are alike.

``.venv-pfl/bin/python bench/with_pfl.py WORKLOAD full|quick`` says one line of JSON when it is ready, and then the
seconds of a round for every line that it reads. pfl gets the best of everything: clients' samples are tensors, ready to
be trained on, and it keeps their batches, which it does not shuffle. Nothing is evaluated but before the first round.
"""

from __future__ import annotations

import sys
from functools import partial

from bench.rounds.contest import Laps, own_voice

VOICE = own_voice()  # before anything can print

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.pytorch import PyTorchTensorDataset  # noqa: E402
from pfl.data.sampling import get_user_sampler  # noqa: E402
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams  # noqa: E402
from pfl.metrics import Metrics, Weighted  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from bench.rounds.floor import bare  # noqa: E402
from bench.rounds.workloads import find, prepare, read  # noqa: E402
from nestling.experiment.simulation import Simulation  # noqa: E402

ROUNDS = 1_000_000  # more than anybody will ask for


class Net(nn.Module):
    """The model of all clients, as pfl wants it."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self.net = bare(simulation, 1.0)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.net(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(self.loss(inputs, targets).item() * len(targets), len(targets))}


class Turns(TrainingProcessCallback):
    """Lets a round begin when a line is read, and says how long it took."""

    def __init__(self, laps: Laps) -> None:
        self._laps = laps

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self._laps.next()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        return not self._laps.next(), Metrics()


def dataset(simulation: Simulation, client: int) -> PyTorchTensorDataset:
    """A client's samples in the order of its first round."""
    inputs, targets = (torch.cat(parts) for parts in zip(*read(simulation, client, 1), strict=True))
    return PyTorchTensorDataset(tensors=[inputs, targets])


def main() -> None:
    torch.set_num_threads(1)
    workload, size = sys.argv[1:]
    simulation = prepare(find(workload, size == "quick"))
    local, clients = simulation.settings.local, simulation.fleet.sample(1)
    net = Net(simulation)
    optimizer = partial(torch.optim.SGD, momentum=local.momentum, weight_decay=local.weight_decay, fused=True)
    model = PyTorchModel(net, optimizer, torch.optim.SGD(net.parameters(), lr=1.0))
    held = {client: dataset(simulation, client) for client in clients}
    users = FederatedDataset(held.__getitem__, get_user_sampler("minimize_reuse", list(clients)))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS,
            evaluation_frequency=ROUNDS,
            train_cohort_size=len(clients),
            val_cohort_size=None,
        ),
        SimulatedBackend(users, users),
        model,
        NNTrainHyperParams(
            local_num_epochs=local.epochs,
            local_learning_rate=local.lr,
            local_batch_size=local.batch_size,
            local_max_grad_norm=local.clip_norm,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Turns(Laps(VOICE))],
    )


if __name__ == "__main__":
    main()
