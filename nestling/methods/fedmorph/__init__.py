"""FedMorph: the server keeps a large network and sends out a small one that it prunes anew every few rounds.

FedMorph: Communication Efficient Federated Learning via Morphing Neural Network (anonymous submission; no public
implementation exists). Every `every` rounds the averaged small network is written back into the large one, distilled
into all of it on samples without labels, and a fresh small network is pruned by the learned masks. Between morphs it is
FedAvg on the small network.

What the paper leaves open, and how it is decided here
------------------------------------------------------
- Mask variables start as Logistic(logit(ratio), 1), which keeps a share `ratio` of the units and gives the sizes of the
  paper's tables. The literal reading (mean = ratio) keeps more than half of them; it is `literal_start`.
- With τ = 1e-3 a mask's own gradient is zero but for the rare draw near the threshold, where it is huge: right on
  average, and very noisy. Default is therefore a straight-through estimator; `gradient="plain"` is the paper's formula.
- Noise is drawn anew for every batch of the distillation, and never when pruning.
- The samples are an explicit share of the training set (`data.unlabelled`), given to the server without labels. The
  authors use the inputs of the test set: `data.unlabelled_test=true`.
- The loss is the mean over a batch, and λ multiplies the number of parameters kept under that batch's masks.
- Weight decay acts on weights and not on masks. The optimiser starts anew at every morph, but for the masks' momenta,
  which go on. Learning rate: a tenth of the clients' of that round.
- Clients count by their samples, as in FedAvg here; the paper's mean is `server.weighting=none`.
- At least one unit of every axis stays. Masks act where an axis is read (nestling.methods.fedmorph.soft_masks), so that
  no bias leaks.
- Statistics of norms are static, as in HeteroFL; those of the large network, of the teacher and of the fresh network
  are taken on the distillation's samples. Where norms average over channels (LayerNorm), the masked network is not
  quite the pruned one.
- The first network is pruned by the initial masks, without distillation. After the last round the large network still
  learns, but nothing is pruned, because nobody would train it.
- The global model is the large network, as of the last morph, with every unit weighted by the probability that its mask
  was on, σ(v), as dropout's authors test theirs; with all units at full weight, as the text may be read, its layers
  would hear several times what they learnt with. The small network in use is tested as the sub-model of its level.
- Beyond the paper: in a fleet with several levels, each gets its share of the kept units of every axis, those with the
  highest masks, so levels nest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from nestling.cut import Plan, extract, submodel
from nestling.cut.extract import cuts
from nestling.data.batches import batches
from nestling.errors import MethodError
from nestling.methods.between import After, Between, State
from nestling.methods.fedmorph.distill import Distillation, Distilled, distill, said, with_statistics
from nestling.methods.fedmorph.soft_masks import Masks, initial, kept, positions
from nestling.methods.method import Method, Turn

_MASK, _MOMENTUM, _SERVER, _EXPECTED, _PENALTY = "mask/", "momentum/", "server/", "expected/", "penalty"


@dataclass(frozen=True)
class Start:
    """How masks begin: what the server remembers before the first round."""

    ratio: float
    literal: bool
    penalty: float

    def __call__(self, turn: Turn) -> dict[str, Tensor]:
        """Draw the mask variables."""
        stream = torch.Generator().manual_seed(turn.seed)
        drawn = initial(turn.axes, self.ratio, stream, self.literal)
        return _named(_MASK, drawn) | {_PENALTY: torch.tensor(self.penalty, dtype=torch.float64)}


def best_units(turn: Turn) -> Plan:
    """The units whose masks are not below zero; of those, the best, as many as the level carries."""
    key = "morph" if turn.ratio == 1 else f"morph-{turn.ratio!r}"
    return kept(turn.axes, _part(_MASK, turn.notes), turn.ratio, key)


def morph(task: Between, every: int, how: Distillation, constraint: str) -> After:
    """What the server does after a round: every `every` rounds, a morph."""
    scores = _part(_MASK, task.notes)
    plan = kept(task.axes, scores, key="averaged")
    small = extract(task.axes, plan, task.state)
    if not every or task.round % every:
        return After(dict(task.state), dict(task.notes))
    network = submodel(task.model, task.axes, plan)
    network.load_state_dict(small)
    small = with_statistics(network, _ready(task, how.batch))
    network.load_state_dict(small)
    targets = said(network, _ready(task, how.batch))
    weights = _written_back(task, plan, small)
    masks = _masks(task, constraint)
    begun = Distilled(weights, scores, _part(_MOMENTUM, task.notes), float(task.notes[_PENALTY]))
    found = distill(task, masks, targets, begun, how)
    expected = {name: torch.sigmoid(value) for name, value in found.scores.items()}
    large = submodel(task.model, task.axes, Plan())
    large.load_state_dict(dict(found.weights) | masks.laid_on(found.weights, expected))
    told = with_statistics(large, _ready(task, how.batch))
    weights = {name: found.weights[name] if name in task.parameters else value for name, value in told.items()}
    notes = _named(_SERVER, weights) | _named(_EXPECTED, expected)
    notes[_PENALTY] = torch.tensor(found.penalty, dtype=torch.float64)
    if task.round == task.rounds:
        return After(dict(task.state), dict(task.notes) | notes, {"averaged": (plan, small)})
    notes |= _named(_MASK, found.scores) | _named(_MOMENTUM, found.momenta)
    fresh = kept(task.axes, found.scores, key="morphed")
    network = submodel(task.model, task.axes, fresh)
    network.load_state_dict(extract(task.axes, fresh, weights))
    morphed = with_statistics(network, _ready(task, how.batch))
    state = {name: value.clone() for name, value in weights.items()}
    for name, cut in cuts(task.axes, fresh).items():
        cut.put(state[name], morphed[name])
    return After(state, notes, {"averaged": (plan, small), "morphed": (fresh, morphed)})


def large_network(turn: Turn) -> State | None:
    """The large network as of the last morph, units weighted by how likely their masks were on; none before."""
    weights = _part(_SERVER, turn.notes)
    if not weights:
        return None
    laid = Masks(turn.axes, turn.parameters).laid_on(weights, _part(_EXPECTED, turn.notes))
    laid |= {name: laid[first] for name, first in turn.axes.tied.items() if first in laid}
    return weights | laid


def fedmorph(
    *,
    ratio: float = 0.3,
    every: int = 10,
    penalty: float = 1.2e-6,
    budget: float = 0.0,
    constraint: Literal["parameters", "macs"] = "parameters",
    gradient: Literal["straight-through", "plain"] = "straight-through",
    temperature: float = 1e-3,
    noise: bool = True,
    epochs: int = 2,
    batch: int = 50,
    distil_lr: float = 0.1,
    mask_lr: float = 1.0,
    literal_start: bool = False,
) -> Method:
    """Return FedMorph.

    Parameters
    ----------
    ratio
        The share of units that the first small network keeps: about its square of the parameters.
    every
        Rounds between morphs; 0 for none, so that the first small network stays.
    penalty, constraint
        λ, and what it is the price of: a parameter, or a multiply-accumulate.
    budget
        The share of the parameters (or multiply-accumulates) to end with, for which λ is then tuned; 0 for a fixed λ.
    gradient, temperature, noise
        How masks learn (Eq. 6).
    epochs, batch, distil_lr, mask_lr
        How the distillation learns: passes, batch, its learning rate as a share of the local one, that of masks as a
        multiple of its own.
    literal_start
        Start masks around `ratio` itself, as the text has it.

    >>> fedmorph(ratio=0.1).unlabelled
    True
    """
    if not 0 < ratio <= 1:
        raise MethodError(f"fedmorph's ratio must be above 0 and at most 1, not {ratio!r}")
    if not 0 <= budget <= 1:
        raise MethodError(f"fedmorph's budget must be from 0 (none) to 1, not {budget!r}")
    for name, value in {"every": every, "epochs": epochs, "penalty": penalty}.items():
        if not 0 <= value < float("inf"):
            raise MethodError(f"fedmorph's {name} must be 0 or more, not {value!r}")
    for name, value in {"batch": batch, "temperature": temperature, "distil_lr": distil_lr, "mask_lr": mask_lr}.items():
        if not 0 < value < float("inf"):
            raise MethodError(f"fedmorph's {name} must be above 0, not {value!r}")
    if budget and not penalty:
        raise MethodError("fedmorph's budget is met by tuning its penalty, which must be above 0 to begin with")
    how = Distillation(epochs, batch, distil_lr, mask_lr, temperature, gradient, noise, penalty, budget)
    return Method(
        "fedmorph",
        plan=best_units,
        deploy=best_units,
        notes=Start(ratio, literal_start, penalty),
        between=partial(morph, every=every, how=how, constraint=constraint),
        endless=not every,
        whole=large_network,
        weighting="samples",
        unlabelled=every > 0,
    )


def _ready(task: Between, batch: int) -> list[Tensor]:
    return [task.ready(task.inputs[part]) for part in batches(torch.arange(len(task.inputs)), batch)]


def _written_back(task: Between, plan: Plan, small: State) -> dict[str, Tensor]:
    """The large network with the averaged small one in its places (§5.1, Training Tricks)."""
    weights = {name: value.clone() for name, value in (_part(_SERVER, task.notes) or task.state).items()}
    for name, cut in cuts(task.axes, plan).items():
        cut.put(weights[name], small[name])
    return weights


def _masks(task: Between, constraint: str) -> Masks:
    often = None if constraint == "parameters" else positions(task.model, task.ready(task.inputs[:1]))
    return Masks(task.axes, task.parameters, often)


def _named(kind: str, tensors: State) -> dict[str, Tensor]:
    return {kind + name: value for name, value in tensors.items()}


def _part(kind: str, notes: State) -> dict[str, Tensor]:
    return {name.removeprefix(kind): value for name, value in notes.items() if name.startswith(kind)}
