"""Parameters that the user froze (``requires_grad=False``): never trained, never merged, the same for everybody.

A device keeps them, so they are handed out once per client and slice, and counted apart from what travels every round.
A batch norm whose weights are frozen is frozen whole: it normalises by the statistics that it came with.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

from torch import nn

from nestling.axes import AxisMap
from nestling.axes.dims import leaves
from nestling.cut import Plan
from nestling.cut.extract import cuts
from nestling.kernels.batch_norms import has_frozen_weights

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # the buffers of a batch norm


def frozen_names(model: nn.Module) -> frozenset[str]:
    """Return the state names that the user froze: parameters, and the statistics of norms that are frozen.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).requires_grad_(False)
    >>> _ = model[0].weight.requires_grad_(True)
    >>> sorted(frozen_names(model))
    ['0.bias', '1.bias', '1.num_batches_tracked', '1.running_mean', '1.running_var', '1.weight']
    """
    names = {name for name, value in model.named_parameters(remove_duplicate=False) if not value.requires_grad}
    for path, module in model.named_modules(remove_duplicate=False):
        if has_frozen_weights(module):
            names |= {f"{path}.{name}" if path else name for name in STATISTICS}
    return frozenset(names & model.state_dict().keys())


def frozen_slice(axes: AxisMap, plan: Plan, sizes: Mapping[str, int]) -> tuple[str, int]:
    """Return a key of the frozen tensors that a sub-model holds, and how many bytes they are.

    Parameters
    ----------
    axes, plan
        What the sub-model is cut by.
    sizes
        Name → bytes of one value, of every frozen tensor.

    Returns
    -------
    tuple
        The key, which is the same for plans that differ only in what is trained; and the bytes, tied tensors once.
    """
    kept = {name: cut for name, cut in cuts(axes, plan).items() if name in sizes}
    used = {leaf.name for name in kept for dim in axes.dims[name] for leaf in leaves(dim)}
    runs = sorted((axis, plan.runs[axis]) for axis in used & plan.runs.keys())
    key = hashlib.sha256(repr((sorted(kept), runs)).encode()).hexdigest()[:16]
    once = {axes.tied.get(name, name): math.prod(cut.shape) * sizes[name] for name, cut in kept.items()}
    return key, sum(once.values())
