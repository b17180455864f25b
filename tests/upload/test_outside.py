"""Bytes from outside: damaged, cut off, forged. They are refused in one sentence, or are a change that fits."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.errors import UploadError
from nestling.upload import Upload, decode, encode
from tests.upload.upload_cases import FORMATS, LAWS, changes, sealed, settings_of

MANY = settings(LAWS, max_examples=300)
LIKE = {
    "conv": torch.randn(5, 3, 3, generator=torch.Generator().manual_seed(0)),
    "count": torch.tensor(7),
    "empty": torch.zeros(0),
    "half": torch.randn(9, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16),
    "mask": torch.tensor([True, False]),
    "wide": torch.randn(300, generator=torch.Generator().manual_seed(2), dtype=torch.float64),
}


def refused_or_fits(data, like=LIKE):
    try:
        actual = decode(data, like)
    except UploadError as problem:
        sentence = str(problem)
        return sentence if "\n" not in sentence else pytest.fail(f"more than one line: {sentence}")
    assert list(actual) == list(like)
    for name, tensor in actual.items():
        assert (tensor.shape, tensor.dtype) == (like[name].shape, like[name].dtype)
        assert torch.isfinite(tensor).all()
    return ""


@MANY
@given(st.binary(max_size=400))
def test_random_bytes_are_refused(data):
    assert refused_or_fits(data)


@MANY
@given(st.sampled_from(range(len(FORMATS))), st.binary(max_size=3000))
def test_random_bytes_with_the_right_checksum_do_no_harm(code, body):
    refused_or_fits(sealed(bytes([code]), body, LIKE))


@LAWS
@given(changes(), settings_of(), st.data())
def test_a_flipped_bit_is_noticed(change, options, data):
    message = bytearray(encode(change, options))
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] ^= 1 << data.draw(st.integers(0, 7))
    assert refused_or_fits(bytes(message), change)


@LAWS
@given(changes(), settings_of(), st.data())
def test_what_is_cut_off_or_goes_on_is_noticed(change, options, data):
    message = encode(change, options)
    assert refused_or_fits(message[: data.draw(st.integers(0, len(message) - 1))], change)
    assert refused_or_fits(message + data.draw(st.binary(min_size=1, max_size=9)), change)


@MANY
@given(st.sampled_from(FORMATS), st.data())
def test_forged_bytes_with_the_right_checksum_do_no_harm(format, data):
    message = encode(LIKE, Upload(format=format, fraction=0.2))
    body = bytearray(message[5:])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    refused_or_fits(sealed(message[:1], bytes(body), LIKE))
    cut = data.draw(st.integers(0, len(body) - 1))
    assert refused_or_fits(sealed(message[:1], message[5:][:cut], LIKE))
    assert "goes on for 2 bytes" in refused_or_fits(sealed(message[:1], message[5:] + b"\0\0", LIKE))


@LAWS
@given(changes(most=3), settings_of())
def test_a_message_is_read_only_as_what_it_was_written_for(change, options):
    message = encode(change, options)
    others = [{**change, "more": torch.zeros(0)}]
    for name, tensor in change.items():
        rest = {other: tensor for other, tensor in change.items() if other != name}
        others += [rest, {**rest, f"{name}.": tensor}, {**rest, name: tensor.unsqueeze(0)}]
        others += [{**rest, name: torch.zeros(tensor.shape, dtype=torch.int16)}]
    for other in others:
        assert "of other tensors" in refused_or_fits(message, other)


@pytest.mark.parametrize(
    ("code", "body", "words"),
    [
        (0, b"\0\0\0", "'w': 40 bytes are needed, but 3 are left"),
        (0, np.full(10, np.nan, "<f4").tobytes(), "'w': there are values that are not finite"),
        (1, b"", "'w': 1 bytes are needed, but 0 are left"),
        (1, bytes([11]), "'w': the message holds 11 values of a tensor that has 10"),
        (1, bytes([2, 200]), "'w': the indices of 2 of 10 values are never encoded with parameter 200"),
        (1, bytes([2, 0, 0, 0]), "'w': the message holds 0 indices, but its header says 2"),
        (1, bytes([2, 3, 0b11111100, 0b10010000]), "'w': the index 31 is not in 0 to 9"),
        (2, np.float32(-1).tobytes() + bytes(10), "'w': the magnitude -1.0 is below zero"),
        (2, np.float32(1).tobytes() + bytes([128] * 10), "'w': there are levels outside of -127 to 127"),
        (3, np.float32(np.inf).tobytes() + bytes(2), "'w': there are values that are not finite"),
        (3, np.float32(1).tobytes() + bytes(3), "goes on for 1 bytes"),
    ],
)
def test_what_is_wrong_is_said(code, body, words):
    like = {"w": torch.zeros(10)}
    assert words in refused_or_fits(sealed(bytes([code]), body, like), like)


def test_no_upload_at_all():
    like = {"w": torch.zeros(10)}
    for data in (b"", b"\0\0\0\0", bytes([200]) * 50):
        assert refused_or_fits(data, like) == f"these {len(data)} bytes are no upload of a known format"


@pytest.mark.parametrize("low", [20, 31, 62, 63, 64, 200, 255])
def test_places_beyond_all_numbers_are_refused(low):
    like = {"w": torch.zeros(1_000_000, dtype=torch.bfloat16)}
    body = bytes([1, 0, 0, low]) + b"\xff" * 400
    assert f"never encoded with parameter {low}" in refused_or_fits(sealed(b"\x01", body, like), like)


@pytest.mark.parametrize("low", [0, 1, 8, 19])
@pytest.mark.parametrize("count", [1, 1000, 100_000, 999_999])
def test_forged_places_take_little_memory(count, low):
    like = {"w": torch.zeros(1_000_000, dtype=torch.bfloat16)}
    body = count.to_bytes(3, "little") + bytes([low]) + b"\xff" * 3_000_000
    data = sealed(b"\x01", body, like)
    tracemalloc.start()
    refused_or_fits(data, like)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6  # a dozen times what a place of each value takes
