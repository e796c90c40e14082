"""The actions of a trainer's ops that exchange messages with servers directly, without a communicator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, groupby, islice, pairwise
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from pstranspile.cluster.machines import message as kinds
from pstranspile.cluster.machines.message import LOOKUP
from pstranspile.cluster.machines.network import Link
from pstranspile.cluster.machines.placement import join, route_ids, split_rows
from pstranspile.cluster.machines.script import Action, Exchange, Join, Replies, is_plain
from pstranspile.cluster.machines.trainer import Servers, Trainer, link_to, number_list, text_list
from pstranspile.ir.diagnostics import DiagnosticError, at_op
from pstranspile.ir.model import Op, Program, Var
from pstranspile.ir.table_rules import takes_any_id
from pstranspile.ir.types import DType
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.large.table import distinct_of_each
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.values import NUMPY_TYPES, LoDTensor, SelectedRows
from pstranspile.runtime.values.encoding import encode, refuse, write_file

# Writing a variable to a file as its slices come from the servers (`recv_save`).


def write_whole(
    op: Op, names: Sequence[str], servers: int, folder: str | Path
) -> Callable[[list[Value]], Sequence[Value]]:
    """The function that writes the slices, in the order requested, one after another to the op's file.

    Raises DiagnosticError if the op's lists don't go together, or the slices don't make up the whole (which Fluid does
    not check: its file of a value that several servers have is too long).
    """
    attrs: dict[str, Any] = {**op.attrs}
    shape = tuple(map(int, attrs.get("shape", ())))
    slices = [tuple(int(dim) for dim in text.split(",") if dim) for text in attrs.get("slice_shapes", ())]
    number = attrs.get("dtype", DType.FP32.value)
    if number not in [kind.value for kind in DType]:
        raise DiagnosticError([at_op("cluster-placement", f"dtype {number} is no element type", op)])
    kind = NUMPY_TYPES[DType(number)]
    file = Path(folder) / str(attrs.get("file_path", ""))
    overwrite = attrs.get("overwrite", True)
    if not len(names) == servers == len(slices) == len(attrs.get("slice_varnames", ())):
        message = "endpoints, remote_varnames, slice_varnames and slice_shapes are not of the same length"
        raise DiagnosticError([at_op("cluster-placement", message, op)])
    if sum(map(prod, slices)) != prod(shape):
        message = f"the slices have {sum(map(prod, slices))} elements, the whole, {list(shape)}, has {prod(shape)}"
        raise DiagnosticError([at_op("cluster-placement", message, op)])

    def finish(answers: list[Value]) -> Sequence[Value]:
        if all(isinstance(answer, SelectedRows) for answer in answers):
            write_file(file, encode(_joined_rows(answers)))
            return ()
        # Scripts set numbers, such as a learning rate, to arrays without dims.
        for name, dims, answer in zip(names, slices, answers, strict=True):
            if not isinstance(answer, np.ndarray) or answer.dtype.name != kind or (answer.shape or (1,)) != dims:
                held = f"{answer.dtype.name}{list(answer.shape)}" if isinstance(answer, np.ndarray) else "no tensor"
                message = f"{name} is {held} on its server, {kind}{list(dims)} is expected"
                raise DiagnosticError([at_op("cluster-placement", message, op)])
        if not overwrite and file.exists():
            refuse("values-exist", str(file), "the file is there already, and overwrite is not set")
        write_file(file, encode(np.concatenate([answer.reshape(-1) for answer in answers]).reshape(shape)))
        return ()

    return finish


def _joined_rows(parts: Sequence[Any]) -> SelectedRows:
    """The rows of a large table from its parts, which follow each other or belong to a table that has a row for every
    id.
    """
    if takes_any_id((parts[0].height, *parts[0].value.shape[1:])):
        ids = np.concatenate([part.rows for part in parts])
        order = ids.argsort(kind="stable")
        return SelectedRows(ids[order], np.concatenate([part.value for part in parts])[order], parts[0].height)
    starts = [sum(part.height for part in parts[:index]) for index in range(len(parts) + 1)]
    rows = np.concatenate([part.rows + start for part, start in zip(parts, starts, strict=False)])
    return SelectedRows(rows, np.concatenate([part.value for part in parts]), starts[-1])


# Lookups in tables that are cut over servers by rows (`distributed_lookup_table`).


class _Lookups:
    """Rows of tables that are cut alike, for all `Ids` at once: every server is asked once for each table, and once for
    each id of it.
    """

    def __init__(self, trainer: Trainer, ops: Sequence[Op], program: Program, servers: Servers):
        self.ops = ops
        self.trainer = trainer
        self.inputs = [*accumulate((len(op.inputs.get("Ids", ())) for op in ops), initial=0)]
        """Boundaries of each op's inputs within the inputs of all ops, beginning with 0."""
        endpoints = text_list(ops[0], "endpoints")
        links = [link_to(trainer, servers, endpoint, ops[0]) for endpoint in endpoints]
        self.posts = [link.post for link in links]
        self.request_links = [link for link in links for _ in ops]
        self.tables = list(zip(*(text_list(op, "table_names") for op in ops), strict=True))
        """For every server, the names of its parts of the tables."""
        self.ends = np.cumsum((0, *number_list(ops[0], "height_sections")))
        table = program.main_block.vars.get(ops[0].inputs["W"][0])
        self.width = table.shape[1] if table is not None and len(table.shape) == 2 else 0
        self.padding = _padding(ops[0])
        self.last_dim = _drops_last_dim(ops[0])
        self.answers = len(ops) * len(endpoints)

    def ask(self, values: Sequence[Value], slot: int) -> Join:
        """Requests the rows, in slots from `slot` on; returns the function that makes the outputs from the answers."""
        padding, step = self.padding, self.trainer.step
        data = [value.data if value.__class__ is LoDTensor else value for value in values]
        flat = data[0].reshape(-1) if len(data) == 1 else np.concatenate([ids.reshape(-1) for ids in data])
        known = flat if padding < 0 else np.where(flat == padding, 0, flat)
        sizes = [*accumulate((ids.size for ids in data), initial=0)]
        different, back, bounds = distinct_of_each(known, [sizes[place] for place in self.inputs])
        try:
            parts, order = route_ids(different, self.ends, self.width)
        except ValueError as problem:
            raise DiagnosticError([at_op("cluster-unknown-variable", str(problem), self.ops[0])]) from None
        begin, asked = 0, list[int]()
        for post, tables, ids in zip(self.posts, self.tables, parts, strict=True):
            cuts = order[begin : begin + len(ids)].searchsorted(bounds).tolist()  # each section is in ascending order
            begin += len(ids)
            for table, (start, stop) in zip(tables, pairwise(cuts), strict=True):
                post(LOOKUP, step, table, ids[start:stop], slot)
                asked.append(stop - start)
                slot += 1

        def finish(answers: list[Value]) -> list[Value]:
            counts = [len(rows) if rows.__class__ is np.ndarray and rows.ndim else -1 for rows in answers]
            if counts != asked:
                message = "a server does not answer with a row for each id"
                raise DiagnosticError([at_op("cluster-unknown-variable", message, self.ops[0])])
            places = np.empty(len(different), "int64")
            places[order] = np.arange(len(different))
            rows = (answers[0] if len(answers) == 1 else np.concatenate(answers)).take(places[back], axis=0)
            if padding >= 0:
                rows[flat == padding] = 0
            return _shared_out(rows, values, data, self.last_dim)

        return finish


def _padding(op: Op) -> int:
    value: Any = op.attrs.get("padding_idx", -1)
    return int(value)


def _drops_last_dim(op: Op) -> bool:
    return op.attrs.get("lookup_table_version", "lookup_table") == "lookup_table"


def _cut_alike(op: Op, program: Program) -> object:
    """A key that is equal for lookups whose tables are cut alike and have rows of one kind."""
    table = program.main_block.vars.get(op.inputs["W"][0])
    kind = (table.dtype, table.shape[1:]) if table is not None else op.inputs["W"]
    return kind, text_list(op, "endpoints"), number_list(op, "height_sections"), _padding(op), _drops_last_dim(op)


def make_lookup(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    """The action of lookups in tables that are cut over servers."""
    alike = groupby(exchange.ops, key=lambda op: _cut_alike(op, program))
    lookups = [_Lookups(trainer, tuple(ops), program, servers) for _, ops in alike]
    count = sum(lookup.answers for lookup in lookups)
    asked = [link for lookup in lookups for link in lookup.request_links]

    def run(values: Sequence[Value]) -> Replies:
        joins: list[tuple[int, Join]] = []
        place = slot = 0
        for lookup in lookups:
            joins.append((lookup.answers, lookup.ask(values[place : place + lookup.inputs[-1]], slot)))
            place += lookup.inputs[-1]
            slot += lookup.answers

        def join(answers: list[Value]) -> list[Value]:
            rest = iter(answers)
            return [row for size, part in joins for row in part([*islice(rest, size)])]

        return Replies(trainer.step, count, join, asked)

    return run


def _shared_out(rows: Value, values: Sequence[Value], data: Sequence[Value], last_dim: bool) -> list[Value]:
    """The rows looked up for all ids, divided among the outputs, with the dims and the LoD of the ids."""
    out: list[Value] = []
    start = 0
    for value, ids in zip(values, data, strict=True):
        leading = ids.shape[:-1] if last_dim else ids.shape
        part = rows[start : start + ids.size].reshape(*leading, *rows.shape[1:])
        start += ids.size
        out.append(LoDTensor(part, value.lod) if value.__class__ is LoDTensor else part)
    return out


Maker: TypeAlias = "Callable[[Trainer, Exchange, Program, Servers], Action]"
"""Makes the action of an exchange of a program with servers. Raises DiagnosticError."""


def make_rpc(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    """The action of an exchange with servers. Raises DiagnosticError."""
    make = _MAKERS.get(exchange.kind)
    if make is None:
        message = "this version does not run it in a cluster"
        raise DiagnosticError([at_op("cluster-roles", message, exchange.op)])
    return make(trainer, exchange, program, servers)


def counts_steps(op: Op) -> bool:
    """Whether a `send` sends step counters."""
    return not op.attrs.get("use_send_handler", True)


def send_targets(trainer: Trainer, op: Op, servers: Servers) -> list[tuple[Link, str, int]]:
    """The targets of a `send`: link, name on the server, and index of the input (or of a section, if there is one
    input).

    A step counter goes to every endpoint.
    """
    names = op.inputs.get("X", ())
    links = [link_to(trainer, servers, endpoint, op) for endpoint in text_list(op, "epmap")]
    if counts_steps(op):
        return [(link, name, place) for place, name in enumerate(names) for link in links]
    sent_as = text_list(op, "send_varnames") or names
    return [(link, name, place) for place, (link, name) in enumerate(zip(links, sent_as, strict=True))]


def _send(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    op = exchange.op
    targets, sections = send_targets(trainer, op, servers), number_list(op, "sections")
    cuts = len(exchange.inputs) == 1 and bool(text_list(op, "send_varnames")) and not counts_steps(op)
    kind = kinds.NOTIFY if counts_steps(op) else kinds.SEND
    variables, changed = program.main_block.vars, trainer.role.changed_variables
    copied = [name in changed or (name in variables and variables[name].persistable) for name in exchange.inputs]
    any_copied = any(copied)
    if len(targets) == 1 and not cuts and not any_copied:
        ((only, name, _),) = targets
        return lambda values: only.post(kind, trainer.step, name, values[0])

    def run(values: Sequence[Value]) -> None:
        if any_copied:
            values = [own_copy(value) if own else value for value, own in zip(values, copied, strict=True)]
        if cuts:
            try:
                values = split_rows(values[0], sections)
            except ValueError as problem:
                raise DiagnosticError([at_op("cluster-op", f"{trainer.name}: {problem}", op)]) from None
        step = trainer.step
        for link, name, place in targets:
            link.post(kind, step, name, values[place])

    return run


def _barrier(kind: str) -> Maker:
    def make(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
        links = [link_to(trainer, servers, endpoint, exchange.op) for endpoint in text_list(exchange.op, "endpoints")]
        label = trainer.role.label(program)
        return lambda _values: report(trainer, kind, links, label)

    return make


def report(trainer: Trainer, kind: str, links: Sequence[Link], label: str | None = None) -> None:
    """Sends servers the message that the trainer has come to a barrier. `label`: the name of its program, where several
    take turns.
    """
    step = trainer.step
    for link in links:
        link.post(kind, step, "", label)


Request: TypeAlias = "tuple[Link, str, str]"
"""A request to a server: link, kind of message, name on the server."""


def requests_of(trainer: Trainer, ops: Sequence[Op], servers: Servers) -> tuple[list[Request], list[int]]:
    """The requests of several `recv`, and the number of consecutive answers that make up each of their outputs."""
    requests: list[Request] = []
    counts: list[int] = []
    for op in ops:
        outputs = op.outputs.get("Out", ())
        slices = text_list(op, "recv_varnames")
        names = slices or text_list(op, "varnames") or outputs
        kind = kinds.GET if op.attrs.get("with_barrier", True) else kinds.GET_NOW
        links = [link_to(trainer, servers, endpoint, op) for endpoint in text_list(op, "epmap")]
        requests += [(link, kind, name) for link, name in zip(links, names, strict=True)]
        counts += [len(slices)] if slices else [1] * len(outputs)
    return requests, counts


def _answer_joiner(counts: Sequence[int]) -> Callable[[list[Value]], list[Value]] | None:
    """A function that joins the answers to outputs, `counts` of them for each; None if each answer is an output."""
    if all(count == 1 for count in counts):
        return None
    ends = np.cumsum((0, *counts))
    spans = list(pairwise(ends))
    return lambda answers: [join(answers[start:end]) for start, end in spans]


def _ask(
    trainer: Trainer, requests: Sequence[Request], join: Join | None, payloads: Sequence[Value] | None = None
) -> Action:
    """An action that sends all requests at once, and waits for the replies. The requests carry `payloads`, or else the
    values to send.
    """
    posts = [(link.post, kind, name, slot) for slot, (link, kind, name) in enumerate(requests)]
    asked = [link for link, _, _ in requests]
    nothing = [None] * len(posts)

    def run(values: Sequence[Value]) -> Replies:
        step, brought = trainer.step, payloads or values or nothing
        for post, kind, name, slot in posts:
            post(kind, step, name, brought[slot], slot)
        return Replies(step, len(posts), join, asked)

    return run


def _recv(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    requests, counts = requests_of(trainer, exchange.ops, servers)
    return _ask(trainer, requests, checked_join(trainer, exchange, program, counts))


def checked_join(trainer: Trainer, exchange: Exchange, program: Program, counts: Sequence[int]) -> Join:
    """A function that makes the outputs from the answers, `counts` of them for each, and checks them.

    It raises DiagnosticError where a declared tensor is no plain array, and copies values that the trainer itself
    changes, because all trainers that asked share one answer.
    """
    changed, outputs, together = trainer.role.changed_variables, exchange.outputs, _answer_joiner(counts)
    changed_places = [place for place, name in enumerate(outputs) if name in changed and counts[place] == 1]
    plain = [place for place, name in enumerate(outputs) if is_plain(program, name)]
    declared = program.main_block.vars
    forms = {place: _form(declared[outputs[place]]) for place in plain}

    def finish(answers: list[Value]) -> list[Value]:
        values = answers if together is None else together(answers)
        for place in plain:
            if values[place].__class__ is not np.ndarray:
                message = f"{outputs[place]} is declared to be a tensor, but the server holds something else"
                raise DiagnosticError([at_op("cluster-unknown-variable", message, exchange.op, focus=outputs[place])])
            dtype, size = forms[place]
            of_value = values[place].dtype
            if (of_value is not dtype and of_value.name != dtype.name) or (size >= 0 and values[place].size != size):
                held, of = f"{values[place].dtype.name}{list(values[place].shape)}", declared[outputs[place]]
                message = f"{outputs[place]} is declared as {dtype}{list(of.shape)}, but the server holds {held}"
                raise DiagnosticError([at_op("cluster-unknown-variable", message, exchange.op, focus=outputs[place])])
        for place in changed_places:
            values[place] = own_copy(values[place])
        return values

    return finish


def _form(declared: Var) -> tuple[np.dtype[Any], int]:
    """A tensor's element type in numpy, and its number of elements (-1: any number)."""
    assert declared.dtype is not None
    return np.dtype(NUMPY_TYPES[declared.dtype]), prod(declared.shape) if min(declared.shape, default=1) >= 0 else -1


def _prefetch(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    op = exchange.op
    links = [link_to(trainer, servers, endpoint, op) for endpoint in text_list(op, "epmap")]
    return _ask(
        trainer, [(link, kinds.PREFETCH, name) for link, name in zip(links, exchange.inputs, strict=True)], None
    )


def _checkpoint(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    op = exchange.op
    links = [link_to(trainer, servers, endpoint, op) for endpoint in text_list(op, "epmap")]
    folder, table = str(op.attrs.get("dir", "")), str(op.attrs.get("lookup_table", ""))
    paths = [f"{folder}/{table}_{number}" for number in range(len(links))]
    return _ask(trainer, [(link, kinds.CHECKPOINT, table) for link in links], lambda _answers: (), paths)


def _shrink(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    op = exchange.op
    links = [link_to(trainer, servers, endpoint, op) for endpoint in text_list(op, "epmap")]
    requests = [(link, kinds.SHRINK, str(op.attrs["table"])) for link in links]
    return _ask(trainer, requests, lambda _answers: (), [op.attrs["unseen"]] * len(links))


def _recv_save(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    """An action that fetches the current slices of a variable, and writes the whole to a file."""
    op = exchange.op
    names = text_list(op, "remote_varnames")
    links = [link_to(trainer, servers, endpoint, op) for endpoint in text_list(op, "endpoints")]
    join = write_whole(op, names, len(links), trainer.host.folder)
    return _ask(trainer, [(link, kinds.GET_NOW, name) for link, name in zip(links, names, strict=True)], join)


_MAKERS: dict[str, Maker] = {
    "send": _send,
    "recv": _recv,
    "send_barrier": _barrier(kinds.SEND_BARRIER),
    "fetch_barrier": _barrier(kinds.FETCH_BARRIER),
    "prefetch": _prefetch,
    "distributed_lookup_table": make_lookup,
    "checkpoint_notify": _checkpoint,
    "recv_save": _recv_save,
    "shrink_table": _shrink,
}
