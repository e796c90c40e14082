"""Gradient rules: the ops that compute the gradients of an op's inputs from those of its outputs.

Most gradient ops follow from their declaration (`declare_gradient`). The slots that it names are filled with the
forward op's inputs and outputs, or their gradients, and the attributes are copied. Other ops have a rule next to their
declaration:

    @gradient("assign")
    def _assign_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
        return (bare_op("assign", {"X": output_gradients(op, "Out")}, {"Out": wanted.kept(op, "X")}),)

Rules are pure functions. The caller sets role, origin and device. Tests compare the result with programs recorded from
Fluid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeAlias, cast

from pstranspile.ir.attributes import AttrValue, round_to_float32
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import EMPTY, FrozenMap, Op
from pstranspile.ops import all_schemas, schema_of
from pstranspile.ops.plugins import failed_rule, rule_error
from pstranspile.ops.schema import OpSchema, op_schemas, require_own

SUFFIX = "@GRAD"
"""The suffix of the name of a variable's gradient."""

EMPTY_NAME = "@EMPTY@"
"""The name that stands for an unwanted gradient in a list."""


class GradientBlock(NamedTuple):
    """The block that computes the gradients of a forward op's sub-block.

    `ops` are its ops. `sees` returns whether a variable is declared in the forward sub-block or around it, so that the
    gradient op need not list it as an input.
    """

    number: int
    ops: tuple[Op, ...]
    sees: Callable[[str], bool]


class WantedGradients(NamedTuple):
    """The gradients that are wanted: all except those whose names are in `unwanted`.

    `block` is set for ops with a sub-block.
    """

    unwanted: AbstractSet[str] = frozenset()
    block: GradientBlock | None = None

    def gradients_or_empty(self, op: Op, slot: str) -> tuple[str, ...]:
        """The names of the gradients of an input slot, with `@EMPTY@` in place of unwanted ones."""
        names = (gradient_name(name) for name in op.inputs.get(slot, ()))
        return tuple(EMPTY_NAME if name in self.unwanted else name for name in names)

    def gradient_names(self, op: Op, slot: str) -> tuple[str, ...]:
        """The names of the gradients of an input slot, without the unwanted ones."""
        return tuple(name for name in self.gradients_or_empty(op, slot) if name != EMPTY_NAME)


GradientRule: TypeAlias = Callable[[Op, WantedGradients], tuple[Op, ...]]
"""A function from a forward op and the wanted gradients to the ops that compute them."""

_RULES: dict[str, GradientRule] = {}
_RESOLVED: dict[str, GradientRule | None] = {}
_BY_FORWARD: dict[str, OpSchema] = {}


def gradient(*op_types: str) -> Callable[[GradientRule], GradientRule]:
    """Registers the decorated function as the gradient rule of these op types."""

    def register(rule: GradientRule) -> GradientRule:
        for op_type in op_types:
            if op_type in _RULES:
                raise ValueError(f"op type {op_type} has two gradient rules")
            require_own(op_type, "a gradient rule", rule.__module__)
            _RULES[op_type] = rule
        return rule

    return register


def gradient_name(name: str) -> str:
    """The name of a variable's gradient."""
    return name + SUFFIX


def variable_of_gradient(name: str) -> str:
    """The variable whose gradient a name denotes: `w@GRAD@RENAME@block0@1` belongs to `w`."""
    return name.partition(SUFFIX)[0]


def output_gradients(op: Op, slot: str) -> tuple[str, ...]:
    """The names of the gradients of an output slot's variables."""
    return tuple(gradient_name(name) for name in op.outputs.get(slot, ()))


def bare_op(
    op_type: str,
    inputs: Mapping[str, tuple[str, ...]],
    outputs: Mapping[str, tuple[str, ...]],
    attrs: Mapping[str, AttrValue] = EMPTY,
) -> Op:
    """A gradient op with only these slots and attributes, for gradient makers of Fluid that copy nothing."""
    return Op(op_type, FrozenMap(inputs), FrozenMap(outputs), FrozenMap(attrs), role_vars=None)


def like_forward(
    op: Op, op_type: str, inputs: Mapping[str, tuple[str, ...]], outputs: Mapping[str, tuple[str, ...]]
) -> Op:
    """A gradient op with all attributes of the forward op, and its role variables."""
    return Op(op_type, FrozenMap(inputs), FrozenMap(outputs), op.attrs, role_vars=op.role_vars)


def gradient_rule(op_type: str) -> GradientRule | None:
    """The gradient rule of an op type; None for ops through which no gradient passes."""
    if op_type not in _RESOLVED:
        schema = schema_of(op_type)
        result = _RULES.get(op_type)
        if schema is None:
            return result
        if result is None:
            declared = _gradient_schema(op_type)
            result = None if declared is None else from_declaration(declared.type)
        elif not schema.is_built_in:
            result = _guard_rule(result)
        _RESOLVED[op_type] = result
    return _RESOLVED[op_type]


def _guard_rule(rule: GradientRule) -> GradientRule:
    """A rule of another package whose failures and wrong results become findings about that package."""

    def checked_rule(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
        try:
            result: object = rule(op, wanted)
        except DiagnosticError:
            raise
        except (Exception, SystemExit) as reason:
            raise failed_rule(op, "gradient rule", reason) from reason
        wrong = _not_gradients(op, result)
        if wrong:
            raise rule_error(op, "gradient rule", f"gives {wrong}")
        return tuple(result)

    return checked_rule


def _not_gradients(op: Op, result: object) -> str:
    """What a gradient rule gives that it can't give; "" if all is well."""
    if not isinstance(result, tuple | list) or isinstance(result, Op):
        return f"{type(result).__name__}, not a tuple of ops"
    known = {*op.input_names, *op.output_names, *map(gradient_name, op.output_names), EMPTY_NAME}
    for gradient_op in cast("tuple[object, ...]", result):
        if not isinstance(gradient_op, Op):
            return f"{type(gradient_op).__name__} among its ops, not an Op"
        for slot, names in (*gradient_op.inputs.items(), *gradient_op.outputs.items()):
            if not isinstance(cast("object", names), tuple) or not all(
                isinstance(cast("object", n), str) for n in names
            ):
                return f"{names!r} in the slot {slot} of {gradient_op.type}, not a tuple of names"
        if schema_of(gradient_op.type) is None:
            return f"an op {gradient_op.type}, which there is not"
        strange = [name for name in gradient_op.input_names if name not in known]
        if strange:
            return (
                f"{gradient_op.type}, which reads {strange[0]}: that is no variable of the op, no gradient of its "
                f"outputs, and no op before it makes it"
            )
        known.update(gradient_op.output_names)
    return ""


def differentiable_types() -> tuple[str, ...]:
    """Every op type that has a gradient, sorted."""
    return tuple(sorted(op_type for op_type in all_schemas() if gradient_rule(op_type) is not None))


def _gradient_schema(op_type: str) -> OpSchema | None:
    if not _BY_FORWARD:
        _BY_FORWARD.update({schema.forward: schema for schema in all_schemas().values() if schema.forward})
    return _BY_FORWARD.get(op_type)


def from_declaration(gradient_type: str, **conditional: Callable[[Op], bool]) -> GradientRule:
    """The rule that fills the slots of a declared gradient op by name.

    A slot `S` takes the forward op's input or output S. An input `S@GRAD` takes the gradients of the output S, and an
    output `S@GRAD` those of the input S. Slots marked `-` in the declaration are filled only if `conditional` has a
    condition for them that is true for the forward op. Raises KeyError if the gradient op is not declared (yet).
    """
    schema = op_schemas()[gradient_type]
    absent = {name for name, slot in schema.inputs.items() if slot.dispensable and name not in schema.empty_inputs}
    copies = not _carries_nothing(schema)

    def rule(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
        inputs: dict[str, tuple[str, ...]] = {}
        for name in schema.inputs:
            if name in absent and not (name in conditional and conditional[name](op)):
                continue
            inputs[name] = _names_in_slot(op, name)
        outputs = {name: _wanted_slot(op, name, wanted) for name in schema.outputs}
        if copies:
            return (like_forward(op, schema.type, inputs, outputs),)
        return (bare_op(schema.type, inputs, outputs),)

    return rule


def _carries_nothing(schema: OpSchema) -> bool:
    scope = schema.attrs.get("op_namescope")
    return scope is not None and scope.optional


def _names_in_slot(op: Op, name: str) -> tuple[str, ...]:
    if name.endswith(SUFFIX):
        return output_gradients(op, name.removesuffix(SUFFIX))
    return op.inputs[name] if name in op.inputs else op.outputs.get(name, ())


def _wanted_slot(op: Op, name: str, wanted: WantedGradients) -> tuple[str, ...]:
    if not name.endswith(SUFFIX):
        return _names_in_slot(op, name)  # a variable of the forward op that the gradient op overwrites
    slot = name.removesuffix(SUFFIX)
    forward = schema_of(op.type)
    if slot not in op.inputs and slot in op.outputs:
        return output_gradients(op, slot)  # push_sparse sends this gradient, so the op computes no gradient of its own
    duplicable = forward is not None and slot in forward.inputs and forward.inputs[slot].duplicable
    return wanted.gradients_or_empty(op, slot) if duplicable else wanted.gradient_names(op, slot)


def scale_op(output: str, of: str, factor: float, **more: AttrValue) -> Op:
    """A scale op: `of` = factor * `output`, for the gradient of a linear op."""
    return bare_op("scale", {"X": (output,)}, {"Out": (of,)}, {"scale": round_to_float32(factor), **more})
