"""Modules that need Flower are read where it is installed: `tests/flower` runs them in an environment of its own."""

from importlib.util import find_spec

if find_spec("flwr") is None:
    collect_ignore = [
        "bench/exchange_client.py",
        "bench/exchange_server.py",
        "nestling/flower/flower_api.py",
        "nestling/flower/strategy.py",
        "nestling/experiment/flower_apps.py",
    ]
