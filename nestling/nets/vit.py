"""Vision transformers (Dosovitskiy et al. 2021), as NeFL trains them (Kang et al., B.1 and Table 13).

ViT-B/16 for 224×224 images: patches of 16, width 768, 12 blocks, 12 heads, MLP of four times the width, a class token,
learned positions, pre-norm. NeFL gives every block two step sizes, one for attention and one for the MLP.

Departures
- The class token and the positions are ``nn.Embedding`` layers, so that every parameter but the step sizes is part of
  an ordinary layer that can be narrowed.
- Without steps and with ten classes ViT-B/16 has 85,806,346 parameters; NeFL reports 86.4 M, which is this plus another
  768×768 layer in front of the head. We keep the plain head of the published ImageNet weights.
- The tiny net (32×32 images, patches of 4, width 192, 3 heads) is not in the papers: it fits CIFAR and a laptop.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from nestling.nets.attention import Attention, feedforward, small_normal
from nestling.nets.residual import Residual


class VisionTransformer(nn.Module):
    """Square images ``(batch, channels, size, size)`` → logits ``(batch, classes)``.

    ``head_width`` is ``width // heads`` and ``hidden`` (of the MLP) ``4 * width`` unless given.

    >>> net = VisionTransformer(size=32, patch=4, width=24, depth=2, heads=3)
    >>> net(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        size: int = 224,
        patch: int = 16,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        head_width: int | None = None,
        hidden: int | None = None,
        channels: int = 3,
        classes: int = 10,
        learn_steps: bool = True,
    ) -> None:
        super().__init__()
        hidden = 4 * width if hidden is None else hidden
        self.patch = nn.Conv2d(channels, width, patch, patch)
        self.token = nn.Embedding(1, width)
        self.position = nn.Embedding((size // patch) ** 2 + 1, width)
        self.blocks = nn.Sequential(*(_block(width, heads, head_width, hidden, learn_steps) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)
        self.apply(small_normal)
        nn.init.zeros_(self.token.weight)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        """Split the images into patches, prepend the class token, and classify by its final value."""
        x = self.patch(images).flatten(2).transpose(1, 2)
        row = x.new_zeros((x.shape[0], 1), dtype=torch.long)  # the class token is row 0, for each image
        x = torch.cat([self.token(row), x], dim=1)
        x = x + self.position(torch.arange(x.shape[1], device=x.device))
        x = self.norm(self.blocks(x))
        logits: Tensor = self.head(x[:, 0])
        return logits


def _block(width: int, heads: int, head_width: int | None, hidden: int, learn_step: bool) -> nn.Sequential:
    attention: OrderedDict[str, nn.Module] = OrderedDict(
        norm=nn.LayerNorm(width, eps=1e-6), attention=Attention(width, heads, head_width=head_width)
    )
    mlp = OrderedDict(norm=nn.LayerNorm(width, eps=1e-6)) | feedforward(width, hidden, nn.GELU())
    return nn.Sequential(
        OrderedDict(
            attention=Residual(nn.Sequential(attention), learn_step=learn_step),
            mlp=Residual(nn.Sequential(mlp), learn_step=learn_step),
        )
    )
