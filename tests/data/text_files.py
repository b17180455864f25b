"""Small texts in the layouts of the public data sets."""

import sqlite3
import zipfile

TRAIN = {
    "00000001": ["the cat sat", "the dog ran away", "a cat"],
    "00000007": ["the end"],
    "00000009": ["dogs and cats and dogs", "the cat sat on the mat and slept"],
}
TEST = {"00000001": ["the cat ran"], "00000002": ["a zebra", "the dog"]}
HELD = {"00000005": ["a dog sat"]}


def write_folders(root, parts):
    for part, users in parts.items():
        folder = root / part
        folder.mkdir(parents=True)
        for name, lines in users.items():
            (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


def write_h5(path, users):
    import h5py  # noqa: PLC0415 - an extra

    with h5py.File(path, "w") as file:
        for name, lines in users.items():
            group = file.create_group(f"examples/{name}")
            group.create_dataset("tokens", data=[line.encode() for line in lines])
            group.create_dataset("score", data=[1] * len(lines))


def _field(number, value):
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def example(tokens):
    """A serialised Example with a number, which must be skipped, and a sentence."""
    number = _field(1, _field(1, b"score") + _field(2, _field(3, b"\x08\x05")))
    text = _field(1, _field(1, b"tokens") + _field(2, _field(1, _field(1, tokens.encode()))))
    return _field(1, number + text)


def write_sqlite(path, splits):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        connection.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
        for split, users in splits.items():
            for name, lines in users.items():
                connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (name, split, len(lines)))
                for line in lines:
                    connection.execute("INSERT INTO examples VALUES (?, ?, ?)", (split, name, example(line)))
    connection.close()


def write_wikitext(path, parts):
    with zipfile.ZipFile(path, "w") as archive:
        for part, text in parts.items():
            archive.writestr(f"wikitext-2/wiki.{part}.tokens", text)
