"""What a server requires of the messages of trainers before it takes them.

Even a trainer of the job may send wrong messages: it may be of another version, edited, or taken over. Its message is
compared with the server's program, and with those of the trainers. A message that does not fit is dropped, its trainer
is removed from the job, and the server continues with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from pstranspile.cluster.machines import message as kinds
from pstranspile.cluster.machines.asynchronous import GeoServer
from pstranspile.cluster.machines.cluster import Cluster, names_sent_to
from pstranspile.cluster.machines.message import Message
from pstranspile.cluster.machines.rings import RingContribution
from pstranspile.cluster.machines.script import exchanges_messages, values_of
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.machines.synchronous import SynchronousServer
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.cluster.net.terms import MORE_HELD, MOST_HELD
from pstranspile.cluster.net.wire import MOST_BODY, can_be_sent
from pstranspile.ir.diagnostics import DiagnosticError, visible
from pstranspile.ir.model import MAIN, Program, Var
from pstranspile.ir.table_rules import most_rows
from pstranspile.ir.types import VarKind
from pstranspile.ops.attributes import ints_attr
from pstranspile.runtime.kernels.numeric import all_ids
from pstranspile.runtime.large.table import LargeTable, TableState
from pstranspile.runtime.values import NUMPY_TYPES, LoDTensor, SelectedRows

# The largest frame of a trainer follows from the programs: they name the variables that it sends, mostly with dims.

JOINED = 1 << 24
"""The most bytes of messages that are combined in one frame; a single message may have more."""


def most_sent(cluster: Cluster) -> int:
    """The size of the largest frame that a trainer of a job sends, in bytes.

    A variable of known dims counts its own bytes; a statement of sums in another trainer's place may contain all
    variables. Rows of tables and variables of unknown dims may have any size, up to the limit of the messages that a
    server keeps waiting.
    """
    known: dict[str, int] = {}
    unknown = False
    for name, var in _exchanged_variables(cluster):
        size = None if var is None else _size(var)
        if size is None:
            unknown = True
        else:
            known[name] = max(size, known.get(name, 0))
    total = sum(known.values())
    most = 2 * (JOINED + total) + (MOST_HELD + MORE_HELD * total if unknown else 0)
    return min(most, MOST_BODY)


def _exchanged_variables(cluster: Cluster) -> Iterator[tuple[str, Var | None]]:
    """The variables that trainers exchange with others, as their programs and those of the servers declare them."""
    for trainer in cluster.trainers:
        for program in trainer.role.all_programs:
            yield from _program_exchanges(program)
    for ring in cluster.rings.values():
        for name, known in ring.operations.items():
            yield name, known.declared if known.fixed else None
    for server in cluster.servers:
        yield from server.main.main_block.vars.items()


def _program_exchanges(program: Program) -> Iterator[tuple[str, Var | None]]:
    for block in program.blocks:
        for op in block.ops:
            if exchanges_messages(op.type):
                for name in (name for names in values_of(op) for name in names):
                    yield name, block.vars.get(name, program.main_block.vars.get(name))


def _size(var: Var) -> int | None:
    """The bytes of a variable; None where its declaration has unknown dims, as for rows."""
    if var.dtype is None or var.kind is not VarKind.LOD_TENSOR or min(var.shape, default=0) < 0:
        return None
    size = prod(var.shape) * np.dtype(NUMPY_TYPES[var.dtype]).itemsize
    return size if size <= MOST_BODY else None


MOST_COUNTED = 1 << 31
"""The bound of the values of step counters, and of the number of requests for which rows are kept."""

_ALONE = frozenset({kinds.SEND_BARRIER, kinds.FETCH_BARRIER, kinds.COMPLETE})
"""Kinds of messages whose effect depends on the messages of all trainers, so that an error is not the fault of the
trainer that came last.
"""


class Misfit(Exception):
    """A message that its server refuses, for the reason in the message."""


class Checks:
    """Checks the messages of trainers before `server`, which serves already, takes them.

    The programs of `trainers` are known here; `stranger` says by its number whether a trainer is one of another system.
    `refuse` is called with the number of a trainer and the reason why its message is wrong; its later messages are
    dropped.
    """

    def __init__(
        self,
        server: Server,
        trainers: Iterable[Trainer],
        stranger: Callable[[int], bool],
        refuse: Callable[[int, str], object],
    ):
        self._server, self._stranger, self._refuse = server, stranger, refuse
        self._variables = server.main.main_block.vars
        tables = (op for op in server.startup.main_block.ops if op.type == "large_table")
        self._open = {ints_attr(op, "shape") for op in tables if op.attrs.get("any_id")}
        """The dims of parts of tables that have a row for every id."""
        self._labelled: dict[int, frozenset[str]] = {}
        self._senders: dict[str, set[int]] = {}
        """The numbers of the trainers whose programs send each variable to this server."""
        for trainer in trainers:
            self._labelled[trainer.index] = frozenset(trainer.role.programs if trainer.role.turns is not None else ())
            for program in trainer.role.all_programs:
                for name in names_sent_to(program, server.endpoint):
                    self._senders.setdefault(name, set()).add(trainer.index)
        self._served_names = frozenset(server.receivable_variables)
        self._forms: dict[str, tuple[Any, tuple[int, ...] | None, int]] = {}
        self._refused_trainers: set[int] = set()
        self._checks_by_kind: Mapping[str, Callable[[Message], None]] = {
            kinds.SEND: self._send,
            kinds.GET: self._get,
            kinds.GET_NOW: self._get,
            kinds.GET_ROWS: self._get_rows,
            kinds.LOOKUP: self._look_up,
            kinds.PREFETCH: self._prefetch,
            kinds.SEND_BARRIER: self._send_barrier,
            kinds.FETCH_BARRIER: self._label,
            kinds.NOTIFY: self._notify,
            kinds.CHECKPOINT: self._checkpoint,
            kinds.SHRINK: self._shrink,
            kinds.COMPLETE: self._complete,
        }
        server.watch(self._take)

    def _take(self, handler: Callable[[Message], object] | None, message: Message) -> None:
        """Makes the server take a message, if the message is correct."""
        if message.trainer in self._refused_trainers:
            if message.kind == kinds.COMPLETE and handler is not None:
                self._refused_trainers.discard(message.trainer)
                handler(message)
            return
        try:
            look = self._checks_by_kind.get(message.kind)
            if look is None or handler is None:
                raise Misfit("a server takes no messages of this kind")
            look(message)
            if message.kind in _ALONE:
                problem = None
            else:
                problem = _outcome(handler, message)
        except Misfit as misfit:
            problem = str(misfit)
        if problem is not None:
            self._refused_trainers.add(message.trainer)
            self._refuse(message.trainer, f"{message}: {problem}")
        elif message.kind in _ALONE and handler is not None:
            handler(message)

    # values

    def _send(self, message: Message) -> None:
        name, senders = message.variable, self._senders.get(message.variable)
        if name not in self._served_names and senders is None:
            raise Misfit(f"{self._server.name} takes no variable {visible(name)}")
        if senders is not None and message.trainer not in senders and not self._stranger(message.trainer):
            raise Misfit(f"{visible(name)} is sent by {', '.join(self._server.names_of(senders))}")
        value, declared = message.payload, self._variables.get(name)
        if declared is not None and _fits(value, *self._form(name, declared)):
            return
        if isinstance(value, SelectedRows) and declared is not None and declared.shape in self._open:
            rows, width = declared.shape
            if value.height == most_rows(width):  # the rows of all parts are numbered together
                value = value._replace(height=rows)
        require_value(name, value, declared)

    def _form(self, name: str, declared: Var) -> tuple[Any, tuple[int, ...] | None, int]:
        """What `_fits` needs to know of a declared variable."""
        form = self._forms.get(name)
        if form is None:
            kind = None if declared.dtype is None else _ELEMENTS[declared.dtype]
            ragged = declared.tensor is not None and declared.tensor.lod_level > 0
            shape, height = (declared.shape if declared.kind is VarKind.LOD_TENSOR and not ragged else None), -1
            if declared.kind is VarKind.SELECTED_ROWS and declared.shape and declared.shape[0] >= 0:
                shape, height = declared.shape[1:], declared.shape[0]
            form = self._forms[name] = (kind, None if kind is None else shape, height)
        return form

    def _notify(self, message: Message) -> None:
        held = self._server.scope.get(message.variable)
        if not isinstance(held, np.ndarray) or held.dtype.kind != "i":
            raise Misfit(f"{self._server.name} has no step counter {visible(message.variable)}")
        value = message.payload
        if value.__class__ is not np.ndarray or value.dtype != held.dtype or value.shape != held.shape:
            raise Misfit(f"it brings {form_of(value)}, where the server has {form_of(held)}")
        if value.size and not 0 <= int(value.min()) <= int(value.max()) < MOST_COUNTED:
            raise Misfit(f"it counts {int(value.min())} steps")

    # requests

    def _get(self, message: Message) -> None:
        value = self._server.scope.get(message.variable)
        if value is None:
            raise Misfit(f"{self._server.name} has no variable {visible(message.variable)}")
        if not (isinstance(value, LargeTable | TableState) or can_be_sent(value)):
            raise Misfit(f"{self._server.name} can't send what {visible(message.variable)} holds")
        _require_nothing(message)

    def _get_rows(self, message: Message) -> None:
        server = self._server
        if not isinstance(server, GeoServer) or message.variable not in server.changed:
            raise Misfit(f"{server.name} keeps no changed rows of {visible(message.variable)}")
        _require_nothing(message)

    def _look_up(self, message: Message) -> None:
        name, table = message.variable, self._server.scope.values_here.get(message.variable)
        if isinstance(table, LargeTable):
            rows, row_bytes = 1 << 64 if table.any_id else table.height, table.width * table.dtype.itemsize
            row_count = 0 if table.any_id else rows  # in a table with a row for every id, any number is valid
        else:
            held: Any = table.value if isinstance(table, SelectedRows) else table
            if held.__class__ is not np.ndarray or held.ndim < 1:
                raise Misfit(f"{self._server.name} has no table {visible(name)}")
            rows, row_bytes = len(held), held.nbytes // max(len(held), 1)
            row_count = rows
        require_ids(message.payload, 1, rows)
        _require_answerable(message.payload, row_bytes, row_count)

    def _prefetch(self, message: Message) -> None:
        block = self._server.prefetch_blocks.get(message.variable)
        if block is None:
            raise Misfit(f"{self._server.name} has no block that looks up {visible(message.variable)}")
        slots = block.execution.program.main_block.ops[-1].inputs.get("W", ())
        table = self._server.scope.values_here.get(slots[0]) if slots else None
        ids = message.payload
        if not isinstance(table, SelectedRows):
            require_ids(ids, None, 1 << 63)
            return
        require_ids(ids, None, table.height or 1 << 63)
        new = np.unique(ids[~np.isin(ids, table.rows)])
        _require_answerable(ids, table.value.nbytes // max(len(table.value), 1), len(table.value))
        if len(new) > len(table.value) - len(table.rows):
            raise Misfit(f"there is no room for {len(new)} new ids in the table")

    def _checkpoint(self, message: Message) -> None:
        if self._server.save_block < 0:
            raise Misfit(f"{self._server.name} has no block that saves")
        if not isinstance(message.payload, str):
            raise Misfit(f"it brings {form_of(message.payload)} in place of a path")

    def _shrink(self, message: Message) -> None:
        if not isinstance(self._server.scope.values_here.get(message.variable), LargeTable):
            raise Misfit(f"{self._server.name} has no large table {visible(message.variable)}")
        calls = message.payload
        if type(calls) is not int or not 1 <= calls < MOST_COUNTED:
            raise Misfit(f"it brings {form_of(calls)} in place of a number of requests")

    # barriers

    def _label(self, message: Message) -> None:
        label, labels = message.payload, self._labelled.get(message.trainer, frozenset[str]())
        known = label in labels if isinstance(label, str) else label is None and not labels
        if not known and not self._stranger(message.trainer):
            raise Misfit(f"it names {form_of(label)} as the program that the trainer runs")

    def _send_barrier(self, message: Message) -> None:
        self._label(message)
        server, trainer = self._server, message.trainer
        if not isinstance(server, SynchronousServer):
            return
        for other, (label, _) in server.round.reported_trainers.items():
            if label != message.payload:
                first = self._server.names_of([other])[0]
                raise Misfit(f"it names @{message.payload or MAIN} as its program, {first} @{label or MAIN}")
        if self._stranger(trainer):
            return
        wanted = server.update_blocks.needed_variables(message.payload or MAIN)
        came = server.round.of(trainer)
        lacking = sorted(name for name in wanted if self._senders.get(name) == {trainer} and name not in came)
        if lacking:
            raise Misfit(f"the trainer has not sent {', '.join(lacking[:3])}{' and more' if lacking[3:] else ''}")

    def _complete(self, message: Message) -> None:
        _require_nothing(message)


def _outcome(handler: Callable[[Message], object], message: Message) -> str | None:
    """The reason why the server could not take a message, if only its sender is concerned; None if all is well."""
    try:
        handler(message)
    except DiagnosticError as problem:
        return "; ".join(finding.message for finding in problem.diagnostics)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return None


def _require_answerable(ids: Any, each: int, rows: int) -> None:
    """Raises Misfit if the rows of ids, of `each` bytes, are more than a trainer may request at once.

    An id of 8 bytes may stand for a row of thousands of bytes, any number of times.
    """
    if ids.size * each > MOST_HELD + MORE_HELD * rows * each:
        raise Misfit(f"it asks for {ids.size} rows of {each} bytes at once")


def _require_nothing(message: Message) -> None:
    if message.payload is not None:
        raise Misfit(f"it brings {form_of(message.payload)}, where nothing is expected")


def form_of(value: Any) -> str:
    """A description of a message's value for the user: `float32[20, 3]`, `rows of float32[5, 3] in 100`, `a text`."""
    if isinstance(value, SelectedRows):
        return f"rows of {form_of(value.value)} in {value.height}"
    if isinstance(value, LoDTensor):
        return f"ragged {form_of(value.data)}"
    if isinstance(value, (np.ndarray, np.generic)):
        return f"{value.dtype}{list(value.shape)}"
    names: dict[object, str] = {
        str: "a text",
        int: "a number",
        float: "a number",
        type(None): "nothing",
        RingContribution: "a part of a collective operation",
    }
    kind: type[object] = value.__class__
    return names.get(kind, f"a {kind.__name__}")


_ELEMENTS = {dtype: np.dtype(kind) for dtype, kind in NUMPY_TYPES.items()}
"""The element types of arrays; to compare them takes less time than to compare their names."""


def require_value(name: str, value: Any, declared: Var | None) -> None:
    """Raises Misfit if a value does not have the kind, the element type and the dims that are known of a variable."""
    if declared is None or declared.dtype is None:
        if not isinstance(value, (np.ndarray, SelectedRows)):
            raise Misfit(f"it brings {form_of(value)}")
        return
    shape = declared.shape
    held: Any = value
    rows = declared.kind is VarKind.SELECTED_ROWS
    if isinstance(value, SelectedRows) and rows:
        fits = len(value.value) == len(value.rows) and value.height == shape[0] if shape else False
        held, shape = value.value, (-1, *shape[1:])
    else:
        lod = declared.tensor is not None and declared.tensor.lod_level > 0
        held = value.data if isinstance(value, LoDTensor) and lod else value
        fits = held.__class__ is np.ndarray and not rows
    if not fits or held.dtype != _ELEMENTS[declared.dtype] or not _matches_dims(held.shape, shape):
        kind = NUMPY_TYPES[declared.dtype]
        wanted = f"{'rows of ' if isinstance(value, SelectedRows) and rows else ''}{kind}{list(declared.shape)}"
        raise Misfit(f"it brings {form_of(value)} for {visible(name)}, where the server has {wanted}")


def _fits(value: Any, kind: Any, shape: tuple[int, ...] | None, height: int) -> bool:
    """Whether a value is a plain array of a kind and of these dims, or, with a height of at least 0, rows of such
    dims of a table; False also where this is not all that a value must be.
    """
    if height >= 0:
        if value.__class__ is not SelectedRows or value.height != height:
            return False
        held = value.value
        return held.dtype == kind and held.shape[1:] == shape and len(held) == len(value.rows)
    return value.__class__ is np.ndarray and value.dtype == kind and value.shape == shape


def _matches_dims(shape: tuple[int, ...], declared: tuple[int, ...]) -> bool:
    """Whether dims agree with declared ones, in which negative numbers match any."""
    if shape == declared:
        return True
    return len(shape) == len(declared) and all(b < 0 or a == b for a, b in zip(shape, declared, strict=True))


def require_ids(ids: Any, dims: int | None, rows: int) -> None:
    """Raises Misfit unless `ids` is a tensor of `dims` dims with ids from 0 up to the rows of a table."""
    if ids.__class__ is not np.ndarray or ids.dtype != np.int64 or (dims is not None and ids.ndim != dims):
        raise Misfit(f"it brings {form_of(ids)} in place of ids")
    if not all_ids(ids, rows):
        wrong = ids[(ids < 0) | (ids.view("uint64") >= rows)]
        raise Misfit(f"it brings the id {int(wrong[0])}, but there are {rows} rows")
