"""What a method's server does between rounds: asked with all that it may use."""

from __future__ import annotations

from functools import partial

from nestling.experiment.server import Server
from nestling.experiment.setting import Setting
from nestling.methods.between import Between
from nestling.seeds import derive


def between(setting: Setting, before: Server, server: Server, rate: float) -> None:
    """Let the method do what it does between rounds; the server is changed in place."""
    if setting.method.between is None:
        return
    after = setting.method.between(
        Between(
            model=setting.model,
            axes=setting.axes,
            parameters=setting.parameters,
            before=before.state,
            state=server.state,
            gathered=server.tally.weights,
            notes=server.notes,
            round=server.round,
            rounds=setting.experiment.rounds,
            clients=setting.fleet.clients,
            inputs=setting.unlabelled,
            ready=partial(setting.data.test.transform, random=None),
            local=setting.experiment.local,
            lr=rate,
            seed=derive(setting.experiment.seed, "between", server.round),
        )
    )
    server.state, server.notes, server.networks = after.state, after.notes, after.networks
