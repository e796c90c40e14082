"""Fluid's `layers.io`: variables that are fed, readers that feed them, and ops that communicate."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

from pstranspile.fluid import unique_name
from pstranspile.fluid.communicator import DistributedMode
from pstranspile.fluid.dataloader import PyReaderVariable, create_reader_variable
from pstranspile.fluid.dataloader import double_buffer as double_buffer
from pstranspile.fluid.dataloader import read_file as read_file
from pstranspile.fluid.framework import default_main_program
from pstranspile.fluid.graph.values import VarType, dtype_of, kind_of, several, vartype_of
from pstranspile.fluid.layers.adapt import live
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.reader import GeneratorLoader
from pstranspile.frontends.layers.draft import whole_dim
from pstranspile.ir.model import TensorType, Var
from pstranspile.ir.types import OpRole


def data(
    name: str,
    shape: Any,
    append_batch_size: bool = True,
    dtype: Any = "float32",
    lod_level: int = 0,
    type: Any = VarType.LOD_TENSOR,
    stop_gradient: bool = True,
) -> Any:
    """A variable that is fed; its first dim is the batch's, unless `append_batch_size` is False."""
    dims = [-1 if dim is None else whole_dim(dim) for dim in shape]
    if append_batch_size and not any(dim < 0 for dim in dims):
        dims = [-1, *dims]
    return declare_input(name, dims, dtype, lod_level, stop_gradient, type)


def declare_input(
    name: str,
    dims: Any,
    dtype: Any,
    lod_level: int,
    stop_gradient: bool = True,
    kind: Any = VarType.LOD_TENSOR,
    check: bool = False,
) -> Any:
    """A variable of block 0 that is fed; with `check` runs also check the dims of the fed value."""
    draft = live()
    tensor = TensorType(dtype_of(dtype), tuple(dims), lod_level)
    draft.declare(Var(name, kind_of(kind), tensor, need_check_feed=check), 0)
    if stop_gradient:
        draft.stop_gradient.add(name)
    made = draft.program.global_block().var(name)
    made.is_data = True
    return made


class _Slot(NamedTuple):
    """A reader's declaration of the values for one variable."""

    name: str
    shape: tuple[int, ...]
    dtype: VarType
    lod_level: int
    need_check_feed: bool = False


def py_reader(
    capacity: int,
    shapes: Any,
    dtypes: Any,
    lod_levels: Any = None,
    name: str | None = None,
    use_double_buffer: bool = True,
) -> PyReaderVariable:
    """A reader with variables of its own, to which a Python function supplies values after `start()`."""
    kinds = [vartype_of(dtype_of(dtype)) for dtype in dtypes]
    levels = lod_levels or [0] * len(shapes)
    dims = [tuple(-1 if dim is None else whole_dim(dim) for dim in shape) for shape in shapes]
    slots = [_Slot(f"_{at}", *slot) for at, slot in enumerate(zip(dims, kinds, levels, strict=True))]
    return _py_reader(capacity, slots, name, use_double_buffer)


def create_py_reader_by_data(
    capacity: int, feed_list: Any, name: str | None = None, use_double_buffer: bool = True
) -> PyReaderVariable:
    """A reader that supplies values like those of existing variables; `read_file` returns new variables declared like
    them.
    """
    slots = [_Slot(var.name, tuple(var.shape), var.dtype, var.lod_level, var.var.need_check_feed) for var in feed_list]
    return _py_reader(capacity, slots, name, use_double_buffer)


def _py_reader(capacity: int, slots: list[_Slot], name: str | None, use_double_buffer: bool) -> PyReaderVariable:

    loader = GeneratorLoader([], capacity)
    loader.feeds, loader.iterable = [*slots], False
    if name is None:
        queue, key = unique_name.generate("lod_tensor_blocking_queue"), unique_name.generate("create_py_reader")
    else:
        queue, key = f"{name}_queue", f"{name}_reader"
    reader = create_reader_variable(loader, queue, key)
    if not use_double_buffer:
        return reader
    return double_buffer(reader, name=None if name is None else f"{name}_double_buffer")


def load(out: Any, file_path: str, load_as_fp16: bool | None = None) -> None:
    """Adds an op that loads `out` from a file."""
    draft = live()
    draft.op("load", None, {"Out": out.name}, {"file_path": file_path, "load_as_fp16": bool(load_as_fp16)})


class ListenAndServ:
    """A server: runs the ops made in its block `do()` when `fan_in` trainers have sent `inputs` (variables, or names).

    Trainers can then fetch the variables that the ops write. A program with this op serves when it is run.
    """

    def __init__(self, endpoint: str, inputs: Any, fan_in: int = 1, optimizer_mode: bool = True):
        self.endpoint, self.inputs, self.fan_in = endpoint, inputs, fan_in

    @contextmanager
    def do(self) -> Generator[None]:
        """A context manager for the ops that run once all inputs have arrived."""
        program = default_main_program()
        block = program._create_block()  # pyright: ignore[reportPrivateUsage]
        try:
            yield
        finally:
            program._rollback()  # pyright: ignore[reportPrivateUsage]
        attrs = {
            "endpoint": self.endpoint,
            "Fanin": self.fan_in,
            "optimize_blocks": [block],
            "distributed_mode": DistributedMode.SYNC,
            "grad_to_block_id": [""],
        }
        program.current_block().append_op("listen_and_serv", {"X": self.inputs}, {}, attrs)


def Send(endpoints: str, send_vars: list[Any], dummy_output: Any = None, sync: bool = True) -> None:
    """Sends each of the variables to the server at the same position in `endpoints`, which are separated by commas.

    With `sync` the servers are then told that the trainer has sent everything.
    """
    ordering = _several(dummy_output)
    block, targets = default_main_program().current_block(), _targets(endpoints)
    block.append_op("send", {"X": send_vars}, {"Out": ordering}, {**targets, "op_role": int(OpRole.RPC)})
    if sync:
        block.append_op("send_barrier", {"X": ordering}, {"Out": []}, {"endpoints": targets["endpoints"]})


def Recv(endpoints: str, get_vars: list[Any], dummy_input: Any = None, sync: bool = True) -> list[Any]:
    """Fetches each of the variables from the server at the same position in `endpoints`, and returns the variables.

    With `sync` the servers are then told that the trainer has fetched everything.
    """
    block, targets = default_main_program().current_block(), _targets(endpoints)
    block.append_op("recv", {"X": _several(dummy_input)}, {"Out": get_vars}, targets)
    if sync:
        block.append_op("fetch_barrier", None, {"Out": get_vars}, {"endpoints": targets["endpoints"]})
    return get_vars


def _targets(endpoints: str) -> dict[str, list[str]]:
    """The attributes of an op that name its servers."""
    places = endpoints.split(",")
    return {"endpoints": list(dict.fromkeys(places)), "epmap": places}


def _several(variables: Any) -> list[Any]:
    """One variable, several or none, as a list."""
    return [] if variables is None else [*variables] if several(variables) else [variables]


__getattr__ = names_of_fluid(__name__, globals())
