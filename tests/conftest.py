"""One thread (the nets are small, the machine is shared) and the same random numbers for every test."""

import os
from pathlib import Path

import pytest
import torch

# Programs that tests start import `tests` and `nestling` from here, too.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))

collect_ignore = ["bench/flower_in_double.py", "golden"]  # programs: one of another environment, one of two revisions


def pytest_collection_modifyitems(items):
    """Begin with tests that mostly wait for the processes of Flower: those that compute fill the time."""
    items.sort(key=lambda item: not ("flower" in item.path.parts and item.get_closest_marker("slow")))


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """For fixtures of whole files, too: with another number of threads, runs have other last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _steady():
    torch.set_num_threads(1)
    torch.manual_seed(0)
