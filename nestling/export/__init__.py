"""Files of trained sub-models for devices: written, read again, and compared with the model before they are kept."""

from nestling.export.file_formats import FORMATS, Format, format_of
from nestling.export.model_card import model_card
from nestling.export.training_step import TrainingStep
from nestling.export.verified import MAX_DIFFERENCE, SAMPLES, write_verified

__all__ = [
    "FORMATS",
    "MAX_DIFFERENCE",
    "SAMPLES",
    "Format",
    "TrainingStep",
    "format_of",
    "model_card",
    "write_verified",
]
