"""Work rules: the floating-point operations of an op, from the types of its inputs and outputs.

A rule is defined in the file of the op's family, beside its shape rule. It gets all types by slot, those of outputs as
well, and gives a number of operations:

    @work_rule("mul")
    def _mul_work(op: Op, types: Types) -> float:
        return 2.0 * elements(types, "X") * one(types, "Y").shape[-1]

An addition, a multiplication, a comparison and a function such as `exp` count as one operation each, so a product of
matrices [n, k] and [k, m] has 2 n k m. An op without a rule has one operation for each element of its largest input or
output; one that only moves numbers, or makes them without arithmetic, has none. A gradient op without a rule of its own
has, for each gradient that it makes of the inputs in `factors`, as many operations as the op that it belongs to. What
an op copies besides, such as the windows of a convolution, is told by a rule `copies`, in elements.

Dims of -1 have to be replaced by numbers first. Types that are not known count nothing.

Every op belongs to a family of ops whose time grows alike with their operations and bytes. A work rule states that of
its ops; it follows from the declaration of all others, and of some from the types of their values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Literal, NamedTuple, TypeAlias, cast, get_args

from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Op, TensorType
from pstranspile.ops import facts_of, schema_of
from pstranspile.ops.gradient import EMPTY_NAME
from pstranspile.ops.plugins import failed_rule, rule_error
from pstranspile.ops.schema import OpSchema, require_own
from pstranspile.ops.shapes import Types, UnknownType

WorkRule: TypeAlias = Callable[[Op, Types], float]
"""A function from an op and the types of its inputs and outputs, by slot, to its number of operations."""


Family: TypeAlias = Literal[
    "products",
    "convolutions",
    "recurrent",
    "pools",
    "lookups",
    "updates",
    "sparse_updates",
    "reductions",
    "moved",
    "elementwise",
    "passes",
    "messages",
]
"""The ops whose time grows alike with their operations and bytes.

"products", "convolutions", "recurrent": products of matrices, of windows, and of one row of a sequence after the
other. "pools": maxima and averages of windows. "lookups": rows of tables that are read by id, and their gradients.
"updates": optimizers; "sparse_updates": those of single rows. "reductions": ops that read many more numbers than they
write. "moved": ops whose numbers are those of their inputs. "messages": ops that communicate, whose time is that of
their messages. "elementwise": functions of each element, and sums. "passes": all others, which go over their numbers
several times, such as losses and norms.
"""

FAMILIES: tuple[Family, ...] = get_args(Family)
"""All families."""

_AT_ONCE = tuple(f"pstranspile.ops.math.{name}" for name in ("activation", "elementwise", "reduce"))
"""The modules of ops that go over their numbers about once."""

REDUCED = 4
"""The least number of bytes that a reduction reads for each byte that it writes."""


class _WorkDeclaration(NamedTuple):
    """The rule of an op type. The gradient of each input slot in `factors` costs as much as the op."""

    rule: WorkRule
    factors: tuple[str, ...]
    family: Family
    copies: WorkRule | None


_RULES: dict[str, _WorkDeclaration] = {}


def work_rule(
    *op_types: str, factors: str = "X Y", family: Family = "elementwise", copies: WorkRule | None = None
) -> Callable[[WorkRule], WorkRule]:
    """Registers the decorated function as the work rule of these op types.

    `factors` names the input slots whose gradients cost as much as the op itself. `family` is that of the op types and
    of their gradients. `copies` gives the elements that an op writes and reads again between its inputs and outputs.
    """

    def register(rule: WorkRule) -> WorkRule:
        for op_type in op_types:
            if op_type in _RULES:
                raise ValueError(f"op type {op_type} has two work rules")
            require_own(op_type, "a work rule", rule.__module__)
            _RULES[op_type] = _WorkDeclaration(rule, tuple(factors.split()), family, copies)
        return rule

    return register


def elements(types: Types, slot: str) -> int:
    """The number of elements of all known variables of a slot."""
    return sum(prod(each.shape) for each in types.get(slot, ()) if each is not None and each.shape)


def bytes_of(tensor: TensorType | None) -> int:
    """The size of a tensor in bytes, 0 if its type is not known."""
    return prod(tensor.shape) * tensor.dtype.size if tensor is not None and tensor.shape else 0


def operations(op: Op, inputs: Types, outputs: Types) -> float:
    """The number of floating-point operations of an op with inputs and outputs of these types, by slot."""
    ruled = _work_by_rule(op, inputs, outputs, lambda stated: stated.rule)
    if ruled is not None:
        return ruled
    facts = facts_of(op.type)
    if facts.numbers in ("moved", "in_order") or facts.communicates or facts.looks_up or not op.inputs:
        return 0.0
    return float(max((elements(types, slot) for types in (inputs, outputs) for slot in types), default=0))


def _work_by_rule(
    op: Op, inputs: Types, outputs: Types, chosen: Callable[[_WorkDeclaration], WorkRule | None]
) -> float | None:
    """What the chosen rule of an op gives, or for a gradient that of its op for each gradient that it makes; 0 if types
    are not known, None without a rule.
    """
    schema = schema_of(op.type)
    if schema is None:
        return None
    stated = _RULES.get(op.type)
    forward = _RULES.get(schema.forward) if stated is None else None
    try:
        if stated is not None and (rule := chosen(stated)) is not None:
            return _of_rule(schema, rule, op, {**inputs, **outputs})
        if forward is not None and (rule := chosen(forward)) is not None:
            types = {**inputs, **{slot[:-5]: types for slot, types in inputs.items() if slot.endswith("@GRAD")}}
            return _of_rule(schema, rule, op, types) * sum(_makes(op, f"{slot}@GRAD") for slot in forward.factors)
    except UnknownType:
        return 0.0
    return None


def family_of(op_type: str) -> Family:
    """The family of an op type, whatever its inputs."""
    facts, schema = facts_of(op_type), schema_of(op_type)
    if facts.communicates:
        return "messages"
    if schema is not None and schema.is_optimizer:
        return "updates"
    if facts.looks_up or facts.sparse_gradient:
        return "lookups"
    stated = _RULES.get(op_type) or (_RULES.get(schema.forward) if schema is not None else None)
    if stated is not None:
        return stated.family
    numbers = (facts.numbers, facts_of(schema.forward).numbers if schema is not None and schema.forward else "")
    if {*numbers} & {"moved", "in_order"}:
        return "moved"
    return "elementwise" if schema is None or schema.module in _AT_ONCE else "passes"


def calls_of(op_type: str, steps: int) -> int:
    """The calls by which an op does its work where the longest sequence has so many steps."""
    facts = facts_of(op_type)
    return facts.calls + facts.calls_per_step * steps


def family_with(op: Op, inputs: Types, outputs: Types, *, sparse: bool = False) -> Family:
    """The family of an op whose inputs and outputs have these types. `sparse`: some input has rows of a table alone."""
    family = family_of(op.type)
    if family == "updates" and sparse:
        return "sparse_updates"
    if family == "elementwise" and _size(inputs) >= REDUCED * _size(outputs) > 0:
        return "reductions"
    return family


def _of_rule(schema: OpSchema, rule: WorkRule, op: Op, types: Types) -> float:
    """What a rule gives. In a rule of another package whatever goes wrong is a finding about that package."""
    if schema.is_built_in:
        return rule(op, types)
    try:
        made = cast(object, rule(op, types))
    except (UnknownType, DiagnosticError):
        raise
    except (Exception, SystemExit) as reason:
        raise failed_rule(op, "work rule", reason) from reason
    if not isinstance(made, int | float) or not 0 <= made < float("inf"):
        raise rule_error(op, "work rule", f"gives {made!r}, not a number of operations")
    return float(made)


def _makes(op: Op, slot: str) -> bool:
    """Whether a gradient op makes the gradient of a slot."""
    return any(name != EMPTY_NAME for name in op.outputs.get(slot, ()))


def memory_traffic(op: Op, inputs: Types, outputs: Types) -> float:
    """The number of bytes that an op with these types reads and writes, with what it copies besides.

    An op whose result is its input with other dims touches nothing; a lookup reads as much of its table as it writes,
    and a gradient that is sparse reads nothing of it.
    """
    facts = facts_of(op.type)
    if facts.numbers == "in_order":
        return 0.0
    written = _size(outputs)
    is_sparse = bool(facts.sparse_gradient) and bool(op.attrs.get("is_sparse"))
    unread = facts.sparse_gradient.removesuffix("@GRAD") if is_sparse else facts.looks_up
    read = _size({slot: types for slot, types in inputs.items() if slot != unread})
    copied = _work_by_rule(op, inputs, outputs, lambda stated: stated.copies) or 0.0
    each = max((tensor.dtype.size for types in inputs.values() for tensor in types if tensor is not None), default=0)
    looked_up = written if facts.looks_up and facts.looks_up in inputs else 0
    return read + written + looked_up + 2.0 * each * copied


def _size(types: Mapping[str, tuple[TensorType | None, ...]]) -> int:
    return sum(bytes_of(each) for several in types.values() for each in several)
