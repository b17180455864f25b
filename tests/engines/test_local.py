"""The local engine: the same replies wherever jobs run, and no worker lost for good.

Workers take seconds to start, so tests share one engine; whatever a test does to it, the next must find it whole.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from nestling.engines import Failure, LocalEngine, Reply, packing
from nestling.engines import limits as limits_module
from nestling.engines import local as module
from nestling.engines.attempt import out_of_memory
from nestling.engines.limits import Stopwatch, TimeLimits
from nestling.errors import NestlingError, RunFailed
from nestling.events import collect
from tests.engines import engine_jobs
from tests.quick import mostly_slow

PATIENCE = 180  # seconds until something that must happen counts as never


@pytest.fixture(scope="module")
def engine():
    own_engine = LocalEngine(engine_jobs.make, 2)
    yield own_engine
    own_engine.close()


def done(engine, jobs, sizes=None):
    """What came of jobs, in their order."""
    results = list(engine.work(jobs, sizes))
    assert sorted(result.index for result in results) == list(range(len(jobs)))
    return sorted(results, key=lambda result: result.index)


def values(engine, jobs, sizes=None):
    return [result.value for result in done(engine, jobs, sizes)]


def pids(engine):
    """The processes of both workers."""
    received = set(values(engine, [("pid",)] * 2))
    assert os.getpid() not in received
    return received


def kinds(events):
    return [event.kind for event in events]


def living():
    return {process.pid for process in multiprocessing.active_children()}


def gone(pid):
    """Whether a process has ended, once it had the time to."""
    end = time.monotonic() + PATIENCE
    while pid in living() and time.monotonic() < end:
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return False
    return True


@contextlib.contextmanager
def within(seconds):
    """Raise where something would wait for ever."""

    def stop(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    left = signal.alarm(seconds)  # of the time that pytest-timeout gives the whole test
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.alarm(left)


# ---- replies


@pytest.mark.slow
def test_one_worker_and_two_say_the_same(engine):
    jobs = [("echo", k) for k in range(7)] + [("wrong", "plain"), ("no such work",), ("echo", None), ("double", [3, 4])]
    here = LocalEngine(engine_jobs.make)
    replies = [
        [
            (type(r), r.index, getattr(r, "value", None), getattr(r, "reason", None), repr(getattr(r, "error", None)))
            for r in rs
        ]
        for rs in (done(here, jobs), done(engine, jobs), done(engine, jobs, sizes=range(len(jobs))))
    ]
    assert replies[0] == replies[1] == replies[2]
    assert [result.index for result in here.work(jobs)] == list(range(len(jobs)))


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_come_back_with_the_job_they_belong_to(engine, workers):
    used = engine if workers == 2 else LocalEngine(engine_jobs.make)
    before, failure, after = done(used, [("echo", 1), ("wrong", "plain"), ("echo", 2)])
    assert (before, after) == (Reply(0, 1), Reply(2, 2))
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, KeyError)
    assert failure.error.args == ("no such thing",)
    assert "KeyError" in failure.reason
    assert "no such thing" in failure.reason


def test_no_jobs_no_processes():
    before = living()
    assert list(LocalEngine(engine_jobs.make, 2).work([])) == []
    assert living() == before


class Watched(list):
    """Jobs that remember in which order they were handed out; when workers begin them is the machine's affair."""

    def __init__(self, jobs):
        super().__init__(jobs)
        self.order = []

    def __getitem__(self, index):
        self.order.append(index)
        return super().__getitem__(index)


def test_the_largest_jobs_are_handed_out_first(engine):
    pids(engine)  # both are up, so every job is handed out once
    sizes = [1, 5, 3, 9, 2, 7]
    jobs = Watched(("echo", size) for size in sizes)
    assert values(engine, jobs, sizes) == sizes
    assert [sizes[index] for index in jobs.order] == [9, 7, 5, 3, 2, 1]
    jobs.order.clear()
    assert values(engine, jobs) == sizes
    assert jobs.order == list(range(6))


def test_every_worker_is_a_process_of_one_thread(engine):
    first = pids(engine)
    assert len(first) == 2
    assert values(engine, [("threads",)] * 2) == [1, 1]
    assert pids(engine) == first  # and they stay


def test_one_worker_stays_here_and_is_made_once():
    here = LocalEngine(engine_jobs.make_counting)
    assert values(here, ["a", "b"]) == [1, 2]
    assert values(here, ["c"]) == [3]
    here.close()
    assert values(here, ["d"]) == [1]


@pytest.mark.slow
def test_what_a_worker_is_made_from_may_fail():
    own_engine = LocalEngine(engine_jobs.make_nothing, 2)
    (failure,) = own_engine.work([("echo", 1)])
    own_engine.close()
    assert isinstance(failure.error, RuntimeError)
    assert "the data is not there" in failure.reason


# ---- tensors

EXACT = {
    "float32": torch.randn(3, 4),
    "float64": torch.randn(3, 4, dtype=torch.float64),
    "float16": torch.randn(5).half(),
    "bfloat16": torch.randn(5).bfloat16(),
    "complex64": torch.randn(4, dtype=torch.complex64),
    "conjugate": torch.randn(4, dtype=torch.complex64).conj(),
    "negative": torch.randn(4, dtype=torch.complex64).conj().imag,
    "bool": torch.tensor([True, False]),
    "int64": torch.tensor([2**62, -1]),
    "uint8": torch.arange(5, dtype=torch.uint8),
    "uint16": torch.arange(5).to(torch.uint16),
    "scalar": torch.tensor(3.5),
    "counter": torch.tensor(7),
    "empty": torch.empty(0),
    "empty matrix": torch.empty(3, 0, 2),
    "special": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45]),
    "transposed": torch.randn(3, 4).t(),
    "strided": torch.randn(9, 9)[::2, 1::3],
    "expanded": torch.randn(3, 1).expand(3, 5),
    "channels last": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    "view inside": torch.randn(10)[3:6],
    "strides of size one": torch.randn(6, 9).as_strided((6, 1, 3, 3), (9, 1, 3, 1)),
    "flipped": torch.randn(4).flip(0),
    "gradient": torch.randn(3, requires_grad=True),
    "not a leaf": torch.randn(3, requires_grad=True) * 2,
    "parameter": torch.nn.Parameter(torch.randn(3)),
    "sparse": torch.eye(3).to_sparse(),
    "bfloat16 strided": torch.randn(6, 6).bfloat16()[:, ::2],
}
NO_ARRAY = {
    "float8_e4m3fn": torch.randn(4).to(torch.float8_e4m3fn),
    "float8_e5m2": torch.randn(4).to(torch.float8_e5m2),
}


def plain(tensor):
    """The values of a tensor as bytes."""
    tensor = tensor.detach()
    tensor = (tensor.to_dense() if tensor.is_sparse else tensor).resolve_conj().resolve_neg().contiguous()
    return tensor.flatten().view(torch.uint8).tolist() if tensor.numel() else []


def there(value):
    """A value as it arrives: its arrays are carried apart from it."""
    message = packing.dump(value)
    return packing.load(message.body, [bytearray(array) for array in message.arrays])


def same(received, sent):
    assert type(received) is type(sent)
    assert (received.dtype, received.shape, received.layout) == (sent.dtype, sent.shape, sent.layout)
    assert received.requires_grad == sent.requires_grad
    assert plain(received) == plain(sent)
    if not sent.is_sparse and not sent.is_conj() and span(sent) <= sent.numel():
        assert received.stride() == sent.stride()  # as PyTorch chooses by them how to compute


def span(tensor):
    """How many values lie between the first and the last of a tensor in memory."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


@pytest.mark.parametrize("kind", list(EXACT))
def test_tensors_are_written_bit_for_bit(kind):
    same(there(EXACT[kind]), EXACT[kind])


def test_tensors_travel_bit_for_bit(engine):
    (received,) = values(engine, [("echo", EXACT)])
    for kind, sent in EXACT.items():
        same(received[kind], sent)


@pytest.mark.parametrize("kind", list(NO_ARRAY))
def test_tensors_that_numpy_does_not_know_are_written_too(kind):
    same(there(NO_ARRAY[kind]), NO_ARRAY[kind])


def test_what_arrives_can_be_written_to_and_is_nobody_elses():
    sent = torch.zeros(4)
    received = there([sent, sent, {"again": sent}])
    received[0].add_(1)
    assert not sent.any()
    assert received[0] is received[1] is received[2]["again"]  # one tensor stays one


def test_a_small_part_of_a_large_tensor_is_sent_alone():
    message = packing.dump(torch.zeros(1_000_000)[10:20])
    assert len(message.body) + sum(array.nbytes for array in message.arrays) < 1000


def test_large_tensors_both_ways_at_once(engine):
    """More than any pipe holds: neither side may wait for the other to read first."""
    sent = [[torch.full((8_000_000,), float(k)), torch.arange(k + 1)] for k in range(3)]
    with within(PATIENCE):
        received = values(engine, [("double", tensors) for tensors in sent])
    for tensors, doubled in zip(sent, received, strict=True):
        assert torch.equal(doubled[0], tensors[0] * 2)
        assert torch.equal(doubled[1], tensors[1] * 2)


# ---- workers that die


def test_a_worker_that_dies_once_is_replaced_and_its_job_done_again(engine, tmp_path):
    before = pids(engine)
    log = tmp_path / "log"
    assert done(engine, [("die", log, 1), ("echo", 5)]) == [Reply(0, "alive"), Reply(1, 5)]
    assert log.read_text() == "tried\n" * 2
    after = pids(engine)
    assert len(after - before) == 1
    assert all(gone(pid) for pid in before - after)


def test_a_job_that_is_lost_twice_is_done_here(engine, tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(engine, "_before_last_try", lambda: saved.append((tmp_path / "log").read_text()))
    weights = engine.share(torch.ones(100_000))
    job = ("die_in_workers_with", tmp_path / "log", os.getpid(), weights)
    with collect() as events:
        first, *others = done(engine, [job, *(("echo", k) for k in range(4))])
    assert first == Reply(0, 100_000.0)
    assert others == [Reply(k + 1, k) for k in range(4)]
    assert (tmp_path / "log").read_text() == "tried\n" * 2 + "here\n"
    assert saved == ["tried\n" * 2]  # just before the last try
    assert kinds(events) == ["worker lost"] * 2 + ["job moved to the main process"]
    assert "was killed by SIGKILL while it did job 1 of 5 (tuple)" in events[0].message
    assert "was lost 2 times (was killed by SIGKILL)" in events[2].message
    assert len(pids(engine)) == 2


def test_errors_of_a_job_that_is_done_here_are_its_own(engine, tmp_path):
    def gone():
        raise KeyError("no such thing")

    engine._work, before = lambda job: gone(), engine._work
    try:
        failure, reply = done(engine, [("die_in_workers", tmp_path / "log", os.getpid()), ("echo", 5)])
    finally:
        engine._work = before
    assert reply == Reply(1, 5)
    assert isinstance(failure.error, KeyError)


# ---- workers that hang


@pytest.fixture(scope="module")
def impatient():
    own_engine = LocalEngine(engine_jobs.make, 2, timeout=2.0)
    yield own_engine
    own_engine.close()


@pytest.mark.slow
def test_a_worker_that_hangs_is_replaced_and_its_job_done_again(impatient, tmp_path):
    before = pids(impatient)
    with within(PATIENCE), collect() as events:
        assert done(impatient, [("stop", tmp_path / "log", 1), ("echo", 5)]) == [Reply(0, "alive"), Reply(1, 5)]
    first, second = map(int, (tmp_path / "log").read_text().split())
    assert first in before
    assert gone(first)
    assert second != first
    assert kinds(events) == ["worker lost"]
    assert f"worker process {first} gave no answer within" in events[0].message


@pytest.mark.slow
def test_a_worker_stopped_while_idle_is_noticed_too(impatient):
    victim = min(pids(impatient))
    os.kill(victim, signal.SIGSTOP)
    with within(PATIENCE):
        assert values(impatient, [("echo", [k, torch.zeros(100_000)]) for k in range(2)])[1][0] == 1
        assert gone(victim)


def test_limits_follow_from_what_such_jobs_took():
    limits = TimeLimits()
    assert limits.of("Train") == 1800
    limits.finished("Train", 0.1)
    assert limits.of("Train") == 120
    limits.finished("Train", 30.0)
    limits.finished("Train", 3.0)
    assert limits.of("Train") == 600
    assert limits.of("Train", tries=2) == 1200
    assert limits.of("Test") == 1800
    assert TimeLimits(7.0).of("Train") == TimeLimits(7.0).of("Train", tries=2) == 7


def test_time_in_which_this_process_did_not_run_does_not_count(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(limits_module.time, "monotonic", lambda: now[0])
    watch = Stopwatch(1.0)
    for later, counted in ((0.5, 0.5), (1.1, 1.1), (3600.0, 2.0)):
        now[0] += later
        assert watch.tick() == pytest.approx(counted)


# ---- workers without memory


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["python", "torch"])
@pytest.mark.parametrize("workers", mostly_slow([2, 1], quick=1))
def test_an_allocation_that_fails_once_is_tried_again_elsewhere(engine, workers, kind, tmp_path):
    used = engine if workers == 2 else LocalEngine(engine_jobs.make)
    with collect() as events:
        assert done(used, [("starve", tmp_path / "log", 1, kind), ("echo", 5)]) == [Reply(0, "fed"), Reply(1, 5)]
    first, second = (tmp_path / "log").read_text().split()
    assert (first == second) == (workers == 1)
    assert kinds(events) == ["allocation failed"]


@pytest.mark.slow
def test_a_job_that_finds_no_memory_anywhere_is_tried_here_and_then_a_failure(engine, tmp_path):
    with collect() as events:
        failure, reply = done(engine, [("starve", tmp_path / "log", 9, "torch"), ("echo", 5)])
    assert reply == Reply(1, 5)
    assert out_of_memory(failure.error)
    assert (tmp_path / "log").read_text().split()[2:] == [str(os.getpid())]
    assert kinds(events) == ["allocation failed"] * 2 + ["job moved to the main process"]


# ---- events


@pytest.mark.slow
def test_events_of_jobs_reach_whoever_listens(engine):
    with collect() as events:
        results = done(engine, [("tell", "fallback", "one"), ("tell_and_fail", "fallback", "two")])
    assert sorted(event.message for event in events) == ["one", "two"]
    assert kinds(events) == ["fallback"] * 2
    assert results[0] == Reply(0, "one")


def test_events_while_a_worker_is_made_come_with_its_first_job():
    own_engine = LocalEngine(engine_jobs.make_telling, 2)
    with collect() as events:
        assert values(own_engine, [("echo", 1)]) == [1]
        assert values(own_engine, [("echo", 1)]) == [1]
    own_engine.close()
    assert [event.message for event in events] == ["made without a kernel"]


# ---- workers that cannot start


def test_workers_that_cannot_start_are_one_sentence(monkeypatch):
    monkeypatch.setattr(module, "_serve", os._exit)  # a worker ends at once: its argument is no exit code
    own_engine = LocalEngine(engine_jobs.make, 2)
    with within(PATIENCE), pytest.raises(RunFailed, match="3 worker processes in a row could not start"):
        list(own_engine.work([("echo", 1)] * 3))
    own_engine.close()


# ---- workers whose parent is gone


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_workers_end_at_once_when_their_parent_is_killed(tmp_path):
    program = (
        "from tests.engines import engine_jobs\n"
        "from nestling.engines import LocalEngine\n"
        "if __name__ == '__main__':\n"
        "    engine = LocalEngine(engine_jobs.make, 2)\n"
        "    print(*[r.value for r in engine.work([('pid',)] * 2)], flush=True)\n"
        "    list(engine.work([('sleep', 1000)] * 2))\n"
    )
    with (tmp_path / "err").open("w") as err:
        run = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
    workers = {int(pid) for pid in run.stdout.readline().split()}
    time.sleep(0.2)  # they have their long jobs
    run.kill()
    run.wait(PATIENCE)
    run.stdout.close()
    end = time.monotonic() + PATIENCE
    while any(map(alive, workers)) and time.monotonic() < end:
        time.sleep(0.05)
    assert workers
    assert not any(map(alive, workers))
    assert (tmp_path / "err").read_text() == ""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_workers_killed_while_idle_cost_no_try(engine, tmp_path):
    before = pids(engine)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert all(gone(pid) for pid in before)
    log = tmp_path / "log"
    # killed while idle, then by its own job: that is one try, and there is another
    assert done(engine, [("die", log, 1), ("echo", 1)]) == [Reply(0, "alive"), Reply(1, 1)]
    assert not pids(engine) & before


# ---- stopping


@pytest.mark.slow
def test_who_stops_listening_stops_the_busy_and_may_begin_again(engine):
    first = pids(engine)
    results = engine.work([("echo", "quick"), ("sleep", 1000)])
    with within(PATIENCE):
        assert next(results).value == "quick"
        results.close()
        left = living() & first
        assert len(left) == 1  # the idle one stays
        assert all(gone(pid) for pid in first - left)
        assert values(engine, [("echo", k) for k in range(3)]) == [0, 1, 2]  # nothing of before is in the way
    assert left < pids(engine)


@pytest.mark.slow
def test_an_error_of_the_listener_stops_the_busy_too(engine):
    def listen():
        for result in engine.work([("echo", "quick"), ("sleep", 1000)]):
            raise LookupError(result.value)

    with within(PATIENCE), pytest.raises(LookupError, match="quick"):
        listen()
    with within(PATIENCE):
        assert values(engine, [("echo", 1), ("echo", 2)]) == [1, 2]


def test_work_that_nobody_began_to_listen_to_does_nothing(engine, tmp_path):
    engine.work([("note", tmp_path / "log", 1)]).close()
    assert not (tmp_path / "log").exists()


@pytest.mark.slow
def test_after_close_no_process_is_left_and_all_can_begin_again(engine):
    before = pids(engine)
    others = living() - before
    engine.close()
    assert living() == others
    assert all(gone(pid) for pid in before)
    engine.close()  # twice is fine
    assert not pids(engine) & before


# ---- defects


def test_no_workers_are_refused():
    with within(1), pytest.raises(NestlingError, match="0"):
        list(LocalEngine(engine_jobs.make, 0).work([("echo", 1)]))


def test_errors_that_cannot_be_read_back_are_failures(engine):
    failure, reply = done(engine, [("wrong", "picky"), ("echo", 1)])
    assert reply == Reply(1, 1)
    assert failure.error is not None
    assert "a fault in here" in failure.reason


@pytest.mark.parametrize("job", [("unsendable",), ("wrong", "lock"), ("echo", engine_jobs.Unreadable())])
def test_what_cannot_be_sent_is_a_failure_with_its_error(engine, job):
    failure, reply = done(engine, [job, ("echo", 1)])
    assert reply == Reply(1, 1)
    assert isinstance(failure, Failure)
    assert failure.error is not None


def test_a_job_that_cannot_be_sent_is_a_failure_of_its_own(engine):
    failure, reply = done(engine, [("echo", lambda: 1), ("echo", 1)])
    assert reply == Reply(1, 1)
    assert failure.error is not None


def test_a_second_list_of_jobs_waits_for_the_first_to_be_read(engine):
    pids(engine)
    with within(PATIENCE):
        one = engine.work([("echo", "one"), ("sleep", 0.5, "one"), ("echo", "one")])
        received = [next(one).value]
        with pytest.raises(NestlingError, match="one list of jobs at a time"):
            values(engine, [("echo", "other")] * 3)
        received += [result.value for result in one]
        other = values(engine, [("echo", "other")] * 3)
    assert other == ["other"] * 3
    assert received == ["one"] * 3


@pytest.mark.slow
def test_closing_the_engine_before_its_replies_is_fine():
    own_engine = LocalEngine(engine_jobs.make, 2)
    results = own_engine.work([("echo", 1), ("sleep", 1000)])
    assert next(results).value == 1
    own_engine.close()
    results.close()
