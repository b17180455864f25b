"""Lines of text by user, read one user at a time from HDF5, SQLite or text files.

A line is a sentence of words separated by spaces. A source can be sent to another process, which opens the files
itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nestling.data.readers.example_proto import texts_of
from nestling.errors import DataError, first_line
from nestling.imported import need


class LineSource(Protocol):
    """The lines of users, by name."""

    def names(self) -> list[str]:
        """Return the names of all users, always in the same order."""

    def sizes(self) -> list[int] | None:
        """Return the number of lines of each user, in the same order, or None if all lines would have to be read."""

    def lines(self, name: str) -> list[str]:
        """Read the lines of one user."""


@dataclass(frozen=True)
class TextFiles:
    """A folder of ``.txt`` files, one per user, with one sentence per line."""

    folder: Path

    def names(self) -> list[str]:
        """Return the names of the files."""
        return sorted(file.name for file in self.folder.glob("*.txt") if file.is_file())

    def sizes(self) -> list[int] | None:
        """Return None: the files would have to be read."""
        return None

    def lines(self, name: str) -> list[str]:
        """Read one file."""
        try:
            return (self.folder / name).read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError as problem:
            raise DataError(f"{str(self.folder / name)!r} is not UTF-8 text: byte {problem.start} is wrong") from None
        except OSError as problem:
            raise DataError(f"{str(self.folder / name)!r} cannot be read: {problem.strerror}") from None


@dataclass(frozen=True)
class Hdf5:
    """The HDF5 files of TensorFlow Federated: a group ``examples/USER`` with a dataset ``tokens`` of sentences."""

    file: Path

    def names(self) -> list[str]:
        """Return the names of the groups."""
        with self._open() as users:
            return sorted(users)

    def sizes(self) -> list[int] | None:
        """Return the length of every dataset; it takes minutes for hundreds of thousands, so it is cached."""
        with self._open() as users:
            return [len(users[name]["tokens"]) for name in sorted(users)]

    def lines(self, name: str) -> list[str]:
        """Read one dataset."""
        with self._open() as users:
            return [line.decode() if isinstance(line, bytes) else line for line in users[name]["tokens"][:]]

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """Open the group ``examples``."""
        h5py = need("h5py", "text", "HDF5 files need", DataError)
        try:
            with h5py.File(self.file, "r") as file:
                yield file["examples"]
        except (OSError, KeyError, UnicodeDecodeError) as problem:
            reason = first_line(problem).strip("\"'")
            raise DataError(f"{str(self.file)!r} is not as TensorFlow Federated writes it: {reason}") from None


@dataclass(frozen=True)
class Sqlite:
    """The SQLite file of TensorFlow Federated: serialised examples by client and split, and their counts."""

    file: Path
    split: str

    def names(self) -> list[str]:
        """Return the clients of the split."""
        return [name for name, _ in self._metadata()]

    def sizes(self) -> list[int] | None:
        """Return the numbers in the table of clients."""
        return [size for _, size in self._metadata()]

    def lines(self, name: str) -> list[str]:
        """Read the sentences of one client."""
        query = "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? ORDER BY rowid"
        return [line for (data,) in self._select(query, self.split, name) for line in texts_of(data, "tokens")]

    def _metadata(self) -> list[Any]:
        query = "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ? ORDER BY client_id"
        return list(self._select(query, self.split))

    def _select(self, query: str, *values: str) -> Iterator[Any]:
        try:
            # read-only, so that a wrong name does not create a file
            with closing(sqlite3.connect(f"{self.file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
                yield from connection.execute(query, values)
        except sqlite3.Error as problem:
            raise DataError(f"{str(self.file)!r} is not as TensorFlow Federated writes it: {problem}") from None
