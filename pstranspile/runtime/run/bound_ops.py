"""Ops that are ready to run: the kernel is bound to the op's attributes, and the slots are resolved to
variable names.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dis import opname
from functools import cache
from pathlib import Path
from traceback import walk_tb
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias, cast

import numpy as np

import pstranspile
from pstranspile.ir.diagnostics import DiagnosticError, Note, at_op
from pstranspile.ir.model import EMPTY, FrozenMap, Op, Program, TensorType
from pstranspile.ir.patterns import Pattern
from pstranspile.ops import facts_of, schema_of, with_defaults
from pstranspile.ops.attributes import refusals
from pstranspile.ops.plugins import package_note, told_as, told_to_end
from pstranspile.ops.schema import Slot
from pstranspile.ops.shapes import ShapeError, Types, axes_of, fits, infer_types, require_axes
from pstranspile.ops.shapes import describe as described_type
from pstranspile.runtime.kernels.kernel import Kernel, Run, Value, kernel_of
from pstranspile.runtime.kernels.rows import GIVEN_ROWS
from pstranspile.runtime.kernels.training.optimizer import for_tables, is_update
from pstranspile.runtime.run.feeds import describe_values
from pstranspile.runtime.values import NUMPY_TYPES, LoDTensor, SelectedRows

EMPTY_NAME = "@EMPTY@"
"""The name that stands for no variable in a slot of several variables."""

CONTEXT = "context"
SURROUNDINGS = "surroundings"
"""The names of a Run's parameters that receive its environment: an ExecutionContext, or only Surroundings."""


class Argument(NamedTuple):
    """A parameter of a Run: a slot with its variables. `slot` may also be CONTEXT or SURROUNDINGS, which have no
    variables.
    """

    slot: str
    names: tuple[str, ...]
    duplicable: bool
    may_lack: bool = False
    """Whether its variables may have no value; the argument is then None."""

    @property
    def is_frame(self) -> bool:
        """Whether the parameter receives the environment of the op instead of variables."""
        return self.slot in (CONTEXT, SURROUNDINGS)


class BoundOp(NamedTuple):
    """An op ready to run: `run(*arguments)` returns the values of `results`, one for each.

    `run_any` accepts arguments that may have LoD: it removes LoD from them and gives it to the results by the rule
    `lod`. If `run` itself takes and returns LoDTensors (`sees_lod`), `run_any` is `run`.
    """

    op: Op
    run: Run
    arguments: tuple[Argument, ...]
    results: tuple[Argument, ...]
    lod: str
    run_any: Run
    kernel: Kernel | None = None
    """The kernel that the op is bound to. None if none is, such as for an exchange of a cluster's machine."""

    @property
    def sees_lod(self) -> bool:
        """Whether `run` itself takes and returns LoDTensors."""
        return self.lod in ("own", "new")

    @property
    def reads(self) -> list[str]:
        """The variables whose values `run` takes, each once."""
        return list(dict.fromkeys(name for argument in self.arguments for name in argument.names if name != EMPTY_NAME))

    @property
    def needs(self) -> list[str]:
        """The variables of `reads` that must have a value."""
        lacking = {name for argument in self.arguments if argument.may_lack for name in argument.names}
        return [name for name in self.reads if name not in lacking]

    @property
    def makes(self) -> list[str]:
        """Every variable that `run` sets. Slots that the kernel does not know are left out."""
        return [name for result in self.results for name in (result.names if result.duplicable else result.names[:1])]

    @property
    def looks(self) -> bool:
        """Whether `run` may access variables that are not among its arguments."""
        return any(argument.slot == CONTEXT for argument in self.arguments)


def bind(op: Op) -> BoundOp:
    """Binds an op to its kernel. Raises DiagnosticError if its type has none or its attributes can't be used."""
    schema = schema_of(op.type)
    kernel = kernel_of(op.type)
    for name, reason in refusals(op.attrs, schema.attrs) if schema else ():
        raise DiagnosticError([at_op("attribute-value", reason, op, focus=f"{name}=")])
    if kernel is None:
        known = f"ops of this type can't be run: {schema.doc}" if schema else "there is no op type of this name"
        raise DiagnosticError([at_op("run-no-kernel", known, op)])
    try:
        run = kernel.make(with_defaults(op))
    except (ValueError, KeyError, IndexError, TypeError, ArithmeticError) as problem:
        reason = f"the attribute {problem} is missing" if isinstance(problem, KeyError) else str(problem)
        if not (is_stated(op, problem) or isinstance(problem, KeyError)):
            reason = in_words(problem, [])
        raise DiagnosticError([at_op("run-op-failed", reason, op, notes=package_note(op.type))]) from problem
    inputs: Mapping[str, Slot] = schema.inputs if schema else EMPTY
    outputs: Mapping[str, Slot] = schema.outputs if schema else EMPTY
    may_lack = schema.may_lack if schema else frozenset[str]()
    slots = {slot.replace("@", "_"): slot for slot in (*inputs, *op.inputs)}
    arguments = tuple(_argument(op, slots, name, inputs, may_lack) for name in _parameters(run))
    for argument in arguments:
        slot = inputs.get(argument.slot)
        required = slot is not None and not (slot.duplicable or slot.dispensable or argument.may_lack)
        if required and not argument.names:
            raise DiagnosticError([at_op("run-op-failed", f"the input {argument.slot} is missing", op)])
    results = tuple(
        Argument(slot, op.outputs.get(slot, ()), outputs[slot].duplicable if slot in outputs else False)
        for slot in kernel.outputs
    )
    if axes_of(op.type):
        run = _with_axes(run, with_defaults(op), arguments)
    if schema is not None and not schema.is_built_in:
        run = _guard_kernel(run, op, arguments, results)
    if is_update(op):
        run = _for_tables(run, arguments, results, given_rows=_kernel_of_given_rows(op, kernel, run))
    lod = kernel.lod if isinstance(kernel.lod, str) else kernel.lod(with_defaults(op))
    run_any = run if lod in ("own", "new") else _any(run, arguments, results, lod)
    return BoundOp(op, run, arguments, results, lod, run_any, kernel)


def _with_axes(run: Run, op: Op, arguments: Sequence[Argument]) -> Run:
    """A kernel of an op with attributes that name dims of an input: inputs without these dims are refused, also where
    their rank is known only now.
    """
    slots = {argument.slot: place for place, argument in enumerate(arguments) if not argument.duplicable}
    checked = [(name, axis, slots[axis.slot]) for name, axis in axes_of(op.type) if axis.slot in slots]
    if not checked:
        return run
    allowed: set[tuple[int, ...]] = set()

    first_place, several = checked[0][2], len(checked) > 1

    def require_ranks(ranks: tuple[int, ...], values: Sequence[Value]) -> None:
        for (name, axis, place), rank in zip(checked, ranks, strict=True):
            if rank >= 0:
                require_axes(op, name, axis, rank, _type_text(values[place]))
        allowed.add(ranks)

    def check_ranks_and_run(*values: Value) -> Value:
        value = values[first_place]
        if several or value.__class__ is not np.ndarray:
            ranks = tuple([getattr(_data_of(values[place]), "ndim", -1) for _, _, place in checked])
        else:
            ranks = (value.ndim,)
        if ranks not in allowed:
            require_ranks(ranks, values)
        return run(*values)

    return check_ranks_and_run


def _guard_kernel(run: Run, op: Op, arguments: Sequence[Argument], results: Sequence[Argument]) -> Run:
    """A kernel of another package, whose results are compared with what the op's shape rule says of its inputs.

    How many rows the results have is not compared: only the batch tells.
    """
    op = with_defaults(op)
    expected: dict[tuple[Any, ...], Types] = {}

    def expected_types(values: Sequence[Value]) -> Types:
        """The types of the results by the shape rule, as far as it knows."""
        input_types = tuple(
            tuple(map(_type_of, value)) if argument.duplicable and value is not None else (_type_of(value),)
            for argument, value in zip(arguments, values, strict=True)
        )
        if input_types not in expected:
            expected.clear()  # Shapes of a run are few, but need not be.
            named = {
                name: tensor
                for argument, types in zip(arguments, input_types, strict=True)
                for name, tensor in zip(argument.names, types, strict=False)
            }
            try:
                expected[input_types] = infer_types(op, named.get)
            except ShapeError:
                expected[input_types] = EMPTY  # the kernel decides
        return expected[input_types]

    def run_guarded(*values: Value) -> Value:
        types = expected_types(values)
        return_value: Any
        try:
            return_value = run(*values)
        except SystemExit as stop:
            if told_to_end(stop):
                raise
            raise ValueError(f"its kernel fails: {told_as(stop)}") from None
        if not results:
            return return_value
        for result, part in zip(results, _parts(return_value, len(results)), strict=True):
            if result.duplicable and part is not None and not isinstance(part, tuple | list):
                raise ValueError(f"its kernel gives {_type_text(part)} for {result.slot}, which takes a list")
            parts = cast("Sequence[Value]", part if result.duplicable else (part,))
            for tensor, value in zip(types.get(result.slot, ()), parts or (), strict=False):
                if tensor is not None and value is not None and not _agrees(value, tensor):
                    says = f"its shape rule {described_type(tensor)}"
                    raise ValueError(f"its kernel gives {_type_text(value)} for {result.slot}, {says}")
        return return_value

    return run_guarded


def _parts(results: Any, slots: int) -> Sequence[Any]:
    """The values of a kernel's output slots. Raises ValueError if they are not as many."""
    parts: Any = (results,) if slots == 1 else results
    if not isinstance(parts, tuple | list) or len(cast("list[Any]", parts)) != slots:
        raise ValueError(f"its kernel gives {_type_text(results)} for {slots} output slots")
    return cast("Sequence[Any]", parts)


def _data_of(value: Value) -> Any:
    return value.data if isinstance(value, LoDTensor) else value.value if isinstance(value, SelectedRows) else value


def _type_of(value: Value) -> TensorType | None:
    """The type of a value with an unknown number of rows; None for values that are no tensors."""
    data = _data_of(value)
    dtype = _DTYPES.get(data.dtype.name) if isinstance(data, np.ndarray) else None
    if dtype is None:
        return None
    level = len(value.lod) if isinstance(value, LoDTensor) else 0
    return TensorType(dtype, (-1, *data.shape[1:]) if data.ndim else (), level)


def _agrees(value: Value, tensor: TensorType) -> bool:
    """Whether a value has this type, apart from the number of rows."""
    data = _data_of(value)
    if not isinstance(data, np.ndarray | np.generic) or data.dtype.name != NUMPY_TYPES.get(tensor.dtype):
        return False
    return not tensor.shape or (fits(data.shape[1:], tensor.shape[1:]) and len(data.shape) == len(tensor.shape))


def _type_text(value: Value) -> str:
    data = _data_of(value)
    if isinstance(data, np.ndarray | np.generic):
        return f"{data.dtype.name}{list(data.shape)}"
    return type(value).__name__


_DTYPES = {name: dtype for dtype, name in NUMPY_TYPES.items()}


def _kernel_of_given_rows(op: Op, kernel: Kernel, run: Run) -> Run | None:
    """The kernel of an optimizer that changes only the rows of a sparse gradient; None if there is none."""
    facts = facts_of(op.type)
    if not facts.updates_given_rows:
        return None
    schema = schema_of(op.type)
    if schema is not None and not schema.is_built_in:
        return run
    return kernel.make(with_defaults(op._replace(attrs=FrozenMap({**op.attrs, GIVEN_ROWS: True}))))


def _for_tables(run: Run, arguments: Sequence[Argument], results: Sequence[Argument], *, given_rows: Run | None) -> Run:
    """The kernel of an optimizer, extended to large tables; the Run of any other op unchanged."""
    slots, names = [argument.slot for argument in arguments], [argument.names for argument in arguments]
    if not {"Param", "Grad"} <= set(slots):
        return run
    written = [names.index(result.names) if result.names in names else None for result in results]
    return for_tables(run, slots.index("Param"), slots.index("Grad"), written, given_rows=given_rows)


def present(op: Op, program: Program, block: int) -> Op:
    """The op of a block, without undeclared variables in slots that may be empty. As in Fluid, these
    count as absent.
    """
    schema = schema_of(op.type)
    slots: Mapping[str, Slot] = schema.inputs if schema else EMPTY
    optional = {name for name, slot in slots.items() if slot.dispensable and not slot.duplicable}
    absent = {s for s in optional & op.inputs.keys() if not all(_is_declared(n, program, block) for n in op.inputs[s])}
    return op._replace(inputs=FrozenMap({**op.inputs, **dict.fromkeys(absent, ())})) if absent else op


def _is_declared(name: str, program: Program, block: int) -> bool:
    return name == EMPTY_NAME or program.find_var(name, block) is not None


def _argument(
    op: Op, slots: dict[str, str], name: str, inputs: Mapping[str, Slot], may_lack: frozenset[str]
) -> Argument:
    if name in (CONTEXT, SURROUNDINGS):
        return Argument(name, (), False)
    slot = slots.get(name, name)
    return Argument(slot, op.inputs.get(slot, ()), slot in inputs and inputs[slot].duplicable, slot in may_lack)


def _parameters(run: Run) -> Sequence[str]:
    code = getattr(run, "__code__", None)
    if code is not None:
        return code.co_varnames[: code.co_argcount]
    return tuple(inspect.signature(run).parameters)


class ValueSource(Protocol):
    """An object that finds the values of variables."""

    def find(self, name: str) -> Value | None:
        """The value of a variable, None if it has none."""
        ...

    def missing(self, op: Op, slot: str, name: str) -> DiagnosticError:
        """The error for an op that reads a variable without a value."""
        ...


def gather(bound: BoundOp, context: ValueSource) -> list[Value]:
    """The argument values of an op. Raises DiagnosticError if a variable has no value."""
    values: list[Value] = []
    for argument in bound.arguments:
        slot, names, duplicable, may_lack = argument
        if argument.is_frame:
            values.append(context)
        elif may_lack and duplicable:
            values.append([None if name == EMPTY_NAME else context.find(name) for name in names])
        elif may_lack:
            values.append(context.find(names[0]) if names else None)
        elif duplicable:
            values.append([_value_of(bound.op, context, name, slot) for name in names])
        elif names:
            values.append(_value_of(bound.op, context, names[0], slot))
        else:
            values.append(None)
    return values


def _value_of(op: Op, context: ValueSource, name: str, slot: str) -> Value | None:
    if name == EMPTY_NAME:
        return None
    value = context.find(name)
    if value is None:
        raise context.missing(op, slot, name)
    return value


def call(bound: BoundOp, values: list[Value]) -> Iterator[tuple[str, Value]]:
    """Runs an op and yields its outputs as (name, value). Handles LoD as the kernel declares."""
    try:
        return_value = bound.run_any(*values)
    except DiagnosticError:
        raise
    except Exception as problem:
        fail(bound, values, problem)
    if not bound.results:
        return
    parts = (return_value,) if len(bound.results) == 1 else return_value
    if parts is None or len(parts) != len(bound.results):
        raise TypeError(f"the kernel of {bound.op.type} gives {return_value!r} for {len(bound.results)} output slots")
    for (_, names, duplicable, _), part in zip(bound.results, parts, strict=True):
        for name, value in zip(names, part if duplicable and part is not None else (part,), strict=False):
            if value is not None and name != EMPTY_NAME:
                yield name, value


Lod: TypeAlias = "list[list[int]]"


def _any(run: Run, arguments: Sequence[Argument], results: Sequence[Argument], rule: str) -> Run:
    """A kernel's Run for values that may have LoD: it removes the LoD, and gives it to the results by the kernel's
    rule.
    """
    lists = tuple(argument.duplicable for argument in arguments), tuple(result.duplicable for result in results)
    return _wrapper(*lists, lod_sources(arguments, results, rule))(run)


def lod_sources(arguments: Sequence[Argument], results: Sequence[Argument], rule: str) -> tuple[tuple[int, ...], ...]:
    """For each result the indices of the arguments whose LoD it may take by a kernel's rule; it takes that of the first
    one with LoD.
    """
    slots = [argument.slot for argument in arguments]
    sources: list[tuple[int, ...]] = []
    for result in results:
        of = result.slot.removesuffix("@GRAD")
        if rule == "each":
            sources.append((slots.index(of),) if of in slots else ())
        else:
            sources.append(tuple(range(len(slots))) if rule == "share" or result.slot in rule.split() else ())
    return tuple(sources)


@cache
def _wrapper(
    arguments: tuple[bool, ...], results: tuple[bool, ...], sources: tuple[tuple[int, ...], ...]
) -> Callable[[Run], Run]:
    """Writes the function around a Run, by which arguments and results are lists and whose LoD each result takes.

    def with_lods(a0, a1):
        l0 = l1 = None
        if a0.__class__ is LoDTensor: a0, l0 = a0
        if a1.__class__ is LoDTensor: a1, l1 = a1
        r0 = run(a0, a1)
        if r0.__class__ is ndarray and (lod := l0 or l1) and r0.ndim and len(r0) == lod[-1][-1]:
            r0 = new(LoDTensor, (r0, lod))
        return r0
    """
    names = ", ".join(f"a{place}" for place in range(len(arguments)))
    result_names = ", ".join(f"r{place}" for place in range(len(results)))
    lines = [f"def with_lods({names}):"]
    for place, is_list in enumerate(arguments):
        lines.append(f"    l{place} = None")
        if is_list:
            lines.append(f"    if a{place}.__class__ is list: a{place}, l{place} = apart(a{place})")
        else:
            lines.append(f"    if a{place}.__class__ is LoDTensor: a{place}, l{place} = a{place}")
    lines.append(f"    {result_names} = run({names})" if results else f"    run({names})")
    for place, (is_list, given) in enumerate(zip(results, sources, strict=True)):
        if given:
            result = " or ".join(f"l{source}" for source in given)
            if is_list:
                lines.append(f"    if r{place} is not None and (lod := {result}):")
                lines.append(f"        r{place} = [with_lod(each, lod) for each in r{place}]")
            else:
                fits = f"r{place}.ndim and len(r{place}) == lod[-1][-1]"  # as in with_lod, without the call
                lines.append(f"    if r{place}.__class__ is ndarray and (lod := {result}) and {fits}:")
                lines.append(f"        r{place} = new(LoDTensor, (r{place}, lod))")
    text = "\n".join([*lines, f"    return {result_names or '()'}"])
    code = compile(text, "<LoD>", "exec")

    def wrap(run: Run) -> Run:
        scope: dict[str, Any] = {
            "run": run,
            "ndarray": np.ndarray,
            "new": vars(tuple)["__new__"],
            "LoDTensor": LoDTensor,
            "with_lod": with_lod,
            "apart": _split_lod,
        }
        exec(code, scope)
        return scope.pop("with_lods")  # else only the collector of cycles would delete it

    return wrap


def _split_lod(values: list[Value]) -> tuple[list[Value], Lod | None]:
    """(the values without LoD, the first LoD among them)."""
    lod = next((value.lod for value in values if value.__class__ is LoDTensor and value.lod), None)
    return [value.data if value.__class__ is LoDTensor else value for value in values], lod


def with_lod(value: Value, lod: list[list[int]]) -> Value:
    """The value with this LoD, if it has as many rows as the LoD describes; otherwise unchanged."""
    if value.__class__ is np.ndarray and value.ndim and len(value) == lod[-1][-1]:
        return LoDTensor(value, lod)
    return value


def slot_of(bound: BoundOp, name: str) -> str:
    """The input slot of an op that contains a variable."""
    return next(slot for slot, names in bound.op.inputs.items() if name in names)


def arguments_of(bound: BoundOp, values: Mapping[str, Value]) -> list[Value]:
    """The argument values of an op, from a mapping of variables to values."""
    return [
        [values.get(name) for name in names] if duplicable
        else values.get(names[0]) if names and names[0] != EMPTY_NAME
        else None
        for _, names, duplicable, _ in bound.arguments
    ]  # fmt: skip


def fail(bound: BoundOp, values: Sequence[Value], problem: Exception) -> NoReturn:
    """Raises the DiagnosticError for a kernel that can't compute, with the reason and a description of its inputs."""
    seen: list[tuple[str, str, Value]] = []
    for argument, value in zip(bound.arguments, values, strict=True):
        if argument.duplicable:
            seen += [(argument.slot, *pair) for pair in zip(argument.names, value, strict=False)]
        elif argument.names:
            seen.append((argument.slot, argument.names[0], value))
    if is_stated(bound.op, problem):
        reason = str(problem) or type(problem).__name__
        reason = f"{reason} is missing" if isinstance(problem, KeyError) else reason
    else:
        reason = _refused_by_rule(bound.op, seen) or in_words(problem, [(slot, value) for slot, _, value in seen])
    told = [(name, value if bound.sees_lod else _without_lod(value)) for _, name, value in seen]
    notes = [Note(f"the inputs are {describe_values(told)}")] if told else []
    notes += package_note(bound.op.type)
    raise DiagnosticError([at_op("run-op-failed", reason, bound.op, notes=notes)]) from problem


def _without_lod(value: Value) -> Value:
    return value.data if isinstance(value, LoDTensor) else value


def is_stated(op: Op, problem: BaseException) -> bool:
    """Whether an exception of an op has its message from a `raise` of this package, or from an op or a function that
    is no part of it. Other messages are those of Python and numpy about arrays that the user of an op doesn't know.
    """
    schema = schema_of(op.type)
    if schema is not None and not schema.is_built_in:
        return True
    is_own, last = True, problem.__traceback__
    if last is None:
        return True
    for frame, _ in walk_tb(last):
        is_own = is_own and frame.f_code.co_filename.startswith((_PACKAGE, _NUMPY, "<"))
    while last.tb_next is not None:
        last = last.tb_next
    code = last.tb_frame.f_code
    raises = opname[code.co_code[last.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")
    return not is_own or (raises and not code.co_filename.startswith(_NUMPY))


_PACKAGE = str(Path(pstranspile.__file__).parent) + os.sep
"""The beginning of the paths of this package's files."""

_NUMPY = str(Path(np.__file__).parent) + os.sep
"""The beginning of the paths of numpy's files."""


def _refused_by_rule(op: Op, seen: Sequence[tuple[str, str, Value]]) -> str:
    """What the op's shape rule says against inputs of these dims and element types; "" if it says nothing."""
    types = {name: tensor for _, name, value in seen if (tensor := _whole_type(value)) is not None}
    try:
        infer_types(with_defaults(op), types.get)
    except ShapeError as problem:
        return problem.message
    except DiagnosticError:
        pass
    return ""


def _whole_type(value: Value) -> TensorType | None:
    """The type of a value, also with its number of rows where these are no rows of sequences."""
    tensor = _type_of(value)
    return tensor._replace(shape=value.shape) if tensor is not None and isinstance(value, np.ndarray) else tensor


_ABOUT_INDEX = Pattern(r"index (-?\d+) is out of bounds for axis \d+ with size (\d+)")
_ABOUT_NUMBER = Pattern(r"integer (-?\d+) out of bounds for (\w+)")
_ABOUT_MEMORY = Pattern(r"Unable to allocate ([\d.]+ \w+)")
_ABOUT_ELEMENTS = Pattern(r"ufunc '|for ufunc|numpy boolean|\bcast\b|\bintegers?\b")


def in_words(problem: Exception, given: Sequence[tuple[str, Value]]) -> str:
    """The sentence for an exception of Python or numpy in an op with these inputs, given by slot: what it is about.

    Without inputs it is about the op's attributes.
    """
    text = str(problem)
    if isinstance(problem, MemoryError):
        needed = _ABOUT_MEMORY.search(text)
        return f"there is not enough memory{f' for {needed[1]} more' if needed else ''}"
    if number := _ABOUT_NUMBER.search(text):
        return f"the number {number[1]} is out of bounds for {number[2]}"
    index = _ABOUT_INDEX.search(text)
    if index and index[2] != "0":
        return f"an index is {index[1]}, where there are {index[2]} elements"
    if not given:
        divided = isinstance(problem, ZeroDivisionError)
        return "its attributes make it divide by zero" if divided else "nothing can be computed with its attributes"
    if isinstance(problem, AttributeError):
        return "it takes inputs of other kinds (dense tensors, sparse rows, arrays of tensors)"
    if not isinstance(problem, ArithmeticError) and _ABOUT_ELEMENTS.search(text):
        return "it can't be computed with elements of these types"
    arrays = [(slot, value) for slot, value in given if slot and isinstance(value, np.ndarray)]
    bare = dict.fromkeys(slot for slot, value in arrays if not value.ndim)
    if bare:
        return f"{' and '.join(bare)} {'have' if len(bare) > 1 else 'has'} no dims, which it needs"
    empty = dict.fromkeys(slot for slot, value in arrays if not value.size)
    if empty:
        return f"{' and '.join(empty)} {'have' if len(empty) > 1 else 'has'} no elements, which it needs"
    if isinstance(problem, ArithmeticError):
        return "it divides by zero, or a number becomes too large"
    return "the dims of its inputs don't go together" if len(given) > 1 else "it takes inputs of other dims"
