"""Small files in the formats of the real datasets, with known values."""

import gzip
import io
import pickle
import tarfile
import zipfile

import numpy as np
from PIL import Image

CINIC_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def some(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx_bytes(array):
    return bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape) + array.tobytes()


def write_idx(folder, names, arrays, packed=True):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(names, arrays, strict=True):
        data = idx_bytes(array)
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)


def idx_arrays(count=12, test=4, first=0, classes=10):
    labels, test_labels = (np.arange(size, dtype=np.uint8) % classes + first for size in (count, test))
    return some(count, 28, 28), labels, some(test, 28, 28, seed=1), test_labels


def tar(path, files, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def tree(folder, files):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def cifar10_parts(per_batch=3):
    """Batch name → (images, labels)."""
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    return {
        name: (some(per_batch, 3, 32, 32, seed=k), np.array([(k + i) % 10 for i in range(per_batch)], np.uint8))
        for k, name in enumerate(names)
    }


def cifar100_parts():
    return {
        "train": (some(6, 3, 32, 32), np.array([0, 99, 5, 7, 50, 1], np.uint8)),
        "test": (some(2, 3, 32, 32, seed=1), np.array([98, 3], np.uint8)),
    }


def cifar_binary(parts, folder, coarse=False):
    files = {}
    for name, (images, labels) in parts.items():
        columns = [labels[:, None] // 5] * coarse + [labels[:, None], images.reshape(len(images), -1)]
        files[f"{folder}/{name}.bin"] = np.concatenate(columns, axis=1).astype(np.uint8).tobytes()
    return files


def cifar_pickled(parts, folder, key="labels", text_keys=False):
    files = {f"{folder}/batches.meta": b"not looked at"}
    for name, (images, labels) in parts.items():
        batch = {
            b"data": images.reshape(len(images), -1),
            key.encode(): labels.tolist(),
            b"batch_label": name.encode(),
            b"coarse_labels": [0] * len(labels),
        }
        batch = {k.decode(): value for k, value in batch.items()} if text_keys else batch
        files[f"{folder}/{name}"] = pickle.dumps(batch, protocol=2)
    return files


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png")
    return buffer.getvalue()


def cinic_files(root=""):
    """One colour image per part and class, and in training a grey one as CINIC-10 has some."""
    files = {}
    for number, part in enumerate(("train", "valid", "test")):
        for label, name in enumerate(CINIC_CLASSES):
            files[f"{root}{part}/{name}/x-{label}.png"] = png(some(32, 32, 3, seed=10 * number + label))
    files[f"{root}train/cat/a-grey.png"] = png(some(32, 32, seed=99))
    files[f"{root}README.md"] = b"no image"
    return files


HAR_CHANNELS = [f"{signal}_{axis}" for signal in ("total_acc", "body_acc", "body_gyro") for axis in "xyz"]


def har_texts(windows=4, test=3, root="UCI HAR Dataset"):
    """The text files, and the windows (N, 9, 128) in them."""
    files, arrays = {}, {}
    for part, count, first in (("train", windows, 1), ("test", test, 20)):
        values = np.random.default_rng(count).normal(size=(count, 9, 128)).astype(np.float32)
        arrays[part] = values
        for place, channel in enumerate(HAR_CHANNELS):
            lines = [" ".join(f"{value: .7e}" for value in row) for row in values[:, place]]
            files[f"{root}/{part}/Inertial Signals/{channel}_{part}.txt"] = "\n".join(lines).encode()
        files[f"{root}/{part}/y_{part}.txt"] = "\n".join(str(1 + k % 6) for k in range(count)).encode()
        files[f"{root}/{part}/subject_{part}.txt"] = "\n".join(str(first + k // 2) for k in range(count)).encode()
        files[f"{root}/{part}/X_{part}.txt"] = b"features that are not read"
    return files, arrays
