"""`Preset`: an experiment with a name, and what of a paper it repeats."""

from __future__ import annotations

from dataclasses import dataclass

from nestling.settings import Experiment


@dataclass(frozen=True)
class Preset:
    """An experiment by name; calling it gives the experiment.

    Attributes
    ----------
    experiment
        All settings; its name is the preset's.
    repeats
        The paper and its tables or figures, or what the experiment is for.
    source
        Where learning rates and rounds come from, if not from the paper, and which settings that source leaves open.
    """

    experiment: Experiment
    repeats: str
    source: str = ""

    @property
    def name(self) -> str:
        """The name of the preset."""
        return self.experiment.name

    def __call__(self) -> Experiment:
        """Return the experiment."""
        return self.experiment
