"""What a trainer's ops do that talk to servers directly, without a communicator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from pstranspile.ir.diagnostics import DiagnosticError, at_op
from pstranspile.ir.model import Op, Program
from pstranspile.kernels.context import Value
from pstranspile.run.cluster import codes
from pstranspile.run.cluster.cutting import cut, join, route_ids
from pstranspile.run.cluster.message import (
    CHECKPOINT,
    FETCH_BARRIER,
    GET,
    GET_NOW,
    LOOKUP,
    NOTIFY,
    PREFETCH,
    SEND,
    SEND_BARRIER,
)
from pstranspile.run.cluster.network import Link, Machine
from pstranspile.run.cluster.script import Exchange, is_plain
from pstranspile.run.cluster.trainer import Action, Trainer
from pstranspile.run.scope import own_copy
from pstranspile.values import LoDTensor

Servers = Mapping[str, Machine]
"""The servers by endpoint."""


def link_to(trainer: Trainer, servers: Servers, endpoint: str, op: Op) -> Link:
    """The trainer's link to a server. Raises DiagnosticError if there is none at the endpoint."""
    server = servers.get(endpoint)
    if server is None:
        known = ", ".join(servers) or "none"
        message = f"no server listens at {endpoint}; the servers of this cluster: {known}"
        raise DiagnosticError([at_op(codes.UNREACHABLE, message, op)])
    return trainer.network.link(trainer, server, trainer.index)


def text_list(op: Op, name: str) -> Sequence[str]:
    """An attribute that is a list of texts, empty if the op does not carry it."""
    value: Any = op.attrs.get(name, ())
    return tuple(value)


def number_list(op: Op, name: str) -> Sequence[int]:
    """An attribute that is a list of whole numbers, empty if the op does not carry it."""
    value: Any = op.attrs.get(name, ())
    return tuple(map(int, value))


def make_rpc(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    """The action of an exchange with servers. Raises DiagnosticError."""
    make = _MAKERS.get(exchange.kind)
    if make is None:
        message = "this version does not run it in a cluster"
        raise DiagnosticError([at_op(codes.ROLES, message, exchange.op)])
    return make(trainer, exchange, program, servers)


def send_targets(trainer: Trainer, op: Op, servers: Servers) -> list[tuple[Link, str, int]]:
    """Where a `send` sends: link, name on the server, and which input it is, -1 for a section of the only one.

    A step counter goes to every endpoint.
    """
    names, endpoints = op.inputs.get("X", ()), text_list(op, "epmap")
    links = [link_to(trainer, servers, endpoint, op) for endpoint in endpoints]
    if not op.attrs.get("use_send_handler", True):
        return [(link, name, place) for place, name in enumerate(names) for link in links]
    sent_as = text_list(op, "send_varnames")
    if sent_as and len(names) == 1:
        return [(link, name, -1) for link, name in zip(links, sent_as, strict=True)]
    return [(link, name, place) for place, (link, name) in enumerate(zip(links, sent_as or names, strict=True))]


def _send(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    op = exchange.op
    targets = send_targets(trainer, op, servers)
    sections = number_list(op, "sections")
    kind = SEND if op.attrs.get("use_send_handler", True) else NOTIFY
    variables, changed = program.main_block.vars, trainer.changes
    copied = [name in changed or (name in variables and variables[name].persistable) for name in exchange.inputs]

    def safe(values: tuple[Value, ...]) -> Sequence[Value]:
        return [own_copy(value) if own else value for value, own in zip(values, copied, strict=True)]

    def whole(values: tuple[Value, ...]) -> None:
        if any_copied:
            values = tuple(safe(values))
        step = trainer.step
        for link, name, place in targets:
            link.post(kind, step, name, values[place])

    def in_sections(values: tuple[Value, ...]) -> None:
        step = trainer.step
        try:
            parts = cut(safe(values)[0], sections)
        except ValueError as problem:
            raise DiagnosticError([at_op(codes.OP, f"{trainer.name}: {problem}", op)]) from None
        for (link, name, _), part in zip(targets, parts, strict=True):
            link.post(kind, step, name, part)

    def single(values: tuple[Value, ...]) -> None:
        post(kind, trainer.step, name, values[0])

    any_copied = any(copied)
    if len(targets) == 1 and targets[0][2] == 0 and not any_copied:
        post, name = targets[0][0].post, targets[0][1]
        return single
    return in_sections if any(place < 0 for _, _, place in targets) else whole


def program_told(trainer: Trainer, program: Program) -> str | None:
    """What a barrier says of the program it stands in: its name where several take turns."""
    return trainer.name_of(program) if trainer.named else None


def said_to(program: Program, endpoint: str) -> set[str]:
    """The names under which a program sends gradients and step counters to a server."""
    found: set[str] = set()
    for op in program.main_block.ops:
        if op.type != "send":
            continue
        names, endpoints = op.inputs.get("X", ()), text_list(op, "epmap")
        if not op.attrs.get("use_send_handler", True):
            found.update(names if endpoint in endpoints else ())
        else:
            sent = text_list(op, "send_varnames") or names
            found.update(name for name, place in zip(sent, endpoints, strict=False) if place == endpoint)
    return found


def _barrier(kind: str) -> Callable[[Trainer, Exchange, Program, Servers], Action]:
    def make(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
        links = [link_to(trainer, servers, endpoint, exchange.op) for endpoint in text_list(exchange.op, "endpoints")]
        told = program_told(trainer, program)

        def run(_values: tuple[Value, ...]) -> None:
            step = trainer.step
            for link in links:
                link.post(kind, step, "", told)

        return run

    return make


Request = tuple[Link, str, str]
"""What to ask for: link, kind of message, name on the server."""


def requests_of(trainer: Trainer, ops: Sequence[Op], servers: Servers) -> tuple[list[Request], list[int]]:
    """What several `recv` ask for, and of how many answers in a row each of their outputs is made."""
    requests: list[Request] = []
    counts: list[int] = []
    for op in ops:
        outputs = op.outputs.get("Out", ())
        slices = text_list(op, "recv_varnames")
        names = slices or text_list(op, "varnames") or outputs
        kind = GET if op.attrs.get("with_barrier", True) else GET_NOW
        links = [link_to(trainer, servers, endpoint, op) for endpoint in text_list(op, "epmap")]
        requests += [(link, kind, name) for link, name in zip(links, names, strict=True)]
        counts += [len(slices)] if slices else [1] * len(outputs)
    return requests, counts


def joined(counts: Sequence[int]) -> Callable[[list[Value]], list[Value]] | None:
    """Makes outputs of so many answers each; None if each answer is an output."""
    if all(count == 1 for count in counts):
        return None
    ends = np.cumsum((0, *counts))
    spans = list(pairwise(ends))
    return lambda answers: [join(answers[start:end]) for start, end in spans]


def _recv(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    requests, counts = requests_of(trainer, exchange.ops, servers)
    together = joined(counts)
    finish = checked(trainer, exchange, program, counts, together)
    posts = [(link.post, kind, name) for link, kind, name in requests]
    asked = [link for link, _, _ in requests]
    count = len(requests)

    def run(_values: tuple[Value, ...]) -> Sequence[Value]:
        step = trainer.step
        for slot, (post, kind, name) in enumerate(posts):
            post(kind, step, name, None, slot)
        return trainer.expect(count, finish, asked)

    return run


def checked(
    trainer: Trainer,
    exchange: Exchange,
    program: Program,
    counts: Sequence[int],
    together: Callable[[list[Value]], list[Value]] | None,
) -> Callable[[list[Value]], list[Value]]:
    """Makes outputs of answers, and sees to it that plain arrays come where they are declared, and copies of what the
    trainer itself changes (answers are shared by all who asked).
    """
    changed = trainer.changes
    outputs = exchange.outputs
    own = [place for place, name in enumerate(outputs) if name in changed and counts[place] == 1]
    plain = [place for place, name in enumerate(outputs) if is_plain(program, name)]

    def finish(answers: list[Value]) -> list[Value]:
        values = answers if together is None else together(answers)
        for place in plain:
            if values[place].__class__ is not np.ndarray:
                message = f"{outputs[place]} is declared to be a tensor, but the server holds something else"
                raise DiagnosticError([at_op(codes.UNKNOWN_VARIABLE, message, exchange.op, focus=outputs[place])])
        for place in own:
            values[place] = own_copy(values[place])
        return values

    return finish


def _prefetch(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    op = exchange.op
    links = [link_to(trainer, servers, endpoint, op) for endpoint in text_list(op, "epmap")]
    posts = [(link.post, name) for link, name in zip(links, exchange.inputs, strict=True)]

    def run(values: tuple[Value, ...]) -> Sequence[Value]:
        step = trainer.step
        for slot, ((post, name), value) in enumerate(zip(posts, values, strict=True)):
            post(PREFETCH, step, name, value, slot)
        return trainer.expect(len(posts), None, links)

    return run


class _Lookups:
    """Rows of tables that are cut alike, for all `Ids` at once: every server is asked once for each table."""

    def __init__(self, trainer: Trainer, ops: Sequence[Op], servers: Servers):
        self.ops = ops
        self.trainer = trainer
        self.inputs = [len(op.inputs.get("Ids", ())) for op in ops]
        endpoints = text_list(ops[0], "endpoints")
        links = [link_to(trainer, servers, endpoint, ops[0]) for endpoint in endpoints]
        self.posts = [link.post for link in links]
        self.asked = [link for link in links for _ in ops]
        self.tables = list(zip(*(text_list(op, "table_names") for op in ops), strict=True))
        """For every server the names of its parts of the tables."""
        self.ends = np.cumsum((0, *number_list(ops[0], "height_sections")))
        self.padding = _padding(ops[0])
        self.last_dim = _drops_last_dim(ops[0])
        self.answers = len(ops) * len(endpoints)

    def ask(self, values: Sequence[Value], slot: int) -> Callable[[list[Value]], list[Value]]:
        """Asks for the rows, in slots from `slot` on; gives what makes the outputs of the answers."""
        padding, step = self.padding, self.trainer.step
        data = [value.data if value.__class__ is LoDTensor else value for value in values]
        flat = data[0].reshape(-1) if len(data) == 1 else np.concatenate([ids.reshape(-1) for ids in data])
        known = flat if padding < 0 else np.where(flat == padding, 0, flat)
        try:
            parts, order = route_ids(known, self.ends)
        except ValueError as problem:
            raise DiagnosticError([at_op(codes.UNKNOWN_VARIABLE, str(problem), self.ops[0])]) from None
        bounds = self._bounds(data)
        begin = 0
        for post, tables, ids in zip(self.posts, self.tables, parts, strict=True):
            cuts = order[begin : begin + len(ids)].searchsorted(bounds).tolist()  # in a section, places ascend
            begin += len(ids)
            for table, (start, stop) in zip(tables, pairwise(cuts), strict=True):
                post(LOOKUP, step, table, ids[start:stop], slot)
                slot += 1

        def finish(answers: list[Value]) -> list[Value]:
            places = np.empty(len(flat), "int64")
            places[order] = np.arange(len(flat))
            rows = (answers[0] if len(answers) == 1 else np.concatenate(answers)).take(places, axis=0)
            if padding >= 0:
                rows[flat == padding] = 0
            return shared_out(rows, values, data, self.last_dim)

        return finish

    def _bounds(self, data: Sequence[Value]) -> list[int]:
        """Where the ids of each table begin and end among all ids."""
        sizes = iter([ids.size for ids in data])
        bounds = [0]
        for count in self.inputs:
            bounds.append(bounds[-1] + sum(next(sizes) for _ in range(count)))
        return bounds


def _padding(op: Op) -> int:
    value: Any = op.attrs.get("padding_idx", -1)
    return int(value)


def _drops_last_dim(op: Op) -> bool:
    return op.attrs.get("lookup_table_version", "lookup_table") == "lookup_table"


def _cut_alike(op: Op, program: Program) -> object:
    """A value that lookups share whose tables are cut alike and have rows of one kind."""
    table = program.main_block.vars.get(op.inputs["W"][0])
    kind = (table.dtype, table.shape[1:]) if table is not None else op.inputs["W"]
    return kind, text_list(op, "endpoints"), number_list(op, "height_sections"), _padding(op), _drops_last_dim(op)


def _lookup(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    alike = groupby(exchange.ops, key=lambda op: _cut_alike(op, program))
    lookups = [_Lookups(trainer, tuple(ops), servers) for _, ops in alike]
    count = sum(lookup.answers for lookup in lookups)
    asked = [link for lookup in lookups for link in lookup.asked]

    def run(values: tuple[Value, ...]) -> Sequence[Value]:
        finishes: list[tuple[int, Callable[[list[Value]], list[Value]]]] = []
        place = slot = 0
        for lookup in lookups:
            inputs = sum(lookup.inputs)
            finishes.append((lookup.answers, lookup.ask(values[place : place + inputs], slot)))
            place += inputs
            slot += lookup.answers

        def finish(answers: list[Value]) -> list[Value]:
            out: list[Value] = []
            start = 0
            for size, each in finishes:
                out += each(answers[start : start + size])
                start += size
            return out

        return trainer.expect(count, finish, asked)

    return run


def shared_out(rows: Value, values: Sequence[Value], data: Sequence[Value], last_dim: bool) -> list[Value]:
    """The rows looked up for all ids, dealt out to the outputs, with the dims and the LoD of the ids."""
    out: list[Value] = []
    start = 0
    for value, ids in zip(values, data, strict=True):
        leading = ids.shape[:-1] if last_dim else ids.shape
        part = rows[start : start + ids.size].reshape(*leading, *rows.shape[1:])
        start += ids.size
        out.append(LoDTensor(part, value.lod) if value.__class__ is LoDTensor else part)
    return out


def _checkpoint(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    op = exchange.op
    links = [link_to(trainer, servers, endpoint, op) for endpoint in text_list(op, "epmap")]
    folder, table = str(op.attrs.get("dir", "")), str(op.attrs.get("lookup_table", ""))

    def run(_values: tuple[Value, ...]) -> Sequence[Value]:
        for number, link in enumerate(links):
            link.post(CHECKPOINT, trainer.step, table, f"{folder}/{table}_{number}", number)
        return trainer.expect(len(links), lambda _answers: (), links)

    return run


def _recv_save(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    """Fetches the slices of a variable as they are now, and writes the whole to a file."""
    from pstranspile.run.cluster.receiving import write_whole

    op = exchange.op
    names = text_list(op, "remote_varnames")
    links = [link_to(trainer, servers, endpoint, op) for endpoint in text_list(op, "endpoints")]
    finish = write_whole(op, names, len(links), trainer.folder)

    def run(_values: tuple[Value, ...]) -> Sequence[Value]:
        for slot, (link, name) in enumerate(zip(links, names, strict=True)):
            link.post(GET_NOW, trainer.step, name, None, slot)
        return trainer.expect(len(links), finish, links)

    return run


_MAKERS: dict[str, Callable[[Trainer, Exchange, Program, Servers], Action]] = {
    "send": _send,
    "recv": _recv,
    "send_barrier": _barrier(SEND_BARRIER),
    "fetch_barrier": _barrier(FETCH_BARRIER),
    "prefetch": _prefetch,
    "distributed_lookup_table": _lookup,
    "checkpoint_notify": _checkpoint,
    "recv_save": _recv_save,
}
