"""The sub-models that NeFL's authors chose for their models, as data (Kang et al. 2023, Tables 10 to 15).

A row gives γ_W, a ratio of *parameters* (channels shrink by its square root), and the blocks: a word per stage, 1 for a
block that is kept. D_O keeps the blocks of D and only begins with other step sizes (Table 12).

Departures
----------
- Tables print γ_W of WD with two digits; these are the authors' numbers in full. They are γ / γ_D, γ_D being the share
  with all channels, but for ResNet18's first, which is rounded.
- The third row of ResNet34's WD keeps one block less than its γ_W was made for, and has 56 % instead of 60 %.
- ResNet18's row of D for 0.4 is printed as ``10 00 10 10``, which contradicts Table 8: the five sub-models of D would
  have 6.75 M parameters and 95 M MACs on the average, and the table says 6.68 M and 102 M. Of all choices of blocks
  only ``11 11 00 10`` gives both (6.689 M and 102.4 M, cut and not rounded in print), so that is the row here.
- ResNet18's rows of D for 0.2 and 0.4 have 21 % and 39 % of the parameters; printed are 20 % and 38 %.
- The third row of Table 14 for D prints 17 numbers for the first stage of 18 blocks: a 1 is missing.
- How many blocks the first four rows of ResNet110's WD keep follows from γ / γ_W, as their digits run together in
  print; the last block of a stage is among them.
- ViT-B/16's WD is in neither version of the paper: these are the authors' numbers.

What cannot be read
-------------------
Only the preprint has these tables; the later version refers to an appendix that is not part of it.

- Table 14 for D and γ = 0.04, 0.16, 0.36, 0.64: of the blocks only the first row can be read, of γ_D 0.04, 0.16 and,
  for 0.64, 0.65. Rows of 5, 3, 3 and of 11, 11, 12 blocks have these shares, 0.163 and 0.650; the one between them, of
  6, 6, 7, has 0.369. They are our reading: other numbers of blocks have the same shares.
- Table 14 for WD and the same γ. The first row can be read; of the third (0.36) stage 3 is whole, eleven of its 18
  blocks, and the other stages are taken to be alike, as in every row of WD; the second reads six blocks in one stage
  and seven in another; the last breaks off after 14 blocks. Their γ_W is γ / γ_D. The second and the last, 0.16 and
  0.64, are built (`nefl_build`).
- Table 15 for stage 3 of Wide ResNet101_2: 9 and 14 of its 23 blocks are the only numbers that give the sizes, 0.51 as
  printed and 0.75, and are those of the authors' public code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_APART = 0.05  # how far the widths of a model's stages may be from the proportion of the paper's


class Row(NamedTuple):
    """One sub-model: γ_W, and the blocks kept of every stage (empty: all of them)."""

    width: float
    blocks: str = ""


class Table(NamedTuple):
    """The sub-models of one model: variant → γ → row.

    Rows are shares of blocks and widths, so they hold for the model at any width (`fits`). It is known by the blocks of
    its stages and by the parameters that these hold, step sizes aside: its head, positions and stem follow the data.

    Attributes
    ----------
    stages
        The number of blocks in every stage.
    weights, vectors
        The parameters of every stage in convolutions and linear maps, and in norms and biases.
    rows
        Variant → γ → row.
    """

    stages: tuple[int, ...]
    weights: tuple[int, ...]
    vectors: tuple[int, ...]
    rows: Mapping[str, Mapping[float, Row]]

    def fits(self, stages: tuple[int, ...], weights: tuple[int, ...], vectors: tuple[int, ...]) -> bool:
        """Return whether these are the stages of this model at some width.

        The same numbers of blocks, and one ratio of widths for all stages, within 5 %. The ratio follows from weights,
        which grow with its square, and from vectors, which grow with it: they agree in blocks of the same kind only.

        >>> TABLES["resnet18"].fits((2, 2, 2, 2), (9_216, 32_256, 129_024, 516_096), (128, 256, 512, 1_024))
        True
        """
        if stages != self.stages:
            return False
        ratios = [math.sqrt(own / full) for own, full in zip(weights, self.weights, strict=True)]
        ratios += [own / full for own, full in zip(vectors, self.vectors, strict=True)]
        return 0 < max(ratios) <= (1 + _APART) * min(ratios)


FIVE = (0.2, 0.4, 0.6, 0.8)
STEEP = (0.04, 0.16, 0.36, 0.64)
THREE = (0.5, 0.75)


def _width(gammas: Sequence[float]) -> dict[float, Row]:
    return {gamma: Row(gamma) for gamma in gammas}


def _depth(gammas: Sequence[float], *blocks: str) -> dict[float, Row]:
    return {gamma: Row(1.0, row) for gamma, row in zip(gammas, blocks, strict=True)}


def _both(gammas: Sequence[float], widths: Sequence[float], *blocks: str) -> dict[float, Row]:
    return {gamma: Row(width, row) for gamma, width, row in zip(gammas, widths, blocks, strict=True)}


def _even(*kept: str) -> list[str]:
    """Rows whose three stages are alike."""
    return [" ".join([row] * 3) for row in kept]


def _first(size: int, *kept: tuple[int, ...]) -> list[str]:
    """Rows that keep the first so many blocks of every stage of `size` blocks."""
    return [" ".join("1" * count + "0" * (size - count) for count in row) for row in kept]


TABLES: dict[str, Table] = {
    "resnet18": Table(
        (2, 2, 2, 2),
        (147_456, 516_096, 2_064_384, 8_257_536),
        (512, 1_024, 2_048, 4_096),
        {
            "W": _width(FIVE),
            "D": _depth(FIVE, "11 00 11 00", "11 11 00 10", "11 11 11 10", "10 11 00 11"),
            "WD": _both(FIVE, (0.34, 0.4, 0.6, 0.8), "11 11 11 10", "11 11 11 11", "11 11 11 11", "11 11 11 11"),
        },
    ),
    "resnet34": Table(
        (3, 4, 6, 3),
        (221_184, 1_105_920, 6_782_976, 12_976_128),
        (768, 2_048, 6_144, 6_144),
        {
            "W": _width(FIVE),
            "D": _depth(
                FIVE, "100 1000 100000 100", "111 1111 110001 100", "111 1111 110001 101", "111 1001 110001 111"
            ),
            "WD": _both(
                FIVE,
                (0.378296187, 0.625390289, 0.770943105, 0.899800797),
                *("111 1001 100001 101", "111 1001 111001 101", "111 1111 111101 101", "111 1111 111001 111"),
            ),
        },
    ),
    "resnet56": Table(
        (9, 9, 9),
        (41_472, 161_280, 645_120),
        (576, 1_152, 2_304),
        {
            "W": _width(FIVE),
            "D": _depth(FIVE, *_first(9, (2, 2, 2), (3, 3, 4), (4, 4, 6), (9, 8, 7))),
            "WD": _both(
                FIVE,
                (0.464938491, 0.607811604, 0.777135864, 0.902901024),
                *_first(9, (4, 4, 4), (6, 6, 6), (7, 7, 7), (8, 8, 8)),
            ),
        },
    ),
    "resnet110": Table(
        (18, 18, 18),
        (82_944, 327_168, 1_308_672),
        (1_152, 2_304, 4_608),
        {
            "W": _width(FIVE + STEEP),
            "D": _depth(
                FIVE + STEEP,
                *_first(18, (16, 4, 3), (14, 7, 7), (17, 13, 10), (16, 16, 14)),
                *_first(18, (1, 1, 1), (5, 3, 3), (6, 6, 7), (11, 11, 12)),
            ),
            "WD": _both(
                (*FIVE, 0.04, 0.36),
                (0.457252561, 0.603830987, 0.774235493, 0.901429773, 0.254, 0.5933),
                *_even("111111100000000001", "111111111110000001", "111111111111100001", "111111111111111001"),
                *_first(18, (3, 3, 3), (11, 11, 11)),
            ),
        },
    ),
    "wide-resnet101-2": Table(
        (3, 4, 23, 3),
        (614_400, 3_342_336, 78_118_912, 39_845_888),
        (3_072, 8_192, 94_208, 24_576),
        {"D": _depth(THREE, "111 1111 11111111100000000000000 110", "111 1111 11111111111111000000000 111")},
    ),
    "vit-b16": Table(
        (12,),
        (84_934_656,),
        (119_808,),
        {
            "W": _width(THREE),
            "D": _depth(THREE, "111111000000", "111111111000"),
            "WD": _both(THREE, (0.747389752, 0.898744459), "111111110000", "111111111100"),
        },
    ),
}
