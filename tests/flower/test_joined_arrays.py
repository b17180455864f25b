import zlib

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.errors import DeviceError
from nestling.flower.array_codec import decode_tensor, encode_tensor
from nestling.flower.joined_arrays import SMALL, join, split

TENSORS = {
    "weight": torch.randn(3, 4),
    "half": torch.randn(5).bfloat16(),
    "count": torch.tensor(7),
    "none": torch.zeros(0, 3),
    "mask": torch.tensor([True, False]),
    "tiny": torch.randn(4).to(torch.float8_e4m3fn),
}


def encoded(tensors):
    return {name: encode_tensor(tensor) for name, tensor in tensors.items()}


def test_small_tensors_are_one_array_and_come_back_as_they_were():
    large = {"large": torch.zeros(SMALL), "complex": torch.zeros(2, dtype=torch.complex64)}
    alone, joined, index = join(encoded({**TENSORS, **large}))
    assert alone.keys() == large.keys()
    assert len(joined.data) < 128 + 4 * sum(tensor.numel() for tensor in TENSORS.values()) + 16
    back = split(joined, index)
    assert back == encoded(TENSORS)
    assert torch.equal(decode_tensor(back["weight"], TENSORS["weight"]), TENSORS["weight"])


@pytest.mark.parametrize("tensors", [{}, {"large": torch.zeros(SMALL)}])
def test_nothing_is_joined_where_nothing_is_small(tensors):
    assert join(encoded(tensors)) == (encoded(tensors), None, b"")


def test_a_tensor_without_values_travels():
    _, joined, index = join(encoded({"none": torch.zeros(0, 3)}))
    assert split(joined, index) == encoded({"none": torch.zeros(0, 3)})


def squeezed(entries):
    return zlib.compress(msgspec.json.encode(entries))


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (b"", "cannot be read"),
        (b"no zlib", "cannot be read"),
        (squeezed({"a": 1}), "cannot be read"),
        (squeezed([["a", "float32", [2.5]]]), "cannot be read"),
        (squeezed([["a", "float32", [1] * 30_000]]), "cannot be read"),
        (squeezed([["a", "float32", [0, 2**63]]]), "cannot be read"),
        (squeezed([["a", "object", [4]]]), "wrong at 'a'"),
        (squeezed([["a", "float32", [-4]]]), "wrong at 'a'"),
        (squeezed([["a", "uint8", [8]], ["a", "uint8", [8]]]), "wrong at 'a'"),
        (squeezed([["a", "float32", [2**40, 2**40]]]), "end before 'a' does"),
        (squeezed([["a", "float32", [3]]]), "have 16 bytes, and its index speaks of 12"),
        (zlib.compress(b" " * 2**24 + b"[]"), "more than 16777216 bytes"),
    ],
)
def test_another_index_is_refused(index, words):
    joined = encode_tensor(torch.zeros(16, dtype=torch.uint8))
    with pytest.raises(DeviceError, match=words):
        split(joined, index)


@pytest.mark.parametrize(
    "change",
    [{"dtype": "int8"}, {"shape": (4, 4)}, {"shape": (-1,)}, {"shape": (2**62,)}, {"shape": (15,)}, {"data": b""}],
)
def test_another_array_is_refused(change):
    joined = encode_tensor(torch.zeros(16, dtype=torch.uint8))._replace(**change)
    with pytest.raises(DeviceError, match="joined"):
        split(joined, squeezed([["a", "uint8", [16]]]))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 255), st.booleans())
def test_any_bytes_give_tensors_or_a_refusal(tail, place, value, as_index):
    _, joined, index = join(encoded(TENSORS))
    data, about = bytearray(joined.data), bytearray(zlib.decompress(index))
    changed = about if as_index else data
    changed[place % len(changed)] = value
    for candidate in (zlib.compress(bytes(about)), tail, zlib.compress(tail)):
        try:
            tensors = split(joined._replace(data=bytes(data)), candidate)
        except DeviceError:
            continue
        assert sum(len(part.data) for part in tensors.values()) < 2**12
