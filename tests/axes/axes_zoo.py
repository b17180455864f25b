"""All models of the zoo, by name."""

from tests.axes.axes_zoo_convnets import CONVNETS
from tests.axes.axes_zoo_layers import LAYERS
from tests.axes.axes_zoo_odd import ODD
from tests.axes.axes_zoo_sequences import SEQUENCES
from tests.axes.axes_zoo_transformers import TRANSFORMERS

ZOO = LAYERS | SEQUENCES | CONVNETS | TRANSFORMERS | ODD
