"""A fleet of clients of three kinds, always online: quick and slow ones, and small ones that carry level b."""

from nestling.settings import FleetSettings
from tests.run_cases import tiny

FILE = """
levels = "a-b"
[[device]]
name = "quick"
memory = 1e9
speed = 1e9
down = 2e5
up = 1e5
[[device]]
name = "slow"
memory = 1e9
speed = 1e7
down = 7e4
up = 4e4
[[device]]
name = "small"
memory = 60e3
speed = 1e8
down = 1e5
up = 1e5
"""


def straggling(folder, *, clients=6, per_round=3, settings=(), fleet=None, **changes):
    """A tiny experiment on such a fleet."""
    path = folder / "fleet.toml"
    path.write_text(FILE)
    own = FleetSettings(clients=clients, per_round=per_round, levels=str(path), **(fleet or {}))
    return tiny(fleet=own, **changes).with_settings(settings)
