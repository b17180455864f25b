"""Questions to devices outside of training: each is asked alone, and answers when it can, or not at all."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from nestling.errors import DeviceError
from nestling.events import report
from nestling.flower.link import Answer, EncodedTensor, Packet, Request
from nestling.flower.node_messages import Message, read
from nestling.flower.nodes import Nodes, reason_of

_T = TypeVar("_T")
_Reply = TypeVar("_Reply", bound=Message)


def ask_clients(
    nodes: Nodes,
    clients: Sequence[int],
    question: Callable[[int, str], Packet],
    kind: type[_Reply],
    checked: Callable[[int, _Reply, Mapping[str, EncodedTensor]], _T],
    *,
    what: str,
) -> dict[int, _T]:
    """Ask clients; return the answers of those that are online and reply before the deadline, by client.

    Parameters
    ----------
    nodes, clients
        The devices, and those that are asked.
    question
        Returns the message to a client, with a ticket that its reply must have.
    kind, checked
        The kind of the reply, and what returns the answer in it; it raises `DeviceError` for one that does not fit.
    what
        What is asked for, for events, such as "statistics".
    """
    online = set(nodes.online())
    absent = [client for client in clients if client not in online]
    if absent:
        report("answer missing", f"{len(absent)} of {len(clients)} clients are not online, and give no {what}")
    waiting: dict[str, tuple[int, str]] = {}
    for client in clients:
        if client in online:
            ticket = secrets.token_hex(8)
            seconds, packet = 2 * nodes.rules.deadline, question(client, ticket)
            name = nodes.link.push(Request(nodes.node(client).id, "evaluate", 0, seconds, packet))
            if name is not None:
                waiting[name] = client, ticket
    end, window, turn = time.monotonic() + nodes.rules.deadline, nodes.rules.window, 0
    answers: dict[int, _T] = {}
    while waiting and time.monotonic() < end:
        names = list(waiting)
        start = turn % len(names)
        arrived, turn = nodes.link.pull(names[start : start + window]), turn + window
        for answer in arrived:
            client, ticket = waiting.pop(answer.request, (-1, ""))
            if client >= 0:  # else it came twice
                try:
                    reply, tensors = _reply(answer, kind, ticket)
                    answers[client] = checked(client, reply, tensors)
                except DeviceError as problem:
                    report("answer refused", f"the {what} of client {client} are left out: {reason_of(str(problem))}")
        if not arrived:
            time.sleep(nodes.rules.poll)
    for client, _ in waiting.values():
        report("answer missing", f"client {client} has given no {what} in {nodes.rules.deadline:g} s")
    return answers


def _reply(answer: Answer, kind: type[_Reply], ticket: str) -> tuple[_Reply, Mapping[str, EncodedTensor]]:
    """Return a reply and its tensors; raise `DeviceError` unless it is the reply to this question."""
    if answer.packet is None:
        raise DeviceError(answer.error)
    reply = read(answer.packet.header, kind)
    if reply.ticket != ticket:
        raise DeviceError("it is the reply to another request")
    return reply, answer.packet.tensors
