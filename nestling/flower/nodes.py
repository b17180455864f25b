"""`Nodes`: which devices are there, which client each one is, and what it can carry."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, get_args

from nestling.errors import ConfigError, DeviceError, FleetError, RunFailed, first_line, nearest
from nestling.events import report
from nestling.fleet import Device, Level, level_for, parse_level
from nestling.fleet.fit import Costs
from nestling.flower.link import Answer, Link, Packet, Request
from nestling.flower.node_messages import Capacity, Question, read, write
from nestling.flower.node_worker import model_digest
from nestling.methods.context import Setup
from nestling.number_checks import real, whole

MergeOrder = Literal["jobs", "arrival"]
_ANSWER = 600.0  # seconds in which a node must say who it is
_PATIENCE = 30.0  # seconds for which a round waits for more nodes than it needs, if they have just come
_REFUSED = 30.0  # seconds after which a node that was refused is asked again
_UNLIMITED = 1e15  # bytes or MACs per second: a figure that nobody measured does not limit a level


@dataclass(frozen=True)
class RoundRules:
    """How a server deals with devices that are slow, fail or send what it did not ask for.

    Attributes
    ----------
    deadline
        Seconds after which a round no longer waits for replies.
    min_nodes, wait
        The clients that must be online before a round begins, and the seconds that the server waits for them.
    min_replies, min_coverage
        The updates that a round needs, and the share of the units of every axis that these must have trained. A round
        that gets less is thrown away and tried again.
    tries
        How often a round is tried before the run ends.
    rest
        The rounds for which a client that failed is left alone.
    merge_order
        ``"jobs"`` merges in the order of the jobs, which gives the same bytes every time: early replies wait at the
        SuperLink. ``"arrival"`` merges as replies come.
    window
        With ``"jobs"``, how many early replies the server holds; with ``"arrival"``, how many it fetches at a time.
    norm_bound
        How many times the median change of its round an update may be; 0 for any. Below five replies it is off.
    poll
        Seconds between two looks for replies.
    fit_deadline
        Whether a level must also be small enough for the deadline, by the measured speed of the device.
    """

    deadline: float = 3600.0
    min_nodes: int = 1
    wait: float = 600.0
    min_replies: int = 1
    min_coverage: float = 0.0
    tries: int = 3
    rest: int = 2
    merge_order: MergeOrder = "jobs"
    window: int = 8
    norm_bound: float = 5.0
    poll: float = 0.5
    fit_deadline: bool = False

    def __post_init__(self) -> None:
        if self.merge_order not in get_args(MergeOrder):
            raise ConfigError(
                f"there is no merge order {self.merge_order!r}{nearest(self.merge_order, get_args(MergeOrder))}"
            )
        for name in ("min_nodes", "min_replies", "tries", "window"):
            whole(name.replace("_", "-"), getattr(self, name), 1)
        whole("rest", self.rest, 0)
        for name in ("deadline", "poll"):
            real(name, getattr(self, name), above=0)
        for name in ("wait", "norm_bound"):
            real(name.replace("_", "-"), getattr(self, name), least=0)
        real("min-coverage", self.min_coverage, least=0, most=1)


@dataclass(eq=False)
class Node:
    """A device that is one of the clients."""

    id: int
    client: int
    capacity: Capacity
    resting: int = 0  # the last round in which it is left alone
    kept: list[int] = field(default_factory=list)  # the last rounds of which it kept something, as far as known

    @property
    def device(self) -> Device:
        """The device as `level_for` sees it."""
        speed = self.capacity.speed or _UNLIMITED
        memory = max(self.capacity.memory, 1.0)
        return Device(f"client {self.client}", memory, speed, _UNLIMITED, _UNLIMITED)


@dataclass(eq=False)
class Nodes:
    """The devices of a run.

    Parameters
    ----------
    link
        The connection to them.
    setup
        The experiment.
    rules
        How long the server waits, and for how many.
    """

    link: Link
    setup: Setup
    rules: RoundRules
    _by_client: dict[int, Node] = field(default_factory=dict, init=False)
    _asked: dict[str, tuple[int, str, float]] = field(
        default_factory=dict, init=False
    )  # request → node, ticket, until when
    _refused: dict[int, float] = field(default_factory=dict, init=False)  # node → when it is asked again

    def node(self, client: int) -> Node:
        """Return the device of a client that is, or was, online."""
        return self._by_client[client]

    def known(self) -> list[int]:
        """Return all clients that were seen, in order."""
        return sorted(self._by_client)

    def online(self) -> list[int]:
        """Return the clients that were seen and are online now, in order."""
        ids = set(self.link.nodes())
        return sorted(client for client, node in self._by_client.items() if node.id in ids)

    def wait(self, round: int) -> list[int]:
        """Return the clients that are online and not resting, in order; wait until there are enough of them."""
        start, least = time.monotonic(), max(self.rules.min_nodes, self.rules.min_replies)
        while True:
            online = self._online()
            able = [client for client in online if self._by_client[client].resting < round]
            if len(able) < least <= len(online):  # better a client that failed than no round
                able = online
            waited = time.monotonic() - start
            if len(able) >= least and (not self._asked or waited > min(_PATIENCE, self.rules.wait)):
                return able
            if waited > self.rules.wait:
                raise RunFailed(
                    f"only {len(able)} of the {least} devices that a round needs are online after "
                    f"{self.rules.wait:g} s: start more, or set a lower min-nodes"
                )
            time.sleep(self.rules.poll)

    def rest(self, client: int, round: int) -> None:
        """Leave a client alone for some rounds."""
        self._by_client[client].resting = round + self.rules.rest

    def level(self, client: int, assigned: Level, costs: Mapping[Level, Costs], steps: int) -> Level | None:
        """Return the level of a client: the assigned one or, if its device cannot carry that, the largest it can.

        Parameters
        ----------
        client, assigned
            The client, and the level that the experiment assigns to it.
        costs
            The costs of all levels.
        steps
            Its training steps in a round.
        """
        node = self._by_client[client]
        most = min(assigned.ratio, parse_level(node.capacity.level).ratio if node.capacity.level else 1.0)
        allowed = {level: cost for level, cost in costs.items() if level.ratio <= most}
        deadline = self.rules.deadline if self.rules.fit_deadline else None
        try:
            if not allowed:
                raise FleetError(f"it takes levels up to {node.capacity.level!r}, and there is none so small")
            return level_for(node.device, allowed, deadline, steps)
        except FleetError as problem:
            report("client too small", f"client {client} is left out: {problem}")
            return None

    def _online(self) -> list[int]:
        """Ask new nodes who they are, hear those that answer, and return the clients that are online."""
        ids, now = sorted(self.link.nodes()), time.monotonic()
        known = {node.id for node in self._by_client.values()} | {number for number, _, _ in self._asked.values()}
        for number in ids:
            if number not in known and self._refused.get(number, 0.0) <= now:
                ticket = secrets.token_hex(8)
                question = Question(ticket=ticket, measure=self.rules.fit_deadline)
                name = self.link.push(Request(number, "query", 0, _ANSWER, Packet(write(question))))
                if name is not None:
                    self._asked[name] = number, ticket, now + _ANSWER
        answers = {answer.request: answer for answer in self.link.pull(list(self._asked))}
        for name, (number, ticket, end) in sorted(self._asked.items(), key=lambda item: item[1][0]):
            if name in answers:
                self._hear(number, ticket, answers[name], ids)
            elif now > end or number not in ids:
                report("node silent", f"the node {number} did not say who it is", logging.INFO)
            else:
                continue
            del self._asked[name]
        return sorted(client for client, node in self._by_client.items() if node.id in ids)

    def _hear(self, number: int, ticket: str, answer: Answer, online: Sequence[int]) -> None:
        """Take up a node that has introduced itself, or refuse it for a while."""
        try:
            capacity = self._checked(ticket, answer)
            client = self._number_of(capacity, online)
        except DeviceError as problem:
            self._refused[number] = time.monotonic() + _REFUSED
            report("node refused", f"the node {number} is refused: {problem}")
            return
        before = self._by_client.get(client)
        self._by_client[client] = Node(number, client, capacity, kept=before.kept if before else [])
        report("node online", f"the node {number} is client {client}: {capacity.samples} samples", logging.INFO)

    def _checked(self, ticket: str, answer: Answer) -> Capacity:
        if answer.packet is None:
            raise DeviceError(f"it failed: {reason_of(answer.error)}")
        capacity = read(answer.packet.header, Capacity)
        if capacity.ticket != ticket:
            raise DeviceError("it answered another question")
        if capacity.model != model_digest(self.setup):
            raise DeviceError(
                "its model, method or settings are not those of the server: start it with the same app and settings"
            )
        classes = self.setup.task.classes
        if self.setup.select_rows and not all(a < b for a, b in pairwise([-1, *capacity.held, classes])):
            raise DeviceError("the classes that it holds must rise, below the number of classes")
        if capacity.level:
            try:
                parse_level(capacity.level)
            except FleetError as problem:
                raise DeviceError(str(problem)) from None
        return capacity

    def _number_of(self, capacity: Capacity, online: Sequence[int]) -> int:
        """Return the number of a client: its own or, if it has none, the first that nobody has."""
        numbers = range(self.setup.clients)
        client = capacity.client
        if client is None:
            client = next((number for number in numbers if number not in self._by_client), None)
        if client is None or client not in numbers:
            raise DeviceError(f"fleet.clients is {self.setup.clients}, and this node is one more: set a higher number")
        before = self._by_client.get(client)
        if before is not None and before.id in online:
            raise DeviceError(f"it says that it is client {client}, which the node {before.id} is: number them apart")
        return client


def reason_of(problem: BaseException | str) -> str:
    """Return why something failed, on one line of at most 300 characters."""
    text = problem if isinstance(problem, str) else first_line(problem)
    return " ".join(text.split())[:300]
