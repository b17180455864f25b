"""Settings: what experiments are made of, typed and validated."""

from nestling.settings.local_training import Local
from nestling.settings.schedule import learning_rate

__all__ = ["Local", "learning_rate"]
