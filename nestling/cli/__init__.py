"""The command line: one file per command. Nothing here imports torch before a command needs it."""

from nestling.cli.app import main

__all__ = ["main"]
