"""Errors on the command line: one sentence and an exit code."""

from __future__ import annotations

from nestling.cli.screen import one_line
from nestling.errors import NestlingError, first_line
from nestling.files import DISK_ERRORS, FULL_DISK

_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")  # messages of PyTorch's allocators


def exit_code_and_message(problem: Exception) -> tuple[int, str]:
    """Return the exit code and the one-line message for an error.

    >>> exit_code_and_message(NestlingError("there is no" + chr(10) + "such thing"))
    (2, 'there is no such thing')
    >>> exit_code_and_message(FileNotFoundError(2, "No such file or directory", "a/b"))
    (2, "'a/b': No such file or directory")
    """
    if isinstance(problem, NestlingError):
        return problem.exit_code, " ".join(str(problem).split())
    if hasattr(problem, "format_message"):  # an error of click, which some versions of typer include
        # typer up to 0.24 adds "(env var: 'None')"
        sentence = " ".join(problem.format_message().replace(" (env var: 'None')", "").split())
        context = getattr(problem, "ctx", None)
        if context is not None and not sentence.endswith("?"):
            sentence = f"{sentence.rstrip('.')}; see '{context.command_path} --help'"
        return 2, sentence
    if isinstance(problem, OSError) and problem.errno is not None:
        file = "" if problem.filename is None else repr(str(problem.filename))
        if file and problem.errno in FULL_DISK:
            return 1, f"{file} cannot be written ({problem.strerror}): make room, and give the same command again"
        return 1 if problem.errno in DISK_ERRORS else 2, f"{file}{file and ': '}{problem.strerror}"
    if isinstance(problem, MemoryError) or any(text in str(problem).lower() for text in _NO_MEMORY):
        return 1, f"there is not enough memory ({first_line(problem)}): use a smaller model, batch or number of workers"
    return 1, f"unexpected {one_line(problem)} (--debug shows where)"
