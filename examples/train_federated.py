"""A training script on ten devices of three sizes; train_alone.py is the same in one place."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import nestling

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
clients = [(x[k:1400:10], y[k:1400:10]) for k in range(10)]
result = nestling.federate(model, clients, test=(x[1400:], y[1400:]), rounds=20, lr=0.003)
for model in (result.model, result.submodel("b"), result.submodel("c")):
    print(f"{(model(x[1400:]).argmax(1) == y[1400:]).float().mean():.1%}")
