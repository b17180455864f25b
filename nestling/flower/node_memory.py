"""What a node keeps from round to round: private tensors, residuals of uploads, FedDyn's control variates.

The two last versions are kept: a server that was killed asks for its running round again, and the client then begins
from what it had kept before that round.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from torch import Tensor

from nestling.cut import Plan
from nestling.cut.wire import pack, unpack
from nestling.errors import StateError
from nestling.events import report
from nestling.files import write_whole
from nestling.methods.context import Setup
from nestling.methods.messages import Update
from nestling.server.client_store import ClientStore

_FILE = re.compile(r"round-(\d{6})\.kept")
_LENGTH = 8  # bytes of the length of the first of the two packs that a version holds


class NodeMemory(Protocol):
    """Where a node keeps bytes, by round."""

    def read(self) -> dict[int, bytes]:
        """Return all versions."""

    def write(self, versions: dict[int, bytes]) -> None:
        """Keep these versions and no others."""


class FolderMemory:
    """A folder of files, which survives a restart of the node.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     FolderMemory(Path(folder)).write({3: b"three", 4: b"four"})
    ...     FolderMemory(Path(folder)).read()[4]
    b'four'
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> dict[int, bytes]:
        """Return all versions."""
        paths = self._folder.iterdir() if self._folder.is_dir() else ()
        return {int(match[1]): path.read_bytes() for path in paths if (match := _FILE.fullmatch(path.name))}

    def write(self, versions: dict[int, bytes]) -> None:
        """Keep these versions and no others."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for round, data in versions.items():
            write_whole(self._folder / f"round-{round:06d}.kept", data)
        for round in self.read().keys() - versions.keys():
            (self._folder / f"round-{round:06d}.kept").unlink()


class DictMemory(dict[int, bytes]):
    """A dictionary, which is gone with its process."""

    def read(self) -> dict[int, bytes]:
        """Return all versions."""
        return dict(self)

    def write(self, versions: dict[int, bytes]) -> None:
        """Keep these versions and no others."""
        self.clear()
        self.update(versions)


def kept_state(
    setup: Setup, memory: NodeMemory, round: int, plan: Plan
) -> tuple[int, dict[str, Tensor], dict[str, Tensor]]:
    """Return the round of what was kept before a round (0 for nothing), and that, cut to the slice of `plan`.

    First the private tensors, then the client state.
    """
    number, store = _before(memory, round)
    return number, *store.get(setup, 0, plan, setup.model.state_dict())


def keep_state(setup: Setup, memory: NodeMemory, round: int, update: Update) -> None:
    """Keep the private tensors and the client state of an update, and the version before it."""
    number, store = _before(memory, round)
    earlier = {number: memory.read()[number]} if number else {}
    update = replace(update, who=(replace(update.who[0], client=0),))  # a node is one client, whatever its number
    store.put(setup, update, round, setup.model.state_dict())
    private, kept = (pack(*files.get(0)) for files in (store.private, store.kept))
    memory.write({**earlier, round: len(private).to_bytes(_LENGTH, "little") + private + kept})


def _before(memory: NodeMemory, round: int) -> tuple[int, ClientStore]:
    """Return the last version that was kept before a round, and its number."""
    versions = memory.read()
    for number in sorted((number for number in versions if number < round), reverse=True):
        store, data = ClientStore.start(None), versions[number]
        end = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
        try:
            store.private.put(0, number, *unpack(data[_LENGTH:end]))
            store.kept.put(0, number, *unpack(data[end:]))
        except StateError as problem:
            report("kept state damaged", f"what this node kept in round {number} cannot be read: {problem}")
            continue
        return number, store
    return 0, ClientStore.start(None)
