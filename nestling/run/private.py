"""What belongs to single clients between rounds: in memory, or in files where the run has a directory.

A file is written under a new name each time. Which files belong to the run is written in its checkpoint, so a run that
is killed finds those of its last checkpoint as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from nestling.cut import Plan
from nestling.cut.wire import load, save


class Drawer:
    """A place for every client's tensors, and the plan that they are cut by.

    Parameters
    ----------
    folder
        Where files go; None keeps all in memory.
    index
        Client → file name, as an earlier drawer's `index` told.
    """

    def __init__(self, folder: Path | None = None, index: Mapping[int, str] | None = None) -> None:
        self._folder = folder
        self._held: dict[int, tuple[dict[str, Tensor], Plan]] = {}
        self.index: dict[int, str] = dict(index or {})

    def get(self, client: int) -> dict[str, Tensor]:
        """Return what a client keeps: nothing at first."""
        return self.held(client)[0]

    def held(self, client: int) -> tuple[dict[str, Tensor], Plan]:
        """Return what a client keeps, and the plan that it was put in with."""
        if self._folder is not None and client in self.index:
            return load(self._folder / self.index[client])
        return self._held.get(client, ({}, Plan()))

    def put(self, client: int, round: int, state: dict[str, Tensor], plan: Plan | None = None) -> None:
        """Keep a client's tensors."""
        plan = plan or Plan()
        if self._folder is None:
            # a copy, of memory that it came in with much else
            self._held[client] = {name: tensor.clone() for name, tensor in state.items()}, plan
            return
        self._folder.mkdir(exist_ok=True)
        name = f"{client}-{round}.safetensors"
        save(self._folder / name, state, plan)
        self.index[client] = name

    def copy(self) -> Drawer:
        """A drawer with the same content, which can be changed without changing this one."""
        other = Drawer(self._folder, self.index)
        other._held = dict(self._held)
        return other

    def clients(self) -> list[int]:
        """Return the clients that keep something, in order."""
        return sorted(self._held if self._folder is None else self.index)

    def tidy(self) -> None:
        """Remove files that belong to no client any more."""
        if self._folder is not None and self._folder.is_dir():
            wanted = set(self.index.values())
            for path in self._folder.iterdir():
                if path.name not in wanted:
                    path.unlink()
