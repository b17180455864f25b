"""FedDF: the ensemble of all received sub-models teaches the merged model, on samples without labels.

Lin, Kong, Stich, Jaggi, Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020.

Clients train the sub-models of their levels, and these are merged as always. Every received sub-model is a teacher: the
server adds up its logits on the public samples when it arrives (`EnsembleDistillation.received`) and forgets the
sub-model. Then the merged model is the student: it minimises the divergence of its predictions from those of the mean
logits (Algorithm 1 of the paper; Algorithm 3 for clients with different models), in `after_merge`.

Departures
----------
- The paper has a student for every architecture, which starts from the average of its own group and learns from the
  ensemble of all groups. Here, smaller models are slices of larger ones, so there is one student that starts from the
  merge of all. Its loss is the mean over the sub-models of this round's clients, run inside the student: every size
  learns from the ensemble of all, and distilling the whole does not ruin its slices. What no client held in a round is
  in none of these, and keeps its value.
- Early stopping watches the divergence on a share of the drawn public samples that is held out, and the training ends
  with the weights of the lowest, which may be those before the first step. The authors watch the accuracy on labelled
  validation data, which a server without labels does not have.
- The public samples are a part of the training set without its labels (`data.public_share`). The authors use other data
  sets, or generated images; so do those whose results FedRolex quotes.
- Norms are static. A teacher has the norm statistics of the public samples, a student in training those of its batch.
- Every teacher has the same weight, as in the paper; in the merge, clients are weighted by their samples.
- `samples` draws some of the public samples for a round (default: all); the paper uses all in every round.
- Images are distilled as they are stored, without augmentation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nestling.cut import Plan, submodel
from nestling.cut.extract import cuts
from nestling.data.federated import ClientData
from nestling.errors import ConfigError, MethodError
from nestling.kernels.batch_norms import keep_frozen
from nestling.kernels.seeded_dropout import seed_dropout
from nestling.methods.context import AfterMerge, Merged, RoundContext, Setup
from nestling.methods.messages import Update
from nestling.methods.method import Method
from nestling.methods.part import Part
from nestling.methods.parts.nested_submodel import shared_weights
from nestling.methods.parts.plans import PrefixPlan
from nestling.methods.parts.public_samples import (
    check_classes,
    check_public,
    draw_public,
    public_inputs,
    teacher_logits,
)
from nestling.methods.parts.server_training import Objective, Schedule, batch_statistics, fit
from nestling.methods.parts.soft_labels import divergence_from
from nestling.methods.parts.static_norms import StaticNorms, make_static
from nestling.safe_kernels import guard

_LEAST = 4  # public samples: two to train on, two to hold out


@dataclass(frozen=True, eq=False)
class Ensemble:
    """What the server remembers of the teachers of a round.

    Attributes
    ----------
    chosen
        The public samples of the round, (samples,).
    logits
        The sum of all teachers' logits, (samples, classes), in double precision.
    teachers
        How many there are.
    plans
        Their different slices.
    """

    chosen: Tensor
    logits: Tensor
    teachers: int
    plans: tuple[Plan, ...]


@dataclass(frozen=True)
class EnsembleDistillation(Part):
    """The server distils the ensemble of all received sub-models into the merged model.

    Attributes
    ----------
    lr, batch
        Adam's learning rate, which falls to zero along a cosine, and the samples in a step.
    steps, patience
        The most steps, and how many without a lower loss on the held-out samples end them; 0 for all steps.
    samples
        The public samples that a round draws; 0 for all.
    held_out
        The share of these that is held out, if there is a patience; at least two samples.
    """

    lr: float = 1e-3
    batch: int = 128
    steps: int = 10_000
    patience: int = 1_000
    samples: int = 0
    held_out: float = 0.1

    @property
    def extendable(self) -> bool:
        """Return True: nothing depends on the number of rounds."""
        return True

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise an error without classes, without public samples, or where clients do not share all parameters."""
        check_classes(setup)
        check_public(setup, public, _LEAST)
        own = sorted(setup.parameters & setup.owners.keys())
        if own:
            raise ConfigError(f"{setup.method.name} needs parameters that all clients share, and {own[0]} is not")

    def received(self, round: RoundContext, update: Update, earlier: Ensemble | None) -> Ensemble:
        """Add the logits of another teacher."""
        assert round.public is not None  # `check` requires it
        chosen = draw_public(round.setup, round.public, round.number, self.samples)
        logits = teacher_logits(round, update, chosen).double()
        if earlier is None:
            return Ensemble(chosen, logits, 1, (update.plan,))
        plans = tuple(dict.fromkeys((*earlier.plans, update.plan)))
        return Ensemble(chosen, earlier.logits + logits, earlier.teachers + 1, plans)

    def after_merge(self, round: RoundContext, merged: Merged) -> AfterMerge:
        """Distil the ensemble into the merged model, at all sizes that took part."""
        ensemble = merged.received
        if ensemble is None:
            return AfterMerge(merged.model, dict(round.method_state))
        targets = (ensemble.logits / ensemble.teachers).softmax(-1).float()
        order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(round.seed))
        kept = min(max(2, int(len(order) * self.held_out)), len(order) - 2) if self.patience else 0
        count = len(order) - kept  # the last ones of the order are held out
        schedule = Schedule(
            self.steps, self.batch, partial(torch.optim.Adam, lr=self.lr), cosine=True, patience=self.patience
        )

        def objective(model: nn.Module) -> Objective:
            sizes = [_size(round, model, plan) for plan in ensemble.plans]

            def loss(positions: Tensor) -> Tensor:
                chosen = order[positions]
                inputs = public_inputs(round, ensemble.chosen[chosen])
                terms = [divergence_from(targets[chosen], predict(inputs)).mean() for _, predict in sizes]
                return torch.stack(terms).mean()

            def held_out() -> float:
                with batch_statistics(model, *(network for network, _ in sizes)):
                    return loss(torch.arange(count, len(order))).item()

            return Objective(loss, held_out)

        return AfterMerge(fit(round, merged.model, objective, schedule, count), dict(round.method_state))


def _size(round: RoundContext, model: nn.Module, plan: Plan) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """Return the network of a sub-model inside the student, and a function from inputs to its logits."""
    setup = round.setup
    if not plan.runs and plan.blocks is None:
        return model, lambda inputs: setup.method.predict(model(inputs))
    network, slices = submodel(model, setup.cut_axes, plan), cuts(setup.cut_axes, plan)
    guard(network, public_inputs(round, torch.arange(1)))
    seed_dropout(network)
    keep_frozen(network.train())
    make_static(network)
    return network, lambda inputs: setup.method.predict(
        functional_call(network, shared_weights(model, slices), (inputs,))
    )


def feddf(
    *,
    lr: float = 1e-3,
    batch: int = 128,
    steps: int = 10_000,
    patience: int = 1_000,
    samples: int = 0,
    held_out: float = 0.1,
) -> Method:
    """Return FedDF.

    Parameters
    ----------
    lr
        Adam's learning rate in the distillation.
    batch
        Samples in a step of the distillation.
    steps
        The most steps of the distillation after a round.
    patience
        Steps without a lower loss on held-out public samples after which a distillation ends; 0 for all steps.
    samples
        The public samples that a round draws; 0 for all.
    held_out
        The share of the drawn public samples that is held out, if there is a patience.

    Examples
    --------
    >>> feddf(steps=100, patience=0).parts[-1].steps
    100
    """
    for name, value in {"lr": lr, "batch": batch, "steps": steps}.items():
        if not 0 < value < float("inf"):
            raise MethodError(f"feddf's {name} must be above 0, not {value!r}")
    for name, value in {"patience": patience, "samples": samples}.items():
        if value < 0:
            raise MethodError(f"feddf's {name} must be 0 or more, not {value!r}")
    if 0 < samples < _LEAST:
        raise MethodError(f"feddf's samples must be 0 (all) or at least {_LEAST}, not {samples!r}")
    if not 0 < held_out < 1:
        raise MethodError(f"feddf's held_out must be above 0 and below 1, not {held_out!r}")
    distillation = EnsembleDistillation(lr, batch, steps, patience, samples, held_out)
    return Method("feddf", PrefixPlan(), StaticNorms(), distillation, weighting="samples")
