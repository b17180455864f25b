"""Whatever a device sends, the server refuses it in one sentence or has an update that fits."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nestling.client.transport import travelling
from nestling.cut import Plan, Tally
from nestling.errors import DeviceError, NestlingError
from nestling.events import collect
from nestling.experiment.simulation import Overrides, simulate
from nestling.flower.array_codec import encode_tensor, packed
from nestling.flower.link import EncodedTensor, Packet
from nestling.flower.node_messages import Capacity, Question, Statistics, Trained, Training, read, write
from nestling.flower.update_checks import IssuedJob, NormBound, checked_update
from nestling.methods.messages import Progress, TrainJob, Update
from nestling.server.state import ServerState
from tests.flower.loopback import experiment


@pytest.fixture(scope="module")
def issued():
    simulation = simulate(Overrides(experiment("model.width=0.25")))
    setup, state = simulation.setup, ServerState.start(simulation.setup)
    who = simulation.participant(0, 1)
    job = TrainJob(who, setup.method.client_plan(state.context(setup), who), 1, 0.1)
    sent = state.download(setup, job.plan)
    reply = Trained(ticket="1", plan=job.plan.digest, samples=30, loss=2.5, correct=7.0)
    tensors = packed({name: sent[name] for name in travelling(setup, sent)})
    return setup, IssuedJob(job, "1"), sent, Packet(write(reply), tensors)


def test_a_true_reply_is_accepted(issued):
    setup, job, sent, packet = issued
    update = checked_update(setup, job, sent, packet).update
    assert update.progress == Progress(30, 2.5, 7.0)
    Tally(setup.cut_axes, setup.model.state_dict()).add(update.state, update.plan)


def changed(issued, change):
    """The reply in which a function has changed every tensor of floats."""
    setup, job, sent, packet = issued
    state = {name: sent[name] for name in packet.tensors}
    news = {name: change(old) if old.is_floating_point() else old for name, old in state.items()}
    return checked_update(setup, job, sent, Packet(packet.header, packed(news))), news


@pytest.mark.parametrize("chunk", [7, 2**18])
def test_the_size_of_an_update_is_the_norm_of_its_change(issued, monkeypatch, chunk):
    monkeypatch.setattr("nestling.flower.update_checks._CHUNK", chunk)
    setup, _, sent, _ = issued
    checked, news = changed(issued, lambda old: old + torch.randn(old.shape))
    changes = [(news[name].double() - sent[name].double()).flatten() for name in news if name in setup.parameters]
    assert checked.size == pytest.approx(float(torch.cat(changes).norm()), rel=1e-5)
    assert changed(issued, torch.clone)[0].size == 0


@pytest.mark.parametrize("chunk", [7, 2**18])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_single_value_that_is_not_finite_is_refused(issued, monkeypatch, chunk, value):
    monkeypatch.setattr("nestling.flower.update_checks._CHUNK", chunk)

    def change(old):
        new = old.clone()
        new.view(-1)[-1] = value
        return new

    with pytest.raises(DeviceError, match="values that are not finite"):
        changed(issued, change)


def test_a_change_too_large_for_its_norm_is_of_finite_values(issued):
    assert changed(issued, lambda old: old + 3e38 * torch.ones_like(old))[0].size == torch.inf


ANYTHING = st.one_of(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=12),
    st.lists(st.integers(-2, 2**70), max_size=3),
    st.sampled_from([{}, {"axes": {}}, {"axes": {"x": [[0, 1]]}}, {"axes": {"x": [[3, 1]]}, "key": "../x"}, [[[]]]]),
    st.sampled_from(['{"axes": {}}', '{"axes": {"blocks.0": [[0, 2]]}}', '{"axes": {"head": [[0, 5]]}}', "[" * 2000]),
)
FUZZ = settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@FUZZ
@given(data=st.data())
def test_any_reply_is_refused_or_fits(issued, data):
    setup, job, sent, packet = issued
    fields, tensors = json.loads(packet.header), dict(packet.tensors)
    for key in data.draw(st.lists(st.sampled_from([*fields, "rows", "kept", "new"]), max_size=3)):
        fields[key] = data.draw(ANYTHING)
    for name in data.draw(st.lists(st.sampled_from([*tensors, "new"]), max_size=2)):
        part = tensors.get(name, encode_tensor(torch.zeros(1)))
        change = data.draw(st.sampled_from(["drop", "dtype", "shape", "cut", "byte", "nan", "bytes"]))
        if change == "drop":
            tensors.pop(name, None)
        elif change == "dtype":
            tensors[name] = part._replace(dtype=data.draw(st.sampled_from(["float64", "int64", "object", ""])))
        elif change == "shape":
            tensors[name] = part._replace(shape=tuple(data.draw(st.lists(st.integers(-1, 2**40), max_size=4))))
        elif change == "cut":
            tensors[name] = part._replace(data=part.data[: data.draw(st.integers(0, len(part.data)))])
        elif change == "byte":
            place = data.draw(st.integers(0, 130)) % max(1, len(part.data))
            tensors[name] = part._replace(
                data=part.data[:place] + data.draw(st.binary(min_size=1, max_size=4)) + part.data[place + 1 :]
            )
        elif change == "nan":
            shape = packet.tensors[name].shape if name in packet.tensors else (1,)
            tensors[name] = encode_tensor(torch.full(shape, torch.nan))
        else:
            tensors[name] = EncodedTensor(part.dtype, part.shape, data.draw(st.binary(max_size=300)))
    header = data.draw(st.sampled_from([json.dumps(fields), json.dumps(fields)[:-3], data.draw(st.text(max_size=30))]))
    blob = data.draw(st.sampled_from([b"", b"", b"blob"]))
    try:
        update = checked_update(setup, job, sent, Packet(header, tensors, blob)).update
    except DeviceError:
        return
    assert all(torch.isfinite(tensor).all() for tensor in update.state.values())
    Tally(setup.cut_axes, setup.model.state_dict()).add(update.state, update.plan, 1.0, update.rows)


@pytest.mark.slow
@FUZZ
@given(text=st.text(max_size=60) | ANYTHING.map(json.dumps), data=st.data())
def test_any_message_and_any_plan_is_refused_or_fits(text, data):
    for kind in (Question, Capacity, Training, Trained, Statistics):
        fields = {"format": "nestling-devices-1", "version": Question().version, "model": "x"}
        fields[data.draw(st.sampled_from(["client", "plan", "samples", "speed", "held", "rows"]))] = data.draw(ANYTHING)
        for candidate in (text, json.dumps(fields)):
            with suppress(DeviceError):
                assert isinstance(read(candidate, kind), kind)
    with suppress(NestlingError):
        assert Plan.from_json(Plan.from_json(text).to_json())


def an_update(issued, client):
    job = issued[1].job
    return Update((replace(job.who, client=client),), job.plan, None, {}, Progress())


def test_norms_are_compared_with_those_before(issued):
    bound, merged = NormBound(5.0, expected=8), []
    with collect() as events:
        for client, size in enumerate([1.0, 1.1, 30.0, 0.9, 1.0, 1.2, 6.0, 4.0]):
            now = list(bound.admit(an_update(issued, client), size))
            assert (not now) == (client < 4 or client == 6)
            merged += now
        merged += bound.rest()
    assert [update.who[0].client for update in merged] == [0, 1, 3, 4, 5, 7]
    assert [event.kind for event in events] == ["update refused"] * 2


@pytest.mark.parametrize(("most", "expected"), [(5.0, 4), (0.0, 100)])
def test_norms_are_not_compared_below_five(issued, most, expected):
    bound = NormBound(most, expected)
    assert all(list(bound.admit(an_update(issued, client), 10.0**client)) for client in range(4))


def test_norms_of_few_that_replied_are_not_compared(issued):
    bound = NormBound(5.0, expected=10)
    assert not any(list(bound.admit(an_update(issued, client), 10.0**client)) for client in range(4))
    assert len(list(bound.rest())) == 4
