"""What secure aggregation does not go with, each refused in one sentence."""

from __future__ import annotations

from nestling.cut.accept import averaged
from nestling.errors import ConfigError, MethodError
from nestling.methods.context import Setup
from nestling.methods.parts.holders import LEAST, shared_names
from nestling.methods.parts.plans_by_client import draws_by_client


def check_secure(setup: Setup, *, union: bool) -> None:
    """Raise unless the server of an experiment needs nothing of its clients but sums, and learns nothing else.

    Parameters
    ----------
    setup
        The experiment.
    union
        Whether clients of different slices form cohorts.
    """
    method, state = setup.method, setup.model.state_dict()
    merging = [*shared_names(setup), *sorted(setup.per_submodel)]
    if not merging:
        raise MethodError(f"secagg hides what clients share, and clients of {method.name} share nothing")
    if setup.upload.format != "dense":
        raise ConfigError(
            f"secagg sends masked values, which upload.format={setup.upload.format} cannot shorten: set "
            "upload.format=dense, and parts=secagg:bits=16 for fewer bytes"
        )
    fleet = setup.participation
    most = setup.clients if fleet is None or fleet.poisson else fleet.per_round
    if most < LEAST:
        raise ConfigError(f"secagg needs cohorts of at least {LEAST} clients, and a round has at most {most}")
    counters = [name for name in merging if not averaged(state[name]) or state[name].is_complex()]
    obstacles = [
        (setup.select_rows, "rows that clients select tell which classes they hold", "set select_rows=false"),
        (
            method.overriding("output_mask"),
            "a masked loss changes the rows of few clients, whose sum would tell what they hold",
            "set options.masked=false",
        ),
        (
            setup.norm_statistics - setup.private,
            "clients tell norm statistics one by one",
            "use a model without batch norms, such as model.options.norm=gn",
        ),
        (setup.server.fan_in, "branches of clients are merged unmasked", "set server.fan_in=0"),
        *((part, "the server learns from each update", part.instead) for part in method.overriding("received")),
        (method.overriding("reply"), "clients reply more than their changes", "use another method"),
        (
            union and setup.per_submodel,
            "the tensors of a sub-model are summed over its own clients",
            "use secagg:cohort=slice",
        ),
        (
            not union and draws_by_client(setup),
            "every client has a slice of its own",
            "use secagg:cohort=union",
        ),
        (
            counters,
            f"{(counters or [''])[0]!r} is no real number, of which sums are enough",
            "use a model without it, such as model.options.norm=gn",
        ),
    ]
    for present, reason, remedy in obstacles:
        if present:
            raise MethodError(f"secagg does not go with {method.name} here, as {reason}: {remedy}")
