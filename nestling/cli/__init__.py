"""The command line: one module per command. Torch is imported only when a command needs it."""

from nestling.cli.app import main

__all__ = ["main"]
