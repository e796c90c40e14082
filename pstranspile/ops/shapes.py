"""Shape rules: the types of an op's outputs, inferred from those of its inputs.

A rule is defined in the file of the op's family:

    @shape_rule("mean")
    def _mean(_op: Op, types: Types) -> Types:
        return {"Out": (TensorType(one(types, "X").dtype, (1,)),)}

Rules read input types through `one` and `several`, which end the rule if a type is not known. They raise ShapeError if
inputs don't fit together. A dim of -1 is unknown and fits every other. The shape `()` means that the rank is unknown
(Fluid has no 0-d tensors). Rules give the types that Fluid 1.8.5 declares. Ops without a rule use a shared one if they
are gradients (a gradient has the type of its variable) or optimizers (slots that follow the parameter have its type).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple, NoReturn, TypeAlias, cast

from pstranspile.ir.attributes import Ints, Longs
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops import schema_of
from pstranspile.ops.attributes import AxisOf, axis_attributes, int_attr, wrong_axis
from pstranspile.ops.plugins import failed_rule, rule_error
from pstranspile.ops.schema import OpSchema, Slicing, require_own

Types: TypeAlias = Mapping[str, tuple[TensorType | None, ...]]
"""A mapping from each slot to the types of its variables, None for an unknown type. A dim of -1 is unknown."""

ShapeRule: TypeAlias = Callable[[Op, Types], Types]
"""A function from an op and its input types to its output types. Slots that it leaves out may have any type."""

TypeOf: TypeAlias = Callable[[str], TensorType | None]
"""A function from a variable's name to its declared type, None if it has none."""

_RULES: dict[str, ShapeRule] = {}
_RESOLVED: dict[str, ShapeRule | None] = {}


class ShapeError(ValueError):
    """Raised by a shape rule when the inputs don't fit together. `slot` is the slot to point at.

    `gives` are the output types if Fluid runs the op nevertheless, None if it can't. `declares` are the output types
    that Fluid declares for an op that it refuses only when it runs; None if they equal `gives`, or if Fluid refuses to
    make the op.
    """

    def __init__(self, message: str, slot: str = "", gives: Types | None = None, *, declares: Types | None = None):
        super().__init__(message)
        self.message = message
        self.slot = slot
        self.gives = gives
        self.declares = gives if declares is None else declares


class UnknownType(Exception):
    """Raised inside a shape rule if the type of a required input is not known. Nothing is then reported for the op."""


class ShapeProblem(NamedTuple):
    """A disagreement at an op: the message, the slot and the variable to point at ("" for none)."""

    message: str
    slot: str
    variable: str


def shape_rule(*op_types: str) -> Callable[[ShapeRule], ShapeRule]:
    """Registers the decorated function as the shape rule of these op types."""

    def register(rule: ShapeRule) -> ShapeRule:
        for op_type in op_types:
            if op_type in _RULES:
                raise ValueError(f"op type {op_type} has two shape rules")
            require_own(op_type, "a shape rule", rule.__module__)
            _RULES[op_type] = rule
        return rule

    return register


def rule_of(op_type: str) -> ShapeRule | None:
    """The shape rule of an op type, None if it has none."""
    if op_type not in _RESOLVED:
        schema = schema_of(op_type)
        if schema is None:  # Programs may name any number of undeclared types, so no result is cached for them.
            return _RULES.get(op_type)
        shared = None
        if "sub_block" not in schema.attrs:
            shared = update_types if schema.slicing else gradient_types if schema.forward else None
        own = _RULES.get(op_type)
        _RESOLVED[op_type] = shared if own is None else own if schema.is_built_in else _guard_rule(schema, own)
    return _RESOLVED[op_type]


def _guard_rule(schema: OpSchema, rule: ShapeRule) -> ShapeRule:
    """A rule of another package whose failures and wrong results become findings about that package."""

    def checked_rule(op: Op, types: Types) -> Types:
        try:
            result = rule(op, types)
        except (ShapeError, UnknownType, DiagnosticError):
            raise
        except (Exception, SystemExit) as reason:
            raise failed_rule(op, "shape rule", reason) from reason
        wrong = _not_types(schema, result)
        if wrong:
            raise rule_error(op, "shape rule", f"gives {wrong}")
        return result

    return checked_rule


def _not_types(schema: OpSchema, result: object) -> str:
    """What a shape rule gives that it can't give; "" if all is well."""
    if not isinstance(result, Mapping):
        return f"{type(result).__name__}, not a dict from output slots to tuples of types"
    for slot, types in cast("Mapping[object, object]", result).items():
        if slot not in schema.outputs:
            known = ", ".join(schema.outputs) or "none"
            return f"types for the slot {slot!r}, which is no output of the op (outputs: {known})"
        # A TensorType is a tuple, too.
        if not isinstance(types, tuple | list) or isinstance(types, TensorType):
            return f"{type(types).__name__} for {slot}, not a tuple with the type of each of its variables"
        for tensor in cast("tuple[object, ...]", types):
            if tensor is not None and not _is_type(tensor):
                return f"{tensor!r} for {slot}, not a TensorType with a DType and dims of -1 or more"
    return ""


def _is_type(tensor: object) -> bool:
    if not isinstance(tensor, TensorType):
        return False
    dtype, shape = cast("tuple[object, object]", tensor[:2])
    return (
        isinstance(dtype, DType)
        and isinstance(shape, tuple)
        and all(hasattr(dim, "__index__") and cast("int", dim) >= -1 for dim in cast("tuple[object, ...]", shape))
    )


# Reading input types


def one(types: Types, slot: str) -> TensorType:
    """The type of the first variable of a slot. Raises UnknownType if its shape is not known."""
    result = types.get(slot)
    if not result or result[0] is None or not result[0].shape:
        raise UnknownType
    return result[0]


def one_or_none(types: Types, slot: str) -> TensorType | None:
    """The type of the first variable of a slot, None if its shape is not known or the slot is empty."""
    result = types.get(slot)
    return result[0] if result and result[0] is not None and result[0].shape else None


def several(types: Types, slot: str) -> list[TensorType]:
    """The types of all variables of a slot. Raises UnknownType if one of them is not known."""
    result = [item for item in types.get(slot, ()) if item is not None and item.shape]
    if not result or len(result) != len(types[slot]):
        raise UnknownType
    return result


def dtype_attr(op: Op, name: str = "dtype", default: DType | None = None) -> DType:
    """The dtype in an attribute, given by Fluid's number; `default` for a negative one. Raises UnknownType for
    others.
    """
    try:
        if default is not None and int_attr(op, name, -1) < 0:
            return default
        return DType(op.attrs.get(name))
    except ValueError:
        raise UnknownType from None


# Shapes


def describe(tensor: TensorType) -> str:
    """A type as messages name it: `f32[1000, -1]`."""
    return f"{tensor.dtype.text}[{', '.join(map(str, tensor.shape))}]"


def fits(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two shapes can be the same: equal ranks, and equal or unknown dims."""
    if a == b:
        return True
    return len(a) == len(b) and all(x == y or x < 0 or y < 0 for x, y in zip(a, b, strict=True))


def size(dims: tuple[int, ...]) -> int:
    """The product of dims, -1 when one of them is unknown."""
    total = 1
    for dim in dims:
        if dim < 0:
            return -1
        total *= dim
    return total


def disagree(
    slot: str, a: TensorType, other: str, b: TensorType, gives: Types | None = None, *, declares: Types | None = None
) -> NoReturn:
    """Raises the ShapeError that names the types of two slots; `gives` and `declares` are those of `ShapeError`."""
    raise ShapeError(f"{slot} is {describe(a)}, {other} is {describe(b)}", slot, gives, declares=declares)


def require_alike(types: Types, slot: str, other: str) -> None:
    """Raises ShapeError unless two slots, if both are known, have the same type."""
    a, b = one_or_none(types, slot), one_or_none(types, other)
    if a is not None and b is not None and (a.dtype is not b.dtype or not fits(a.shape, b.shape)):
        disagree(slot, a, other, b)


def require_one_dtype(types: Types, slot: str, *others: str) -> None:
    """Raises ShapeError unless the other slots, as far as they are known, have the dtype of `slot`."""
    like = one_or_none(types, slot)
    for other in others:
        tensor = one_or_none(types, other)
        if like is not None and tensor is not None and tensor.dtype is not like.dtype:
            disagree(other, tensor, slot, like)


def outputs_like(**outputs: str) -> ShapeRule:
    """The rule of ops whose outputs have the type of an input: `outputs_like(Out="X")`."""

    def rule(_op: Op, types: Types) -> Types:
        return {out: types[slot] for out, slot in outputs.items() if slot in types}

    return rule


def results_like(slot: str, outputs: str, alike: str = "") -> ShapeRule:
    """The rule of ops whose `outputs` have the type of the input `slot`. The inputs `alike` must have
    this type, too.
    """

    def rule(_op: Op, types: Types) -> Types:
        for other in alike.split():
            require_alike(types, other, slot)
        return dict.fromkeys(outputs.split(), (one(types, slot),))

    return rule


def number_like(slot: str) -> ShapeRule:
    """The rule of ops whose `Out` is one number of the dtype of an input."""
    return lambda _op, types: {"Out": (TensorType(one(types, slot).dtype, (1,)),)}


def gradient_types(op: Op, types: Types) -> Types:
    """The shared rule of gradient ops: `X@GRAD` has the type of X, in outputs and in inputs.

    Without X, the only output of a row-wise op has the type of Out@GRAD.
    """
    for slot in types:
        if slot.endswith("@GRAD") and slot[:-5] in types:
            require_alike(types, slot, slot[:-5])
    result: dict[str, tuple[TensorType | None, ...]] = {}
    for slot in op.outputs:
        like = types.get(slot[:-5])
        if like:
            result[slot] = like
    if not result and len(op.outputs) == 1:
        schema = schema_of(op.type)
        if schema is not None and schema.row_wise and "Out@GRAD" in types:
            (only,) = op.outputs
            return {only: types["Out@GRAD"]}
    return result


_NUMBERS = ("LearningRate", "Beta1Pow", "Beta2Pow", "Beta1Tensor", "Beta2Tensor", "GradShare", "Updates")


def update_types(op: Op, types: Types) -> Types:
    """The shared rule of optimizers: every slot that follows the parameter has its type.

    Learning rates, powers of beta and other numbers of an update have one element.
    """
    param = one(types, "Param")
    schema = schema_of(op.type)
    assert schema is not None
    for slot, rule in schema.slicing.items():
        tensor = types.get(slot)
        if tensor is None or tensor[0] is None or not tensor[0].shape:
            continue
        alike = tensor[0].dtype is param.dtype and fits(tensor[0].shape, param.shape)
        if rule is Slicing.FOLLOWS and not alike:
            disagree(slot, tensor[0], "Param", param)
        if slot in _NUMBERS and size(tensor[0].shape) > 1:
            raise ShapeError(f"{slot} is {describe(tensor[0])}, it must have one element", slot)
    result: dict[str, tuple[TensorType | None, ...]] = {}
    for slot in op.outputs:
        if schema.slicing.get(slot) is Slicing.FOLLOWS:
            result[slot] = (param,)
        elif slot.endswith("Out") and slot[:-3] in types:
            result[slot] = types[slot[:-3]]
    return result


# Applying rules


def infer_types(op: Op, type_of: TypeOf) -> Types:
    """The output types of an op by its rule; empty if there is no rule or the input types are not known.

    Raises ShapeError when the inputs don't fit together, or an attribute names a dim that an input does not have.
    """
    rule = rule_of(op.type)
    if rule is None:
        return {}
    types = {slot: tuple([type_of(name) for name in names]) for slot, names in op.inputs.items() if names}
    for name, axis in axes_of(op.type):
        tensor = one_or_none(types, axis.slot)
        if tensor is not None:
            require_axes(op, name, axis, len(tensor.shape), describe(tensor))
    try:
        return rule(op, types)
    except UnknownType:
        return {}
    except ShapeError:
        raise
    except (ArithmeticError, LookupError, ValueError) as reason:
        raise ShapeError(_not_together(op, types)) from reason


def _not_together(op: Op, types: Types) -> str:
    """The message where the attributes of an op, such as a list that is too short, leave its rule without an answer."""
    inputs = ", ".join(f"{slot} {describe(tensor)}" for slot in types for tensor in types[slot] if tensor is not None)
    lists = (f"{name} {list(value)}" for name, value in op.attrs.items() if isinstance(value, Ints | Longs))
    return f"{', '.join(lists) or 'the attributes'}: nothing can be computed with this from {inputs or 'no input'}"


@cache
def axes_of(op_type: str) -> tuple[tuple[str, AxisOf], ...]:
    """The attributes of an op type that name dims of an input, by its declaration; empty for an unknown type."""
    schema = schema_of(op_type)
    return () if schema is None else axis_attributes(schema.attrs)


def require_axes(op: Op, name: str, axis: AxisOf, rank: int, input_description: str) -> None:
    """Raises ShapeError if an attribute names a dim that its input, which is `input_description`, does not have."""
    value = op.attrs.get(name)
    wrong = wrong_axis(value, axis, rank)
    if wrong is not None:
        has = "has" if isinstance(value, tuple) else "is"
        raise ShapeError(f"{name} {has} {wrong}, but {axis.slot} is {input_description}", axis.slot)


def output_problems(op: Op, given_types: Types, type_of: TypeOf) -> list[ShapeProblem]:
    """The outputs of an op whose declared types differ from the inferred ones."""
    problems: list[ShapeProblem] = []
    for slot, types in given_types.items():
        names = op.outputs.get(slot)
        if not names:
            continue
        if len(names) != len(types):
            message = f"{slot} has {len(names)} variables, the op gives {len(types)}"
            problems.append(ShapeProblem(message, slot, names[0]))
            continue
        for name, expected in zip(names, types, strict=True):
            declared = type_of(name)
            if expected is None or declared is None or expected == declared or _agree(expected, declared):
                continue
            message = f"%{name} is declared {describe(declared)}, the op gives {describe(expected)}"
            problems.append(ShapeProblem(message, slot, name))
    return problems


def _agree(expected: TensorType, declared: TensorType) -> bool:
    """Whether dtypes are the same and shapes fit. LoD levels are not compared.

    A result declared as BOOL may have any dtype. BOOL is number 0, which Fluid also writes if nobody set the dtype
    (`fluid.gradients` makes such variables).
    """
    if expected.dtype is not declared.dtype and declared.dtype is not DType.BOOL:
        return False
    return not expected.shape or not declared.shape or fits(expected.shape, declared.shape)


def ragged_type(types: Types, slot: str, declares: Types | None = None) -> TensorType:
    """The type of an input that must be ragged. Raises ShapeError, with `declares`, if the input has no LoD."""
    x = one(types, slot)
    if x.lod_level < 1:
        raise ShapeError(f"{slot} is {describe(x)} without LoD, a ragged sequence is needed", slot, declares=declares)
    return x


def require_dims(x: TensorType, dims: tuple[int, ...], slot: str) -> None:
    """Raises ShapeError unless a type has these dims; -1 and unknown dims fit any."""
    if len(x.shape) != len(dims) or any(a >= 0 and b >= 0 and a != b for a, b in zip(x.shape, dims, strict=True)):
        raise ShapeError(f"{slot} is {describe(x)}, it must have the dims {list(dims)}", slot)


def unit_width(x: TensorType, parts: int, slot: str) -> int:
    """The width of the hidden state: the width of the input's rows divided by `parts`.

    -1 if it is not known. Raises ShapeError unless the input is a matrix whose width is a multiple of `parts`.
    """
    if len(x.shape) != 2 or (x.shape[1] >= 0 and x.shape[1] % parts):
        raise ShapeError(f"{slot} is {describe(x)}, it must have 2 dims, the last a multiple of {parts}", slot)
    return x.shape[1] // parts if x.shape[1] >= 0 else -1


Dims: TypeAlias = "tuple[int, ...]"

Padding: TypeAlias = "tuple[tuple[int, int], ...]"
"""The number of elements before and after each spatial dim."""
