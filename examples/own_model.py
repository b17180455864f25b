"""Your own model, your own data, your own mixed fleet: five lines more than training it in one place.

Here a small recurrent net reads the rows of scikit-learn's digits, one after the other.

    python own_model.py
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import nestling
from nestling.data import from_arrays
from nestling.settings import Data, Evaluate, Experiment, FleetSettings


class Reader(nn.Module):
    """An ordinary model: nothing in it knows of slices or federation."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.LSTM(8, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, 8, 8) → logits (N, 10)."""
        _, (last, _) = self.rows(images)
        logits: Tensor = self.head(last[-1])
        return logits


def main(rounds: int = 10) -> nestling.Result:
    """Train it on ten devices, most of which can carry a quarter of its width."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    data = from_arrays(images[:1400], labels[:1400], test=(images[1400:], labels[1400:]), name="digits")
    experiment = Experiment(
        method="heterofl",
        rounds=rounds,
        data=Data(partition="dirichlet", alpha=1.0),
        fleet=FleetSettings(clients=10, per_round=5, levels="a:1,c:3"),
        evaluate=Evaluate(every=5),
    ).with_settings(["local.lr=0.2", "local.epochs=3"])
    return nestling.run(experiment, model=Reader(), dataset=data)


if __name__ == "__main__":
    final = main().summary["final"]
    for level, metrics in final["submodels"].items():
        print(f"level {level}: {metrics['accuracy']:.1%}")
