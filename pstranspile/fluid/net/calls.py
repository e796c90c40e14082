"""The calls of Fluid's gRPC service by name, and what a server's program has a place for.

Both sides ask: a server of this package refuses what does not fit before it does harm, and a trainer does not send it,
since a server of Fluid ends when it gets it.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from pstranspile.cluster.machines.server import Server, pairs
from pstranspile.cluster.net.calls import LARGE_CALL, CallRefused
from pstranspile.fluid.net.message import DTYPES, LOD_TENSOR, SELECTED_ROWS, VariableMessage
from pstranspile.ir.model import Program, Var
from pstranspile.ir.types import VarKind
from pstranspile.runtime.values import LoDTensor, SelectedRows

SERVICE = "sendrecv.SendRecvService"
BATCH_BARRIER_NAME, FETCH_BARRIER_NAME, COMPLETE_NAME = "BATCH_BARRIER@RECV", "FETCH_BARRIER@RECV", "COMPLETE@RECV"
NO_BARRIER = "@WITHOUT_BARRIER@RECV"
"""The name of a call by which a trainer fetches without a barrier."""

SAVE_NAME = "SAVE@CHECKPOINTNOTIFY"
"""The name of a call by which a trainer has a server save."""

PIECE = "@PIECE@"
"""The mark in the name of a variable that is a piece of another one."""

MOST_FIELDS = 1 << 16
"""Bytes of a message besides its numbers: names, dims, offsets."""

INVALID = "INVALID_ARGUMENT"
"""The gRPC status of a call whose content is wrong."""

UNKNOWN = "NOT_FOUND"
"""The gRPC status of a call that asks for what there is not."""

LATER = "FAILED_PRECONDITION"
"""The gRPC status of a call that comes at the wrong time."""


def require_gradient(server: Server, message: VariableMessage) -> None:
    """Raises CallRefused if the server has no place for what a message sends."""
    name = message.varname
    declared = server.main.main_block.vars.get(name)
    if not _serves(server, name):
        raise CallRefused(UNKNOWN, f"{server.name} takes no variable {name}")
    if not message.dims and not message.numbers:
        raise CallRefused(INVALID, f"{name} brings no numbers")
    if declared is None or declared.dtype is None:
        return
    if message.data_type != declared.dtype.value:
        given = message.data_type
        raise CallRefused(INVALID, f"{name} has element type {given}, where the server has {declared.dtype.text}")
    if message.kind == SELECTED_ROWS:
        _require_rows(declared, message)
    size, dims = prod(declared.shape), list(message.dims)
    if message.kind == LOD_TENSOR and size > 0 and prod(dims) != size:
        raise CallRefused(INVALID, f"{name} has dims {dims}, where the server has {list(declared.shape)}")


def as_declared(value: Any, declared: Var | None) -> Any:
    """What was sent, which has as many numbers as the variable, in the variable's dims; its levels are left out."""
    value = value.data if isinstance(value, LoDTensor) else value
    if declared is None or not declared.shape or min(declared.shape) < 0:
        return value
    if isinstance(value, SelectedRows):
        return SelectedRows(value.rows, value.value.reshape(len(value.value), *declared.shape[1:]), declared.shape[0])
    return value.reshape(declared.shape) if value.size else value


def _serves(server: Server, name: str) -> bool:
    """Whether the server takes a gradient of this name."""
    return name in (pairs(server.op, "grad_to_block_id") if server.mode else server.main.main_block.vars)


def most_brought(server: Server, method: str, name: str) -> int:
    """How many bytes a call may bring that is about a variable: as many as it holds, `LARGE_CALL` where the program
    doesn't tell, none where the server has no place for any.
    """
    if method == "PrefetchVariable":
        return LARGE_CALL
    name = name.partition(PIECE)[0]
    if method != "SendVariable" or not _serves(server, name):
        return 0
    declared = server.main.main_block.vars.get(name)
    held = 0 if declared is None or declared.kind is VarKind.SELECTED_ROWS else _size(declared)
    return held + MOST_FIELDS if held else LARGE_CALL


def most_held(server: Server) -> int:
    """Bytes of the largest variable of a server, as far as the program tells."""
    return max(map(_size, server.main.main_block.vars.values()), default=0)


def _size(var: Var) -> int:
    """Bytes of a variable; 0 where its declaration leaves them open."""
    dtype = None if var.dtype is None else DTYPES.get(var.dtype.value)
    return 0 if dtype is None or not var.shape or min(var.shape) < 0 else prod(var.shape) * dtype.itemsize


def _require_rows(declared: Var, message: VariableMessage) -> None:
    """Raises CallRefused if rows are not of the variable's width, or of more rows than it has."""
    name, dims, shape = message.varname, message.dims, declared.shape
    if declared.kind is VarKind.LOD_TENSOR:
        raise CallRefused(INVALID, f"{name} brings rows, where the server has a tensor")
    if shape and min(shape) > 0 and (prod(dims[1:]) != prod(shape[1:]) or message.height > shape[0]):
        given = [message.height, *dims[1:]]
        raise CallRefused(INVALID, f"{name} brings rows of {given}, where the server has {list(shape)}")


def require_ids(server: str, name: str, ids: Any, rows: int) -> None:
    """Raises CallRefused if something is no tensor of ids from 0 up to the rows of a table."""
    if ids.__class__ is not np.ndarray or ids.dtype != np.int64:
        raise CallRefused(INVALID, f"ids of {name} are no tensor of int64")
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < rows:
        raise CallRefused(INVALID, f"an id is outside of the {rows} rows of {name} on {server}")


def require_room(server: str, name: str, ids: Any, table: SelectedRows) -> None:
    """Raises CallRefused if something is no tensor of ids that a table, which grows, holds or has room for."""
    require_ids(server, name, ids, table.height or 1 << 63)
    known: Any = np.isin(ids, table.rows)
    if len(np.unique(ids[~known])) > len(table.value) - len(table.rows):
        raise CallRefused(INVALID, f"there is no room for new ids in the table that {name} asks on {server}")


def require_saving(server: Server) -> None:
    """Raises CallRefused if the server has no block that saves."""
    if server.save_block < 0:
        raise CallRefused(LATER, f"{server.name} has no block that saves")


def output_of_prefetch(main: Program, block: int) -> str:
    """The variable that a block which looks ids up gives."""
    (output,) = main.blocks[block].ops[-1].output_names
    return output
