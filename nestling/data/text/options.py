"""`TextOptions`: how a text is to be read."""

from __future__ import annotations

from dataclasses import dataclass

from nestling.data.text.corpus import Task


@dataclass(frozen=True)
class TextOptions:
    """The task, the size of the vocabulary (0: as large as the text asks for), and the words of a sequence."""

    task: Task
    vocabulary: int
    length: int
