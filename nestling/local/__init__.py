"""What a client does with its slice: the one training loop, its losses, norms and learning rates."""

from nestling.local.config import Local
from nestling.local.learner import Learner
from nestling.local.losses import Loss, cross_entropy
from nestling.local.schedule import learning_rate
from nestling.local.train import train
from nestling.local.words import Words

__all__ = ["Learner", "Local", "Loss", "Words", "cross_entropy", "learning_rate", "train"]
