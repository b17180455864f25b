"""The parts that the transformers share: attention, the feed-forward body, and the initialisation.

Queries, keys and values come from three linear layers instead of one fused layer, because a narrower model keeps the
number of heads and is cut *inside every head* (HeteroFL's rule).
"""

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Self-attention over ``(batch, length, width)``, same shape out.

    ``head_width`` is ``width // heads`` unless given. The forward pass uses the number of heads and reads everything
    else, including the softmax scale, from the tensors.

    >>> import torch
    >>> Attention(16, heads=4)(torch.zeros(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, width: int, heads: int, *, head_width: int | None = None, causal: bool = False) -> None:
        super().__init__()
        inside = heads * (width // heads if head_width is None else head_width)
        self.heads = heads
        self.causal = causal
        self.q = nn.Linear(width, inside)
        self.k = nn.Linear(width, inside)
        self.v = nn.Linear(width, inside)
        self.o = nn.Linear(inside, width)

    def forward(self, x: Tensor) -> Tensor:
        """Let every position attend to all positions, or to those up to itself if ``causal``."""
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.o(mixed.transpose(1, 2).flatten(2))
        return out


def feedforward(width: int, hidden: int, activation: nn.Module, dropout: float = 0.0) -> OrderedDict[str, nn.Module]:
    """Return the named layers width → hidden → width, with optional dropout after both.

    >>> list(feedforward(8, 32, nn.GELU()))
    ['up', 'activation', 'down']
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(up=nn.Linear(width, hidden), activation=activation)
    if dropout:
        layers["dropout1"] = nn.Dropout(dropout)
    layers["down"] = nn.Linear(hidden, width)
    if dropout:
        layers["dropout2"] = nn.Dropout(dropout)
    return layers


def small_normal(module: nn.Module) -> None:
    """Initialise linear layers from N(0, 0.02²) with bias 0, as BERT and ViT do; use with ``Module.apply``."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
