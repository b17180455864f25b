"""A method of one's own, whole: devices train channels spread evenly over every layer, shifted on each round.

nestling run heterofl-digits method=stripes:stripes options.shift=3      # in this folder
python stripes.py
"""

from dataclasses import replace
from functools import partial

import nestling
from nestling.experiment import find
from nestling.methods.heterofl import heterofl


def spread(turn: nestling.Turn, shift: int) -> nestling.Plan:
    """Every axis keeps `count` of its units at equal distances, the first of them `shift` further each round."""

    def pick(axis: str, size: int, count: int) -> list[int]:
        return [(turn.round * shift + unit * size // count) % size for unit in range(count)]

    return nestling.plan(turn.axes, turn.ratio, pick)


def stripes(shift: int = 1) -> nestling.Method:
    """Everything else (Scaler, masked loss, static norms) is HeteroFL's."""
    return replace(heterofl(), name="stripes", plan=partial(spread, shift=shift))


if __name__ == "__main__":
    result = nestling.run(find("heterofl-digits").with_settings(["rounds=5"]), method=stripes())
    print(f"{result.summary['final']['global_accuracy']:.1%} after five rounds")
