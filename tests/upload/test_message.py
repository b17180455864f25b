"""Every format: exact for what it keeps, of the size it should have, the same bytes again."""

import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nestling.errors import UploadError
from nestling.upload import Upload, decode, encode, rice
from nestling.upload.reader import Reader
from tests.upload.upload_cases import FLOATS, FORMATS, LAWS, bits, changes, plain_topk, settings_of, tensor_of


def there_and_back(change, options, seed=0):
    return decode(encode(change, options, seed=seed), change)


# ---- all formats


@LAWS
@given(changes(), settings_of(), st.integers(0, 3))
def test_names_shapes_dtypes_and_whatever_is_not_floating_point_survive(change, options, seed):
    data = encode(change, options, seed=seed)
    assert data == encode(dict(reversed(change.items())), options, seed=seed)  # whatever the order
    actual = decode(data, {name: tensor.to("meta") for name, tensor in change.items()})
    assert list(actual) == list(change)
    for name, tensor in change.items():
        assert (actual[name].shape, actual[name].dtype) == (tensor.shape, tensor.dtype)
        if not tensor.is_floating_point():
            assert bits(actual[name]) == bits(tensor)
        else:
            assert torch.isfinite(actual[name]).all()
            assert (actual[name][tensor == 0] == 0).all() or options.format == "1-bit"


@LAWS
@given(changes())
def test_dense_is_every_bit(change):
    data = encode(change, Upload())
    assert len(data) == 5 + sum(tensor.nbytes for tensor in change.values())
    assert all(bits(tensor) == bits(change[name]) for name, tensor in decode(data, change).items())


@LAWS
@given(changes(dtypes=[torch.float32, torch.float64]), settings_of(["dense", "topk", "8-bit", "1-bit", "topk-1bit"]))
def test_what_arrived_once_arrives_again_unchanged(change, options):
    options = msgspec.structs.replace(options, rounding="nearest")
    once = there_and_back(change, options)
    again = there_and_back(once, options)
    if options.format == "8-bit":  # a step below the normal range may be lost
        steps = {name: t.abs().max() if t.numel() else 0 for name, t in change.items()}
        once = {name: t for name, t in once.items() if steps[name] > 1e3 * torch.finfo(t.dtype).tiny}
    assert all(torch.equal(tensor, again[name]) for name, tensor in once.items())


@pytest.mark.parametrize("format", FORMATS)
def test_tensors_need_not_be_contiguous_nor_free_of_gradients(format):
    whole = torch.randn(6, 8, requires_grad=True)
    options = Upload(format=format, fraction=0.3)
    assert encode({"w": whole.t()[::2]}, options) == encode({"w": whole.detach().t()[::2].contiguous()}, options)


# ---- Top-K


@LAWS
@given(changes(), st.sampled_from([0.001, 0.1, 0.25, 0.5, 1.0]), st.sampled_from(["global", "tensor"]))
def test_topk_keeps_the_largest_to_the_bit_and_nothing_else(change, share, scope):
    actual = there_and_back(change, Upload(format="topk", fraction=share, scope=scope))
    for name, kept in plain_topk(change, share, scope).items():
        flat, sent = change[name].flatten(), actual[name].flatten()
        assert set(sent.nonzero().flatten().tolist()) == kept
        places = torch.tensor(sorted(kept), dtype=torch.long)
        assert bits(sent[places]) == bits(flat[places])


@LAWS
@given(changes())
def test_all_of_it_is_dense(change):
    whole, dense = (there_and_back(change, Upload(format=name, fraction=1.0)) for name in ("topk", "dense"))
    assert all(torch.equal(whole[name], tensor) for name, tensor in dense.items())
    full = {"w": torch.rand(100) + 1}
    assert len(encode(full, Upload(format="topk", fraction=1.0))) == len(encode(full, Upload())) + 1


def test_of_equal_values_the_first_are_kept():
    change = {"a": torch.ones(5), "b": -torch.ones(5, dtype=torch.float64)}
    actual = there_and_back(change, Upload(format="topk", fraction=0.7))
    assert actual["a"].tolist() == [1, 1, 1, 1, 1]
    assert actual["b"].tolist() == [-1, -1, 0, 0, 0]


@pytest.mark.parametrize("share", [0.01, 0.1, 0.25])
def test_places_take_what_their_entropy_says(share):
    size = 200_000
    change = {"w": torch.randn(size, generator=torch.Generator().manual_seed(1))}
    count = math.ceil(share * size)
    per_place = (len(encode(change, Upload(format="topk", fraction=share))) - 5 - 3 - 1 - 4 * count) * 8 / count
    entropy = -(share * math.log2(share) + (1 - share) * math.log2(1 - share)) / share
    assert entropy * 0.99 < per_place < entropy * 1.03


def test_tensors_of_different_density_are_coded_each_in_its_own_way():
    generator = torch.Generator().manual_seed(1)
    change = {"large": torch.randn(4000, generator=generator) * 100, "small": torch.randn(96_000, generator=generator)}
    even = {"w": torch.cat(list(change.values()))[torch.randperm(100_000, generator=generator)]}
    options = Upload(format="topk", fraction=0.05)
    assert len(encode(change, options)) < len(encode(even, options)) - 1500


@LAWS
@given(st.integers(0, 3000), st.floats(0, 1), st.integers(0, 10**6))
def test_places_survive_and_never_take_more_than_a_bitmap(size, density, seed):
    places = np.flatnonzero(np.random.default_rng(seed).random(size) < density**4)  # also very few
    code = rice.write(places, size)
    reader = Reader(code + b"\xff\xff")
    assert rice.read(reader, size).tolist() == places.tolist()
    assert reader.left == 2  # not a byte of what follows was touched
    assert len(code) <= 3 + 1 + (size + 7) // 8


def test_the_code_of_places_bit_by_bit():
    # gaps 3, 0, 895: the lowest seven bits of each, lowest first; then 0, 0 and 6 in unary
    lowest = "110000000000001111111000"
    unary = "1100000010000000"
    expected = bytes([3, 0, 7]) + int(lowest, 2).to_bytes(3, "big") + int(unary, 2).to_bytes(2, "big")
    assert rice.write(np.array([3, 4, 900]), 1000) == expected
    # of many, a bitmap up to the last
    assert rice.write(np.array([0, 1, 3, 4, 6]), 20) == bytes([5, 0, 0b11011010])


# ---- 8 bits


@LAWS
@given(changes(dtypes=FLOATS), st.sampled_from(["8-bit", "topk-8bit"]), st.booleans())
def test_8_bits_are_within_half_a_step(change, format, stochastic):
    options = Upload(format=format, fraction=1.0, rounding="stochastic" if stochastic else "nearest")
    actual = there_and_back(change, options)
    for name in (name for name, tensor in change.items() if tensor.numel()):
        value, sent, limits = change[name].double(), actual[name].double(), torch.finfo(change[name].dtype)
        step = value.abs().max() / 127
        own = value.abs().max() * limits.eps / 2 + limits.smallest_normal * limits.eps  # rounding of the tensor's dtype
        assert ((sent - value).abs() <= step * (1 if stochastic else 0.5) * (1 + 1e-12) + own).all()
        assert sent.abs().max() == value.abs().max()  # the ends are exact


def test_stochastic_rounding_is_right_in_the_mean_and_drawn_from_the_seed():
    value = torch.linspace(-1, 1, 501, dtype=torch.float64)
    options = Upload(format="8-bit", rounding="stochastic")
    draws = torch.stack([there_and_back({"w": value}, options, seed)["w"] for seed in range(400)])
    assert (draws.mean(0) - value).abs().max() < 5 * (1 / 127) / 2 / 20  # five standard errors
    assert draws.std(0).max() > 0.4 / 127
    assert (
        encode({"w": value}, options, seed=1)
        == encode({"w": value}, options, seed=1)
        != encode({"w": value}, options, seed=2)
    )
    nearest = there_and_back({"w": value}, Upload(format="8-bit"))["w"]
    assert (nearest - value).abs().max() <= 0.5 / 127 * (1 + 1e-12)


def test_rounding_up_stops_at_the_last_step(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda size, **_: torch.full((size,), 1 - 2**-53, dtype=torch.float64))
    change = {"w": torch.tensor([3.0, 0.0])}
    assert there_and_back(change, Upload(format="8-bit", rounding="stochastic"))["w"].tolist() == [3.0, 0.0]


# ---- 1 bit


@LAWS
@given(changes(dtypes=[torch.float32, torch.float64]), st.sampled_from(["1-bit", "topk-1bit"]))
def test_1_bit_is_sign_times_mean_magnitude(change, format):
    for name, sent in there_and_back(change, Upload(format=format, fraction=1.0)).items():
        value = change[name].double()
        chosen = value if format == "1-bit" else value[value != 0]
        if not chosen.numel():
            continue
        sizes = chosen.abs()
        mean = float((sizes / sizes.max()).mean() * sizes.max()) if sizes.max() else 0.0
        signs = torch.where(value < 0, -1.0, 1.0) if format == "1-bit" else value.sign()
        floor = torch.finfo(sent.dtype).smallest_normal * torch.finfo(sent.dtype).eps
        assert torch.allclose(sent.double(), signs.double() * mean, rtol=1e-6, atol=2 * floor)


@pytest.mark.parametrize(("format", "per_value"), [("8-bit", 1), ("1-bit", 1 / 8)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_sizes_of_quantised_messages(format, per_value, dtype):
    change = {"a": torch.randn(80, 5).to(dtype), "b": torch.randn(16).to(dtype)}
    assert len(encode(change, Upload(format=format))) == 5 + 2 * dtype.itemsize + 416 * per_value


# ---- what cannot be sent


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64])
@pytest.mark.parametrize("format", FORMATS)
def test_values_that_are_not_finite_are_refused(format, dtype, bad):
    change = {"fine": torch.ones(3), "conv.weight": torch.tensor([1.0, bad, 2.0]).to(dtype)}
    with pytest.raises(UploadError, match=r"^the tensor 'conv.weight' holds values that are not finite"):
        encode(change, Upload(format=format))


def test_tensors_without_values_are_refused():
    for tensor in (torch.ones(3, device="meta"), torch.eye(3).to_sparse()):
        with pytest.raises(UploadError, match="'w' must be a dense tensor"):
            encode({"w": tensor}, Upload())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"format": "top-k"}, "there is no format 'top-k' of uploads; did you mean 'topk'"),
        ({"scope": "all"}, "there is no scope 'all' of uploads"),
        ({"rounding": "up"}, "there is no rounding 'up' of uploads"),
        *(({"fraction": share}, "above 0 and at most 1, not ") for share in (0, -0.1, 1.01, math.nan, "0.1")),
    ],
)
def test_settings_that_cannot_be(given, words):
    with pytest.raises(UploadError, match=words):
        Upload(**given)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(given, Upload)


def test_settings_are_a_table_of_toml():
    options = Upload(format="topk-8bit", fraction=0.25, scope="tensor", rounding="stochastic", feedback=True)
    assert msgspec.convert(msgspec.to_builtins(options), Upload) == options
    assert msgspec.convert({}, Upload) == Upload()


def test_kinds_of_changes_are_what_they_say():
    assert (tensor_of((99,), torch.float16, "tiny", 0).abs() < torch.finfo(torch.float16).tiny).any()
    assert torch.isfinite(tensor_of((99,), torch.bfloat16, "huge", 0)).all()
