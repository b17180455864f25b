"""What `data.name=module:factory` names in tests: digits of eight clients, and a loss of one's own."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.experiment.own_families import dealt, digits


def read(client):
    """The digits of a client."""
    images, classes = digits()
    return images[client:400:8, None], classes[client:400:8]


def by_client():
    """Clients that a function reads."""
    images, classes = digits()
    return {"clients": read, "test": (images[1500:, None], classes[1500:]), "num_clients": 8, "classes": 10}


def undivided():
    """Samples that the settings divide."""
    images, classes = digits()
    return {"clients": (images[:400, None], classes[:400]), "test": (images[1500:, None], classes[1500:])}


def with_own_loss():
    """A loss of one's own, with a metric."""
    images, classes = digits()
    clients = dealt(8, images[:400, None], classes[:400])
    test = (images[1500:, None], classes[1500:])
    return {"clients": clients, "test": test, "loss": smooth, "metrics": {"hits": hits}, "classes": 10}


def smooth(model, batch):
    """Cross-entropy with smoothed labels."""
    images, classes = batch
    return F.cross_entropy(model(images), classes, label_smoothing=0.1)


def hits(model, batch):
    """The share of samples whose class has the highest logit."""
    images, classes = batch
    return (model(images).argmax(1) == classes).double().mean()


def net():
    """A perceptron for images (N, 1, 8, 8)."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


def wrong():
    """Not what a factory of data returns."""
    return [1, 2]


def misspelt():
    """A key that does not exist."""
    return undivided() | {"tests": None}


def adapted():
    """A perceptron for images (N, 1, 8, 8) whose weights are frozen, with adapters of peft."""
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415 - takes seconds to import

    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    return get_peft_model(net, LoraConfig(r=8, lora_alpha=16, target_modules=["1", "3"]))
