"""The normalisation layers of HeteroFL's ablation (Diao et al., Tables 4 and 5).

``bn`` is BatchNorm; HeteroFL's *static* BatchNorm is this layer with other statistics, which are a part of the method,
not of the net. ``gn`` is GroupNorm with 4 groups, ``ln`` GroupNorm with one group, ``in`` GroupNorm with as many groups
as channels (so both become fewer in a narrower layer), ``none`` no layer at all.
"""

from torch import nn

from nestling.errors import ModelError

NORMS = ("bn", "gn", "ln", "in", "none")
GROUPS = 4  # G of the paper's GroupNorm, Table 4


def norm_layer(kind: str, width: int, dimensions: int = 2) -> nn.Module:
    """Return a norm for ``(batch, width, *positions)`` with 1 or 2 position ``dimensions``.

    >>> norm_layer("gn", 64).num_groups
    4
    """
    match kind:
        case "bn":
            return nn.BatchNorm1d(width) if dimensions == 1 else nn.BatchNorm2d(width)
        case "gn":
            return nn.GroupNorm(GROUPS, width)
        case "ln":
            return nn.GroupNorm(1, width)
        case "in":
            return nn.GroupNorm(width, width)
        case "none":
            return nn.Identity()
    raise ModelError(f"there is no norm {kind!r}; choose one of {', '.join(NORMS)}")
