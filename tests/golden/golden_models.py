"""Models that golden runs bring along: with frozen parameters, with tied ones, and one that fails in a test."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, nn


class Small(nn.Module):
    """A small convolutional net for the digits."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 16, 3, padding=1, stride=2)
        self.head = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, 10) of images (N, 1, 8, 8)."""
        hidden = self.second(self.first(images).relu()).relu()
        return self.head(hidden.mean((2, 3)))


class Failing(Small):
    """A net that fails once: in the first test after the record GOLDEN_FAIL, a metrics.jsonl, holds a round."""

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, 10) of images (N, 1, 8, 8)."""
        record = Path(os.environ.get("GOLDEN_FAIL", "nowhere"))
        if not self.training and record.exists() and record.stat().st_size:
            raise RuntimeError("this test fails once")
        return super().forward(images)


class Tied(nn.Module):
    """A language model of 200 words, and a few special ones that are only read, whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(204, 16)
        self.hidden = nn.Linear(16, 16)
        self.output = nn.Linear(16, 204)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (N, L, 200) of tokens (N, L)."""
        return self.output(self.hidden(self.embedding(tokens)).relu())[..., :200]


def build(name: str) -> nn.Module:
    """Return a model by its name in golden_runs.toml, always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = {"frozen": Small, "failing": Failing, "tied": Tied}[name]()
    if name == "frozen":
        model.first.requires_grad_(False)
    return model
