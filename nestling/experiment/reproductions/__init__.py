"""Reproductions: tables and figures of the papers by name, with the presets of their rows and the papers' figures.

One TOML file per paper holds its tables (``heterofl.toml``); a second one holds the hyper-parameters that the paper
prints, each with its source (``heterofl-settings.toml``).
"""

from nestling.experiment.reproductions.definitions import SCALES, Column, Reproduction, Row, find, reproductions

__all__ = ["SCALES", "Column", "Reproduction", "Row", "find", "reproductions"]
