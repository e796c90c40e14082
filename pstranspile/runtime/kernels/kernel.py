"""Kernels: the computations of op types.

    @kernel("scale", "Out")
    def scale(op: Op) -> Run:
        factor, bias = op.attrs["scale"], op.attrs["bias"]
        def run(X, ScaleTensor=None):
            return X * factor + bias
        return run

The decorated function is called once per op, when a program is prepared. The function that it returns is called once
per step. Most kernels have no use for two functions. They are written as the inner one, which `plain_kernel` registers:

    @plain_kernel("huber_loss", "Residual Out")
    def huber_loss(X, Y, *, delta: float):
        ...

* Parameters are named after input slots (`Out_GRAD` is the slot `Out@GRAD`), and values are passed by position. A slot
  that is missing or empty gives None. A duplicable slot gives a list.
* A parameter called `surroundings` gets the Surroundings: random numbers, declarations and files. One called `context`
  gets the ExecutionContext, which also has variables by name and sub-blocks, and costs more. A kernel of control flow
  may take only the `context`.
* Keyword-only parameters of a plain kernel are bound once per op. `delta: float` is the attribute `delta`; the
  annotation selects how it is read (`int`, `float`, `bool`, `str` or `Dims`). `wants_X_GRAD: bool` is whether the op
  has the output X@GRAD. `op` is the op itself. A default of `per_op(function)` is replaced by the function's value for
  the op.
* `op.attrs` has the schema's defaults for attributes that the op does not carry, except for optional ones.
* A variable without a value is an error, unless its slot is declared with `may_lack`: then it gives None, also within
  the list of a duplicable slot.
* A kernel returns the value of the output slot named in the decorator, or a tuple if several are named. A duplicable
  slot takes a list. None leaves a variable unchanged. Slots that the op does not have are dropped, so a kernel should
  ask `has_output(op, slot)` before it computes a costly one.
* An output slot named in `spares` may be removed from the op if nothing reads it. It must be one that can't fail.
* Values are numpy arrays and SelectedRows. The caller handles LoD. An output gets the LoD of the first input that has
  one, if it has as many rows as the LoD describes. The option `lod` changes this: with "none" outputs have no LoD; with
  slots, such as "Out", only these outputs have one; with "each" the gradient `S@GRAD` gets the LoD of the input S; with
  "own" the kernel gets and returns LoDTensors, but returns none if it gets none; "new" is like "own", but the kernel
  may create LoD. `lod` may also be a function from the op to one of these.
* Inputs are never changed, except that an op with the same variable as input and output may update it in place
  (`in_place(op, input_slot, output_slot)`). No two variables share memory, unless an op makes one as a view.
* A kernel raises ValueError for what it can't compute, at binding or in a step. The message says what is wrong. The
  caller adds op, source line, and names, dtypes and dims of the inputs.

`inline` is for short, frequent kernels. It is a Python expression that generated code uses instead of a call if all
inputs are plain arrays. It must give the same bits as the kernel. `{X}` stands for the value of slot X (`{X[0]}` for an
element of a duplicable slot, `{Out_GRAD}` for `Out@GRAD`) and `np` for numpy: `inline="np.maximum({X}, 0)"`. The
FUNCTIONS of `pstranspile.runtime.arithmetic` can be used, too, and so can `inf` and `nan`, which `repr` writes of some
FLOATs. `{call}` stands for a call of the kernel. `inline` may also be a function from the op to the expression, or to
None if the attributes need a call:

    @kernel("scale", inline=lambda op: f"{{X}} * {op.attrs['scale']!r}" if op.attrs["bias"] == 0 else None)

`over` is an expression that overwrites the memory of X. Generated code uses it if the op that made X always gives a
`new` array, and if no other op reads the values of X. A kernel that `reuses` memory may write its result into X where
the op has the attribute `OVER`, which generated code sets for the same reason. An op that reads nothing but the dims
of an input says so in its declaration (`dims_only`).

Beside the values of its inputs, a kernel receives what the interpreter offers in the parameters `surroundings` and
`context`. A kernel with neither parameter depends on its inputs only. The `surroundings` cost nothing. The `context`
also gives access to variables by name. It costs time, because all variables that the kernel may read must be stored in
it before the kernel runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from pstranspile.ir.model import Op, Var
from pstranspile.ops import schema_of
from pstranspile.ops.attributes import flag, int_attr, ints_attr, real, text
from pstranspile.ops.schema import require_own
from pstranspile.runtime.kernels.random import Key, Rows

Value: TypeAlias = Any
"""A numpy array, a LoDTensor, SelectedRows, a list of these (a tensor array), or an object private to an op."""


class Surroundings(Protocol):
    """The surroundings of an op in a running program: declarations, random numbers and files, but no
    variables' values.
    """

    def declaration(self, name: str) -> Var | None:
        """The declaration that a variable's name resolves to at the op, None if there is none."""
        ...

    def stream(
        self, name: str, seed: int, of: str = "", dims: Sequence[int] = (), lod: list[list[int]] | None = None
    ) -> tuple[Key, int]:
        """The key of the random stream of variable `name`, and the offset of the variable's first element in it.

        Both are arguments of the functions in `pstranspile.runtime.kernels.random`. The key is made from the
        program's seed, the op's `seed` and the name of the whole variable. The offset is not 0 if the variable is a
        slice of the whole. With `seed` 0 every run of the op has its own stream, except that a persistable variable,
        which is being initialised, gets the same numbers in every run under one program seed. An op with a seed draws
        the same numbers every time. All machines draw the same numbers.

        If there are numbers for each row of a batch, `of` names the variable with those rows, and `dims` and `lod`
        describe the numbers. Each row then draws the numbers that it draws on a machine with the whole batch. If it is
        unknown which rows a machine has, each machine draws numbers of its own.
        """
        ...

    def rows(self, name: str, dims: Sequence[int], lod: list[list[int]] | None = None) -> Rows | None:
        """The rows of the whole batch that a value of a variable holds; None if they are not known."""
        ...

    def path(self, file_path: str) -> Path:
        """The path of a file named by an attribute. Relative paths start at the folder of the run."""
        ...


class ExecutionContext(Surroundings, Protocol):
    """One execution of a block. It sees the variables of the executions of the enclosing blocks."""

    @property
    def op(self) -> Op:
        """The op that is run, for messages and for the names of its variables."""
        ...

    def find(self, name: str) -> Value | None:
        """The value of a variable of this block or an enclosing one, None if it has none yet."""
        ...

    def write(self, name: str, value: Value) -> None:
        """Sets a variable that is not an output of the op, such as a table that grows when it is read, where it is
        declared.
        """
        ...

    def forget(self, name: str) -> None:
        """Removes a variable's value. Reading it is an error until something writes it again."""
        ...

    def own(self, name: str) -> Value | None:
        """The value of a variable in this execution only, None if it has none here."""
        ...

    def keep(self, name: str, value: Value) -> None:
        """Sets a variable in this execution only. It hides a variable of the same name in enclosing blocks."""
        ...

    def enter(self, block: int) -> ExecutionContext:
        """A new execution of another block of the program, which sees the variables of this one."""
        ...

    def ops(self) -> tuple[Op, ...]:
        """The ops of this execution's block."""
        ...

    def execute(self) -> None:
        """Runs the ops of this execution's block in order."""
        ...


Run: TypeAlias = Callable[..., Any]
"""The function of one step of an op: takes input values by position, and returns output values."""

RunT = TypeVar("RunT", bound=Callable[..., Any])
Default = TypeVar("Default")

Factory: TypeAlias = Callable[[Op], Run]
"""A function that binds an op's attributes and returns its Run."""

OVER = "@over"
"""The attribute of an op that may write its result into the memory of X, because nothing reads X afterwards."""

Inline: TypeAlias = "str | Callable[[Op], str | None] | None"
"""The expression of a kernel with one output for generated code, or a function that returns it for an op."""

LodRule: TypeAlias = "str | Callable[[Op], str]"
"""The option `lod` of a kernel, or a function that returns it for an op."""


class Kernel(NamedTuple):
    """The numpy implementation of an op type. `outputs` are the slots that a Run returns, in order; the other fields
    are the options of `kernel`.
    """

    make: Factory
    outputs: tuple[str, ...]
    lod: LodRule
    inline: Inline = None
    over: Inline = None
    new: bool = False
    spares: frozenset[str] = frozenset()
    reuses: bool = False


_KERNELS: dict[str, Kernel] = {}
_DECLARATIONS, _KERNEL_FILES = "pstranspile.ops.", "pstranspile.runtime.kernels."


def kernel(
    op_types: str,
    outputs: str = "Out",
    *,
    lod: LodRule = "share",
    inline: Inline = None,
    over: Inline = None,
    new: bool = False,
    spares: str = "",
    reuses: bool = False,
) -> Callable[[Factory], Factory]:
    """Registers the decorated factory as the kernel of these op types (separated by blanks)."""

    def register(factory: Factory) -> Factory:
        for op_type in op_types.split():
            if op_type in _KERNELS:
                raise ValueError(f"op type {op_type} has two kernels")
            require_own(op_type, "a kernel", getattr(factory, "__module__", __name__))
            spared = frozenset(spares.split())
            _KERNELS[op_type] = Kernel(factory, tuple(outputs.split()), lod, inline, over, new, spared, reuses)
        return factory

    return register


def plain_kernel(
    op_types: str,
    outputs: str = "Out",
    *,
    lod: LodRule = "share",
    inline: Inline = None,
    new: bool = False,
    spares: str = "",
) -> Callable[[RunT], RunT]:
    """Registers a kernel as `kernel` does, for a function that runs in every step; its keyword-only parameters are
    bound once per op.
    """

    def register(run: RunT) -> RunT:
        for op_type in op_types.split():
            require_own(op_type, "a kernel", run.__module__)
        kernel(op_types, outputs, lod=lod, inline=inline, new=new, spares=spares)(_factory(cast("FunctionType", run)))
        return run

    return register


class _PerOp(NamedTuple):
    function: Callable[[Op], Any]


def per_op(function: Callable[[Op], Default]) -> Default:
    """Marks the default of a kernel's keyword-only parameter as a function of the op, which is computed once per op."""
    return cast("Default", _PerOp(function))


def _factory(run: FunctionType) -> Factory:
    code = run.__code__
    names = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    if not names:
        return lambda _op: run
    defaults = run.__kwdefaults__ or {}
    readers = {name: _reader(name, run.__annotations__.get(name), defaults.get(name)) for name in names}

    def make(op: Op) -> Run:
        bound = FunctionType(code, run.__globals__, run.__name__, run.__defaults__, run.__closure__)
        bound.__kwdefaults__ = {name: read(op) for name, read in readers.items()}
        return bound

    return make


_READERS: dict[str, Callable[[Op, str], Any]] = {"float": real, "bool": flag, "str": text, "Dims": ints_attr}


def _reader(name: str, annotation: Any, default: Any) -> Callable[[Op], Any]:
    """A function from an op to the value of a kernel's keyword-only parameter."""
    if isinstance(default, _PerOp):
        return default.function
    if name == "op":
        return lambda op: op
    if name.startswith("wants_"):
        slot = name.removeprefix("wants_").replace("_GRAD", "@GRAD")
        return lambda op: has_output(op, slot)
    kind = getattr(annotation, "__name__", annotation)
    if kind == "int":
        return lambda op: int_attr(op, name, default or 0)
    if kind not in _READERS:
        raise TypeError(f"the parameter {name} of a kernel is {kind}, it must be int, {', '.join(_READERS)}")
    return lambda op: _READERS[kind](op, name)


def kernel_of(op_type: str) -> Kernel | None:
    """The kernel of an op type, None if it has none. The file of its family is imported if it is not yet."""
    if op_type not in _KERNELS:
        schema = schema_of(op_type)
        if schema is not None and schema.module.startswith(_DECLARATIONS):
            _load(schema.module.removeprefix(_DECLARATIONS))
    return _KERNELS.get(op_type)


@cache
def _load(family: str) -> None:
    """Imports the kernels of a family of this package, if it has any."""
    name = f"{_KERNEL_FILES}{family}"
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name != name:
            raise


def has_output(op: Op, slot: str) -> bool:
    """Whether the op has a variable in this output slot."""
    return bool(op.outputs.get(slot))


def in_place(op: Op, input_slot: str, output_slot: str) -> bool:
    """Whether the op writes the same variable it reads, so that its memory may be reused."""
    return op.input(input_slot) is not None and op.input(input_slot) == op.output(output_slot)
