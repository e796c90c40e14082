"""The messages between trainers and servers, by endpoint and variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from pstranspile.compiler.explain.place import Place, ops_of
from pstranspile.ir.model import MAIN, Op, Program
from pstranspile.ops.attributes import strings_attr

Key = tuple[str, str]
"""Endpoint and variable."""

BARRIERS = ("send_barrier", "fetch_barrier")


@dataclass
class Messages:
    """Every message: (endpoint, variable) -> the ops of trainers that send it, fetch it, or look rows of it up.

    `barriers`: endpoint -> the barriers that reach it. `serving`: endpoint -> its listen_and_serv. `about`:
    (machine, parameter) -> the sends that name it first in their role variables.
    """

    sent: dict[Key, list[Place]] = field(default_factory=dict[Key, list[Place]])
    fetched: dict[Key, list[Place]] = field(default_factory=dict[Key, list[Place]])
    looked_up: dict[Key, list[Place]] = field(default_factory=dict[Key, list[Place]])
    barriers: dict[str, list[Place]] = field(default_factory=dict[str, list[Place]])
    serving: dict[str, Place] = field(default_factory=dict[str, Place])
    about: dict[Key, list[Place]] = field(default_factory=dict[Key, list[Place]])


def sent_by(op: Op) -> list[Key]:
    """What a send gives to which endpoint; a single value goes to all that it names."""
    return _paired(strings_attr(op, "epmap"), strings_attr(op, "send_varnames") or op.inputs.get("X", ()))


def fetched_by(op: Op) -> list[Key]:
    """What a recv takes from which endpoint."""
    return _paired(strings_attr(op, "epmap"), strings_attr(op, "recv_varnames") or op.outputs.get("Out", ()))


def looked_up_by(op: Op) -> list[Key]:
    """The slices, or for `prefetch` the ids, that a lookup names to which endpoint."""
    if op.type == "prefetch":
        return _paired(strings_attr(op, "epmap"), op.inputs["X"])
    return _paired(strings_attr(op, "endpoints") or strings_attr(op, "epmap"), strings_attr(op, "table_names"))


def _paired(endpoints: Sequence[str], names: Sequence[str]) -> list[Key]:
    if len(names) == 1:
        return [(endpoint, names[0]) for endpoint in endpoints]
    return [(endpoint, name) for endpoint, name in zip_longest(endpoints, names) if endpoint and name]


def messages_of(machines: Mapping[str, Mapping[str, Program]]) -> Messages:
    """Reads all messages off the programs of a job."""
    messages = Messages()
    for machine, programs in machines.items():
        for place, op in ops_of(machine, programs):
            _read(messages, place, op)
    return messages


def _read(messages: Messages, place: Place, op: Op) -> None:
    if op.type == "send":
        for key in sent_by(op):
            messages.sent.setdefault(key, []).append(place)
        if op.role_vars:
            messages.about.setdefault((place.machine, op.role_vars[0]), []).append(place)
    elif op.type == "recv":
        for key in fetched_by(op):
            messages.fetched.setdefault(key, []).append(place)
    elif op.type == "prefetch" or "table_names" in op.attrs:
        for key in looked_up_by(op):
            messages.looked_up.setdefault(key, []).append(place)
    elif op.type in BARRIERS:
        for endpoint in strings_attr(op, "endpoints"):
            messages.barriers.setdefault(endpoint, []).append(place)
    elif op.type == "listen_and_serv" and place.program == MAIN:
        endpoint = op.attrs.get("endpoint")
        if isinstance(endpoint, str):
            messages.serving[endpoint] = place


def blocks_named(op: Op, name: str) -> dict[str, int]:
    """Variable -> block, of an attribute of listen_and_serv that holds `variable:block` texts."""
    result: dict[str, int] = {}
    for text in strings_attr(op, name):
        variable, _, block = text.rpartition(":")
        if block.isdigit():
            result[variable] = int(block)
    return result
