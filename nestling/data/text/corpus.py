"""`Text`: sequences of words by user or as one stream, read on access; `share` partitions them among clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nestling.data.lazy import Lazy
from nestling.data.partition import Partition
from nestling.data.text.vocabulary import Vocabulary
from nestling.errors import DataError, nearest
from nestling.number_checks import whole
from nestling.seeds import numpy_stream

Task = Literal["masked-word", "next-word"]
TASKS = ("masked-word", "next-word")
_EMPTY = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class TextOptions:
    """How a text is read: the task, the size of the vocabulary (0: the text's own), and the words in a sequence."""

    task: Task
    vocabulary: int
    length: int


class Form(NamedTuple):
    """The form of sequences: their width, the number of word ids, and the id of padding.

    The first `unpredicted` words of a sequence are inputs only.
    """

    width: int
    ids: int
    padding: int
    unpredicted: int


@dataclass(frozen=True, eq=False)
class Text:
    """Sequences of words for training and testing.

    A sequence is a row of word ids: `length` of them for ``"masked-word"``, one more for ``"next-word"``. Ids from
    ``len(vocabulary)`` on are inputs that are never predicted: the mask and padding.

    Attributes
    ----------
    name
        Its name in reports.
    task
        ``"masked-word"`` or ``"next-word"``.
    vocabulary
        The words that can be predicted.
    length
        The number of words that a model reads at a time.
    stream
        The training text as one row of word ids (words,), if it has no users; else None.
    users
        The training sequences of every user, (sequences, `width`), if there are users; may be lazy.
    sizes
        The number of sequences of every user, (users,), if known.
    test, validation
        Sequences for testing, in any number of pieces; may be lazy.
    padded
        Whether sequences may end in padding.
    """

    name: str
    task: Task
    vocabulary: Vocabulary
    length: int
    stream: Tensor | None = None
    users: Sequence[Tensor] = ()
    sizes: NDArray[Any] | None = None
    test: Sequence[Tensor] = ()
    validation: Sequence[Tensor] = ()
    padded: bool = False

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise DataError(f"there is no task {self.task!r}{nearest(str(self.task), TASKS)}")
        if self.length < 1:
            raise DataError(f"{self.name}: sequences have at least 1 word, not {self.length}")
        if not len(self.vocabulary):
            raise DataError(f"{self.name}: there are no words to predict, as its vocabulary is empty")
        if self.stream is None and not len(self.users):
            raise DataError(f"{self.name}: there is nothing to train on")
        if self.sizes is not None and len(self.sizes) != len(self.users):
            raise DataError(f"{self.name}: there are sizes of {len(self.sizes):,} users, but {len(self.users):,} users")

    @property
    def classes(self) -> int:
        """The number of words that can be predicted."""
        return len(self.vocabulary)

    @property
    def width(self) -> int:
        """The length of a stored sequence."""
        return width_of(self.task, self.length)

    @property
    def mask(self) -> int:
        """The id of the mask, or −1 if the task has none."""
        return self.classes if self.task == "masked-word" else -1

    @property
    def padding(self) -> int:
        """The id of padding."""
        return padding_of(self.task, self.classes)

    @property
    def special(self) -> int:
        """The number of ids beyond the vocabulary that a model must accept."""
        return 2 if self.task == "masked-word" and self.padded else 1

    @property
    def form(self) -> Form:
        """The form of its sequences."""
        return Form(self.width, self.classes + self.special, self.padding, self.width - self.length)

    def example(self, batch: int) -> Tensor:
        """Return a model input of zeros, (batch, length)."""
        return torch.zeros(batch, self.length, dtype=torch.long)


def width_of(task: str, length: int) -> int:
    """Return the length of a stored sequence: with next-word prediction, its last word is only a target."""
    return length + (task == "next-word")


def padding_of(task: str, words: int) -> int:
    """Return the id of padding for a vocabulary of `words` words."""
    return words + (task == "masked-word")


def windows(words: Tensor, task: str, length: int) -> Tensor:
    """Cut a row of words (words,) into sequences; an incomplete last one is left out.

    >>> windows(torch.arange(8), "masked-word", 3)
    tensor([[0, 1, 2],
            [3, 4, 5]])
    >>> windows(torch.arange(8), "next-word", 3)
    tensor([[0, 1, 2, 3],
            [3, 4, 5, 6]])
    """
    width = width_of(task, length)
    return words.unfold(0, width, length) if len(words) >= width else words.new_empty(0, width)


def sentences(lines: Iterable[Sequence[str]], vocabulary: Vocabulary, task: str, length: int) -> Tensor:
    """Return a sequence for every non-empty line of words: with begin and end marks, truncated or padded.

    >>> vocabulary = Vocabulary(("<oov>", "<bos>", "<eos>", "red", "blue"), 0, 1, 2)
    >>> sentences([["red", "blue"], [], ["green", "red", "red"]], vocabulary, "next-word", 3)
    tensor([[1, 3, 4, 2],
            [1, 0, 3, 3]], dtype=torch.int32)
    """
    width, padding = width_of(task, length), padding_of(task, len(vocabulary))
    rows = []
    for line in lines:
        ids = vocabulary.ids(line)
        if not ids:
            continue
        first = [vocabulary.begin] if vocabulary.begin >= 0 and task == "next-word" else []
        last = [vocabulary.end] if vocabulary.end >= 0 else []
        row = (first + ids + last)[:width]
        if len(row) == width_of(task, 0):
            continue  # no word to predict
        rows.append(row + [padding] * (width - len(row)))
    return torch.tensor(rows, dtype=torch.int32).reshape(-1, width)


def check_sequences(sequences: Tensor, form: Form, whose: str) -> Tensor:
    """Return `sequences` (…, width) unchanged; raise `DataError` unless they have the given form.

    >>> check_sequences(torch.tensor([[0, 9]]), Form(width=2, ids=9, padding=8, unpredicted=1), "client 3")
    Traceback (most recent call last):
    nestling.errors.DataError: client 3 has word ids from 0 to 9: they must be from 0 to 8
    """
    if sequences.dim() != 2 or sequences.shape[1] != form.width:
        shape = tuple(sequences.shape)
        raise DataError(f"{whose} has sequences of shape {shape}: it must be (any number, {form.width})")
    low, high = (int(end) for end in sequences.aminmax()) if len(sequences) else (0, 0)
    if low < 0 or high >= form.ids:
        raise DataError(f"{whose} has word ids from {low} to {high}: they must be from 0 to {form.ids - 1}")
    empty = (sequences[:, form.unpredicted :] == form.padding).all(1)
    if empty.any():
        first = int(empty.nonzero()[0])
        raise DataError(f"{whose} has nothing to predict in its sequence {first}: leave out sequences of padding alone")
    return sequences


def first_sequences(parts: Iterable[Tensor], most: int = 0) -> Tensor:
    """Return the first `most` (0: all) sequences of some pieces as one tensor; later pieces are not read.

    >>> first_sequences([torch.zeros(2, 3), torch.ones(2, 3)], 3)[:, 0]
    tensor([0., 0., 1.])
    """
    pieces: list[Tensor] = []
    count = 0
    for part in parts:
        pieces.append(part[: most - count] if most else part)
        count += len(pieces[-1])
        if most and count >= most:
            break
    return torch.cat(pieces) if pieces else _EMPTY


@dataclass(frozen=True, eq=False)
class TextShares(Partition):
    """A text's partition among clients; what a client holds is read on access.

    ``train`` are the indices of a client's own sequences, from 0, and ``labels`` its words: those in its text, and the
    special words that everyone has.

    Attributes
    ----------
    sequences
        Per client: its sequences, (sequences, width).
    """

    sequences: Sequence[Tensor] = field(default=())


def share(text: Text, clients: int, scheme: str, *, minimum: int = 1, most: int = 0, seed: int = 0) -> TextShares:
    """Partition a text among clients; the same seed gives the same partition.

    Parameters
    ----------
    text
        The text to partition.
    clients
        The number of clients.
    scheme
        ``"iid"``: the stream is cut into one row per client (HeteroFL); ``"user"``: a client is a user, drawn at random
        if there are more users than clients.
    minimum
        The minimum number of sequences of a client, if sizes are known beforehand; 0 allows empty clients.
    most
        Use only the first `most` sequences of a client; 0 for all.
    seed
        The seed of the experiment.

    Examples
    --------
    >>> text = Text("digits", "masked-word", Vocabulary(tuple("0123456789")), 2, stream=torch.arange(10))
    >>> shares = share(text, 2, "iid")
    >>> shares.sequences[1], shares.labels[1], len(shares.train[1])
    (tensor([[5, 6],
             [7, 8]]), tensor([5, 6, 7, 8]), 2)
    """
    whole("clients", clients, 1, error=DataError)
    whole("minimum", minimum, 0, error=DataError)
    whole("most", most, 0, error=DataError)
    sizes: NDArray[Any] | None
    if scheme == "iid":
        read, sizes = _stream_shares(text, clients)
    elif scheme == "user":
        read, sizes = _user_shares(text, clients, minimum, seed)
    else:
        raise DataError(f"the partition of a text is 'iid' or 'user', not {scheme!r}")
    if sizes is not None and (sizes.min() < minimum or sizes.max() < 1):
        raise DataError(
            f"a client of {text.name} gets {sizes.min()} sequences of {text.length} words, fewer than the minimum of "
            f"{max(minimum, 1)}: use fewer clients"
        )
    sequences = Lazy(clients, partial(_client_sequences, read, text.form, text.name, most))
    return TextShares(
        train=Lazy(clients, partial(_indices, sequences, text.name, minimum)),
        test=Lazy(clients, _no_samples),
        labels=Lazy(clients, partial(_held_words, sequences, text.classes, text.vocabulary.special)),
        sequences=sequences,
    )


def _stream_shares(text: Text, clients: int) -> tuple[Callable[[int], Tensor], NDArray[Any]]:
    """Return a function that cuts a client's sequences from the stream, and their number, the same for all."""
    if text.stream is None:
        raise DataError(f"{text.name} is a text by users: set data.partition=user")
    size = len(text.stream) // clients
    sequences = max(0, (size - text.width) // text.length + 1)
    return partial(_stream_part, text.stream, size, text.task, text.length), np.array([sequences])


def _user_shares(
    text: Text, clients: int, minimum: int, seed: int
) -> tuple[Callable[[int], Tensor], NDArray[Any] | None]:
    """Return a function that reads a client's sequences, those of one user, and the number of each client if known."""
    if text.stream is not None:
        raise DataError(f"{text.name} has no users: set data.partition=iid")
    eligible: Sequence[int] | NDArray[Any]
    eligible = range(len(text.users)) if text.sizes is None else np.flatnonzero(text.sizes >= minimum)
    if clients > len(eligible):
        condition = "" if text.sizes is None else f" with at least {minimum} sequences"
        raise DataError(f"{clients:,} clients are more than the {len(eligible):,} users of {text.name}{condition}")
    if clients < len(eligible):
        chosen = np.sort(numpy_stream(seed, "partition", "user").choice(len(eligible), clients, replace=False))
        eligible = chosen if isinstance(eligible, range) else eligible[chosen]
    return partial(_user_part, text.users, eligible), None if text.sizes is None else text.sizes[eligible]


# Module-level functions, so that partitions can be pickled.


def _stream_part(stream: Tensor, size: int, task: str, length: int, client: int) -> Tensor:
    return windows(stream[client * size : (client + 1) * size], task, length)


def _user_part(users: Sequence[Tensor], chosen: Sequence[int] | NDArray[Any], client: int) -> Tensor:
    return users[int(chosen[client])]


def _client_sequences(read: Callable[[int], Tensor], form: Form, name: str, most: int, client: int) -> Tensor:
    return check_sequences(read(client), form, f"client {client} of {name}")[: most or None]


def _indices(sequences: Sequence[Tensor], name: str, minimum: int, client: int) -> Tensor:
    count = len(sequences[client])
    if not count and minimum:
        raise DataError(
            f"client {client} of {name} has no words: use fewer clients, or data.min_samples=0 to allow empty clients"
        )
    return torch.arange(count)


def _held_words(sequences: Sequence[Tensor], classes: int, special: tuple[int, ...], client: int) -> Tensor:
    words = sequences[client].flatten().long()
    held: Tensor = torch.cat([words, torch.tensor(special, dtype=torch.long)]).unique()
    return held[held < classes]


def _no_samples(client: int) -> Tensor:
    return _EMPTY
