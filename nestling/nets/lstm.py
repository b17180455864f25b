"""The character model of FedAvg (McMahan et al. 2017) on Shakespeare as LEAF sets it up.

80 characters are embedded in 8 dimensions, read by two LSTM layers of 256 units and turned into next-character logits;
sequences have 80 characters.

Departures: logits at every position instead of the last one only (take ``[:, -1]`` for LEAF's task). The two layers are
two ``nn.LSTM`` of one layer each, so that each has its own width; torch's LSTM has two bias vectors per layer, 2,048
parameters more than cells with one.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class LSTM(nn.Module):
    """Character ids ``(batch, length)`` → next-character logits ``(batch, length, vocabulary)``.

    The `special` ids from ``vocabulary`` on are inputs that are never predicted: padding.

    >>> import torch
    >>> LSTM()(torch.zeros(2, 80, dtype=torch.long)).shape
    torch.Size([2, 80, 80])
    """

    def __init__(
        self, *, vocabulary: int = 80, special: int = 0, embedding: int = 8, widths: Sequence[int] = (256, 256)
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary + special, embedding)
        self.layers = nn.ModuleList(
            nn.LSTM(before, width, batch_first=True) for before, width in pairwise((embedding, *widths))
        )
        self.head = nn.Linear(widths[-1], vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        """Read ``ids`` from left to right, starting from a zero state."""
        x = self.token(ids)
        for layer in self.layers:
            x = layer(x)[0]
        logits: Tensor = self.head(x)
        return logits
