"""What buffered asynchronous rounds (`server.buffer`) do not go with, each refused in one sentence."""

from __future__ import annotations

from nestling.errors import ConfigError, MethodError
from nestling.methods.context import Setup
from nestling.methods.parts.holders import LEAST

_HOOKS = ("aggregator", "received", "after_merge", "send", "reply")  # those through which a server does more than merge


def check_stale_updates(setup: Setup) -> None:
    """Raise unless a method makes sense of updates that began with different models.

    Parts of which the server does more than take a mean must say so: see `Part.takes_stale_updates`.
    """
    method, buffer = setup.method, f"server.buffer={setup.server.buffer}"
    parts = [part for hook in _HOOKS for part in method.overriding(hook)]
    refusing = [part for part in parts if not part.takes_stale_updates]
    if refusing:
        raise MethodError(
            f"{refusing[0].label} of {method.name} needs updates that all began with one model, and {buffer} merges "
            f"stale ones: set server.buffer=0, or {refusing[0].instead}"
        )
    if method.overriding("aggregator") and setup.server.buffer < LEAST:
        raise ConfigError(
            f"{method.overriding('aggregator')[0].label} compares at least {LEAST} updates, and {buffer} is "
            "fewer: set a larger one"
        )
