"""Readers in programs: their variables, and the ops that create and read them."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid import unique_name
from pstranspile.fluid.graph.program import DEFAULTS
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.graph.vartype import dtype_of
from pstranspile.ir.model import TensorType, Var
from pstranspile.ir.types import VarKind

data_loader_unique_name_generator = unique_name.UniqueNameGenerator()
"""The counters of the names that loaders have in programs."""


class PyReaderVariable(Variable):
    """The variable of a reader in a program, which is started and filled as a loader is."""

    loader: Any
    """What fills the variables that `read_file` gives."""

    def __getattr__(self, name: str) -> Any:
        if name in _OF_LOADERS:
            return getattr(self.loader, name)
        raise AttributeError(f"a reader has no {name!r}")


_OF_LOADERS = (
    *("start", "reset", "queue", "thread", "decorate_paddle_reader", "decorate_sample_list_generator"),
    *("decorate_tensor_provider", "decorate_batch_generator", "decorate_sample_generator"),
)


def _reader_variable(loader: Any, program: Any, name: str) -> PyReaderVariable:
    """Declares the reader of a loader in block 0 of a program."""
    tensors = tuple(TensorType(dtype_of(var.dtype), tuple(var.shape), var.lod_level) for var in loader.feeds)
    program.drafts[0].vars[name] = Var(name, VarKind.READER, persistable=True, readers=tensors)
    made = PyReaderVariable(program.global_block(), name)
    made.loader = loader
    program.global_block().adopt(made)
    return made


def created(loader: Any, queue: str, name: str, at_start: bool = True) -> PyReaderVariable:
    """The reader of a loader as a variable of the main program.

    The start-up program creates it, or with `at_start` False the main program, in every run.
    """
    draft = DEFAULTS[0].live()
    creating = draft.startup_program if at_start else draft.program
    made = _reader_variable(loader, creating, name)
    attrs = {
        "shape_concat": [dim for var in loader.feeds for dim in var.shape],
        "ranks": [len(var.shape) for var in loader.feeds],
        "lod_levels": [var.lod_level for var in loader.feeds],
        "dtypes": [int(var.dtype) for var in loader.feeds],
        "need_check_feed": [int(var.need_check_feed) for var in loader.feeds],
    }
    block = creating.global_block() if at_start else creating.current_block()
    block.append_op("create_py_reader", {"blocking_queue": [queue]}, {"Out": [name]}, attrs)
    draft.program.readers.append(loader)
    return _reader_variable(loader, draft.program, name) if at_start else made


def double_buffer(reader: PyReaderVariable, place: Any = None, name: str | None = None) -> PyReaderVariable:
    """A reader that reads another one ahead, which is its own matter here."""
    draft = DEFAULTS[0].live()
    made = _reader_variable(reader.loader, draft.program, name or unique_name.generate("double_buffer"))
    block = draft.program.current_block()
    block.append_op(
        "create_double_buffer_reader",
        {"UnderlyingReader": [reader]},
        {"Out": [made]},
        {"place": str(place or "auto").upper()},
    )
    return made


def loader_ops(loader: Any, use_double_buffer: bool) -> None:
    """Has the program in use draw the variables of a loader from it."""
    names = data_loader_unique_name_generator
    if not loader.feeds:
        raise AssertionError("a loader of a program needs a feed_list")
    queue, key, ahead = names("lod_tensor_blocking_queue"), names("create_py_reader"), names("double_buffer")
    reader = created(loader, queue, key, at_start=not loader.keeps_order)
    if use_double_buffer:
        reader = double_buffer(reader, name=ahead)
    DEFAULTS[0].live().program.current_block().append_op(
        "read",
        {"Reader": [reader]},
        {"Out": loader.feeds},
        {"drop_last": loader._drop_last},
    )


def read_file(reader: PyReaderVariable) -> Any:
    """The variables that a reader gives in every run."""
    block, key = DEFAULTS[0].live().program.current_block(), unique_name.generate("read_file")
    made = [
        block.create_var(name=f"{key}.tmp_{index}", shape=var.shape, dtype=var.dtype, lod_level=var.lod_level)
        for index, var in enumerate(reader.loader.feeds)
    ]
    for var in made:
        var.stop_gradient, var.is_data = True, True
    block.append_op("read", {"Reader": [reader]}, {"Out": made})
    reader.loader.names = [var.name for var in made]
    return made[0] if len(made) == 1 else made
