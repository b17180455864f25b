"""Parameters that the user froze (``requires_grad=False``): never trained, never merged, the same for all clients.

A device keeps them, so they are sent once per client and slice, and counted separately from the traffic of rounds. A
batch norm whose weights are frozen is frozen entirely: it normalises by the statistics that it came with.
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
    """Return a key of the frozen tensors that a sub-model holds, and their size in bytes.

    Parameters
    ----------
    axes, plan
        The axes, and the plan of the sub-model.
    sizes
        Name → bytes of one value, for every frozen tensor.

    Returns
    -------
    tuple
        The key, which is equal for plans that differ only in trained tensors; and the bytes, with tied tensors once.
    """
    frozen = {name: cut for name, cut in cuts(axes, plan).items() if name in sizes}
    used = {leaf.name for name in frozen for dim in axes.dims[name] for leaf in leaves(dim)}
    runs = sorted((axis, plan.runs[axis]) for axis in used & plan.runs.keys())
    key = hashlib.sha256(repr((sorted(frozen), runs)).encode()).hexdigest()[:16]
    once = {axes.tied.get(name, name): math.prod(cut.shape) * sizes[name] for name, cut in frozen.items()}
    return key, sum(once.values())
