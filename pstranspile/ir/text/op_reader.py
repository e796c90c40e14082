"""The statements that are ops: slots, outputs, attributes and roles."""

from __future__ import annotations

from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.model import Slots
from pstranspile.ir.roles import OpRole
from pstranspile.ir.text.attributes import merge_attributes, read_given, read_text
from pstranspile.ir.text.context import Context, OpParts, did_you_mean
from pstranspile.ir.text.literals import (
    NO_ROLE,
    ROLE_WORDS,
)
from pstranspile.ir.text.reader import keyword, number, read_sigil_name
from pstranspile.ir.text.schemas import SchemaView
from pstranspile.ir.text.scripts import script_of
from pstranspile.ir.text.tree import Node, Token, Tree, nodes, token, tokens


def _slots(node: Node | None, base: Slots, schema: SchemaView | None, op_type: str, context: Context) -> Slots:
    given: dict[str, tuple[str, ...]] = {}
    absent: set[str] = set()
    for child in nodes(node) if node is not None else ():
        name = token(child, 0)
        slot = read_text(name, context)
        if slot in given or slot in absent:
            context.report("duplicate-name", f"slot `{slot}` is written twice", name)
        if child.data == "absent":
            absent.add(slot)
            if schema is not None and slot not in schema.inputs:
                hint = did_you_mean(slot, schema.inputs)
                context.report("unknown-absent-slot", f"{op_type} has no input `{slot}`{hint}", name)
        else:
            given[slot] = tuple(read_sigil_name(variable, context) for variable in tokens(child)[1:])
    merged = {slot: names for slot, names in base.items() if slot not in absent}
    merged.update(given)
    return FrozenMap(merged) if merged else EMPTY


def _outputs(node: Node | None, context: Context) -> Slots:
    for child in nodes(node) if node is not None else ():
        if child.data == "absent":
            context.report("syntax", "an output that is not written is not present; leave it out", token(child, 0))
    return _slots(node, EMPTY, None, "", context)


def read_role(node: Node | None, context: Context) -> tuple[OpRole | None, tuple[str, ...], bool]:
    """Role, role variables, and whether the op is a target."""
    if node is None:
        return OpRole.FORWARD, (), False
    role: OpRole | None = OpRole.FORWARD
    names: tuple[str, ...] = ()
    target = False
    for child in node.children:
        if not isinstance(child, Tree):
            target = keyword(child, ["target"], "mark of an op", context)
        elif child.data == "role_vars":
            names = tuple(read_sigil_name(variable, context) for variable in tokens(child))
        elif child.data == "role_number":
            word, value = tokens(child)
            keyword(word, ["role"], "role with a number", context)
            role = OpRole(number(value, context, low=0))
        else:
            role = _role_words(tokens(child), context)
    return role, names, target


def _role_words(words: list[Token], context: Context) -> OpRole | None:
    if words == [NO_ROLE]:
        return None
    role = OpRole.FORWARD
    for word in words:
        if keyword(word, [*ROLE_WORDS, NO_ROLE] if len(words) == 1 else ROLE_WORDS, "role", context):
            role |= ROLE_WORDS[word]
    return role


def read_op(node: Node, context: Context) -> OpParts:
    """`mul(X=%x, Y=%w) -> Out=%y {x_num_col_dims=2} : backward`."""
    first = token(node, 0)
    op_type = read_text(first, context)
    schema = context.language.schema_of(op_type)
    parts = {str(part.data): part for part in node.children if isinstance(part, Tree)}
    inputs = parts.get("inputs")
    empty = schema.empty_inputs if schema is not None and inputs is not None else EMPTY
    role, role_vars, target = read_role(parts.get("role"), context)
    braces = parts.get("attributes")
    given, not_carried = read_given(braces, op_type, schema, context) if braces is not None else ({}, frozenset[str]())
    attrs, default_vars = merge_attributes(given, not_carried, context.language.defaults(schema))
    if role_vars and default_vars is None:
        context.report("duplicate-name", "`-op_role_var` stands beside role variables", first)
    return OpParts(
        op_type,
        _slots(inputs, empty, schema, op_type, context),
        _outputs(parts.get("outputs"), context),
        attrs,
        role,
        role_vars or default_vars,
        target,
        context.line(first),
        first.column,
        script_of(node, context),
    )
