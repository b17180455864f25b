"""A child of the guard: training steps of every net, narrow down to one channel, compared with double precision.

Run with malloc checking, which ends the process where a kernel wrote outside of its memory. Without arguments all nets
are trained; otherwise those that are named.
"""

import sys
import time
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

import nestling
from nestling.client.grouped.trial import can_group
from nestling.client.submodels import build as build_submodel
from nestling.client.train import train
from nestling.data import Dataset, Partition
from nestling.experiment.simulation import Overrides, simulate
from nestling.methods.context import ClientContext
from nestling.methods.messages import GroupJob
from nestling.nets import MODELS, build
from nestling.seeds import torch_stream
from nestling.server.state import ServerState
from nestling.settings import Data, Experiment, FleetSettings, LocalTraining, Model
from tests.harness import client_of, train_job, worker_of

LEVELS = {"a": 1.0, "b": 0.5, "c": 0.25, "d": 0.125, "e": 0.0625}
GROUPS = (1, 2, 5)
HELD = (22, 20, 20, 20, 20)  # samples of the clients, in batches of 20: a group narrows to one client
LOCAL = LocalTraining(lr=0.02, batch_size=20, epochs=1, momentum=0.9, weight_decay=1e-3)

WIDTHS = {4: (16, 12, 8, 6), 3: (16, 8, 6)}
SHALLOW = {"depths": (1, 1, 1, 1), "widths": WIDTHS[4]}
OPTIONS = {
    "mlp": {"widths": (16, 9)},
    "cnn": {"widths": WIDTHS[4]},
    "cnn1d": {"widths": WIDTHS[4]},
    "preresnet18": SHALLOW,
    "preresnet18-paper": {"widths": WIDTHS[4]},
    "resnet8": SHALLOW,
    "resnet18": SHALLOW,
    "resnet34": SHALLOW,
    "resnet18-exits": SHALLOW,
    "resnet34-exits": SHALLOW,
    "resnet56": {"depths": (1, 1, 1), "widths": WIDTHS[3]},
    "resnet110": {"depths": (2, 1, 1), "widths": WIDTHS[3]},
    "wide-resnet101-2": {**SHALLOW, "stem_width": 16},
    "vgg16": {"widths": ((16, 8), (6, 6))},
    "vit-tiny": {"width": 12, "head_width": 4, "hidden": 10, "depth": 1},
    "vit-b16": {"width": 12, "heads": 2, "head_width": 4, "hidden": 10, "depth": 1, "patch": 8},
    "lstm": {"embedding": 5, "widths": (6, 5), "vocabulary": 12},
    "transformer-mlm": {"width": 8, "heads": 2, "head_width": 3, "hidden": 12, "vocabulary": 20, "depth": 1},
    "transformer-nwp": {"width": 8, "heads": 2, "head_width": 3, "hidden": 12, "vocabulary": 20, "depth": 1},
}
SHAPES = {
    "mlp": (1, 8, 8),
    "cnn": (1, 16, 16),
    "cnn1d": (9, 32),
    "resnet8": (1, 16, 16),
    "wide-resnet101-2": (3, 32, 32),
}


class Steps(nn.Module):
    """What somebody may bring along: every unsafe call by a layer, by one's own layer, and by a function.

    5×5 convolutions stand between them, which make activations and gradients channels last again.
    """

    def __init__(self, width=6):
        super().__init__()
        self.mixed = nn.ModuleList([nn.Conv2d(width if k else 3, width, 5, padding=2) for k in range(5)])
        self.points = nn.Parameter(torch.randn(width, width, 1, 1) / width)
        self.norm = nn.InstanceNorm2d(width, affine=True)
        self.own = Doubled(width, width, 1, stride=2)
        self.up = nn.ConvTranspose2d(width, width, 1, stride=2, output_padding=1)
        self.padded = nn.Conv2d(width, width, 3, padding=5)
        self.last = nn.Linear(width, 10)

    def forward(self, images):
        hidden = F.conv2d(F.relu(self.mixed[0](images)), self.points, stride=2)
        hidden = self.norm(F.relu(self.mixed[1](hidden)))
        hidden = self.own(F.relu(self.mixed[2](hidden)))
        hidden = self.up(F.relu(self.mixed[3](hidden)))
        return self.last(self.padded(F.relu(self.mixed[4](hidden))).mean((2, 3)))


class Plain(nn.Module):
    """Instance norms, strided points and one channel, of layers that can be trained in groups."""

    def __init__(self, width=6):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, width, 1, stride=2), nn.InstanceNorm2d(width, affine=True), nn.ReLU()),
            *(nn.Conv2d(width, width, 5), nn.ReLU(), nn.Conv2d(width, width, 1, stride=2), nn.InstanceNorm2d(width)),
            nn.Conv2d(width, width, 3, padding=4),
        )
        self.last = nn.Linear(width, 10)

    def forward(self, images):
        return self.last(self.layers(images).mean((2, 3)))


class Large(nn.Module):
    """Strided points of large images, with which kernels for AVX-512 are at fault."""

    def __init__(self, width=12):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, width, 5, padding=2), nn.ReLU(), nn.Conv2d(width, width, 1, stride=2))
        self.last = nn.Linear(width, 10)

    def forward(self, images):
        return self.last(self.layers(images).mean((2, 3)))


class Doubled(nn.Conv2d):
    """Somebody's own layer."""

    def forward(self, images):
        return 2 * super().forward(images)


class Sequence(nn.Module):
    """Strided points of sequences, of one channel at first."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv1d(1, 6, 1, stride=2), nn.ReLU(), nn.Conv1d(6, 4, 1, stride=2), nn.ReLU()),
            *(nn.ConvTranspose1d(4, 3, 1, stride=2), nn.ReLU(), nn.Conv1d(3, 6, 3)),
        )
        self.last = nn.Linear(6, 10)

    def forward(self, samples):
        return self.last(self.layers(samples).mean(2))


OWN = {
    "own steps": (Steps, (3, 16, 16)),
    "own layers": (Plain, (1, 16, 16)),
    "own large images": (Large, (1, 56, 56)),
    "own sequence": (Sequence, (1, 32)),
}


def data_of(shape):
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(sum(HELD), *shape, generator=random)
    targets = torch.randint(10, (len(inputs),), generator=random)
    return Dataset("noise", inputs, targets, inputs[:2], targets[:2], 10)


def simulation_of(name):
    own = OWN.get(name)
    shape = own[1] if own else SHAPES.get(name, (3, 16, 16))
    torch.manual_seed(0)
    sizes = (*HELD[:3], 1, HELD[4]) if own else HELD  # a single sample, which batch norms refuse
    held = list(torch.arange(sum(sizes)).split(sizes))
    every = Partition(held, [torch.arange(2)] * len(HELD), [torch.arange(10)] * len(HELD))
    experiment = Experiment(
        method="depthfl" if name.endswith("exits") else "fedavg",
        model=Model() if own else Model(name=name, options=OPTIONS[name]),
        fleet=FleetSettings(clients=len(HELD), per_round=len(HELD)),
        local=LOCAL,
    )
    return simulate(Overrides(experiment, own[0]() if own else None, data_of(shape), every))


def reference(simulation, plan, state, client):
    """A client's weights after training in double precision, by plain PyTorch."""
    setup = replace(simulation.setup, task=replace(simulation.setup.task, accelerate=False), accelerate=False)
    model = nestling.submodel(setup.model, setup.axes, plan).double()
    model.load_state_dict(state)
    held = simulation.partition.train[client]
    inputs, targets = simulation.dataset.inputs.double(), simulation.dataset.targets
    shuffle = torch_stream(0, "batches", 1, client)
    train(
        ClientContext(setup, model, plan),
        held,
        lambda chosen: (inputs[chosen], targets[chosen]),
        lr=LOCAL.lr,
        generator=shuffle,
    )
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def close(actual, wanted, start, what):
    """End the process where weights moved elsewhere than they should: by a hundredth of the way, or by rounding."""
    for name, tensor in wanted.items():
        if "running" not in name and "tracked" not in name:
            off = (actual[name].double() - tensor).abs().max().item()
            way = (tensor - start[name].double()).abs().max().item()
            if not off <= 0.01 * way + 1e-5 * (1 + tensor.abs().max().item()):
                raise SystemExit(f"{what}: {name} is off by {off}, where it should move by {way}")


def train_images(name):
    simulation = simulation_of(name)
    setup, dataset = simulation.setup, simulation.dataset
    worker, server = worker_of(simulation), ServerState.start(setup)
    together = not setup.method.overriding("loss")
    narrow = nestling.plan(setup.axes, LEVELS["c"], key="c")
    model, samples = build_submodel(setup, narrow, LEVELS["c"]), (dataset.inputs[:5], dataset.targets[:5])
    layout = can_group(model, *samples).layout if together else None
    for level, ratio in LEVELS.items():
        plan = nestling.plan(setup.axes, ratio, key=level)
        state = server.download(setup, plan)
        jobs = [train_job(simulation, client, ratio, plan, state, lr=LOCAL.lr) for client in range(len(HELD))]
        wanted = [reference(simulation, plan, state, client) for client in range(len(HELD))]
        for client in (0, 3):
            close(worker(jobs[client]).state, wanted[client], state, f"{name}, level {level}, client {client} alone")
        for size in GROUPS if layout else ():
            updates = worker._train_together(GroupJob(tuple(jobs[:size]), layout), layout)
            shares = [setup.weight(one.job.who) for one in jobs[:size]]
            mean = {
                key: sum(share * one[key] for share, one in zip(shares, wanted, strict=False)) / sum(shares)
                for key in wanted[0]
            }
            close(updates[0].state, mean, state, f"{name}, level {level}, group of {size}")
    return layout


def train_words(name):
    torch.manual_seed(0)
    net = build(name, **OPTIONS[name])
    ids = torch.randint(12, (20, 6))
    axes = nestling.trace(net, ids[:2])
    for ratio in LEVELS.values():
        model = nestling.submodel(net, axes, nestling.plan(axes, ratio)).train()
        train(
            client_of(model, axes, ratio=ratio, training=LOCAL),
            torch.arange(20),
            lambda chosen: (ids[chosen], ids[chosen]),
            lr=LOCAL.lr,
            generator=torch.Generator().manual_seed(0),
        )


def train_morph():
    """A morph of FedMorph, whose server trains a plain model."""
    data = data_of((1, 16, 16))
    experiment = Experiment(
        method="fedmorph",
        options={"every": 1, "epochs": 1, "batch": 20},
        rounds=2,
        model=Model(name="resnet8", options=OPTIONS["resnet8"]),
        fleet=FleetSettings(clients=2, per_round=2, levels="a"),
        data=Data(public_share=0.4),
        local=LOCAL,
    )
    nestling.run(experiment, dataset=data)


def main(names):
    torch.set_num_threads(1)
    for name in names or [*MODELS, *OWN, "a morph"]:
        began = time.process_time()
        if name == "a morph":
            layout = train_morph()
        else:
            layout = train_words(name) if name in MODELS and MODELS[name].tokens else train_images(name)
        print(f"{name}: clean, groups by {layout}, {time.process_time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
