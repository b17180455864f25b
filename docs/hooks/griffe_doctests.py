"""A Griffe extension: examples in docstrings become blocks of code, wherever they stand."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^|(?<=\n\n))(>>> .*?)(?=\n\n|\Z)", re.DOTALL)


def fenced(text: str) -> str:
    """Return a docstring whose examples outside of an "Examples" section are blocks of code."""
    head, section, tail = text.partition("\nExamples\n---")
    return _EXAMPLE.sub(r"```pycon\n\1\n```", head) + section + tail


class Doctests(griffe.Extension):
    """Changes every docstring as it is read."""

    def on_object(self, *, obj: griffe.Object, **_rest: Any) -> None:
        """Put the examples of an object's docstring into blocks."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
