"""One thread (the nets are small, the machine is shared) and the same random numbers for every test."""

import pytest
import torch

collect_ignore = ["bench/flower_in_double.py"]  # it runs in another environment, and is no module of this one


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
