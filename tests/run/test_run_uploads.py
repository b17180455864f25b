"""Encoded uploads in a round: real bytes, exact for what they keep, and residuals that survive a stop."""

import msgspec
import pytest
import torch
from quick import mostly_slow
from run_cases import same_state, small, told
from test_run_resume import Stop
from test_run_rounds import played

from nestling.cut import extract
from nestling.engines import LocalEngine
from nestling.errors import NestlingError
from nestling.experiment import resume, run
from nestling.experiment.round import run_round
from nestling.experiment.uploads import expected, packed, unpacked
from nestling.experiment.worker import Worker
from nestling.settings import Data, Evaluate, Experiment, FleetSettings
from nestling.upload import Upload

CLASSES = Data(name="digits", samples=400, partition="classes", classes_per_client=3)


def test_a_share_of_one_is_the_whole_change():
    dense = run(small(rounds=1))
    whole = run(small(rounds=1, upload=Upload(format="topk", share=1)))
    for name, tensor in dense.state.items():  # sent + (trained − sent) is trained, up to a rounding
        torch.testing.assert_close(whole.state[name], tensor, rtol=1e-5, atol=1e-6)


def test_the_merge_gets_what_was_decoded():
    experiment = small(
        rounds=1, upload=Upload(format="topk", share=0.2), fleet=FleetSettings(clients=8, per_round=1, levels="b")
    )
    made, servers, _ = played(experiment)
    plan, old, new = made.submodel(0.5), servers[0].state, servers[1].state
    before, after = (extract(made.axes, plan, state) for state in (old, new))
    names = [name for name in before if name in made.parameters]
    changed = sum(int((before[name] != after[name]).sum()) for name in names)
    total = sum(before[name].numel() for name in names)
    assert 0.15 * total < changed <= -(-total // 5)
    assert servers[1].counts["bytes_up"] < 0.25 * servers[1].counts["bytes_down"]


@pytest.mark.parametrize("upload", [Upload(format="topk"), Upload(format="8-bit"), Upload(format="1-bit")])
def test_bytes_are_those_of_the_encoding(upload):
    experiment = small(rounds=1, upload=upload, fleet=FleetSettings(clients=8, per_round=4, levels="a-d"))
    made, servers, _ = played(experiment)
    sizes = []

    class Counting(Worker):
        def __call__(self, job):
            answer = super().__call__(job)
            sizes.extend(len(update.upload) for update in (answer if isinstance(answer, list) else [answer]))
            return answer

    server, _ = run_round(made, servers[0], LocalEngine(lambda: Counting(made)))
    assert server.counts["bytes_up"] == sum(sizes)
    assert server.counts["bytes_up"] == servers[1].counts["bytes_up"]
    about = [expected(made, made.submodel(ratio)) for ratio in (1.0, 0.125)]
    assert all(any(abs(size - guess) < 0.1 * guess + 60 for guess in about) for size in sizes)


@pytest.mark.parametrize(
    "method", mostly_slow(["heterofl", "fedrolex", "fed-dropout", "lg-fedavg", "fjord", "fedavg"], quick=1)
)
@pytest.mark.parametrize("format", mostly_slow(["topk", "1-bit"], quick=1))
def test_any_method_goes_on_to_the_same_bytes(tmp_path, method, format):
    upload = Upload(format=format, share=0.25, feedback=True)
    experiment = small(method=method, rounds=4, checkpoint=3, upload=upload, evaluate=Evaluate(every=4, samples=50))
    run(experiment, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(experiment, out=tmp_path / "cut", watcher=Stop(jobs=10))
    resume(tmp_path / "cut")
    assert told(tmp_path / "cut") == told(tmp_path / "whole")


@pytest.mark.slow
def test_workers_do_not_matter():
    experiment = small(rounds=3, upload=Upload(format="8-bit", rounding="stochastic", feedback=True))
    one, two = (run(msgspec.structs.replace(experiment, workers=workers)) for workers in (1, 2))
    assert same_state(one.state, two.state)


@pytest.mark.slow
def test_what_was_left_out_is_sent_later():
    every = FleetSettings(clients=8, per_round=8, levels="a")
    errors = {}
    dense = run(small(rounds=12, fleet=every))
    for feedback in (False, True):
        upload = Upload(format="topk", share=0.02, feedback=feedback)
        errors[feedback] = run(small(rounds=12, fleet=every, upload=upload)).rounds[-1]["train_loss"]
    assert dense.rounds[-1]["train_loss"] < errors[True] < errors[False]


def test_masked_rows_that_a_client_does_not_hold_stay():
    upload = Upload(format="1-bit")  # which would move every value
    data = CLASSES
    made, servers, _ = played(
        small(rounds=1, data=data, upload=upload, fleet=FleetSettings(clients=8, per_round=1, levels="a"))
    )
    (client,) = made.fleet.sample(1)
    held = made.partition.labels[client]
    absent = [label for label in range(10) if label not in held.tolist()]
    for name in ("head.weight", "head.bias"):
        assert torch.equal(servers[0].state[name][absent], servers[1].state[name][absent])
        assert not torch.equal(servers[0].state[name][held], servers[1].state[name][held])


def test_forged_bytes_are_refused():
    made, servers, _ = played(small(rounds=1, upload=Upload(format="topk")))
    sent = servers[0].slice(made, made.submodel(0.5))
    data, _ = packed(made, {name: value + 1 for name, value in sent.items()}, sent, {}, 0)
    assert unpacked(made, data, sent).keys() == sent.keys()
    with pytest.raises(NestlingError, match="checksum"):
        unpacked(made, data[:-3] + b"abc", sent)


def test_settings():
    changed = Experiment().with_settings(["upload.format=topk", "upload.share=0.25", "upload.feedback=true"])
    assert changed.upload == Upload(format="topk", share=0.25, feedback=True)
    assert Experiment.from_toml(changed.to_toml()) == changed
    for bad in ("upload.format=top-k", "upload.share=0", "upload.shares=1"):
        with pytest.raises(NestlingError, match="upload"):
            Experiment().with_settings([bad])


def test_a_word_that_is_no_choice_is_answered_with_the_nearest():
    with pytest.raises(NestlingError, match=r"upload\.format cannot be 'top'; did you mean 'topk'"):
        Experiment().with_settings(["upload.format=top"])
    with pytest.raises(NestlingError, match=r"engine cannot be 'rai'; did you mean 'ray'"):
        Experiment().with_settings(["engine=rai"])
