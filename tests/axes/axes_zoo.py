"""All models of the zoo, by name."""

from axes_zoo_convnets import CONVNETS
from axes_zoo_layers import LAYERS
from axes_zoo_odd import ODD
from axes_zoo_sequences import SEQUENCES
from axes_zoo_transformers import TRANSFORMERS

ZOO = LAYERS | SEQUENCES | CONVNETS | TRANSFORMERS | ODD
