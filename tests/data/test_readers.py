"""Every dataset in every layout, from small files in the same format, and from the real files where they are."""

import gzip
import hashlib
import os
import pickle
import sys

import numpy as np
import pytest
import torch
from scipy.io import savemat

from nestling.data import DATASETS, load, names
from nestling.data.archive import contents
from nestling.data.readers import digits
from nestling.data.readers.idx import files as idx_files
from nestling.data.readers.unpickle import unpickle
from nestling.errors import DataError
from tests.data.data_files import (
    CINIC_CLASSES,
    cifar10_parts,
    cifar100_parts,
    cifar_binary,
    cifar_pickled,
    cinic_files,
    har_texts,
    idx_arrays,
    idx_bytes,
    png,
    some,
    tar,
    tree,
    write_idx,
    zipped,
)


def equal(tensor, array):
    return torch.equal(tensor, torch.from_numpy(np.ascontiguousarray(array)).to(tensor.dtype))


def test_names_and_unknown_ones():
    assert {"digits", "mnist", "fashion-mnist", "emnist", "cifar10", "cifar100", "svhn", "cinic10", "har"} <= set(
        names()
    )
    with pytest.raises(DataError, match="no dataset 'CIFAR_10'; did you mean"):
        load("CIFAR_10")


# --- digits ----------------------------------------------------------------------------------------------------------


def test_digits_are_split_by_class_and_always_alike():
    data = load("digits")
    assert data.shape == (1, 8, 8)
    assert len(data.inputs) + len(data.test_inputs) == 1797
    assert (float(data.inputs.min()), float(data.inputs.max())) == (0.0, 1.0)
    share = data.test_targets.bincount() / (data.targets.bincount() + data.test_targets.bincount())
    assert bool(((share - 0.2).abs() < 0.01).all())
    # golden: results of earlier versions are comparable only if the split never changes
    digest = hashlib.sha256(data.test_inputs.numpy().tobytes() + data.test_targets.numpy().tobytes()).hexdigest()
    assert digest.startswith("6aa3c174a15488f5")


def test_the_file_of_the_digits_is_what_scikit_learn_loads():
    for stored, loaded in zip(digits._read_file(), digits._load_digits(), strict=True):
        assert np.array_equal(stored, loaded)


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setattr(digits, "find_spec", lambda _: None)
    with pytest.raises(DataError, match=r"need the package 'sklearn': pip install 'nestling\[data\]'"):
        load("digits")


# --- idx -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("inside", ["mnist", "MNIST/raw"])
def test_mnist(tmp_path, packed, inside):
    arrays = idx_arrays()
    write_idx(tmp_path / inside, idx_files(), arrays, packed)
    data = load("mnist", tmp_path)
    assert equal(data.inputs[:, 0], arrays[0])
    assert equal(data.targets, arrays[1])
    assert equal(data.test_inputs[:, 0], arrays[2])
    assert equal(data.test_targets, arrays[3])
    assert (data.mean, data.std, data.augment) == ((0.1307,), (0.3081,), "none")


def test_mnist_is_never_taken_for_fashion_mnist(tmp_path):
    write_idx(tmp_path / "mnist", idx_files(), idx_arrays())
    assert len(load("mnist", tmp_path / "mnist").inputs) == 12
    for folder in (tmp_path, tmp_path / "mnist"):
        with pytest.raises(DataError, match="nestling data get fashion-mnist"):
            load("fashion-mnist", folder)


def test_emnist_stands_upright_and_letters_start_at_zero(tmp_path):
    balanced, letters = idx_arrays(classes=47), idx_arrays(first=1, classes=26, count=26)
    write_idx(tmp_path / "emnist", idx_files("emnist-balanced-", "test"), balanced)
    packed = {
        f"gzip/{name}.gz": gzip.compress(idx_bytes(array))
        for name, array in zip(idx_files("emnist-letters-", "test"), letters, strict=True)
    }
    (tmp_path / "gzip.zip").write_bytes(zipped(packed))
    assert equal(load("emnist", tmp_path).inputs[:, 0], balanced[0].swapaxes(1, 2))
    data = load("emnist-letters", tmp_path)
    assert equal(data.inputs[:, 0], letters[0].swapaxes(1, 2))
    assert data.targets.unique().tolist() == list(range(26)) == list(range(data.classes))
    with pytest.raises(DataError, match="does not hold 'emnist-digits-test-images"):
        load("emnist-digits", tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "but has"),
        (lambda data: data + b"x", "but has"),
        (lambda data: b"PK\x03\x04" + data, "is not an idx file of bytes: it starts with 50 4b 03 04"),
        (lambda data: b"", "starts with nothing"),
        (lambda data: b"\0\0\x0d" + data[3:], "is not an idx file of bytes"),
        (lambda data: gzip.compress(data)[:-20], "cannot be read, it may be damaged"),
    ],
)
def test_damaged_idx(tmp_path, damage, message):
    write_idx(tmp_path / "mnist", idx_files(), idx_arrays(), packed=False)
    file = tmp_path / "mnist" / idx_files()[0]
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=message):
        load("mnist", tmp_path)


# --- cifar -----------------------------------------------------------------------------------------------------------


def check_cifar10(data, parts):
    assert equal(data.inputs, np.concatenate([parts[f"data_batch_{k}"][0] for k in range(1, 6)]))
    assert equal(data.targets, np.concatenate([parts[f"data_batch_{k}"][1] for k in range(1, 6)]))
    assert equal(data.test_inputs, parts["test_batch"][0])
    assert equal(data.test_targets, parts["test_batch"][1])
    assert data.augment == "crop-flip"


@pytest.mark.parametrize("form", ["folder", "w:gz", "w:xz", "w"])
@pytest.mark.parametrize("layout", ["binary", "python"])
def test_cifar10_in_every_form(tmp_path, form, layout):
    parts = cifar10_parts()
    if layout == "binary":
        files, stem = cifar_binary(parts, "cifar-10-batches-bin"), "cifar-10-binary"
    else:
        files, stem = cifar_pickled(parts, "cifar-10-batches-py"), "cifar-10-python"
    if form == "folder":
        tree(tmp_path, files)
    else:
        files = dict(reversed(files.items()))  # the order in an archive must not matter
        tar(tmp_path / (stem + {"w:gz": ".tar.gz", "w:xz": ".tar.xz", "w": ".tar"}[form]), files, form)
    check_cifar10(load("cifar10", tmp_path), parts)


@pytest.mark.parametrize("layout", ["binary", "python"])
def test_cifar100_takes_the_fine_labels(tmp_path, layout):
    parts = cifar100_parts()
    if layout == "binary":
        tree(tmp_path / "cifar100", cifar_binary(parts, "cifar-100-binary", coarse=True))
    else:
        tar(tmp_path / "cifar-100-python.tgz", cifar_pickled(parts, "cifar-100-python", "fine_labels", text_keys=True))
    data = load("cifar100", tmp_path)
    assert equal(data.inputs, parts["train"][0])
    assert equal(data.targets, parts["train"][1])
    assert equal(data.test_targets, parts["test"][1])


def test_damaged_cifar(tmp_path):
    files = cifar_binary(cifar10_parts(), "cifar-10-batches-bin")
    short = files | {"cifar-10-batches-bin/data_batch_3.bin": b"12345"}
    for name, changed, message in (
        ("short", short, "'data_batch_3.bin' has 5 bytes, which is no multiple of its records' 3073"),
        ("missing", dict(list(files.items())[:-1]), "does not hold 'test_batch.bin'"),
    ):
        tree(tmp_path / name, changed)
        with pytest.raises(DataError, match=message):
            load("cifar10", tmp_path / name)


@pytest.mark.parametrize("packer", ["gz", "xz"])
def test_an_archive_that_breaks_off_is_not_taken_for_a_short_one(tmp_path, packer):
    archive = tmp_path / f"CINIC-10.tar.{packer}"
    tar(archive, dict(sorted(cinic_files().items())), f"w:{packer}")  # test comes first
    whole = archive.read_bytes()
    for part in (0.5, 0.8, 0.99):
        archive.write_bytes(whole[: int(len(whole) * part)])
        with pytest.raises(DataError, match="cannot be read, it may be damaged"):
            load("cinic10", tmp_path)


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-pickle",)


@pytest.mark.parametrize(
    "value",
    [
        {"data": Harmful()},
        {"data": np.array([Harmful()], dtype=object)},
        {"data": np.array(["text"], dtype=object)},
        {"data": np.float64(1)},
        {"data": np.array([(1, 2)], dtype=[("a", "i4"), ("b", "i4")])},
        [1, 2],
        {1, 2},
    ],
    ids=["call", "call in an array", "objects", "scalar", "record", "list", "set"],
)
@pytest.mark.parametrize("protocol", [2, 5])
def test_pickles_can_hold_nothing_but_numbers(tmp_path, monkeypatch, value, protocol):
    monkeypatch.chdir(tmp_path)
    if value == {1, 2} and protocol == 5:
        value = {"data": print}  # sets need no name in new protocols, and are not dictionaries either
    with pytest.raises((DataError, pickle.UnpicklingError)):
        unpickle(pickle.dumps(value, protocol=protocol))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("array", [some(2, 5), np.arange(6.0).reshape(2, 3), np.asfortranarray(np.eye(3, dtype=">i4"))])
def test_pickled_arrays_come_out_as_they_went_in(array):
    result = unpickle(pickle.dumps({"data": array}, protocol=2))["data"]
    assert np.array_equal(result, array)
    assert result.dtype == array.dtype


def test_a_refused_pickle_in_a_dataset_is_one_sentence(tmp_path):
    files = cifar_pickled(cifar10_parts(), "cifar-10-batches-py")
    tree(tmp_path, files | {"cifar-10-batches-py/data_batch_2": pickle.dumps({"data": Harmful()})})
    with pytest.raises(DataError, match=r"a pickle that names \w+\.mkdir is refused"):
        load("cifar10", tmp_path)


# --- svhn, cinic, har ------------------------------------------------------------------------------------------------


def test_svhn(tmp_path):
    images, labels = some(32, 32, 3, 5), np.array([[1], [10], [3], [9], [10]], np.uint8)
    for file in ("train_32x32.mat", "test_32x32.mat"):
        savemat(tmp_path / file, {"X": images, "y": labels})
    data = load("svhn", tmp_path)
    assert equal(data.inputs, images.transpose(3, 2, 0, 1))
    assert data.targets.tolist() == [1, 0, 3, 9, 0]
    savemat(tmp_path / "test_32x32.mat", {"X": images})
    with pytest.raises(DataError, match="does not hold the matrices X and y"):
        load("svhn", tmp_path)


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_cinic10(tmp_path, form):
    if form == "folder":
        tree(tmp_path, cinic_files("CINIC-10/"))
    else:
        tar(tmp_path / "CINIC-10.tar.gz", dict(reversed(cinic_files("./").items())))
    data = load("cinic10", tmp_path)
    assert data.targets.bincount().tolist() == [1, 1, 1, 2, 1, 1, 1, 1, 1, 1]
    assert data.test_targets.tolist() == list(range(10))
    assert equal(data.inputs[0], some(32, 32, 3, seed=0).transpose(2, 0, 1))
    assert equal(data.inputs[3], np.repeat(some(32, 32, seed=99)[None], 3, axis=0))  # a-grey.png, the first cat
    assert equal(data.test_inputs[9], some(32, 32, 3, seed=29).transpose(2, 0, 1))
    assert len(load("cinic10-enlarged", tmp_path).inputs) == 21


def test_cinic10_refuses(tmp_path):
    files = cinic_files("CINIC-10/")
    tree(tmp_path / "large", files | {f"CINIC-10/train/{CINIC_CLASSES[0]}/big.png": png(some(16, 40, 3))})
    with pytest.raises(DataError, match="40×16 pixels, not 32×32"):
        load("cinic10", tmp_path / "large")
    tar(tmp_path / "CINIC-10.tar.gz", {name: data for name, data in files.items() if "/test/" not in name})
    with pytest.raises(DataError, match="no PNG files in test/CLASS/"):
        load("cinic10", tmp_path)


def normal(values, training):
    mean, std = training.mean((0, 2), keepdims=True), training.std((0, 2), keepdims=True)
    return torch.from_numpy((values - mean) / std)


@pytest.mark.parametrize("form", ["folder", "zip", "zip in zip"])
def test_har_as_uci_hands_it_out(tmp_path, form):
    files, windows = har_texts()
    if form == "folder":
        tree(tmp_path, files)
    elif form == "zip":
        (tmp_path / "UCI HAR Dataset.zip").write_bytes(zipped(files))
    else:
        inner = {"UCI HAR Dataset.zip": zipped(files), "UCI HAR Dataset.names": b""}
        (tmp_path / "human+activity+recognition+using+smartphones.zip").write_bytes(zipped(inner))
    data = load("har", tmp_path)
    assert torch.allclose(data.inputs, normal(windows["train"], windows["train"]), atol=1e-5)
    assert torch.allclose(data.test_inputs, normal(windows["test"], windows["train"]), atol=1e-5)
    assert data.targets.tolist() == [0, 1, 2, 3]
    assert data.users.tolist() == [1, 1, 2, 2]
    assert data.test_users.tolist() == [20, 20, 21]


def test_har_missing_file(tmp_path):
    files, _ = har_texts()
    del files["UCI HAR Dataset/test/Inertial Signals/body_gyro_z_test.txt"]
    tree(tmp_path, files)
    with pytest.raises(DataError, match=r"does not hold 'test/Inertial Signals/body_gyro_z_test.txt'"):
        load("har", tmp_path)


def test_har_joins_neighbouring_segments_of_a_run(tmp_path):
    segments = np.random.default_rng(0).normal(size=(6, 64, 9)).astype(np.float32)
    np.savez(
        tmp_path / "uci_har_inertial.npz",
        segments=segments,
        activity=np.array([0, 0, 0, 1, 1, 2], np.uint8),
        subject=np.array([4, 4, 4, 4, 4, 9], np.uint8),
        is_test=np.array([0, 0, 0, 1, 1, 0], np.uint8),
        pos=np.array([0, 1, 2, 0, 1, 0], np.uint16),
    )
    data = load("har", tmp_path)
    windows = np.stack([np.concatenate(segments[k : k + 2]).T for k in (0, 1, 3)])
    assert torch.allclose(data.inputs, normal(windows[:2], windows[:2]), atol=1e-5)
    assert torch.allclose(data.test_inputs, normal(windows[2:], windows[:2]), atol=1e-5)
    assert data.targets.tolist() == [0, 0]
    assert data.test_targets.tolist() == [1]


# --- places and the cache --------------------------------------------------------------------------------------------


def test_where_data_is_looked_for(tmp_path, cache, monkeypatch):
    for number, folder in enumerate(("argument", "environment", "cache")):
        root = cache / "data" if folder == "cache" else tmp_path / folder
        write_idx(root / "mnist", idx_files(), idx_arrays(count=10 + number))
    monkeypatch.setenv("NESTLING_DATA", str(tmp_path / "environment"))
    assert len(load("mnist", tmp_path / "argument").inputs) == 10
    assert len(load("mnist").inputs) == 11
    monkeypatch.delenv("NESTLING_DATA")
    assert len(load("mnist").inputs) == 12


def test_missing_data_says_what_where_and_what_to_do(tmp_path, cache):
    with pytest.raises(DataError) as caught:
        load("cifar10", tmp_path)
    message = str(caught.value)
    for part in ("'cifar-10-batches-bin'", repr(str(tmp_path)), repr(str(cache / "data")), "nestling data get cifar10"):
        assert part in message
    assert "\n" not in message
    with pytest.raises(DataError, match=r"data directory '.*nowhere' does not exist"):
        load("cifar10", tmp_path / "nowhere")


def test_decoded_arrays_are_kept_until_the_source_changes(tmp_path, cache, monkeypatch):
    write_idx(tmp_path / "mnist", idx_files(), idx_arrays())
    first = load("mnist", tmp_path)
    first.inputs.zero_()  # copy on write: must reach neither the cache nor anybody else
    with monkeypatch.context() as patch:
        patch.setattr("nestling.data.readers.idx.parse", None)  # reading again would fail
        assert equal(load("mnist", tmp_path).inputs[:, 0], idx_arrays()[0])
    write_idx(tmp_path / "mnist", idx_files(), idx_arrays(count=13))
    assert len(load("mnist", tmp_path).inputs) == 13
    assert not [path for path in (cache / "decoded").iterdir() if path.name.startswith(".")]


def test_an_interrupted_write_leaves_nothing(tmp_path, cache, monkeypatch):
    write_idx(tmp_path / "mnist", idx_files(), idx_arrays())
    with monkeypatch.context() as patch:
        patch.setattr(np, "save", lambda *_, **__: (_ for _ in ()).throw(OSError("the disk is full")))
        with pytest.raises(DataError, match=r"the disk is full.*NESTLING_CACHE"):
            load("mnist", tmp_path)
    assert not list((cache / "decoded").iterdir())
    assert len(load("mnist", tmp_path).inputs) == 12


def test_a_damaged_cache_says_which_folder_to_remove(tmp_path, cache):
    write_idx(tmp_path / "mnist", idx_files(), idx_arrays())
    load("mnist", tmp_path)
    (folder,) = (cache / "decoded").iterdir()
    (folder / "inputs.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(DataError, match=r"damaged.*remove that folder"):
        load("mnist", tmp_path)


def test_a_fetched_file_that_changed_is_refused(tmp_path):
    write_idx(tmp_path / "mnist", idx_files(), idx_arrays())
    file = tmp_path / "mnist" / f"{idx_files()[0]}.gz"
    record = file.with_name(file.name + ".sha256")
    record.write_text(f"{'0' * 64}  {file.name}\n")
    with pytest.raises(DataError, match="is not the file that was fetched"):
        load("mnist", tmp_path)
    record.write_text(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n")
    assert len(load("mnist", tmp_path).inputs) == 12


# --- the real files --------------------------------------------------------------------------------------------------


def test_real_mnist(real):
    data = load("mnist", real("mnist"))
    assert data.inputs.shape == (60_000, 1, 28, 28)
    assert data.test_inputs.shape == (10_000, 1, 28, 28)
    assert data.targets[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    ready = data.ready(data.inputs)
    assert abs(float(ready.mean())) < 1e-3
    assert abs(float(ready.std()) - 1) < 1e-3


def test_real_mnist_has_the_checksums_of_the_table(real):
    folder = real("mnist") / "mnist"
    for download in DATASETS["mnist"].downloads:
        assert "md5:" + hashlib.md5((folder / download.file).read_bytes()).hexdigest() == download.checksum


def test_real_har(real):
    data = load("har", real("uci_har_inertial.npz"))
    assert data.shape == (9, 128)
    assert (len(data.users.unique()), len(data.test_users.unique())) == (21, 9)
    assert not set(data.users.tolist()) & set(data.test_users.tolist())
    assert float(data.inputs.mean((0, 2)).abs().max()) < 1e-3
    assert torch.allclose(data.inputs.std((0, 2)), torch.ones(9), atol=1e-3)
    # UCI's windows overlap by half, so a window begins where the one before it in its run has its middle
    assert bool((data.inputs[1:, :, :64] == data.inputs[:-1, :, 64:]).all((1, 2)).double().mean() > 0.97)


def test_real_cifar10_first_batch(real):
    # one batch is enough to see that the archive is read as it should be, and takes a sixth of the time
    archive = real("cifar-10-binary.tar.xz") / "cifar-10-binary.tar.xz"
    name, data = next(contents(archive, lambda name: name.endswith(".bin")))
    assert name == "cifar-10-batches-bin/data_batch_1.bin"
    assert hashlib.md5(data).hexdigest() == "5dd7e06a14cb22eb9f671a540d1b7c25"
