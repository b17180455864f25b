"""Models and data of one's own, small: what a user would bring, as it comes."""

import os
import random
import re
import zipfile
from collections import Counter
from itertools import chain
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes, load_digits
from torch import nn

from nestling.data import load

DATA = Path(os.environ.get("NESTLING_DATA") or "data")  # the folder of real data sets, if there is one
HAR, PLAYS = DATA / "uci_har_inertial.npz", DATA / "shakespeare.zip"
LETTERS = " abcdefghijklmnopqrstuvwxyz'.,;:!?-\n"
PADDING, MASK, TOKENS = 0, 1, 2 + len(LETTERS)


def digits():
    """Images (N, 8, 8) from 0 to 1 and their classes, shuffled."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(data.images, dtype=torch.float32)[order] / 16, torch.tensor(data.target)[order]


def dealt(count, *tensors):
    """Samples dealt to so many clients."""
    return [tuple(tensor[client::count] for tensor in tensors) for client in range(count)]


def by_person(step):
    """UCI HAR: every step-th window (N, 128, 9) and activity of 21 people, and those of 9 others for tests."""
    data = load("har", str(DATA))
    people = [(data.inputs[data.users == user], data.targets[data.users == user]) for user in data.users.unique()]
    people = [(windows[::step].transpose(1, 2), activity[::step]) for windows, activity in people]
    return people, (data.test_inputs[::6].transpose(1, 2), data.test_targets[::6])


class Reader(nn.Module):
    """An LSTM over a sequence (N, length, features), and a class from its last state."""

    def __init__(self, features, classes, width=32):
        super().__init__()
        self.rows = nn.LSTM(features, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, sequences):
        return self.head(self.rows(sequences)[1][0][-1])


def waves():
    """A 1-D convolutional net for windows (N, length, 9)."""
    layers = [nn.Conv1d(9, 32, 5, stride=2), nn.BatchNorm1d(32), nn.ReLU()]
    layers += [nn.Conv1d(32, 32, 5, stride=2), nn.BatchNorm1d(32), nn.ReLU()]
    return nn.Sequential(Swap(), *layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 6))


class Swap(nn.Module):
    def forward(self, windows):
        return windows.transpose(1, 2)


class UNet(nn.Module):
    """Two scales with skip connections: images (N, 1, H, W) → logits (N, classes, H, W)."""

    def __init__(self, classes, width=16):
        super().__init__()
        self.first, self.second = self.block(1, width), self.block(width, 2 * width)
        self.bottom = self.block(2 * width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, 2 * width, 2, stride=2)
        self.last_up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.back, self.last = self.block(4 * width, 2 * width), self.block(2 * width, width)
        self.out = nn.Conv2d(width, classes, 1)

    def block(self, before, after):
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())

    def forward(self, images):
        fine = self.first(images)
        coarse = self.second(F.max_pool2d(fine, 2))
        up = self.up(self.bottom(F.max_pool2d(coarse, 2)))
        up = self.last_up(self.back(torch.cat([up, coarse], 1)))
        return self.out(self.last(torch.cat([up, fine], 1)))


def inked_digits():
    """Images (N, 1, 8, 8) and for every pixel 0 for paper, 1 for the ink of a digit below 5, 2 for that of others."""
    images, classes = digits()
    return images[:, None], (images > 0.4).long() * (1 + (classes >= 5).long())[:, None, None]


def diabetes():
    """Ten measurements of patients and the progress of their disease a year later, both on the scale of 1."""
    data = load_diabetes()
    progress = (data.target - data.target.mean()) / data.target.std()
    return torch.tensor(data.data, dtype=torch.float32) * 20, torch.tensor(progress, dtype=torch.float32)[:, None]


def ids_of(text, length):
    """Token ids of a text, one for each letter, padded or cut to a length."""
    ids = [2 + LETTERS.index(letter) for letter in text.lower() if letter in LETTERS][:length]
    return ids + [PADDING] * (length - len(ids))


def play(name):
    """The text of a play; where this machine has none, sentences of its own two authors' words."""
    if PLAYS.exists():
        with zipfile.ZipFile(PLAYS) as file:
            return file.read(f"shakespeare/plays/{name}_gut.txt").decode("utf-8", "ignore")
    draw = random.Random(name)
    words = ["".join(draw.choices(LETTERS[1:27], k=draw.randint(2, 6))) for _ in range(40)]
    return "\n".join(" ".join(draw.choices(words, k=8)) for _ in range(3000))


def letters_of(name, length, count):
    """So many passages of a play, (N, length): a token for each letter."""
    text = play(name)[3000:]
    return torch.tensor([ids_of(text[k * length : (k + 2) * length], length) for k in range(count)])


def lines_of(names, length, count, vocabulary=1500):
    """As many lines of every play, shuffled: (N, length) words by how often they occur, and which play each is from."""
    texts = [re.findall(r"[a-z']+", play(name)[3000:].lower())[: count * length] for name in names]
    ranked = [word for word, _ in Counter(chain(*texts)).most_common(vocabulary - 2)]
    number = {word: 2 + rank for rank, word in enumerate(ranked)}
    rows = [[number.get(word, MASK) for word in words] for words in texts]
    lines = torch.tensor(rows)[:, : len(rows[0]) // length * length].view(-1, length)
    labels = torch.arange(len(names)).repeat_interleave(len(lines) // len(names))
    order = torch.randperm(len(lines), generator=torch.Generator().manual_seed(0))
    return lines[order], labels[order]


def topics(count, length=12):
    """Rows of tokens (N, length): most of a row are the same one, which is its topic, the others are anything."""
    random_numbers = torch.Generator().manual_seed(0)
    anything = torch.randint(2, TOKENS, (count, length), generator=random_numbers)
    topic = torch.randint(2, 10, (count, 1), generator=random_numbers).expand(count, length)
    return torch.where(torch.rand(count, length, generator=random_numbers) < 0.8, topic, anything)
