import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.errors import DeviceError
from nestling.flower.array_codec import decode_state, decode_tensor, encode_tensor, packed
from nestling.flower.link import EncodedTensor

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
DTYPES += [torch.float8_e4m3fn, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (1, 4), (3, 2, 2)])
def test_tensors_come_back_as_they_were(dtype, shape):
    tensor = (torch.rand(shape) * 9).to(dtype)
    back = decode_tensor(encode_tensor(tensor), torch.zeros(shape).to(dtype))
    assert back.dtype == dtype
    assert back.shape == tensor.shape
    assert back.is_contiguous()
    assert bytes(back.contiguous().view(-1).view(torch.uint8).numpy()) == bytes(
        tensor.contiguous().view(-1).view(torch.uint8).numpy()
    )


def test_strides_do_not_travel():
    tensor = torch.arange(12.0).view(3, 4).t()
    assert torch.equal(decode_tensor(encode_tensor(tensor), torch.zeros(4, 3)), tensor)


def npy(array):
    return encode_tensor(torch.as_tensor(array)).data


@pytest.mark.parametrize(
    "encoded",
    [
        EncodedTensor("float32", (3,), npy(np.zeros(3, np.float32))),  # another shape
        EncodedTensor("float64", (2,), npy(np.zeros(2))),  # another type
        EncodedTensor("float32", (2,), npy(np.zeros(3, np.float32))),  # says one shape, and holds another
        EncodedTensor("float32", (2,), npy(np.zeros(2))),
        EncodedTensor("float32", (2,), npy(np.zeros(2, np.float32))[:-1]),
        EncodedTensor("float32", (2,), npy(np.zeros(2, np.float32)) + b"\0"),
        EncodedTensor("float32", (2,), npy(np.zeros(2, np.float32)).replace(b"<f4", b">f4")),
        EncodedTensor("float32", (2,), npy(np.zeros(2, np.float32)).replace(b"(2,)", b"(9,)")),
        EncodedTensor("float32", (2,), npy(np.zeros(2, np.float32)).replace(b"'<f4'", b"'|O8'")),
        EncodedTensor("float32", (2,), b""),
        EncodedTensor("float32", (2,), b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535),
        EncodedTensor("float32", (2,), b"\x80\x04\x95"),  # a pickle
    ],
)
def test_other_bytes_are_refused(encoded):
    with pytest.raises(DeviceError, match="the tensor 'x'"):
        decode_tensor(encoded, torch.zeros(2), "x")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 140), st.integers(0, 255))
def test_any_bytes_give_a_tensor_or_a_refusal(tail, place, value):
    data = bytearray(npy(np.arange(4, dtype=np.float32)))
    data[place % len(data)] = value
    for candidate in (bytes(data), tail, b"\x93NUMPY" + tail):
        try:
            decoded = decode_tensor(EncodedTensor("float32", (4,), candidate), torch.zeros(4))
        except DeviceError:
            continue
        assert decoded.shape == (4,)


def test_a_state_has_the_names_that_were_asked_for():
    template = {"a": torch.zeros(2), "b": torch.zeros(1)}
    assert decode_state(packed(template), template).keys() == template.keys()
    with pytest.raises(DeviceError, match="lacks the tensor 'b'"):
        decode_state(packed({"a": torch.zeros(2)}), template)
    with pytest.raises(DeviceError, match="'c' that was not asked for"):
        decode_state(packed({**template, "c": torch.zeros(1)}), template)
