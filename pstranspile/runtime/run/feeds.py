"""Checks of fed values against the declarations of a program, and of fetched values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, at_op, did_you_mean, error, file_of, listed
from pstranspile.ir.model import Op, Program, Var
from pstranspile.ir.types import VarKind
from pstranspile.ops.gradient import SUFFIX
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.kernels.programs.io import FEEDING
from pstranspile.runtime.large.table import LargeTable, TableState
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.values import NUMPY_TYPES, Array, LoDTensor, SelectedRows

# Descriptions of values for messages.

_TEXT = {name: dtype.text for dtype, name in NUMPY_TYPES.items()}


def describe(value: Value) -> str:
    """A description of a value: `f32[8, 13]`, `f32[20, 4] in 3 sequences`, `3 rows of 100, f32[3, 16]`, ..."""
    if value is None:
        return "nothing"
    if isinstance(value, LoDTensor):
        levels = " of ".join(str(len(level) - 1) for level in value.lod)
        return f"{describe(value.data)} in {levels} sequences"
    if isinstance(value, SelectedRows):
        return f"{len(value.rows)} rows of {value.height}, {describe(value.value)}"
    if isinstance(value, LargeTable):
        return f"{len(value)} rows of the {value.height} x {value.width} of a large table"
    if isinstance(value, TableState):
        return "a state of the rows of a large table"
    if isinstance(value, np.ndarray):
        name = str(value.dtype)
        return f"{_TEXT.get(name, name)}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, list):
        return f"an array of {len(value)} tensors"  # pyright: ignore[reportUnknownArgumentType]
    return type(value).__name__


def numbers_of(value: Value) -> Array | None:
    """The numbers of a value as one array; None for a value without numbers."""
    if isinstance(value, LoDTensor):
        return value.data
    if isinstance(value, SelectedRows):
        return value.value
    return value if isinstance(value, np.ndarray) else None


def described(values: Iterable[tuple[str, Value]]) -> str:
    """A description of several variables: `x f32[8, 13], w f32[13, 1]`."""
    return ", ".join(f"{name} {describe(value)}" for name, value in values)


def is_number(value: object) -> bool:
    """Whether a value is a single number."""
    return getattr(value, "size", 0) == 1 and hasattr(value, "ravel")


def size_in_bytes(value: Value) -> int:
    """The memory of a value's numbers."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, LoDTensor):
        return int(value.data.nbytes)
    if isinstance(value, SelectedRows):
        return int(value.rows.nbytes + value.value.nbytes)
    if isinstance(value, LargeTable):
        return value.nbytes
    if isinstance(value, list):
        return sum(size_in_bytes(item) for item in value)  # pyright: ignore[reportUnknownVariableType]
    return 0


def near(name: str, names: Iterable[str]) -> str:
    """The hint `; did you mean x?` if one of the names is similar to `name`, otherwise ""."""
    return did_you_mean(name, names)


def written_names(program: Program) -> frozenset[str]:
    """The variables that ops of the program write."""
    return frozenset(name for block in program.blocks for op in block.ops for name in op.output_names)


def changed_names(program: Program) -> frozenset[str]:
    """The variables that ops of the program write, except for those that readers write, whose value is the fed one."""
    ops = (op for block in program.blocks for op in block.ops if op.type not in FEEDING)
    return frozenset(name for op in ops for name in op.output_names)


def overwritten_inputs(program: Program) -> frozenset[str]:
    """The variables that ops overwrite, so that their declared dims may not be those of a fed value.

    Variables marked `feed` are not among them.
    """
    variables = program.main_block.vars
    return frozenset(
        name for name in changed_names(program) if name in variables and not variables[name].need_check_feed
    )


def check_feeds(program: Program, feed: Mapping[str, Any]) -> dict[str, Value]:
    """The fed values in the form that the program takes. Raises DiagnosticError for every value that doesn't fit.

    Lists and numbers become arrays of the declared element type; an array must have this type already.
    """
    findings: list[Diagnostic] = []
    taken: dict[str, Value] = {}
    variables = program.main_block.vars
    for name, value in feed.items():
        var = variables.get(name)
        if var is None:
            message = f"{name} is fed, but the program declares no such variable{near(name, variables)}"
            findings.append(error("run-feed-unknown", message, file_of(program.main_block.ops)))
            continue
        made = as_value(var, value)
        problem = mismatch(var, made) and mismatch(var, made, any_dims=name in overwritten_inputs(program))
        if problem:
            findings.append(
                error("run-feed-mismatch", f"{name} is declared {declared(var)}, but {problem}", var.location)
            )
        taken[name] = made
    if findings:
        raise DiagnosticError(findings)
    return taken


def as_value(var: Var, value: Any) -> Value:
    """Plain Python numbers and lists as an array of the declared element type; other values as they are."""
    if isinstance(value, int | float | list | tuple) and not isinstance(value, LoDTensor | SelectedRows):
        try:
            return np.array(value, dtype=NUMPY_TYPES[var.dtype] if var.dtype else None)
        except (ValueError, TypeError, OverflowError):  # no numbers, or rows of different lengths
            return cast("Value", value)
    return value


def declared(var: Var) -> str:
    """The declared type of a variable: `f32[-1, 13]`, with its LoD level if it has one."""
    if var.tensor is None:
        return var.kind.name
    dims = ", ".join(map(str, var.shape))
    level = f" with {var.tensor.lod_level} LoD level{'s' * (var.tensor.lod_level > 1)}" if var.tensor.lod_level else ""
    return f"{var.tensor.dtype.text}[{dims}]{level}"


def mismatch(var: Var, value: Value, *, any_dims: bool = False) -> str:
    """The reason why a value doesn't fit a variable, "" if it fits. With `any_dims` its dims are not checked."""
    if var.kind is not VarKind.LOD_TENSOR or var.tensor is None:
        return ""
    if isinstance(value, LoDTensor):
        return _lod_problem(var, value) or mismatch_of_array(var, value.data, any_dims=any_dims)
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return f"is fed a {kind} that makes no array: it holds other than numbers, or uneven rows"
    if not isinstance(value, np.ndarray):
        return f"is fed {describe(value)}"
    if var.tensor.lod_level:
        return f"is fed {describe(value)} without LoD; feed LoDTensor(data, lod=[[0, ...]])"
    return mismatch_of_array(var, value, any_dims=any_dims)


def mismatch_of_array(var: Var, data: Any, *, any_dims: bool = False) -> str:
    """The reason why the element type or dims of an array don't fit a variable, "" if they fit."""
    assert var.tensor is not None
    wanted = NUMPY_TYPES[var.tensor.dtype]
    if data.dtype != wanted:
        return f"is fed {describe(data)}; convert it with .astype('{wanted}')"
    return "" if any_dims or fits_dims(var, data.shape) else f"is fed {describe(data)}"


def fits_dims(var: Var, shape: Sequence[int]) -> bool:
    """Whether an array of these dims fits the declared ones of a variable."""
    return len(shape) == len(var.shape) and all(d in (-1, n) for d, n in zip(var.shape, shape, strict=True))


def _lod_problem(var: Var, value: LoDTensor) -> str:
    assert var.tensor is not None
    levels: Any = value.lod
    if levels.__class__ not in (list, tuple) or not all(hasattr(level, "__len__") for level in levels):
        return "is fed a LoDTensor whose lod is no list of lists of offsets"
    if len(value.lod) != var.tensor.lod_level:
        return f"is fed {len(value.lod)} LoD levels"
    if offsets_fit(value):
        return ""
    counts = [*(len(level) - 1 for level in value.lod[1:]), len(value.data)]
    for level, count in zip(value.lod, counts, strict=True):
        rises = list(level) == sorted(level)
        if not level or level[0] != 0 or level[-1] != count or not rises:
            return f"is fed with the offsets {level}, which must rise from 0 to {count}"
    return ""


def offsets_fit(value: LoDTensor) -> bool:
    """Whether the offsets of every level ascend from 0 to the number of sequences or rows below; False also for offsets
    that are no lists.
    """
    count = len(value.data)
    for level in reversed(value.lod):
        if level.__class__ is not list or not level or level[0] != 0 or level[-1] != count or sorted(level) != level:
            return False
        count = len(level) - 1
    return True


def missing(program: Program, op: Op, slot: str, name: str, find: Callable[[str], Value | None]) -> DiagnosticError:
    """The error for an op that reads a variable without a value. If the variable is an input, the error names all
    inputs that are not fed.
    """
    var = program.find_var(name)
    if var is not None and var.persistable:
        hint = ": no start-up program has given it one, and no initial value was given"
        return DiagnosticError([at_op("run-uninitialised", f"{name} ({slot}) has no value{hint}", op, focus=name)])
    written = written_names(program)
    if name in written or var is None:
        message = f"{name} ({slot}) has no value yet: no op before this one has given it one"
        return DiagnosticError([at_op("run-uninitialised", message, op, focus=name)])
    absent: dict[str, Diagnostic] = {}
    for reader in program.main_block.ops:
        for other in reader.input_names:
            needed = program.main_block.vars.get(other)
            if needed and not needed.persistable and other not in {*written, *absent} and find(other) is None:
                absent[other] = not_fed(reader, needed)
    return DiagnosticError(absent.values() or [at_op("run-feed-missing", f"{name} is not fed", op, focus=name)])


def not_fed(op: Op, var: Var) -> Diagnostic:
    """The error for an op that reads an input which is not fed."""
    message = f"{var.name} is an input of the program, declared {declared(var)}, and is not fed"
    return at_op("run-feed-missing", message, op, focus=var.name)


def computed(program: Program) -> str:
    """`; it computes x, y and 3 more`: the variables that a program computes, but not its gradients."""
    written = dict.fromkeys(name for op in program.main_block.ops for name in op.output_names)
    names = [name for name in written if name and SUFFIX not in name]
    return f"; it computes {listed(names)}" if names else ""


def fetch_problem(program: Program, name: str) -> Diagnostic:
    """The error for a fetched variable that has no value."""
    variables = program.main_block.vars
    if name not in variables:
        hint = near(name, variables) or computed(program)
        message = f"{name} is fetched, but the program declares no such variable{hint}"
    else:
        message = f"{name} is fetched, but has no value after the run"
    return error("run-fetch-unknown", message, file_of(program.main_block.ops))


def fetched(program: Program, name: str, value: Value | None) -> Value:
    """A fetched value, which later steps don't change. Raises DiagnosticError if there is none."""
    if value is None:
        raise DiagnosticError([fetch_problem(program, name)])
    return own_copy(value)
