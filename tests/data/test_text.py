"""Texts: sequences, vocabularies, shares that are read when they are asked for."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nestling.data import Text, Vocabulary, load, load_text, share
from nestling.data.lazy import Lazy
from nestling.data.text.corpus import first_sequences, sentences, windows
from nestling.data.text.vocabulary import build_vocabulary, pack_words, unpack_words
from nestling.errors import DataError
from tests.data.text_files import write_wikitext

TASKS = ("masked-word", "next-word")


@given(st.integers(0, 60), st.integers(1, 9), st.sampled_from(TASKS))
def test_windows_are_the_text_in_its_order(words, length, task):
    stream = torch.arange(words)
    result = windows(stream, task, length)
    extra = task == "next-word"
    assert result.shape == (max(0, (words - extra) // length), length + extra)
    assert result[:, :length].flatten().tolist() == list(range(len(result) * length))
    if extra:  # the word to predict is the one after
        assert torch.equal(result[:, 1:], result[:, :-1] + 1)


@given(
    st.lists(st.lists(st.sampled_from(["red", "blue", "green"]), max_size=7), max_size=5),
    st.integers(2, 6),
    st.sampled_from(TASKS),
)
def test_sentences_say_what_was_written(lines, length, task):
    vocabulary = build_vocabulary({"red": 2, "blue": 1})
    result = sentences(lines, vocabulary, task, length)
    padding = len(vocabulary) + (task == "masked-word")
    written = [line for line in lines if line]
    assert result.shape == (len(written), length + (task == "next-word"))
    for row, line in zip(result.tolist(), written, strict=True):
        first = [vocabulary.begin] if task == "next-word" else []
        whole = [*first, *vocabulary.ids(line), vocabulary.end][: len(row)]
        assert row == whole + [padding] * (len(row) - len(whole))


@given(st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8"), min_size=1)), st.integers(0, 9))
def test_words_are_kept_as_bytes_and_the_first_are_read_alone(words, most):
    assert unpack_words(pack_words(words), most) == tuple(words[: most or None])


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(1, 5)), st.integers(4, 12))
def test_a_vocabulary_holds_the_most_frequent_words(counts, size):
    result = build_vocabulary(counts, size)
    assert len(result) == min(size, 3 + len(counts))
    kept = [counts[word] for word in result.words[3:]]
    assert kept == sorted(counts.values(), reverse=True)[: len(kept)]
    assert result.special == (0, 1, 2)
    assert unpack_words(pack_words(result.words)) == result.words


def test_a_vocabulary_without_a_word_for_unknown_ones_leaves_them_out():
    assert Vocabulary(("a", "b")).ids(["b", "c", "a"]) == [1, 0]
    with pytest.raises(DataError, match="at least 4 words"):
        build_vocabulary({"a": 1}, 3)


@given(st.integers(1, 12), st.integers(1, 4), st.sampled_from(TASKS))
def test_rows_are_disjoint_and_labels_are_their_words(clients, length, task):
    stream = torch.randint(7, (200,), generator=torch.Generator().manual_seed(0))
    text = Text("stream", task, Vocabulary(tuple("abcdefg"), unknown=6), length, stream=stream)
    shares = share(text, clients, "iid")
    size = 200 // clients
    for client in range(clients):
        row = stream[client * size : (client + 1) * size]
        assert torch.equal(shares.sequences[client], windows(row, task, length))
        held = set(shares.sequences[client].flatten().tolist()) | {6}
        assert shares.labels[client].tolist() == sorted(held)
        assert len(shares.train[client]) == len(shares.sequences[client])


def _users(read):
    def make(user):
        read.append(user)
        return torch.full((user % 3 + 1, 4), user % 5)

    return make


def test_only_clients_that_are_asked_for_are_read():
    read = []
    text = Text("lazy", "next-word", Vocabulary(tuple("abcde")), 3, users=Lazy(342_477, _users(read)))
    shares = share(text, 342_477, "user", most=2)
    assert not read
    assert len(shares) == 342_477
    assert len(shares.train[200_000]) == 2 == len(shares.sequences[200_000])
    assert shares.labels[200_000].tolist() == [0]
    assert read == [200_000], "read once"
    few = share(text, 10, "user", seed=3)
    assert few.sequences[4] is not None
    assert len(set(read)) == 2


def test_users_with_too_little_are_left_out_and_the_seed_draws_among_the_others():
    users = [torch.zeros(size, 4) + number for number, size in enumerate([1, 3, 0, 2, 5])]
    sizes = np.array([1, 3, 0, 2, 5])
    text = Text("some", "next-word", Vocabulary(tuple("abcde")), 3, users=users, sizes=sizes)
    shares = share(text, 3, "user", minimum=2)
    assert [len(shares.train[client]) for client in range(3)] == [3, 2, 5]
    drawn = {share(text, 2, "user", seed=seed).sequences[0][0, 0].item() for seed in range(20)}
    assert len(drawn) > 1
    with pytest.raises(DataError, match="more than the 3 users of some with at least 2 sequences"):
        share(text, 4, "user", minimum=2)


def test_what_cannot_be_is_said_in_a_sentence():
    stream = Text("stream", "masked-word", Vocabulary(("a",)), 4, stream=torch.zeros(20, dtype=torch.int32))
    users = Text("users", "next-word", Vocabulary(("a",)), 4, users=[torch.zeros(0, 5)])
    with pytest.raises(DataError, match="stream has no users"):
        share(stream, 2, "user")
    with pytest.raises(DataError, match="is a text by users"):
        share(users, 1, "iid")
    with pytest.raises(DataError, match="'iid' or 'user', not 'dirichlet'"):
        share(stream, 2, "dirichlet")
    with pytest.raises(DataError, match="gets 0 sequences of 4 words"):
        share(stream, 10, "iid")
    with pytest.raises(DataError, match="client 0 of users has no words"):
        share(users, 1, "user").train[0]
    with pytest.raises(DataError, match="no task 'next'; did you mean 'next-word'"):
        Text("x", "next", Vocabulary(("a",)), 4, stream=torch.zeros(9))
    with pytest.raises(DataError, match="nothing to train on"):
        Text("x", "next-word", Vocabulary(("a",)), 4)
    with pytest.raises(DataError, match="digits holds no text"):
        load_text("digits")
    with pytest.raises(DataError, match="wikitext2 is a text"):
        load("wikitext2")
    with pytest.raises(DataError, match="must be 0 or more, not -1"):
        load_text("words", length=-1)
    with pytest.raises(IndexError):
        Lazy(3, int)[3]
    with pytest.raises(DataError, match="its vocabulary is empty"):
        Text("x", "next-word", Vocabulary(()), 4, stream=torch.zeros(9))
    with pytest.raises(DataError, match="sizes of 2 users, but 1 users"):
        Text("x", "next-word", Vocabulary(("a",)), 4, users=[torch.zeros(1, 5)], sizes=np.array([1, 1]))
    with pytest.raises(DataError, match="clients must be a whole number of at least 1, not 0"):
        share(stream, 0, "iid")
    with pytest.raises(DataError, match="most must be a whole number of at least 0, not -1"):
        share(stream, 2, "iid", most=-1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.zeros(3, 4), r"client 0 of own has sequences of shape \(3, 4\): it must be \(any number, 5\)"),
        (torch.zeros(5), r"of shape \(5,\)"),
        (torch.tensor([[0, 1, 2, 3, 4]]), "word ids from 0 to 4: they must be from 0 to 2"),
        (torch.tensor([[0, 1, 2, -1, 0]]), "word ids from -1 to 2"),
        (torch.tensor([[0, 1, 2, 2, 2], [1, 2, 2, 2, 2]]), "client 0 of own has nothing to predict in its sequence 1"),
    ],
)
def test_sequences_that_no_model_could_read_are_refused(rows, message):
    text = Text("own", "next-word", Vocabulary(("a", "b")), 4, users=[rows])
    with pytest.raises(DataError, match=message):
        share(text, 1, "user").train[0]


def test_sequences_of_padding_alone_are_refused():
    rows = torch.tensor([[0, 1], [0, 3], [3, 3]])  # 2 is the mask
    text = Text("own", "masked-word", Vocabulary(("a", "b")), 2, users=[rows], padded=True)
    with pytest.raises(DataError, match="client 0 of own has nothing to predict in its sequence 2"):
        share(text, 1, "user").train[0]


def test_a_line_of_one_word_is_no_sequence_where_the_next_is_asked_for():
    bare = Vocabulary(("a", "b"))
    assert sentences([["a"], ["a", "b"]], bare, "next-word", 3).tolist() == [[0, 1, 2, 2]]
    assert sentences([["a"], ["a", "b"]], bare, "masked-word", 3).tolist() == [[0, 3, 3], [0, 1, 3]]


def test_an_item_that_cannot_be_made_is_no_end():
    def make(number):
        return [1, 2][number]

    with pytest.raises(IndexError):
        list(Lazy(3, make))


def test_lazy_things_travel_without_what_they_remember():
    lazy = Lazy(5, str)
    assert (lazy[2], lazy[-1], lazy[1:3]) == ("2", "4", ["1", "2"])
    assert pickle.loads(pickle.dumps(lazy))._item.cache_info().currsize == 0


def test_gathering_stops_where_enough_is_there():
    read = []
    parts = Lazy(100, _users(read))
    assert len(first_sequences(parts, 4)) == 4
    assert len(read) < 5
    assert len(first_sequences(parts[:3])) == 6


@pytest.mark.parametrize("task", TASKS)
def test_made_up_words_are_sentences_on_a_topic(task):
    text = load_text("words", task=task, vocabulary=300, length=12)
    width = 12 + (task == "next-word")
    held = [share(text, 342_477, "user").labels[user] for user in (0, 1, 16)]
    own = [set(labels[labels >= 35].tolist()) for labels in held]
    assert own[0] & own[2], "users 0 and 16 write on one topic"
    assert len(own[0] & own[1]) < len(own[0] & own[2])
    for user in (0, 342_476):
        rows = text.users[user]
        assert rows.shape[1] == width
        assert torch.equal(rows, load_text("words", task=task, vocabulary=300, length=12).users[user])
        ends = (rows == 2).sum(1)
        assert bool((ends <= 1).all())
        for row in rows.tolist():  # padding stands behind the end only
            cut = row.index(2) + 1 if 2 in row else len(row)
            assert set(row[cut:]) <= {text.padding}
            assert text.padding not in row[:cut]
    assert not torch.equal(text.users[0][0], text.test[0][0])


TESTED = ["the", "cat", "sat", "<unk>", "<eos>", "the", "cat", "<eos>"]
PARTS = {
    "train": " = A cat = \n \n the cat sat . <unk> sat \n the cat slept . \n",
    "valid": " the dog sat \n",
    "test": " the cat sat <unk> \n the cat \n",
}


def test_wikitext_is_its_words_with_an_end_of_every_line(tmp_path):
    write_wikitext(tmp_path / "wikitext-2-v1.zip", PARTS)
    text = load_text("wikitext2", tmp_path, length=2)
    words = text.vocabulary.words
    assert words[0] == "<eos>", "the most frequent comes first"
    texts = [words[number] for number in text.stream.tolist()]
    expected = [word for line in PARTS["train"].splitlines() for word in (*line.split(), "<eos>")]
    assert texts == expected
    assert "dog" in words, "words of all parts are known"
    assert len(words) == len(set(expected) | {"dog"})
    assert (text.task, text.mask, text.special, text.classes) == ("masked-word", len(words), 1, len(words))
    assert [words[number] for number in text.test[0].flatten().tolist()] == TESTED
    few = load_text("wikitext2", tmp_path, length=2, vocabulary=7)
    unknown = few.vocabulary.unknown
    assert few.stream.max() < 7
    assert few.stream[text.stream >= 7].unique().tolist() == [unknown]
    with pytest.raises(DataError, match="leaves out '<unk>'"):
        load_text("wikitext2", tmp_path, vocabulary=1)
    with pytest.raises(DataError, match=r"has 10 words: data.vocabulary_size cannot be 99"):
        load_text("wikitext2", tmp_path, vocabulary=99)


def test_wikitext_may_have_an_empty_part(tmp_path):
    write_wikitext(tmp_path / "wikitext-2-v1.zip", {**PARTS, "valid": ""})
    assert [len(part) for part in load_text("wikitext2", tmp_path, length=2).validation] == [0]


def test_wikitext_without_a_part_is_refused(tmp_path):
    write_wikitext(tmp_path / "wikitext-2.zip", {"train": "a", "test": "b"})
    with pytest.raises(DataError, match="does not hold the part 'validation'"):
        load_text("wikitext2", tmp_path)


def test_the_real_wikitext_has_the_papers_numbers(real):
    text = load_text("wikitext2", real("wikitext-2.zip"))
    assert (len(text.stream), text.classes) == (2_088_628, 33_278)
    assert [len(part[0]) for part in (text.validation, text.test)] == [217_646 // 64, 245_569 // 64]
    shares = share(text, 100, "iid")
    assert len(shares.train[0]) == 326
    assert 3000 < len(shares.labels[0]) < 4500, "HeteroFL: each client has roughly 3000 different words"


@pytest.mark.parametrize(("name", "length"), [("shakespeare", 80), ("shakespeare-words", 20)])
def test_the_real_shakespeare_is_by_speaker(real, name, length):
    text = load_text(name, real("shakespeare.zip"))
    assert len(text.users) == len(text.test) == 299
    assert text.length == length
    joint = "" if name == "shakespeare" else " "
    first = joint.join(text.vocabulary.words[number] for number in text.users[0][0, :length].tolist())
    assert first.lower().startswith("before we proceed any further")


def test_shakespeare_splits_what_a_speaker_says(tmp_path):
    (tmp_path / "input.txt").write_text("A:\n0123456789\n\nB:\nxy\n\nA:\nabcdefghi\n")
    text = load_text("shakespeare", tmp_path, length=3)
    words = text.vocabulary.words

    def texts(parts):
        return ["".join(words[number] for number in row) for row in parts.tolist()]

    assert texts(text.users[0]) == ["0123", "3456", "6789", "9\nab", "bcde"]  # of 16 signs; 4 more are for testing
    assert texts(text.test[0]) == ["<oov>" * 4]
    assert text.sizes.tolist() == [5, 0]


def test_shakespeare_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "input.txt").write_bytes(b"A:\r\nabc\r\n\r\nB:\r\nd\r\n")
    assert load_text("shakespeare", tmp_path, length=1).users[0].shape == (2, 2)
    with pytest.raises(DataError, match="a vocabulary has at least 2 characters"):
        load_text("shakespeare", tmp_path, vocabulary=1)
    (tmp_path / "input.txt").write_text("nobody speaks")
    with pytest.raises(DataError, match=r"input\.txt' holds no speeches"):
        load_text("shakespeare", tmp_path)
    (tmp_path / "input.txt").write_bytes(b"A:\ncaf\xe9")
    with pytest.raises(DataError, match="cannot be read, it may be damaged: UnicodeDecodeError"):
        load_text("shakespeare-words", tmp_path)
