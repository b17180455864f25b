"""A linear layer whose weights stay as they are, with a low-rank adapter that is trained.

Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022, §4.1, with α = r.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class AdaptedLinear(nn.Linear):
    """W x + b + B A x: W and b are frozen, A (rank, inputs) is drawn and B (outputs, rank) starts at zero.

    >>> layer = AdaptedLinear(8, 4, rank=2)
    >>> {name: tuple(value.shape) for name, value in layer.named_parameters() if value.requires_grad}
    {'lora_A': (2, 8), 'lora_B': (4, 2)}
    """

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__(inputs, outputs)
        self.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.empty(rank, inputs))
        self.lora_B = nn.Parameter(torch.zeros(outputs, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Inputs (…, inputs) → outputs (…, outputs)."""
        return super().forward(x) + F.linear(F.linear(x, self.lora_A), self.lora_B)
