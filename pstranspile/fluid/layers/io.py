"""Fluid's `layers.io`: what is fed, and readers that feed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pstranspile.fluid import unique_name
from pstranspile.fluid.graph.variable import Variable, kind_of
from pstranspile.fluid.graph.vartype import VarType, dtype_of, vartype_of
from pstranspile.fluid.layers.adapt import live
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.ir.model import TensorType, Var
from pstranspile.ir.types import VarKind

if TYPE_CHECKING:
    from pstranspile.fluid.reader import GeneratorLoader


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


class PyReaderVariable(Variable):
    """The variable of a reader in a program, which is started and filled as a loader is."""

    loader: GeneratorLoader
    """What fills the variables that `read_file` gives."""

    def __getattr__(self, name: str) -> Any:
        if name in _OF_LOADERS:
            return getattr(self.loader, name)
        raise AttributeError(f"a reader has no {name!r}")


_OF_LOADERS = (
    *("start", "reset", "queue", "decorate_paddle_reader", "decorate_sample_list_generator"),
    *("decorate_tensor_provider", "decorate_batch_generator", "decorate_sample_generator"),
)


def _reader_variable(loader: GeneratorLoader, program: Any, name: str) -> PyReaderVariable:
    """Declares the reader of a loader in block 0 of a program."""
    tensors = tuple(TensorType(dtype_of(var.dtype), tuple(var.shape), var.lod_level) for var in loader.feeds)
    program.drafts[0].vars[name] = Var(name, VarKind.READER, persistable=True, readers=tensors)
    made = PyReaderVariable(program.global_block(), name)
    made.loader = loader
    program.global_block().adopt(made)
    return made


def _created(loader: GeneratorLoader, queue: str, name: str) -> PyReaderVariable:
    """The reader of a loader, which the start-up program creates, as a variable of the main program."""
    draft = live()
    _reader_variable(loader, draft.startup_program, name)
    attrs = {
        "shape_concat": [dim for var in loader.feeds for dim in var.shape],
        "ranks": [len(var.shape) for var in loader.feeds],
        "lod_levels": [var.lod_level for var in loader.feeds],
        "dtypes": [int(var.dtype) for var in loader.feeds],
        "need_check_feed": [int(var.need_check_feed) for var in loader.feeds],
    }
    block = draft.startup_program.global_block()
    block.append_op("create_py_reader", {"blocking_queue": [queue]}, {"Out": [name]}, attrs)
    draft.program.readers.append(loader)
    return _reader_variable(loader, draft.program, name)


def double_buffer(reader: PyReaderVariable, place: Any = None, name: str | None = None) -> PyReaderVariable:
    """A reader that reads another one ahead, which is its own matter here."""
    draft = live()
    made = _reader_variable(reader.loader, draft.program, name or unique_name.generate("double_buffer"))
    block = draft.program.current_block()
    block.append_op(
        "create_double_buffer_reader",
        {"UnderlyingReader": [reader]},
        {"Out": [made]},
        {"place": str(place or "auto").upper()},
    )
    return made


def loader_ops(loader: GeneratorLoader, use_double_buffer: bool) -> None:
    """Has the program in use draw the variables of a loader from it."""
    from pstranspile.fluid.reader import data_loader_unique_name_generator as names

    if not loader.feeds:
        raise AssertionError("a loader of a program needs a feed_list")
    queue, key, ahead = names("lod_tensor_blocking_queue"), names("create_py_reader"), names("double_buffer")
    reader = _created(loader, queue, key)
    if use_double_buffer:
        reader = double_buffer(reader, name=ahead)
    live().program.current_block().append_op(
        "read",
        {"Reader": [reader]},
        {"Out": loader.feeds},
        {"drop_last": loader._drop_last},  # pyright: ignore[reportPrivateUsage]
    )


def read_file(reader: PyReaderVariable) -> Any:
    """The variables that a reader gives in every run."""
    block, key = live().program.current_block(), unique_name.generate("read_file")
    made = [
        block.create_var(name=f"{key}.tmp_{index}", shape=var.shape, dtype=var.dtype, lod_level=var.lod_level)
        for index, var in enumerate(reader.loader.feeds)
    ]
    for var in made:
        var.stop_gradient, var.is_data = True, True
    block.append_op("read", {"Reader": [reader]}, {"Out": made})
    reader.loader.names = [var.name for var in made]
    return made[0] if len(made) == 1 else made


class _Slot(NamedTuple):
    """What a reader gives for one variable."""

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
    """A reader with variables of its own, which a Python function fills after `start()`."""
    kinds = [vartype_of(dtype_of(dtype)) for dtype in dtypes]
    levels = lod_levels or [0] * len(shapes)
    dims = [tuple(-1 if dim is None else int(dim) for dim in shape) for shape in shapes]
    slots = [_Slot(f"_{at}", *slot) for at, slot in enumerate(zip(dims, kinds, levels, strict=True))]
    return _py_reader(capacity, slots, name, use_double_buffer)


def create_py_reader_by_data(
    capacity: int, feed_list: Any, name: str | None = None, use_double_buffer: bool = True
) -> PyReaderVariable:
    """A reader of what variables that are there already hold; `read_file` gives variables alike."""
    slots = [_Slot(var.name, tuple(var.shape), var.dtype, var.lod_level, var.var.need_check_feed) for var in feed_list]
    return _py_reader(capacity, slots, name, use_double_buffer)


def _py_reader(capacity: int, slots: list[_Slot], name: str | None, use_double_buffer: bool) -> PyReaderVariable:
    from pstranspile.fluid.reader import GeneratorLoader

    loader = GeneratorLoader([], capacity)
    loader.feeds, loader.iterable = [*slots], False
    if name is None:
        queue, key = unique_name.generate("lod_tensor_blocking_queue"), unique_name.generate("create_py_reader")
    else:
        queue, key = f"{name}_queue", f"{name}_reader"
    reader = _created(loader, queue, key)
    if not use_double_buffer:
        return reader
    return double_buffer(reader, name=None if name is None else f"{name}_double_buffer")


def load(out: Any, file_path: str, load_as_fp16: bool | None = None) -> None:
    """The program fills `out` from a file."""
    draft = live()
    draft.op("load", None, {"Out": out.name}, {"file_path": file_path, "load_as_fp16": bool(load_as_fp16)})


__getattr__ = names_of_fluid(__name__, globals())
