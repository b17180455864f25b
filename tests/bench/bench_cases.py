"""A workload in double precision, where rounding hides no difference."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import torch

from bench.rounds.workloads import find, prepare
from nestling.data import Dataset
from nestling.experiment.simulation import Overrides, simulate
from nestling.nets import build

IMAGES = replace(find("mnist", quick=True), samples=25)
NARROW = replace(IMAGES, clients=4, levels="b-c-d-e")  # half of every layer is nobody's


@contextmanager
def double():
    """Images, and with them models, in double precision."""
    ready, example = Dataset.ready, Dataset.example
    with (
        patch.object(Dataset, "ready", lambda self, inputs: ready(self, inputs).double()),
        patch.object(Dataset, "example", lambda self, batch: example(self, batch).double()),
    ):
        yield


def in_double(workload):
    with patch.object(Dataset, "example", lambda self, batch: torch.zeros(batch, *self.shape)):
        simulation = prepare(workload)
    torch.manual_seed(0)
    model = build(workload.model, **workload.options).double()
    return simulate(
        Overrides(simulation.settings, model=model, dataset=simulation.dataset, partition=simulation.partition)
    )


def close(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, rtol=1e-10, atol=1e-12, msg=name)
