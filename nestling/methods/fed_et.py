"""Fed-ET: small models of several sizes teach a larger one at the server, which is no average of them.

Cho, Manoel, Joshi, Sim, Dimitriadis, Heterogeneous Ensemble Knowledge Transfer for Training Large Models in Federated
Learning, IJCAI 2022.

Clients train the sub-models of their levels, and the models of one size are averaged. The server's model is the whole
one: with levels such as ``b-c-d-e``, it is larger than that of any client. Every received sub-model is a teacher. On
the public samples, the consensus of all is the mean of their logits, each weighted by how confident its teacher is: the
variance of its logits (`Consensus.received`). The server's model learns the class of the consensus by cross-entropy; a
diversity term, λ times the divergence from the weighted logits of the teachers that predict another class, keeps what
these know (`Consensus.after_merge`). Then the small models get its representation back, the layer before the classifier
(`Transfer`).

Departures
----------
- In the paper, models of different architectures share a representation layer of one shape, which is handed back. Here
  small models are slices of one model and share no shape, so every size gets its slice of the last layer before the
  classifier. `layers` hands back more, or none; slices of all layers made a worse server and far worse small models on
  digits, because a network that was trained at full width has no working networks inside.
- The paper's sets of small models become the levels of the fleet. A level as wide as the server's model is allowed, as
  in FedRolex's Table 3, where the server's model is the largest of the clients'.
- The weights of the diversity term are normalised over the teachers that disagree; where all agree, it is zero.
- A consensus of equal logits takes the lowest class. A teacher whose logits are all equal has a weight of nearly zero.
- The server takes 128 steps of SGD at 5e-3 with batches of 64, which are the values in other implementations, and
  with momentum 0.9, at a constant rate; the text of the paper was not at hand for them.
- Norms are static. Teachers and the server's model in tests have the norm statistics of the public samples.
- The server trains all coordinates of its own model, whoever took part. If nobody did, nothing changes. Small models of
  a size that nobody trained change in the layer that is handed back alone.
- The paper samples clients by the size of their data; here, clients are drawn as in all experiments, and weighted
  equally.
- The public samples are a part of the training set without its labels (`data.public_share`). The authors use another
  data set (CIFAR-100 beside CIFAR-10), and so do the results that FedRolex quotes. `samples` draws some of them for a
  round (default: all). They are learned as they are stored, without augmentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from nestling.data.federated import ClientData
from nestling.errors import MethodError
from nestling.methods.context import AfterMerge, Merged, Owner, RoundContext, Setup
from nestling.methods.lg_fedavg import all_but_the_last
from nestling.methods.messages import Update
from nestling.methods.method import Method
from nestling.methods.part import Part
from nestling.methods.parts.consensus import Votes, consensus_loss
from nestling.methods.parts.named_tensors import of_kind, with_kind
from nestling.methods.parts.plans import PrefixPlan
from nestling.methods.parts.public_samples import (
    check_classes,
    check_public,
    draw_public,
    public_inputs,
    teacher_logits,
    with_public_statistics,
)
from nestling.methods.parts.server_training import Objective, Schedule, fit
from nestling.methods.parts.static_norms import StaticNorms

_SERVER = "server/"  # prefix of the names of the server's model in its state
_MOMENTUM = 0.9


@dataclass(frozen=True)
class Transfer(Part):
    """All sizes of sub-models share a few layers before the last, and every size has the others for itself.

    Attributes
    ----------
    layers
        The number of shared layers; the server overwrites them.
    """

    layers: int = 1

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise an error if the model has too few layers."""
        del public
        try:
            self.owners(setup)
        except MethodError:
            raise MethodError(
                f"{setup.method.name} hands back {self.layers} layers before the last one, which must be fewer than "
                "those of the model: set a lower options.layers"
            ) from None

    def owners(self, setup: Setup) -> Mapping[str, Owner]:
        """Claim all tensors but those of the shared layers for sub-models."""
        before_last = all_but_the_last(setup.axes, 1)
        shared = before_last - all_but_the_last(setup.axes, 1 + self.layers) if self.layers else frozenset()
        return dict.fromkeys(sorted(setup.axes.dims.keys() - shared), "submodel")


@dataclass(frozen=True)
class Consensus(Part):
    """The server's model learns the weighted consensus of all received sub-models.

    Attributes
    ----------
    diversity
        λ, the weight of the teachers that disagree with the consensus.
    steps, lr, batch
        The steps of SGD after a round, their learning rate, and the samples in each.
    samples
        The public samples that a round draws; 0 for all.
    """

    diversity: float = 0.05
    steps: int = 128
    lr: float = 5e-3
    batch: int = 64
    samples: int = 0

    @property
    def extendable(self) -> bool:
        """Return True: nothing depends on the number of rounds."""
        return True

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise an error without classes, or without public samples."""
        check_classes(setup)
        check_public(setup, public, least=2)

    def received(self, round: RoundContext, update: Update, earlier: Votes | None) -> Votes:
        """Add the vote of another teacher."""
        chosen = self._chosen(round)
        votes = Votes.none(len(chosen), round.setup.task.classes) if earlier is None else earlier
        return votes.add(teacher_logits(round, update, chosen))

    def after_merge(self, round: RoundContext, merged: Merged) -> AfterMerge:
        """Train the server's model on the consensus; hand its representation back."""
        if merged.received is None:
            return AfterMerge(merged.model, dict(round.method_state))
        setup, votes, chosen = round.setup, merged.received, self._chosen(round)
        labels = votes.consensus().argmax(-1)
        dissent, differ = votes.dissent(labels)
        dissent = dissent.float()

        def objective(model: nn.Module) -> Objective:
            def loss(positions: Tensor) -> Tensor:
                logits = setup.method.predict(model(public_inputs(round, chosen[positions])))
                of_batch = labels[positions], dissent[positions], differ[positions]
                return consensus_loss(logits, *of_batch, self.diversity)

            return Objective(loss)

        schedule = Schedule(self.steps, self.batch, partial(torch.optim.SGD, lr=self.lr, momentum=_MOMENTUM))
        before = of_kind(_SERVER, round.method_state) or round.before
        server = fit(round, before, objective, schedule, len(chosen))
        measured = with_public_statistics(round, server, chosen)
        shared = {name: value for name, value in server.items() if name not in setup.per_submodel}
        return AfterMerge(merged.model | shared, dict(round.method_state) | with_kind(_SERVER, measured))

    def global_model(self, setup: Setup, method_state: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
        """Return the server's model; None before it has learned anything."""
        del setup
        return of_kind(_SERVER, method_state) or None

    def _chosen(self, round: RoundContext) -> Tensor:
        assert round.public is not None  # `check` requires it
        return draw_public(round.setup, round.public, round.number, self.samples)


def fed_et(
    *,
    diversity: float = 0.05,
    steps: int = 128,
    lr: float = 5e-3,
    batch: int = 64,
    samples: int = 0,
    layers: int = 1,
) -> Method:
    """Return Fed-ET.

    Parameters
    ----------
    diversity
        λ, the weight of the teachers that disagree with the consensus; 0 for none.
    steps
        Steps of SGD that the server takes after a round.
    lr
        The learning rate of these steps.
    batch
        Samples in each of these steps.
    samples
        The public samples that a round draws; 0 for all.
    layers
        The layers before the last of which the small models get their slices of the server's model.

    Examples
    --------
    >>> fed_et().parts[-1].diversity
    0.05
    """
    for name, value in {"steps": steps, "lr": lr, "batch": batch}.items():
        if not 0 < value < float("inf"):
            raise MethodError(f"fed-et's {name} must be above 0, not {value!r}")
    for name, value in {"diversity": diversity, "layers": layers}.items():
        if not 0 <= value < float("inf"):
            raise MethodError(f"fed-et's {name} must be 0 or more, not {value!r}")
    if samples < 0 or samples == 1:
        raise MethodError(f"fed-et's samples must be 0 (all) or at least 2, not {samples!r}")
    consensus = Consensus(diversity, steps, lr, batch, samples)
    return Method("fed-et", PrefixPlan(), StaticNorms(), Transfer(layers), consensus)
