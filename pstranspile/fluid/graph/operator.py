"""Ops of Fluid's programs, each a view on an op in a draft of a block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pstranspile.fluid.graph.desc import ALONE, AttrType, OpDesc
from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.ir.attributes import BlockRef, BlockRefs
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op
from pstranspile.ir.types import OpRole
from pstranspile.ops import schema_of

ROLE, ROLE_VARS, MADE_AT = "op_role", "op_role_var", "op_callstack"
GENERIC = ("op_namescope", "op_device")
"""Attributes that every op may carry."""


class Operator:
    """An op, in a block or in none yet. As in Fluid, the methods that begin with an underscore change it."""

    def __init__(self, block: Any, op: Op):
        self.block = block
        self.frozen = op

    def __repr__(self) -> str:
        return self.to_string(True)

    def to_string(self, throw_on_error: bool = True) -> str:
        """The op as text: the variables that it writes, its type, and those that it reads."""
        sides = [
            ", ".join(f"{slot}={list(names)}" for slot, names in slots.items())
            for slots in (self.frozen.outputs, self.frozen.inputs)
        ]
        return f"{{{sides[0]}}} = {self.type}({sides[1]})"

    @property
    def desc(self) -> OpDesc:
        """The op under the names of Fluid's descriptions."""
        return OpDesc(self)

    def _to_readable_code(self, skip_op_callstack: bool = True) -> str:
        """The op as text."""
        return self.to_string(True)

    def _is_optimize_op(self) -> bool:
        """Whether the op updates parameters, or has another role in the update."""
        return bool((self.frozen.role or OpRole.FORWARD) & OpRole.OPTIMIZE)

    def _is_backward_op(self) -> bool:
        """Whether the op computes gradients."""
        return bool((self.frozen.role or OpRole.FORWARD) & OpRole.BACKWARD)

    @property
    def type(self) -> str:
        """The op type."""
        return self.frozen.type

    @property
    def idx(self) -> int:
        """The op's index in its block."""
        return next(index for index, op in enumerate(self.block.ops) if op is self)

    def input(self, name: str) -> list[str]:
        """The variables of an input slot."""
        return list(self.frozen.inputs.get(name, ()))

    def output(self, name: str) -> list[str]:
        """The variables of an output slot."""
        return list(self.frozen.outputs.get(name, ()))

    @property
    def input_names(self) -> list[str]:
        """The names of the input slots, sorted."""
        return sorted(self.frozen.inputs)

    @property
    def output_names(self) -> list[str]:
        """The names of the output slots, sorted."""
        return sorted(self.frozen.outputs)

    @property
    def input_arg_names(self) -> list[str]:
        """The names of all variables that the op reads, slot by slot in the order of the slots' names."""
        return [name for slot in self.input_names for name in self.frozen.inputs[slot]]

    @property
    def output_arg_names(self) -> list[str]:
        """The names of all variables that the op writes, slot by slot in the order of the slots' names."""
        return [name for slot in self.output_names for name in self.frozen.outputs[slot]]

    @property
    def attr_names(self) -> list[str]:
        """The names of the attributes that the op carries."""
        generic = {ROLE: self.frozen.role, ROLE_VARS: self.frozen.role_vars, MADE_AT: self.frozen.role}
        return [*self.frozen.attrs, *(name for name, held in generic.items() if held is not None)]

    def has_attr(self, name: str) -> bool:
        """Whether the op carries an attribute."""
        return name in self.attr_names

    def attr(self, name: str) -> Any:
        """The value of an attribute. Raises ValueError for an attribute that the op does not carry."""
        if name == ROLE:
            return int(self.frozen.role or 0)
        if name == ROLE_VARS:
            return list(self.frozen.role_vars or ())
        if name == MADE_AT:
            origin = self.frozen.origin
            return [str(origin.location)] if origin and origin.location else []
        if name not in self.frozen.attrs:
            raise ValueError(f"{self.type} has no attribute {name}; it has {', '.join(sorted(self.frozen.attrs))}")
        value = self.frozen.attrs[name]
        if isinstance(value, BlockRef):
            return self.block.program.block(int(value))
        if isinstance(value, BlockRefs):
            return [self.block.program.block(int(index)) for index in value]
        return list(value) if isinstance(value, tuple) else value

    def _blocks_attr_ids(self, name: str) -> list[int]:
        """The indices of the blocks that an attribute refers to."""
        return [block.idx for block in self._blocks_attr(name)]

    def _blocks_attr(self, name: str) -> list[Any]:
        """The blocks that an attribute refers to. Raises ValueError for an attribute that the op does not carry."""
        return self.attr(name)

    def _block_attr_id(self, name: str) -> int:
        """The index of the block that an attribute refers to."""
        return self._block_attr(name).idx

    def _block_attr(self, name: str) -> Any:
        """The block that an attribute refers to. Raises ValueError for an attribute that the op does not carry."""
        return self.attr(name)

    def all_attrs(self) -> dict[str, Any]:
        """All attributes by name."""
        return {name: self.attr(name) for name in self.attr_names}

    def _change(self, op: Op) -> None:
        if self.block is None:
            self.frozen = op
        else:
            self.block.replace(self, op)

    def become(self, op: Op) -> None:
        """Replaces the op by a copy of another one."""
        self._change(op._replace())

    def _set_attr(self, name: str, val: Any) -> None:
        """Sets an attribute."""
        op = self.frozen
        if name == ROLE:
            self._change(op._replace(role=OpRole(int(val))))
        elif name == ROLE_VARS:
            self._change(op._replace(role_vars=tuple(val)))
        else:
            from pstranspile.frontends.layers.draft import attributes, inferred

            schema, given = schema_of(op.type), plain(val)
            known = name in GENERIC or (schema is not None and name in schema.attrs)
            made = attributes(op.type, {name: given}) if known else {name: inferred(given)}
            self._change(op._replace(attrs=FrozenMap({**op.attrs, **made})))

    set_attr = _set_attr

    def _remove_attr(self, name: str) -> None:
        """Removes an attribute from the op, which then has the attribute's default."""
        op = self.frozen
        if name in (ROLE, ROLE_VARS):
            self._change(op._replace(**{"role" if name == ROLE else "role_vars": None}))
        else:
            self._change(op._replace(attrs=FrozenMap({key: val for key, val in op.attrs.items() if key != name})))

    def attr_type(self, name: str) -> AttrType:
        """The kind of an attribute."""
        return self.desc.attr_type(name)

    def _rename_input(self, old_name: str, new_name: str) -> None:
        """Replaces a variable by another among those that the op reads."""
        self._rename(old_name, new_name, inputs=_renamed(self.frozen.inputs, old_name, new_name))

    def _rename_output(self, old_name: str, new_name: str) -> None:
        """Replaces a variable by another among those that the op writes."""
        self._rename(old_name, new_name, outputs=_renamed(self.frozen.outputs, old_name, new_name))

    def _rename(self, old: str, new: str, **slots: FrozenMap[str, tuple[str, ...]]) -> None:
        """Replaces slots, and a variable's name among the role variables."""
        names = self.frozen.role_vars
        role_vars = names and tuple(new if name == old else name for name in names)
        self._change(self.frozen._replace(**slots, role_vars=role_vars))

    def set_input(self, slot: str, names: Sequence[str]) -> None:
        """Sets the variables of an input slot."""
        self._change(self.frozen._replace(inputs=FrozenMap({**self.frozen.inputs, slot: tuple(names)})))

    def set_output(self, slot: str, names: Sequence[str]) -> None:
        """Sets the variables of an output slot."""
        self._change(self.frozen._replace(outputs=FrozenMap({**self.frozen.outputs, slot: tuple(names)})))


ALONE["op"] = lambda op_type: Operator(None, Op(op_type))


def _renamed(slots: Mapping[str, tuple[str, ...]], old: str, new: str) -> FrozenMap[str, tuple[str, ...]]:
    return FrozenMap({slot: tuple(new if name == old else name for name in names) for slot, names in slots.items()})


def plain(value: Any) -> Any:
    """The value of an attribute in plain Python values and references to blocks, from the value that a script gives."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if hasattr(value, "drafts_index"):  # a Block
        return BlockRef(value.drafts_index)
    if several(value) and value and hasattr(value[0], "drafts_index"):
        return BlockRefs(block.drafts_index for block in value)
    return value


def names_in(held: Any) -> list[str]:
    """The names of the variables that a script puts into a slot: variables or names, one or several."""
    items = held if several(held) else [held]
    return [
        item.name if isinstance(item, Variable) else item.decode() if isinstance(item, bytes) else str(item)
        for item in items
        if item is not None
    ]
