"""The residual block of all residual nets here.

NeFL (Kang et al., Eq. 3) interprets a residual net as an ODE solver: each block moves the stream by `step` times the
output of its body, and a small device may leave out whole blocks. A dropped block is a block with step 0, so
:meth:`Residual.dropped` returns a module without the body, which is neither stored, sent nor computed.
"""

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """``after(skip(x) + step · body(x))``.

    Parameters
    ----------
    body
        The module whose output, of the shape of ``skip(x)``, is added to the stream.
    skip
        The shortcut, the identity unless given. It is kept when the block is dropped.
    after
        A module applied to the sum, such as a ReLU or a post-norm. It is kept when the block is dropped.
    step
        The step size, or its initial value if it is learned.
    learn_step
        Whether ``step`` is a parameter of shape ``()`` instead of a plain float.

    Examples
    --------
    >>> block = Residual(nn.Linear(4, 4), after=nn.ReLU(), step=0.0)
    >>> x = torch.randn(2, 4)
    >>> torch.equal(block(x), block.dropped()(x))
    True
    """

    step: nn.Parameter | float

    def __init__(
        self,
        body: nn.Module,
        skip: nn.Module | None = None,
        after: nn.Module | None = None,
        *,
        step: float = 1.0,
        learn_step: bool = False,
    ) -> None:
        super().__init__()
        self.body = body
        self.skip = nn.Identity() if skip is None else skip
        self.after = nn.Identity() if after is None else after
        self.step = nn.Parameter(torch.tensor(float(step))) if learn_step else float(step)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` to a tensor of the shape of ``skip(x)``."""
        change = self.body(x)
        if not (isinstance(self.step, float) and self.step == 1.0):
            change = self.step * change
        out: Tensor = self.after(self.skip(x) + change)
        return out

    def dropped(self) -> nn.Module:
        """Return the module that replaces this block when it is dropped.

        It shares ``skip`` and ``after`` with the block (nothing is copied), under the same names, so the state-dict
        keys of a shortcut do not depend on whether its block was dropped.
        """
        return Dropped(self.skip, self.after)


class Dropped(nn.Module):
    """``after(skip(x))``: a :class:`Residual` without its body.

    >>> list(Residual(nn.Linear(4, 8), skip=nn.Linear(4, 8)).dropped().state_dict())
    ['skip.weight', 'skip.bias']
    """

    def __init__(self, skip: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.skip = skip
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` as the whole block would with step 0."""
        out: Tensor = self.after(self.skip(x))
        return out
