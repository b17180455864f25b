"""Everything that is used of Flower is where it was, and the core does without it."""

import subprocess
import sys

import pytest

from tests.flower.federation import PROGRAMS, ROOT, needs_flower
from tests.processes import call

MODULES = ("nestling.flower.flower_api", "nestling.flower.strategy", "nestling.experiment.flower_apps")
PROGRAM = f"""
import importlib
for name in {MODULES}:
    importlib.import_module(name)
from nestling.flower.flower_api import *
from nestling.flower.flower_api import Array, MessageType, GridLink
from nestling.flower.strategy import NestlingStrategy
import inspect, torch
for method in ("get_node_ids", "push_messages", "pull_messages"):
    assert hasattr(Grid, method), f"Flower's Grid has no {{method}} any more: see GridLink"
assert issubclass(NestlingStrategy, Strategy)
missing = Strategy.__abstractmethods__ - set(vars(NestlingStrategy))
assert not missing, f"Flower's Strategy asks for {{missing}} now: see NestlingStrategy"
from nestling.flower.array_codec import decode_tensor, encode_tensor
from nestling.flower.link import Packet
x = torch.arange(6.0).view(2, 3).to(torch.bfloat16)
large = torch.arange(2.0**16)
packet = packet_in(content_of(Packet("text", {{"large": encode_tensor(large), "x": encode_tensor(x)}}, b"blob")))
assert torch.equal(decode_tensor(packet.tensors["large"], large), large)
assert torch.equal(decode_tensor(packet.tensors["x"], x), x) and (packet.header, packet.blob) == ("text", b"blob")
y = array_record({{"y": encode_tensor(torch.ones(3))}})["y"].numpy()
assert y.shape == (3,) and y.sum() == 3
from flwr.supercore.task_identity import TaskIdentity
from nestling.flower.link import Request
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
class Sent:
    messages = []
    def push_messages(self, messages):
        self.messages += messages
        return ["id"]
    def pull_messages(self, names):
        return []
link = GridLink(Sent())
one, equal, other = ({{"large": encode_tensor(value), "x": encode_tensor(x)}} for value in (large, large, large + 1))
for number, tensors in enumerate((one, equal, other, {{}}, one)):
    link.push(Request(1, "train", 1, 9.0, Packet(str(number), tensors)))
link.pull(["id"])
link.push(Request(1, "train", 1, 9.0, Packet("5", one)))
packets = [packet_in(message.content) for message in Sent.messages]
assert [packet.header for packet in packets] == list("012345")
assert [packet.tensors for packet in packets] == [one, one, other, {{}}, one, one]
records = [message.content["nestling.tensors"] for message in Sent.messages]
assert records[0] is records[1] and len({{id(record) for record in records}}) == 5  # hashed once for equal tensors
print("all there")
"""


@pytest.mark.slow
@needs_flower
def test_what_is_used_of_flower_is_there(tmp_path):
    environment = {
        "PYTHONPATH": str(ROOT),
        "FLWR_HOME": str(tmp_path),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": "/usr/bin",
    }
    done = call([PROGRAMS / "python", "-c", PROGRAM], env=environment)
    assert done.stdout.strip().endswith("all there"), (
        "the installed Flower is not the one that nestling/flower/flower_api.py was written for: " + done.stderr
    )


def test_one_module_imports_flower():
    package = ROOT / "nestling"
    importing = {
        path.name
        for path in package.rglob("*.py")
        if any(line.strip().startswith(("from flwr", "import flwr")) for line in path.read_text().splitlines())
    }
    assert importing == {"flower_api.py"}


@pytest.mark.slow
def test_the_core_imports_neither_flower_nor_ray():
    program = (
        "import sys, nestling, nestling.experiment.device_run, nestling.cli.app; nestling.run; nestling.federate; "
        "print([name for name in ('flwr', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
