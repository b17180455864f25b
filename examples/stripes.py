"""A part of one's own: devices train channels spread evenly over every layer, shifted on each round.

nestling run heterofl-digits method=stripes:stripes options.shift=3      # in this folder
python stripes.py
"""

from dataclasses import dataclass, replace

import nestling
from nestling.experiment import find
from nestling.methods import Participant, RoundContext
from nestling.methods.heterofl import heterofl


@dataclass(frozen=True)
class Stripes(nestling.PlanPart):
    """Every axis keeps its units at equal distances, the first of them `shift` further each round."""

    shift: int = 1

    def plan(self, round: RoundContext, who: Participant) -> nestling.Plan:
        """Return the slice of a client."""

        def pick(axis: str, size: int, count: int) -> list[int]:
            return [(round.number * self.shift + unit * size // count) % size for unit in range(count)]

        return nestling.plan(round.setup.axes, who.level.ratio, pick)


def stripes(shift: int = 1) -> nestling.Method:
    """Return the method; all else (Scaler, masked loss, static norms) is HeteroFL's."""
    return replace(heterofl(), name="stripes", plan=Stripes(shift))


if __name__ == "__main__":
    result = nestling.run(find("heterofl-digits").with_settings(["rounds=5"]), method=stripes())
    print(f"{result.summary['final']['global_accuracy']:.1%} after five rounds")
