"""DS-FL: clients exchange predictions on shared samples without labels; weights never travel.

Itahara, Nishio, Koda, Morikura, Yamamoto, Distillation-Based Semi-Supervised Federated Learning for
Communication-Efficient Collaborative Training with Non-IID Private Data, IEEE Transactions on Mobile Computing, 2021.

Every client has a model of its own, of the size that its device carries, and all have the same samples without labels.
In a round (`LogitExchange`), a client learns the labels that the server sent (`start`), trains on its own samples, and
replies the probabilities that it predicts for the samples that this round draws (`reply`). The server averages them
(`received`) and sharpens the mean by a softmax of low temperature (entropy reduction, Section 3.3). The result are the
labels that the clients of the next round get (`send`), and that the server's own model learns (`after_merge`).

Departures
----------
- A client learns the labels of a round at the beginning of its next one, and not at the end: those of the last round,
  whoever took part in that. In the paper, all clients take part in every round, so the order of steps is the same.
- Indices of the drawn samples do not travel: server and clients draw them from the seed of the experiment. Labels
  travel in single precision, samples × classes × 4 bytes in each direction; the samples themselves are counted once per
  client, in `bytes_setup`.
- Models of different sizes are slices of one initial model. Paper and authors have one architecture.
- Global accuracy is that of the server's model, as in the paper. Those of levels are means over the clients' own
  models, and local accuracy is that of each client's own model.
- Norms are static. A client's model has the norm statistics of the drawn samples when it predicts them, and those of
  its own samples in tests; the server's model has those of the drawn samples.
- Labels are learned with the settings of local training (optimizer SGD, rate of the round, momentum, weight decay and
  clipping), in `epochs` passes with batches of `batch`. If nobody answered in a round, the next one has no labels.
- 1,000 samples a round, five passes and batches of 100 are the paper's as far as we know; its text was not at hand.
- The unlabelled samples are a part of the training set (`data.public_share`), as in the paper; images are learned as
  they are stored, without augmentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from nestling.data.batches import batches
from nestling.data.federated import ClientData
from nestling.errors import ConfigError, MethodError
from nestling.methods.context import (
    AfterMerge,
    ClientContext,
    Merged,
    Participant,
    PublicWork,
    RoundContext,
    Setup,
)
from nestling.methods.messages import Update
from nestling.methods.method import Method
from nestling.methods.part import Part
from nestling.methods.parts.named_tensors import of_kind, with_kind
from nestling.methods.parts.plans import PrefixPlan
from nestling.methods.parts.private import Private
from nestling.methods.parts.public_samples import (
    check_classes,
    check_public,
    draw_public,
    public_inputs,
    public_logits,
    with_public_statistics,
)
from nestling.methods.parts.server_training import Objective, Schedule, descend, fit
from nestling.methods.parts.soft_labels import entropy_reduction, soft_cross_entropy
from nestling.methods.parts.static_norms import StaticNorms
from nestling.methods.standalone import every_tensor
from nestling.settings import LocalTraining

_LABELS, _SERVER = "labels", "server/"  # names at the server: the labels of the last round, and its model


@dataclass(frozen=True)
class LogitExchange(Part):
    """Clients and server exchange predictions on drawn public samples, and learn the sharpened mean.

    Attributes
    ----------
    samples
        The public samples that a round draws; 0 for all.
    epochs, batch
        Passes over them, and the samples in a step.
    temperature
        That of the entropy reduction; 0 for the plain mean.
    """

    samples: int = 1000
    epochs: int = 5
    batch: int = 100
    temperature: float = 0.1

    @property
    def extendable(self) -> bool:
        """Return True: nothing depends on the number of rounds."""
        return True

    def check(self, setup: Setup, public: ClientData | None) -> None:
        """Raise an error without classes, without public samples, or with settings for weights that travel."""
        check_classes(setup)
        check_public(setup, public, least=2)
        name, upload = setup.method.name, setup.upload.format
        if upload != "dense":
            raise ConfigError(f"{name} sends no weights, which upload.format={upload} could encode: leave it at dense")
        if setup.proximal:
            raise ConfigError(f"{name} sends no weights that clients could be held near: leave out fedprox")

    def public_work(self, setup: Setup, samples: int) -> PublicWork:
        """Return what a client does with the drawn samples: training passes, and one or two to predict them."""
        drawn = min(self.samples or samples, samples)
        passes = 2 if setup.norm_statistics else 1
        return PublicWork(self.epochs * drawn, passes * drawn, drawn * setup.task.classes * 4)

    def send(self, round: RoundContext, who: Participant) -> Mapping[str, Tensor]:
        """Return the labels of the last round."""
        del who
        return {_LABELS: round.method_state[_LABELS]} if _LABELS in round.method_state else {}

    def start(self, client: ClientContext) -> None:
        """Train the client's model on the labels of the last round."""
        if _LABELS not in client.extra:
            return
        assert client.public is not None  # `check` requires it
        labels, local = client.extra[_LABELS], client.setup.training
        chosen = draw_public(client.setup, client.public, client.round - 1, self.samples)
        trained: list[Tensor] = [parameter for parameter in client.model.parameters() if parameter.requires_grad]
        optimizer = _optimizer(local, client.lr, trained)
        stream = torch.Generator().manual_seed(int(client.draw.integers(2**62)))
        client.model.train()
        for _ in range(self.epochs):
            for positions in batches(torch.arange(len(chosen)), self.batch, stream):
                inputs = client.public.transform(client.public.batch(chosen[positions])[0].to(labels.device), None)
                logits = client.setup.method.predict(client.model(inputs))
                descend(optimizer, soft_cross_entropy(logits, labels[positions]), trained, local.clip_norm)

    def reply(self, client: ClientContext) -> Mapping[str, Tensor]:
        """Return the probabilities that the client predicts for the samples of this round."""
        assert client.public is not None  # `check` requires it
        chosen = draw_public(client.setup, client.public, client.round, self.samples)
        return {_LABELS: public_logits(client.setup, client.model, client.public, chosen).softmax(-1)}

    def received(self, round: RoundContext, update: Update, earlier: tuple[Tensor, int] | None) -> tuple[Tensor, int]:
        """Add the probabilities of another client: their sum in double precision, and the number of clients."""
        del round
        total, clients = earlier or (0, 0)
        return total + update.extra[_LABELS].double(), clients + 1

    def after_merge(self, round: RoundContext, merged: Merged) -> AfterMerge:
        """Sharpen the mean of the probabilities, and train the server's model on it."""
        state = {name: value for name, value in round.method_state.items() if name != _LABELS}
        if merged.received is None:
            return AfterMerge(merged.model, state)
        setup, public = round.setup, round.public
        assert public is not None  # `check` requires it
        total, clients = merged.received
        mean = total / clients
        labels = (entropy_reduction(mean, self.temperature) if self.temperature else mean).float()
        chosen = draw_public(setup, public, round.number, self.samples)
        before = of_kind(_SERVER, state) or merged.model

        def objective(model: nn.Module) -> Objective:
            def loss(positions: Tensor) -> Tensor:
                logits = setup.method.predict(model(public_inputs(round, chosen[positions])))
                return soft_cross_entropy(logits, labels[positions])

            return Objective(loss)

        local = setup.training
        steps = self.epochs * len(list(batches(torch.arange(len(chosen)), self.batch)))
        schedule = Schedule(steps, self.batch, partial(_optimizer, local, round.lr), clip_norm=local.clip_norm)
        server = with_public_statistics(round, fit(round, before, objective, schedule, len(chosen)), chosen)
        return AfterMerge(merged.model, state | {_LABELS: labels} | with_kind(_SERVER, server))

    def global_model(self, setup: Setup, method_state: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
        """Return the server's model; None before it has learned anything."""
        del setup
        return of_kind(_SERVER, method_state) or None


def _optimizer(local: LocalTraining, lr: float, parameters: list[Tensor]) -> torch.optim.Optimizer:
    if local.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=lr, weight_decay=local.weight_decay)
    return torch.optim.SGD(parameters, lr=lr, momentum=local.momentum, weight_decay=local.weight_decay)


def ds_fl(
    samples: int = 1000,
    epochs: int = 5,
    batch: int = 100,
    temperature: float = 0.1,
    aggregation: Literal["entropy-reduction", "mean"] = "entropy-reduction",
) -> Method:
    """Return DS-FL.

    Parameters
    ----------
    samples
        The public samples that a round draws; 0 for all.
    epochs
        Passes over the labels of a round.
    batch
        Samples in a step on these labels.
    temperature
        The temperature of the entropy reduction: the lower, the sharper.
    aggregation
        ``"entropy-reduction"``, or ``"mean"`` for plain averaging (the paper's ablation).

    Examples
    --------
    >>> ds_fl(aggregation="mean").parts[-1].temperature
    0.0
    """
    for name, value in {"epochs": epochs, "batch": batch, "temperature": temperature}.items():
        if not 0 < value < float("inf"):
            raise MethodError(f"ds-fl's {name} must be above 0, not {value!r}")
    if samples < 0 or samples == 1:
        raise MethodError(f"ds-fl's samples must be 0 (all) or at least 2, not {samples!r}")
    exchange = LogitExchange(samples, epochs, batch, temperature if aggregation == "entropy-reduction" else 0.0)
    return Method("ds-fl", PrefixPlan(), StaticNorms(), Private(every_tensor), exchange)
