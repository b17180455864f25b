"""Encoded uploads in a round: real bytes, exact for what they keep, and residuals that survive a stop."""

from dataclasses import replace

import msgspec
import pytest
import torch

from nestling.client.grouped.group_worker import GroupWorker
from nestling.client.transport import decode_update, encode_update, expected_bytes
from nestling.cut import extract
from nestling.engines import LocalEngine
from nestling.errors import NestlingError
from nestling.experiment import resume, run
from nestling.experiment.simulator import Simulator
from nestling.methods.messages import Progress, Update
from nestling.settings import Data, Evaluate, Experiment, FleetSettings
from nestling.upload import Upload
from tests.experiment.test_resume import Stop
from tests.harness import rounds_of
from tests.quick import mostly_slow
from tests.run_cases import outcome, same_state, small

CLASSES = Data(name="digits", max_samples=400, partition="classes", classes_per_client=3)


def test_a_share_of_one_is_the_whole_change():
    dense = run(small(rounds=1))
    whole = run(small(rounds=1, upload=Upload(format="topk", fraction=1)))
    for name, tensor in dense.state.items():  # sent + (trained − sent) is trained, up to a rounding
        torch.testing.assert_close(whole.state[name], tensor, rtol=1e-5, atol=1e-6)


def test_the_merge_gets_what_was_decoded():
    experiment = small(
        rounds=1, upload=Upload(format="topk", fraction=0.2), fleet=FleetSettings(clients=8, per_round=1, levels="b")
    )
    simulation, states, _ = rounds_of(experiment)
    plan, old, new = simulation.setup.submodel_plan(0.5), states[0].model, states[1].model
    before, after = (extract(simulation.setup.axes, plan, state) for state in (old, new))
    names = [name for name in before if name in simulation.setup.parameters]
    changed = sum(int((before[name] != after[name]).sum()) for name in names)
    total = sum(before[name].numel() for name in names)
    assert 0.15 * total < changed <= -(-total // 5)
    assert states[1].totals.bytes_up < 0.25 * states[1].totals.bytes_down


@pytest.mark.parametrize("upload", [Upload(format="topk"), Upload(format="8-bit"), Upload(format="1-bit")])
def test_bytes_are_those_of_the_encoding(upload):
    experiment = small(rounds=1, upload=upload, fleet=FleetSettings(clients=8, per_round=4, levels="a-d"))
    simulation, states, _ = rounds_of(experiment)
    sizes = []

    class Counting(GroupWorker):
        def __call__(self, envelope):
            answer = super().__call__(envelope)
            sizes.extend(len(update.message) for update in (answer if isinstance(answer, list) else [answer]))
            return answer

    engine = LocalEngine(lambda: Counting(simulation.setup, simulation.data))
    state, _ = Simulator(simulation, engine).run_round(states[0])
    assert state.totals.bytes_up == sum(sizes)
    assert state.totals.bytes_up == states[1].totals.bytes_up
    about = [expected_bytes(simulation.setup, simulation.setup.submodel_plan(ratio)) for ratio in (1.0, 0.125)]
    assert all(any(abs(size - guess) < 0.1 * guess + 60 for guess in about) for size in sizes)


@pytest.mark.parametrize(
    "method", mostly_slow(["heterofl", "fedrolex", "fed-dropout", "lg-fedavg", "fjord", "fedavg"], quick=1)
)
@pytest.mark.parametrize("format", mostly_slow(["topk", "1-bit"], quick=1))
def test_any_method_goes_on_to_the_same_bytes(tmp_path, method, format):
    upload = Upload(format=format, fraction=0.25, feedback=True)
    experiment = small(
        method=method, rounds=4, checkpoint_every=3, upload=upload, evaluate=Evaluate(every=4, samples=50)
    )
    run(experiment, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(experiment, out=tmp_path / "cut", callbacks=[Stop(jobs=10)])
    resume(tmp_path / "cut")
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


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
        upload = Upload(format="topk", fraction=0.02, feedback=feedback)
        errors[feedback] = run(small(rounds=12, fleet=every, upload=upload)).rounds[-1]["train_loss"]
    assert dense.rounds[-1]["train_loss"] < errors[True] < errors[False]


def test_masked_rows_that_a_client_does_not_hold_stay():
    upload = Upload(format="1-bit")  # which would move every value
    data = CLASSES
    simulation, states, _ = rounds_of(
        small(rounds=1, data=data, upload=upload, fleet=FleetSettings(clients=8, per_round=1, levels="a"))
    )
    (client,) = simulation.fleet.sample(1)
    held = simulation.partition.labels[client]
    absent = [label for label in range(10) if label not in held.tolist()]
    for name in ("head.weight", "head.bias"):
        assert torch.equal(states[0].model[name][absent], states[1].model[name][absent])
        assert not torch.equal(states[0].model[name][held], states[1].model[name][held])


def test_forged_bytes_are_refused():
    simulation, states, _ = rounds_of(small(rounds=1, upload=Upload(format="topk")))
    setup, plan = simulation.setup, simulation.setup.submodel_plan(0.5)
    sent = states[0].download(setup, plan)
    trained = {name: value + 1 for name, value in sent.items()}
    update = encode_update(setup, Update((), plan, None, trained, Progress()), sent, {}, 0)
    assert update.state == {}
    assert decode_update(setup, update, sent).state.keys() == sent.keys()
    with pytest.raises(NestlingError, match="checksum"):
        decode_update(setup, replace(update, message=update.message[:-3] + b"abc"), sent)


def test_settings():
    changed = Experiment().with_settings(["upload.format=topk", "upload.fraction=0.25", "upload.feedback=true"])
    assert changed.upload == Upload(format="topk", fraction=0.25, feedback=True)
    assert Experiment.from_toml(changed.to_toml()) == changed
    for bad in ("upload.format=top-k", "upload.fraction=0", "upload.shares=1"):
        with pytest.raises(NestlingError, match="upload"):
            Experiment().with_settings([bad])


def test_a_word_that_is_no_choice_is_answered_with_the_nearest():
    with pytest.raises(NestlingError, match=r"upload\.format cannot be 'top'; did you mean 'topk'"):
        Experiment().with_settings(["upload.format=top"])
    with pytest.raises(NestlingError, match=r"engine cannot be 'rai'; did you mean 'ray'"):
        Experiment().with_settings(["engine=rai"])
