"""Shared memory: written once, read by all, changed by nobody, and gone with the last who holds it."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.engines import LocalEngine, packing
from nestling.engines.local import _Parcel
from nestling.engines.shared_memory import Block
from nestling.errors import RunError
from tests.engines import engine_jobs
from tests.processes import start, wait_until

LINUX = sys.platform == "linux"
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


@pytest.fixture(scope="module")
def engine():
    own = LocalEngine(engine_jobs.make, 2)
    yield own
    own.close()


def values(engine, jobs):
    received = {result.index: result.value for result in engine.work(jobs)}
    return [received[index] for index in range(len(jobs))]


def ours():
    """Descriptors of blocks that this process has open."""
    return sum("memfd:nestling" in os.readlink(f"/proc/self/fd/{name}") for name in map(str, descriptors()))


def descriptors():
    return [int(name) for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")]


def test_jobs_find_the_value_itself(engine):
    state = {"weight": torch.randn(300, 300), "steps": torch.tensor(7)}
    shared = engine.share(state)
    for received in values(engine, [("echo", [shared, shared, k]) for k in range(4)]):
        assert torch.equal(received[0]["weight"], state["weight"])
        assert torch.equal(received[1]["steps"], state["steps"])


def test_a_job_may_hold_several_shared_values_each_of_them_often(engine):
    """The clients of a group have one slice, or slices of their own; each travels once."""
    one, two = (torch.full((300, 300), float(k)) for k in (1, 2))
    here, there = engine.share(one), engine.share(two)
    assert len(packing.dump([here, there, here, there, here]).shared) == 2
    for received in values(engine, [("echo", [here, there, here, k]) for k in range(4)]):
        assert [float(part.mean()) for part in received[:3]] == [1.0, 2.0, 1.0]


def test_a_job_carries_only_the_place_of_what_is_shared(engine):
    parcel = _Parcel(("double", engine.share([torch.zeros(1_000_000)])))
    assert parcel.block is None
    assert sum(map(len, parcel.parts)) < 300


def test_one_worker_takes_the_value_as_it_is():
    value = {"weight": torch.zeros(3)}
    here = LocalEngine(engine_jobs.make)
    assert here.share(value) is value


def test_what_a_worker_writes_is_seen_by_nobody_else(engine):
    mine = torch.zeros(100_000)
    shared = engine.share(mine)
    assert values(engine, [("spoil", shared)] * 6) == [100_000.0] * 6
    assert not mine.any()


@pytest.mark.skipif(not LINUX, reason="descriptors are counted in /proc")
def test_memory_is_free_when_nobody_holds_the_value(engine):
    before = ours()
    shared = engine.share(torch.zeros(1_000_000))
    assert ours() == before + 1
    replies = values(engine, [("double", [shared])] * 2)
    assert ours() == before + 1  # replies are mapped, and need no descriptor
    del shared
    assert ours() == before
    assert values(engine, [("blocks",)] * 2) == [0, 0]  # nor do workers keep anything of jobs that are done
    assert all(not reply[0].any() for reply in replies)


def test_a_job_whose_worker_died_finds_the_value_again(engine, tmp_path):
    shared = engine.share(torch.ones(100_000))
    received = values(engine, [("die_then_sum", tmp_path / "log", shared), ("echo", 1)])
    assert received == [100_000.0, 1]


@pytest.mark.slow
@pytest.mark.skipif(not LINUX, reason="processes are looked up in /proc")
def test_nothing_is_left_of_a_run_that_is_killed():
    """The kernel frees what has no name, and workers end when nobody is there to listen."""
    program = (
        "import time, torch\n"
        "from tests.engines import engine_jobs\n"
        "from nestling.engines import LocalEngine\n"
        "if __name__ == '__main__':\n"
        "    engine = LocalEngine(engine_jobs.make, 2)\n"
        "    shared = engine.share(torch.zeros(1_000_000))\n"
        "    print(*[r.value for r in engine.work([('pid_with', shared)] * 2)], flush=True)\n"
        "    time.sleep(1000)\n"
    )
    before = set(os.listdir("/dev/shm"))
    with start([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as run:
        workers = [int(pid) for pid in run.stdout.readline().split()]
        run.send_signal(signal.SIGKILL)
    assert len(workers) == 2
    wait_until(lambda: not any(map(alive, workers)))
    assert set(os.listdir("/dev/shm")) <= before


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_no_room_is_one_sentence(engine):
    """A limit on the size of files stands in for a machine without memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(RunError, match=r"7\.6 MB cannot be put into shared memory") as caught:
            engine.share(torch.zeros(2_000_000))
        (failure,) = engine.work([("double", [torch.zeros(2_000_000)])])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert isinstance(failure.error, RunError)
    assert values(engine, [("echo", 1)]) == [1]


def test_what_workers_cannot_be_made_from_is_one_sentence():
    own = LocalEngine(lambda: abs, 2)
    for _ in range(2):
        with pytest.raises(RunError, match="cannot be sent to worker processes"):
            list(own.work([1]))


@given(parts=st.lists(st.binary(max_size=200), max_size=5))
@settings(deadline=None)
def test_blocks_give_back_what_was_written(parts):
    block = Block.of([memoryview(part) for part in parts])
    received = block.read([len(part) for part in parts])
    assert [bytes(part) for part in received] == parts


@st.composite
def tensors(draw):
    """Tensors of all kinds of memory: dims in any order, parts of larger ones, and dims of size 1."""
    shape = draw(st.lists(st.integers(1, 4), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    whole = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))).to(dtype)
    whole = whole.permute(draw(st.permutations(range(len(shape)))))
    cut = [slice(None, None, draw(st.sampled_from([1, 1, 2]))) for _ in shape]
    return whole[tuple(cut)] if shape else whole


@given(st.lists(tensors(), max_size=4))
@settings(deadline=None)
def test_tensors_arrive_bit_for_bit_and_laid_out_as_they_were(sent):
    message = packing.dump(sent)
    block = Block.of(message.arrays)
    received = packing.load(message.body, block.read([array.nbytes for array in message.arrays]))
    for one, other in zip(sent, received, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert other.stride() == one.clone().stride()  # PyTorch's own copy, without gaps
        assert torch.equal(one, other)


def test_models_stay_whole():
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
    net[2].weight = net[0].weight
    net[0].bias.requires_grad_(False)
    message = packing.dump(net)
    received = packing.load(message.body, [bytearray(array) for array in message.arrays])
    assert received[2].weight is received[0].weight
    assert [p.requires_grad for p in received.parameters()] == [p.requires_grad for p in net.parameters()]
    inputs = torch.randn(5, 3)
    assert torch.equal(received(inputs), net(inputs))


def test_memory_of_others_is_read_without_a_warning():
    message = packing.dump(torch.arange(3.0))
    (array,) = message.arrays
    received = packing.load(message.body, [memoryview(bytes(array))])
    assert received.tolist() == [0, 1, 2]
