"""Whether a method gives clients of one level different slices in a round."""

from __future__ import annotations

from nestling.fleet import parse_level
from nestling.methods.context import Participant, RoundContext, Setup
from nestling.seeds import derive


def draws_by_client(setup: Setup) -> bool:
    """Return whether two clients of the narrowest level get different slices in the first round (Federated Dropout).

    >>> from nestling.methods import make
    >>> from nestling.nets import build, example
    >>> import nestling
    >>> from nestling.tasks import Classification
    >>> net = build("mlp")
    >>> axes = nestling.trace(net, *example("mlp"))
    >>> def draws(name):
    ...     task, method = Classification(10), make(name)
    ...     return draws_by_client(Setup(net, axes, example("mlp")[0], task, method, ratios=(0.5, 1.0)))
    >>> draws("heterofl"), draws("fed-dropout")
    (False, True)
    """
    state = setup.initial_method_state
    round = RoundContext(setup, 1, 0.0, setup.model.state_dict(), state)
    level = parse_level(setup.ratios[0])
    clients = [Participant(client, level, seed=derive(setup.seed, "plan", 1, client)) for client in (0, 1)]
    return len({setup.method.plan.plan(round, who) for who in clients}) > 1
