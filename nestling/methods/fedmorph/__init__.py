"""FedMorph: the server keeps a large network and sends out a small one that it prunes anew every few rounds.

FedMorph: Communication Efficient Federated Learning via Morphing Neural Network (anonymous submission; no public
implementation exists). Clients train the small network as in FedAvg (Eq. 3). Every `every` rounds the server morphs it
(`Morph.after_merge`, Algorithm 1): the averaged small network is written back into the large one (§5.1) and distilled
into it on samples without labels, together with soft masks (Eqs. 4 to 7), and a new small network is pruned by them.

What the paper leaves open, and how it is decided here
------------------------------------------------------
- Mask variables start as Logistic(logit(ratio), 1), which keeps a share `ratio` of the units and gives the sizes of the
  paper's tables. The literal reading (mean = ratio) keeps more than half of them; it is `literal_start`.
- With τ = 1e-3 a mask's gradient is zero except for rare draws near the threshold, where it is huge: correct on
  average, and very noisy. The default is therefore a straight-through estimator; `gradient="plain"` is Eq. 6 itself.
- Noise is drawn for every batch of the distillation, and never for pruning.
- The samples are an explicit share of the training set (`data.public_share`), given to the server without labels. The
  authors use the inputs of the test set: `data.public_from_test=true`.
- The loss is the mean over a batch, and λ multiplies the number of parameters kept under that batch's masks.
- Weight decay acts on weights and not on masks. The optimiser is new at every morph, except for the masks' momenta,
  which are kept. Learning rate: a tenth of the clients' in that round.
- Clients are weighted by their samples, as in FedAvg here; the paper's mean is `server.weighting=none`.
- At least one unit of every axis is kept. Masks act where an axis is read (nestling.methods.fedmorph.soft_masks), so
  that no bias leaks.
- Norms are static, as in HeteroFL; the statistics of the large network, of the teacher and of the new small network are
  measured on the distillation's samples. Where norms average over channels (LayerNorm), the masked network is not
  exactly the pruned one.
- The first network is pruned by the initial masks, without distillation. After the last round the large network is
  distilled, but nothing is pruned, because nobody would train the result.
- The global model is the large network of the last morph, with every unit weighted by the probability that its mask is
  on, σ(v), as in tests of dropout. With all units at full weight, another reading of the text, the inputs of its layers
  would be several times larger than in training. The current small network is tested as the sub-model of its level.
- Beyond the paper: in a fleet with several levels, each gets its share of the kept units of every axis, those with the
  highest mask variables, so levels nest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from nestling.axes import AxisMap
from nestling.cut import Plan, extract, submodel
from nestling.cut.extract import State, cuts
from nestling.data.federated import ClientData
from nestling.errors import MethodError
from nestling.methods.context import AfterMerge, Merged, RoundContext, Setup
from nestling.methods.fedmorph.distill import Distillation, Distilled, distill
from nestling.methods.fedmorph.soft_masks import Masks, initial, kept, positions
from nestling.methods.method import Method
from nestling.methods.part import PlanPart
from nestling.methods.parts.named_tensors import of_kind, with_kind
from nestling.methods.parts.public_samples import check_public, predictions, public_batches, with_statistics
from nestling.methods.parts.static_norms import StaticNorms

# What the server keeps: mask variables, their momenta, the large network, expected masks, and λ.
_MASK, _MOMENTUM, _SERVER, _EXPECTED, _PENALTY = "mask/", "momentum/", "server/", "expected/", "penalty"


@dataclass(frozen=True)
class Morph(PlanPart):
    """Clients train the small network; every few rounds the server distils it into the large one and prunes that.

    Attributes
    ----------
    ratio, literal_start
        The share of units that the first small network keeps, and whether masks start around `ratio` itself.
    every
        Rounds between morphs; 0 for no morphs.
    constraint
        The size that λ penalises: ``"parameters"`` or ``"macs"``.
    distillation
        The settings of the distillation.
    """

    ratio: float
    literal_start: bool
    every: int
    constraint: str
    distillation: Distillation

    @property
    def extendable(self) -> bool:
        """Return whether there are no morphs: the last one prunes nothing, so it depends on the number of rounds."""
        return not self.every

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise an error if the server has no samples for the distillation."""
        if self.every:
            check_public(setup, public)

    def init(self, setup: Setup, seed: int) -> dict[str, Tensor]:
        """Draw the mask variables."""
        drawn = initial(setup.axes, self.ratio, torch.Generator().manual_seed(seed), self.literal_start)
        return with_kind(_MASK, drawn) | {_PENALTY: torch.tensor(self.distillation.penalty, dtype=torch.float64)}

    def submodel_plan(self, setup: Setup, method_state: State, ratio: float) -> Plan:
        """Return the units with v ≥ 0 (§4.1); of those, the highest, as many as the level carries."""
        key = "morph" if ratio == 1 else f"morph-{ratio!r}"
        return kept(setup.axes, of_kind(_MASK, method_state), ratio, key)

    def after_merge(self, round: RoundContext, merged: Merged) -> AfterMerge:
        """Morph every `every` rounds (Algorithm 1, lines 4 and 5); in other rounds, keep the merged small network."""
        if not self.every or round.number % self.every:
            return AfterMerge(merged.model, dict(round.method_state))
        setup, state, batch = round.setup, round.method_state, self.distillation.batch

        # 1. The averaged small network w̃ predicts the classes of the public samples: the targets of Eq. 4.
        scores = of_kind(_MASK, state)
        plan = kept(setup.axes, scores, key="averaged")
        network = submodel(setup.model, setup.axes, plan)
        network.load_state_dict(extract(setup.axes, plan, merged.model))
        small = with_statistics(network, public_batches(round, batch))
        network.load_state_dict(small)
        targets = predictions(network, public_batches(round, batch))

        # 2. It is written back into the large network w°, which learns the targets together with the masks v (Eq. 7).
        masks = self._masks(round)
        large = _with_slice(setup.axes, of_kind(_SERVER, state) or merged.model, plan, small)
        start = Distilled(large, scores, of_kind(_MOMENTUM, state), float(state[_PENALTY]))
        learned = distill(round, masks, targets, start, self.distillation)
        expected = {name: torch.sigmoid(value) for name, value in learned.scores.items()}
        network = submodel(setup.model, setup.axes, Plan())
        network.load_state_dict(dict(learned.weights) | masks.apply(learned.weights, expected))
        measured = with_statistics(network, public_batches(round, batch))
        weights = {
            name: learned.weights[name] if name in setup.parameters else value for name, value in measured.items()
        }
        new_state = with_kind(_SERVER, weights) | with_kind(_EXPECTED, expected)
        new_state[_PENALTY] = torch.tensor(learned.penalty, dtype=torch.float64)
        if round.number == setup.rounds:
            return AfterMerge(merged.model, dict(state) | new_state, {"averaged": (plan, small)})

        # 3. A new small network is pruned by the learned masks (Eq. 7, second line).
        new_state |= with_kind(_MASK, learned.scores) | with_kind(_MOMENTUM, learned.momenta)
        fresh = kept(setup.axes, learned.scores, key="morphed")
        network = submodel(setup.model, setup.axes, fresh)
        network.load_state_dict(extract(setup.axes, fresh, weights))
        morphed = with_statistics(network, public_batches(round, batch))
        model = _with_slice(setup.axes, weights, fresh, morphed)
        return AfterMerge(model, dict(state) | new_state, {"averaged": (plan, small), "morphed": (fresh, morphed)})

    def global_model(self, setup: Setup, method_state: State) -> State | None:
        """Return the large network as of the last morph, units weighted by σ(v); None before the first morph."""
        weights = of_kind(_SERVER, method_state)
        if not weights:
            return None
        weighted = Masks(setup.axes, setup.parameters).apply(weights, of_kind(_EXPECTED, method_state))
        weighted |= {name: weighted[first] for name, first in setup.axes.tied.items() if first in weighted}
        return weights | weighted

    def _masks(self, round: RoundContext) -> Masks:
        uses = None
        if self.constraint != "parameters":
            uses = positions(round.setup.model, public_batches(round, 1, first=1)[0])
        return Masks(round.setup.axes, round.setup.parameters, uses)


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
        Rounds between morphs; 0 for none, so that the first small network is kept.
    penalty
        λ of Eq. 5, the weight of the size.
    constraint
        The size that λ penalises: parameters, or multiply-accumulates.
    budget
        The share of the parameters (or multiply-accumulates) to reach by tuning λ; 0 for a fixed λ.
    gradient
        The gradient of the masks: Eq. 6 itself, or a straight-through estimator of it.
    temperature
        τ of the masks (Eq. 6).
    noise
        Whether the masks are noisy in the distillation (Eq. 6).
    epochs
        Passes of the distillation over the public samples.
    batch
        Samples in a step of the distillation.
    distil_lr
        The learning rate of the distillation, as a share of the clients'.
    mask_lr
        The learning rate of the masks, as a multiple of that of the distillation.
    literal_start
        Whether masks start around `ratio` itself, as the text says.

    Examples
    --------
    >>> fedmorph(ratio=0.1).plan.ratio
    0.1
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
        raise MethodError("fedmorph's budget is met by tuning its penalty, which must start above 0")
    distillation = Distillation(epochs, batch, distil_lr, mask_lr, temperature, gradient, noise, penalty, budget)
    morph = Morph(ratio, literal_start, every, constraint, distillation)
    return Method("fedmorph", morph, StaticNorms(), weighting="samples")


def _with_slice(axes: AxisMap, large: State, plan: Plan, small: State) -> dict[str, Tensor]:
    """Return the large network with the weights of a small one written into it (§5.1, Training Tricks)."""
    weights = {name: value.clone() for name, value in large.items()}
    for name, cut in cuts(axes, plan).items():
        cut.put(weights[name], small[name])
    return weights
