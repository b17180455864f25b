"""One thread (the nets are small, the machine is shared) and the same random numbers for every test."""

import pytest
import torch

collect_ignore = ["bench/flower_in_double.py"]  # it runs in another environment, and is no module of this one


@pytest.fixture(autouse=True)
def _steady():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
