"""A task of one's own: classification that is judged by whether the right class is among the two likeliest.

python own_task.py
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

import nestling
from nestling.data.federated import ClientData
from nestling.experiment import find
from nestling.tasks import Classification, Metric


@dataclass(frozen=True)
class TopTwo(Classification):
    """Cross-entropy, and the share of samples whose class is among the two highest logits."""

    name: ClassVar[str] = "top-two"
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("top_two", "higher", percent=True), Metric("loss", "lower"))

    def measure(self, answer: Tensor, data: ClientData) -> dict[str, float | None]:
        """Return both figures; the best round is chosen by the first metric."""
        targets = data.targets()[: len(answer)]
        hits = (answer.topk(2).indices == targets[:, None]).any(1)
        return {"top_two": hits.double().mean().item(), "loss": super().measure(answer, data)["loss"]}


if __name__ == "__main__":
    result = nestling.run(find("heterofl-digits").with_settings(["rounds=5"]), task=TopTwo(classes=10))
    print(f"{result.summary['final']['top_two']:.1%} after five rounds")
