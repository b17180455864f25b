"""Tensors of single clients: in memory, or in files if the run has a directory.

A file is written under a new name each time, and the checkpoint lists the files that belong to the run. So a run that
was killed finds the files of its last checkpoint unchanged. The checkpoint also lists their checksums, which are those
of the bytes that were written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from torch import Tensor

from nestling.cut import Plan
from nestling.cut.wire import load, pack
from nestling.files import write_whole

CLIENT_FOLDERS = ("private", "memory")
CLIENT_FILE = re.compile(r"\d+-\d+\.safetensors")  # client-round


class ClientFiles:
    """Stores the tensors of every client, and the plan that they are cut by.

    Parameters
    ----------
    folder
        The folder of the files; None keeps everything in memory.
    index
        Client → file name, of an earlier store.
    checksums
        File name → SHA-256, of an earlier store; the checksums of other files are computed.
    """

    def __init__(
        self,
        folder: Path | None = None,
        index: Mapping[int, str] | None = None,
        checksums: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._held: dict[int, tuple[dict[str, Tensor], Plan]] = {}
        self.index: dict[int, str] = dict(index or {})
        self._checksums: dict[str, str] = dict(checksums or {})

    def get(self, client: int) -> tuple[dict[str, Tensor], Plan]:
        """Return the tensors of a client and their plan; no tensors if it keeps none."""
        if self._folder is not None and client in self.index:
            return load(self._folder / self.index[client])
        return self._held.get(client, ({}, Plan()))

    def put(self, client: int, round: int, state: dict[str, Tensor], plan: Plan | None = None) -> None:
        """Store the tensors of a client, in place of earlier ones."""
        plan = plan or Plan()
        if self._folder is None:
            # copy them: they may be views of a message that holds much more
            self._held[client] = {name: tensor.clone() for name, tensor in state.items()}, plan
            return
        self._folder.mkdir(exist_ok=True)
        name = f"{client}-{round}.safetensors"
        data = pack(state, plan)
        write_whole(self._folder / name, data)
        self.index[client] = name
        self._checksums[name] = hashlib.sha256(data).hexdigest()

    def checksums(self) -> dict[str, str]:
        """Return the SHA-256 of every file in use, by name."""
        self._checksums = {name: self._checksum(name) for name in self.index.values()}
        return dict(self._checksums)

    def copy(self) -> ClientFiles:
        """Return a store with the same content, which can be changed without changing this one."""
        other = ClientFiles(self._folder, self.index, self._checksums)
        other._held = dict(self._held)
        return other

    def clients(self) -> list[int]:
        """Return the clients that have tensors here, in order."""
        return sorted(self._held if self._folder is None else self.index)

    def tidy(self, keep: Collection[str] = ()) -> None:
        """Remove files that are neither in use nor among those to `keep`."""
        if self._folder is not None and self._folder.is_dir():
            in_use = {*self.index.values(), *keep}
            for path in self._folder.iterdir():
                if path.name not in in_use and CLIENT_FILE.fullmatch(path.name):
                    path.unlink()

    def _checksum(self, name: str) -> str:
        assert self._folder is not None
        return self._checksums.get(name) or hashlib.sha256((self._folder / name).read_bytes()).hexdigest()
