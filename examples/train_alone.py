"""An ordinary training script; train_federated.py is the same, federated."""

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
for _ in range(20):
    for batch in torch.randperm(1400).split(16):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
print(f"{(model(x[1400:]).argmax(1) == y[1400:]).float().mean():.1%}")
