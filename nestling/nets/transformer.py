"""The language models of HeteroFL (Table 6, WikiText-2) and FedRolex (section 4, Stack Overflow).

Both are the same encoder: token and learned position embeddings, norm, dropout; post-norm blocks of attention and
feed-forward; then linear, activation, norm, linear to the vocabulary.

HeteroFL fills in masked words: vocabulary 33,278, width 256, 8 heads, hidden 512, 4 blocks, dropout 0.2, GELU. FedRolex
predicts the next word: vocabulary 10,000, width 128, 8 heads, hidden 2,048, 3 blocks, dropout 0.1, ReLU. Details that
the papers do not state follow from the exact parameter counts of their sub-models.

Departures
- No Scaler: it belongs to the method.
- FedRolex's text says 12-dimensional heads; its sizes follow from 128 / 8 = 16 dimensions, which are used.
- FedRolex's sizes also include 64 positions, though its sequences have 20 words, and one token row beyond the
  vocabulary: [MASK] for the masked model, padding for this one. Both are kept.
- The next-word model attends causally; the papers do not mention a mask, without which the next word is in the input.
- The papers give no initialisation: linear layers use BERT's, embeddings torch's.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from nestling.errors import ModelError
from nestling.nets.attention import Attention, feedforward, small_normal
from nestling.nets.residual import Residual

ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}


class Transformer(nn.Module):
    """Token ids ``(batch, length)`` → logits ``(batch, length, vocabulary)``, with ``length <= positions``.

    Ids ``vocabulary`` up to ``vocabulary + special - 1`` are the special tokens: inputs that are never predicted.
    ``head_width`` is ``width // heads`` unless given.

    >>> net = Transformer(vocabulary=50, width=16, heads=2, hidden=32, depth=1)
    >>> mask = 50
    >>> net(torch.tensor([[3, mask, 7]])).shape
    torch.Size([1, 3, 50])
    """

    def __init__(
        self,
        *,
        vocabulary: int = 33278,
        special: int = 1,
        positions: int = 64,
        width: int = 256,
        depth: int = 4,
        heads: int = 8,
        head_width: int | None = None,
        hidden: int = 512,
        dropout: float = 0.2,
        activation: str = "gelu",
        causal: bool = False,
        learn_steps: bool = False,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            accepted = ", ".join(ACTIVATIONS)
            raise ModelError(f"there is no activation {activation!r}; choose one of {accepted}")
        act = ACTIVATIONS[activation]
        self.token = nn.Embedding(vocabulary + special, width)
        self.position = nn.Embedding(positions, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        blocks = []
        for _ in range(depth):
            attention = Attention(width, heads, head_width=head_width, causal=causal)
            bodies = {
                "attention": OrderedDict(attention=attention, dropout=nn.Dropout(dropout)),
                "feedforward": feedforward(width, hidden, act(), dropout),
            }
            residuals: OrderedDict[str, nn.Module] = OrderedDict(
                (name, Residual(nn.Sequential(body), after=nn.LayerNorm(width), learn_step=learn_steps))
                for name, body in bodies.items()
            )
            blocks.append(nn.Sequential(residuals))
        self.blocks = nn.Sequential(*blocks)
        self.decoder = nn.Sequential(
            OrderedDict(linear=nn.Linear(width, width), activation=act(), norm=nn.LayerNorm(width))
        )
        self.head = nn.Linear(width, vocabulary)
        self.apply(small_normal)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of every position's word, or of the word after it if the net is causal."""
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        x = self.blocks(self.dropout(self.norm(x)))
        logits: Tensor = self.head(self.decoder(x))
        return logits
