"""Error feedback: nothing is lost, and what was sent follows what there was to send."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nestling.errors import UploadError
from nestling.upload import Upload, compress, decode, encode
from tests.upload.upload_cases import FORMATS, LAWS, bits, changes, settings_of

LOSSY = [name for name in FORMATS if name != "dense"]
MILD = ["normal", "heavy", "sparse", "equal", "zero", "few"]


def wide(tensor):
    return tensor.to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)


@LAWS
@given(changes(kinds=MILD), settings_of(["topk"]))
def test_topk_sends_or_keeps_every_bit(change, options):
    options = Upload(format="topk", fraction=options.fraction, scope=options.scope, feedback=True)
    owed = {name: wide(tensor) for name, tensor in change.items() if tensor.is_floating_point()}
    residual = {}
    for _ in range(4):
        data, left = compress(change, residual, options)
        sent = decode(data, change)
        assert left.keys() == owed.keys()
        for name, tensor in owed.items():
            there = tensor + residual[name] if residual else tensor
            assert torch.equal(wide(sent[name]) + left[name], there)
            if change[name].dtype in (torch.float32, torch.float64):  # to one side or to the other
                both = (sent[name] != 0) & (left[name] != 0)
                assert not both.any()
                kept = sent[name] != 0
                assert bits(sent[name][kept]) == bits(there[kept])
        residual = left


@LAWS
@given(changes(kinds=MILD), settings_of(LOSSY))
def test_what_was_sent_and_what_is_left_is_what_there_was(change, options):
    options = Upload(
        format=options.format,
        fraction=options.fraction,
        scope=options.scope,
        rounding=options.rounding,
        feedback=True,
    )
    data, left = compress(change, {}, options, seed=3)
    sent = decode(data, change)
    for name, tensor in left.items():
        there = wide(change[name]).double()
        slack = torch.finfo(tensor.dtype).eps * tensor.double().abs()
        assert ((sent[name].double() + tensor.double() - there).abs() <= slack).all()
    assert data == encode(change, options, seed=3)  # at first there is nothing to add


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("format", LOSSY)
def test_the_sum_of_what_was_sent_converges_to_the_sum_of_changes(format, dtype):
    generator = torch.Generator().manual_seed(0)
    options = Upload(format=format, fraction=0.1, feedback=True, rounding="stochastic")
    change = {
        "a": (torch.rand(20, 6, generator=generator) * 2 - 1).to(dtype),
        "b": (torch.rand(30, generator=generator) - 0.5).to(dtype),
    }
    total = {name: torch.zeros(tensor.shape, dtype=torch.float64) for name, tensor in change.items()}
    residual, errors = {}, {}
    for step in range(1, 201):
        data, residual = compress(change, residual, options, seed=step)
        for name, tensor in decode(data, change).items():
            total[name] += tensor.double()
        if step in (20, 200):
            errors[step] = max(float((total[n] / step - change[n].double()).abs().max()) for n in change)
    assert errors[200] < 0.4 * errors[20]
    assert errors[200] < 0.08
    once = decode(encode(change, options, seed=1), change)
    if format != "8-bit":  # without feedback it would never come near
        assert max(float((once[n].double() - change[n].double()).abs().max()) for n in change) > 5 * errors[200]


@LAWS
@given(st.integers(2, 60), st.sampled_from([0.05, 0.1, 0.25, 0.6]), st.integers(0, 999), st.integers(1, 40))
def test_residuals_of_topk_stay_within_their_bound(size, share, seed, steps):
    """Karimireddy et al., Lemma 3: |residual|² ≤ 4 (1 − δ) / δ² · max |change|², δ being the share that is kept."""
    generator = torch.Generator().manual_seed(seed)
    options = Upload(format="topk", fraction=share, feedback=True)
    residual, largest, total = {}, 0.0, torch.zeros(size, dtype=torch.float64)
    sent = torch.zeros(size, dtype=torch.float64)
    for _ in range(steps):
        change = {"w": torch.randn(size, dtype=torch.float64, generator=generator)}
        data, residual = compress(change, residual, options)
        largest = max(largest, float(change["w"].norm()))
        total += change["w"]
        sent += decode(data, change)["w"]
    delta = math.ceil(round(share * size, 9)) / size
    assert float(residual["w"].norm()) <= 2 * math.sqrt(1 - delta) / delta * largest * (1 + 1e-9) + 1e-12
    assert torch.allclose(sent + residual["w"], total, atol=1e-12)


def test_without_feedback_and_for_dense_nothing_is_remembered():
    change = {"w": torch.randn(50)}
    for options in (Upload(format="topk"), Upload(feedback=True)):
        data, residual = compress(change, {}, options)
        assert data == encode(change, options)
        assert residual == {}


def test_changes_too_small_for_a_dtype_add_up():
    options = Upload(format="topk", fraction=0.5, feedback=True)
    change = {"w": torch.tensor([1.0, 0.002], dtype=torch.bfloat16)}
    residual = {"w": torch.tensor([0.0, 0.9])}  # 0.9 + 0.002 is 0.9 in bfloat16
    for _ in range(60):
        _, residual = compress(change, residual, options)
    assert 0.0 < float(residual["w"][1]) < 0.9  # it was sent: alone it would never have reached 1


def test_tensors_that_were_not_sent_before_have_nothing_left_over():
    options = Upload(format="topk", fraction=0.5, feedback=True)
    _, residual = compress({"a": torch.tensor([2.0, 1.0])}, {}, options)
    change = {"a": torch.zeros(2), "b": torch.tensor([3.0, 0.5])}
    data, residual = compress(change, residual, options)
    assert {name: tensor.tolist() for name, tensor in decode(data, change).items()} == {"a": [0, 1], "b": [3, 0]}
    assert {name: tensor.tolist() for name, tensor in residual.items()} == {"a": [0, 0], "b": [0, 0.5]}


@pytest.mark.parametrize(
    ("residual", "words"),
    [
        ({"w": torch.zeros(4)}, r"change of 'w' is \(3,\) torch.float32, but its residual is \(4,\) torch.float32"),
        ({"w": torch.zeros(3).double()}, r"its residual is \(3,\) torch.float64"),
        ({"v": torch.zeros(3)}, r"change of 'v' is missing, but its residual is \(3,\) torch.float32"),
        ({"w": torch.zeros(3), "v": torch.zeros(3)}, "change of 'v' is missing"),
    ],
)
def test_a_residual_of_another_change_is_refused(residual, words):
    with pytest.raises(UploadError, match=words):
        compress({"w": torch.ones(3)}, residual, Upload(format="topk", feedback=True))
