"""Stack Overflow in its three layouts, and folders of one's own: the same text, whatever the files."""

import lzma
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nestling.data import load_text, share
from nestling.data.readers.example_proto import texts_of
from nestling.data.readers.user_store import TextFiles
from nestling.errors import DataError
from tests.data.text_files import HELD, TEST, TRAIN, example, write_folders, write_h5, write_sqlite

ALL = {"train": TRAIN, "test": TEST, "validation": HELD}


def folders(root):
    write_folders(root / "stackoverflow", ALL)


def sqlite(root):
    (root / "stackoverflow").mkdir()
    write_sqlite(root / "stackoverflow" / "stackoverflow.sqlite", {"train": TRAIN, "test": TEST, "heldout": HELD})


def packed(root):
    sqlite(root)
    plain = root / "stackoverflow" / "stackoverflow.sqlite"
    with lzma.open(f"{plain}.lzma", "wb", format=lzma.FORMAT_ALONE) as file:
        file.write(plain.read_bytes())
    plain.unlink()


def hdf5(root):
    pytest.importorskip("h5py")
    (root / "stackoverflow").mkdir()
    for part, users in (("train", TRAIN), ("test", TEST), ("held_out", HELD)):
        write_h5(root / "stackoverflow" / f"stackoverflow_{part}.h5", users)


@pytest.mark.parametrize("write", [folders, sqlite, packed, hdf5])
def test_every_layout_gives_the_same_text(tmp_path, write):
    write(tmp_path)
    text = load_text("stackoverflow", tmp_path, vocabulary=8, length=4)
    assert text.vocabulary.words == ("<oov>", "<bos>", "<eos>", "the", "and", "cat", "dogs", "sat")
    assert text.sizes.tolist() == [3, 1, 2]
    assert text.users[0].tolist() == [[1, 3, 5, 7, 2], [1, 3, 0, 0, 0], [1, 0, 5, 2, 8]]
    assert text.users[2].tolist() == [[1, 6, 4, 0, 4], [1, 3, 5, 7, 0]]
    tested = sorted(row for part in text.test for row in part.tolist())
    assert tested == [[1, 0, 0, 2, 8], [1, 3, 0, 2, 8], [1, 3, 5, 0, 2]]
    assert text.validation[0].tolist() == [[1, 0, 0, 7, 2]]
    assert (text.task, text.special, text.padding) == ("next-word", 1, 8)


def test_a_user_is_read_when_it_is_asked_for(tmp_path, monkeypatch):
    folders(tmp_path)
    load_text("stackoverflow", tmp_path)  # the index is made once
    read = []
    lines = TextFiles.lines
    monkeypatch.setattr(TextFiles, "lines", lambda self, name: read.append(name) or lines(self, name))
    text = load_text("stackoverflow", tmp_path)
    shares = share(text, 2, "user", minimum=2)
    assert read == []
    assert len(shares.train[1]) == 2
    assert read == ["00000009.txt"]


def test_word_counts_beside_the_data_spare_reading_it(tmp_path, monkeypatch):
    sqlite(tmp_path)
    (tmp_path / "stackoverflow" / "stackoverflow.word_count").write_text("zebra 9\nthe 3\n")
    text = load_text("stackoverflow", tmp_path)
    assert text.vocabulary.words[3:] == ("zebra", "the")
    assert text.sizes.tolist() == [3, 1, 2]
    (tmp_path / "stackoverflow" / "stackoverflow.word_count").write_text("zebra nine\n")
    with pytest.raises(DataError, match="line 1: 'zebra nine' is not a word and a number"):
        load_text("stackoverflow", tmp_path)


def test_word_counts_that_come_later_or_change_are_heeded(tmp_path):
    sqlite(tmp_path)
    assert "zebra" not in load_text("stackoverflow", tmp_path).vocabulary.words
    counts = tmp_path / "stackoverflow" / "stackoverflow.word_count"
    counts.write_text("zebra 9\nthe 3\n")
    assert load_text("stackoverflow", tmp_path).vocabulary.words[3:] == ("zebra", "the")
    assert load_text("stackoverflow", tmp_path, vocabulary=4).vocabulary.words[3:] == ("zebra",)
    counts.write_text("a 2\n<oov> 1\n")
    assert load_text("stackoverflow", tmp_path).vocabulary.words[3:] == ("a",)
    counts.write_text("")
    with pytest.raises(DataError, match=r"word_count' holds no words"):
        load_text("stackoverflow", tmp_path)
    counts.unlink()
    (tmp_path / "stackoverflow" / "stackoverflow.word_count.tar.bz2").write_bytes(b"BZh but not quite")
    with pytest.raises(DataError, match="cannot be read, it may be damaged"):
        load_text("stackoverflow", tmp_path)


def test_a_folder_for_tests_that_comes_later_is_heeded(tmp_path):
    write_folders(tmp_path, {"train": {"ann": ["one"] * 10}})
    assert load_text("text-files", tmp_path).sizes.tolist() == [8]
    (tmp_path / "test").mkdir()
    text = load_text("text-files", tmp_path)
    assert (text.sizes.tolist(), len(text.test)) == ([10], 0)


def test_what_editors_leave_in_texts_is_no_word(tmp_path):
    write_folders(tmp_path, {"train": {"ann": ["one"]}})
    (tmp_path / "train" / "ann.txt").write_bytes("one two".encode("utf-8-sig"))
    (tmp_path / "train" / "old.txt").mkdir()
    text = load_text("text-files", tmp_path)
    assert text.vocabulary.words[3:] == ("one", "two")
    (tmp_path / "train" / "a\nb.txt").write_text("three")
    with pytest.raises(DataError, match=r"the name 'a\\nb.txt' contains a line break"):
        load_text("text-files", tmp_path)


@pytest.mark.parametrize("write", [folders, sqlite, hdf5])
def test_files_that_go_while_a_run_reads_them_are_named(tmp_path, write):
    write(tmp_path)
    text = load_text("stackoverflow", tmp_path)
    shutil.rmtree(tmp_path / "stackoverflow")
    with pytest.raises(DataError, match=r"stackoverflow/.*' (cannot be read|is not as TensorFlow Federated)"):
        text.users[0]


@pytest.mark.parametrize("name", ["stackoverflow.sqlite.lzma", "stackoverflow.word_count"])
def test_files_must_be_those_that_were_fetched(tmp_path, name):
    packed(tmp_path)
    file = tmp_path / "stackoverflow" / name
    if not file.exists():
        file.write_text("zebra 9\n")
    file.with_name(file.name + ".sha256").write_text("0" * 64 + f"  {file.name}\n")
    with pytest.raises(DataError, match=rf"{name}' is not the file that was fetched .*data get stackoverflow'"):
        load_text("stackoverflow", tmp_path)


def test_folders_of_ones_own_are_split_by_user(tmp_path):
    lines = [f"word{number}" for number in range(10)]
    write_folders(tmp_path, {"train": {"ann": lines, "bob": ["", "one"]}})
    text = load_text("text-files", tmp_path, length=2)
    assert text.sizes.tolist() == [8, 1]
    words = text.vocabulary.words
    assert [words[row[1]] for row in text.users[0].tolist()] == lines[:8]
    assert sorted(words[row[1]] for part in text.test for row in part.tolist()) == lines[8:]
    masked = load_text("text-files", tmp_path, length=3, task="masked-word")
    assert masked.special == 2, "a mask, and padding"
    assert masked.users[0][0].tolist() == [masked.vocabulary.index["word0"], 2, masked.padding]


def test_what_is_not_there_or_damaged_is_said_in_a_sentence(tmp_path):
    with pytest.raises(DataError, match=r"'stackoverflow' cannot be found.* with 'nestling data get stackoverflow'"):
        load_text("stackoverflow", tmp_path)
    with pytest.raises(DataError, match=r"'text-files' cannot be found.*; set --data-dir"):
        load_text("text-files", tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match=r"no users to train on in '.*train'"):
        load_text("text-files", tmp_path)
    (tmp_path / "train" / "ann.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match="is not UTF-8 text: byte 3"):
        load_text("text-files", tmp_path)
    place = tmp_path / "stackoverflow"
    place.mkdir()
    (place / "stackoverflow.sqlite").write_bytes(b"SQLite format 3\0 but not quite")
    with pytest.raises(DataError, match="not as TensorFlow Federated writes it"):
        load_text("stackoverflow", tmp_path)
    (place / "stackoverflow.sqlite").unlink()
    (place / "stackoverflow.sqlite.lzma").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="cannot be read, it may be damaged: LZMAError"):
        load_text("stackoverflow", tmp_path)


def test_hdf5_of_another_kind_is_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    place = tmp_path / "stackoverflow"
    place.mkdir()
    for part in ("train", "test"):
        h5py.File(place / f"stackoverflow_{part}.h5", "w").close()
    with pytest.raises(DataError, match="object 'examples' doesn't exist"):
        load_text("stackoverflow", tmp_path)


@given(st.text(max_size=300))
def test_examples_say_what_was_put_into_them(tokens):
    assert texts_of(example(tokens), "tokens") == [tokens]
    assert texts_of(example(tokens), "title") == []


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    with suppress(DataError):
        assert all(isinstance(text, str) for text in texts_of(data, "tokens"))


@pytest.mark.parametrize("data", [b"\x09\x01", b"\x0d\x01\x02", b"\x0a\x05ab", b"\x80" * 11 + b"\x01", "text", None])
def test_examples_that_break_off_are_refused(data):
    with pytest.raises(DataError, match="a serialised example cannot be read"):
        texts_of(data, "tokens")


def test_shares_of_a_shelf_can_be_sent(tmp_path):
    import pickle  # noqa: PLC0415

    folders(tmp_path)
    shares = share(load_text("stackoverflow", Path(tmp_path)), 3, "user")
    again = pickle.loads(pickle.dumps(shares))
    assert torch.equal(again.sequences[2], shares.sequences[2])
