"""Fluid's `layers.io`: what is fed, and readers that feed."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.graph.variable import kind_of
from pstranspile.fluid.graph.vartype import VarType, dtype_of
from pstranspile.fluid.layers.adapt import live, wrap
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.reader import ProgramReader
from pstranspile.ir.model import TensorType, Var


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
    dims = [-1 if dim is None else int(dim) for dim in shape]
    if append_batch_size and not any(dim < 0 for dim in dims):
        dims = [-1, *dims]
    return declared(name, dims, dtype, lod_level, stop_gradient, type)


def declared(
    name: str,
    dims: Any,
    dtype: Any,
    lod_level: int,
    stop_gradient: bool = True,
    kind: Any = VarType.LOD_TENSOR,
    check: bool = False,
) -> Any:
    """A variable of block 0 that is fed; with `check` also its dims are looked at."""
    draft = live()
    tensor = TensorType(dtype_of(dtype), tuple(dims), lod_level)
    draft.declare(Var(name, kind_of(kind), tensor, need_check_feed=check), 0)
    if stop_gradient:
        draft.stop_gradient.add(name)
    made = draft.program.global_block().var(name)
    made.is_data = True
    return made


def read_file(reader: ProgramReader) -> Any:
    """The variables that a reader gives in every run."""
    made = wrap([live().value(name) for name in reader.names])
    return made[0] if len(made) == 1 else made


def double_buffer(reader: Any, place: Any = None, name: str | None = None) -> Any:
    """The reader itself: reading ahead is its own matter."""
    return reader


def py_reader(
    capacity: int,
    shapes: Any,
    dtypes: Any,
    lod_levels: Any = None,
    name: str | None = None,
    use_double_buffer: bool = True,
) -> ProgramReader:
    """A reader with variables of its own, which a Python function fills after `start()`."""
    draft = live()
    key = name or draft.names.mint("create_py_reader")
    levels = lod_levels or [0] * len(shapes)
    feeds = [
        declared(f"{key}_data_{index}", shape, dtype, level)
        for index, (shape, dtype, level) in enumerate(zip(shapes, dtypes, levels, strict=True))
    ]
    return create_py_reader_by_data(capacity, feeds, name, use_double_buffer)


def create_py_reader_by_data(
    capacity: int, feed_list: Any, name: str | None = None, use_double_buffer: bool = True
) -> ProgramReader:
    """A reader of variables that are there already."""
    reader = ProgramReader(feed_list, capacity)
    live().program.readers.append(reader)
    return reader


def load(out: Any, file_path: str, load_as_fp16: bool | None = None) -> None:
    """The program fills `out` from a file."""
    draft = live()
    draft.op("load", None, {"Out": out.name}, {"file_path": file_path, "load_as_fp16": bool(load_as_fp16)})


__getattr__ = names_of_fluid(__name__, globals())
