"""Random updates of random slices, and a plain NumPy reference of merges that never looks at `nestling.cut`."""

import random
from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import strategies as st

from nestling import Plan, extract
from nestling.fleet.levels import parse_level
from nestling.methods import Method, Participant, PlanPart, RoundContext
from nestling.methods.messages import Progress, Update
from tests.cut.cut_cases import PLANS, case, dropped_names, kept_of, noisy, places, random_plan, state_of
from tests.harness import setup_of

FLEETS = st.lists(PLANS, min_size=1, max_size=9)


def round_of(it, *parts, state, **settings):
    """The first round of a net, with these parts."""
    setup = setup_of(it.model, it.axes, Method("mine", PlanPart(), *parts), clients=20, **settings)
    return RoundContext(setup, 1, 0.1, state, {})


def update_of(axes, state, plan, seed, touched=None, client=0):
    """A client's slice after training: every value has moved."""
    new = noisy(extract(axes, plan, state), seed)
    new = {name: new[axes.tied[name]] if axes.tied.get(name) in new else tensor for name, tensor in new.items()}
    who = Participant(client, parse_level(1.0), samples=10)
    return Update((who,), plan, touched, new, Progress())


def updates_of(it, state, drawn, rows=False):
    """Updates of a drawn fleet; with `rows`, some clients merge only some units of the axes that they keep."""
    updates = []
    for client, (seed, kind) in enumerate(drawn):
        plan, random_ = random_plan(it.axes, seed, kind), random.Random(seed)
        kept = {name: units for name, units in kept_of(plan).items() if random_.random() < 0.5}
        touched = Plan({name: random_.sample(units, random_.randint(1, len(units))) for name, units in kept.items()})
        some = touched if rows and kept else None
        updates.append(update_of(it.axes, state, plan, seed + client, some, client))
    return updates


def dense(axes, name, updates):
    """What every update merges of a tensor: (clients, *shape) in double precision, NaN where it holds nothing."""
    names = [other for other in axes.dims if axes.tied.get(other, other) == name]
    dims, stacked = axes.dims[name], []
    for update in updates:
        whole = np.full(dims.shape, np.nan)
        kept = kept_of(update.plan)
        part = kept | (kept_of(update.rows) if update.rows is not None else {})
        gone = dropped_names(axes, update.plan)
        alive = [other for other in names if other not in gone]
        if alive:
            inside = [[places(dim, kept).index(i) for i in places(dim, part)] for dim in dims]
            values = update.state[alive[-1]].double().numpy()
            values = values[np.ix_(*inside)] if inside else values
            whole[np.ix_(*[places(dim, part) for dim in dims]) if len(dims) else ()] = values
        stacked.append(whole)
    return np.stack(stacked)


def reference(axes, state, updates, rule, counter):
    """Merge every coordinate by itself: `rule` and `counter` take the values of its holders, at least three."""
    merged, few = {}, 0
    for name, old in state.items():
        if name in axes.tied:
            continue
        values = dense(axes, name, updates).reshape(len(updates), -1).T
        new = old.double().numpy().reshape(-1).copy()
        for place, row in enumerate(values):
            held = row[~np.isnan(row)]
            few += 0 < len(held) < 3
            if len(held) >= 3:
                new[place] = rule(held) if old.is_floating_point() else counter(held)
        merged[name] = torch.from_numpy(new.reshape(old.shape)).to(old.dtype)
    return merged | {name: merged[first] for name, first in axes.tied.items()}, few


def holders(axes, name, updates):
    """The number of clients that hold each coordinate."""
    return torch.from_numpy(np.asarray((~np.isnan(dense(axes, axes.tied.get(name, name), updates))).sum(0)))


def lower_median(values):
    return np.sort(values)[(len(values) - 1) // 2]


def example_of(name, dtype=torch.float32):
    it = case(name)
    return SimpleNamespace(it=it, axes=it.axes, state=state_of(it, dtype))
