"""Blocks, ops and variables under the method names of Fluid's descriptions (`block.desc`, `op.desc`,
`variable.desc`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pstranspile.fluid.graph.values import Numbers, VarType, dtype_of, kind_of, vartype_of
from pstranspile.frontends.layers.draft import whole_dim
from pstranspile.frontends.python_places import in_script
from pstranspile.ir.attributes import BlockRef, BlockRefs
from pstranspile.ir.attributes import kind_of as kind_of_value
from pstranspile.ir.model import Block, FrozenMap, Op, Program, TensorType
from pstranspile.ops import schema_of

ALONE: dict[str, Callable[[str], Any]] = {}
"""Two functions that make objects outside of any program: `op` makes an op of a type that is in no block, `variable`
makes a variable of a name in a block of its own.

The modules that define ops and programs register them, because they import this module.
"""


class AttrType(Numbers):
    """Kinds of attributes, numbered as in Fluid."""

    INT = 0
    FLOAT = 1
    STRING = 2
    INTS = 3
    FLOATS = 4
    STRINGS = 5
    BOOL = 6
    BOOLS = 7
    BLOCK = 8
    LONG = 9
    BLOCKS = 10
    LONGS = 11


class BlockDesc:
    """A block under the methods that scripts call on `block.desc`."""

    def __init__(self, block: Any):
        self._block = block
        self.id: int = block.idx
        self.parent: int = block.parent_idx

    def type_outputs(self, op: Op) -> None:
        """Declares the dims of the outputs of an op in this block, where none are declared. Raises ShapeError."""
        live = self._block.program.live()
        with live.enter_block(self._block.idx):
            live.type_outputs(op)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockDesc) and other._block is self._block

    def __hash__(self) -> int:
        return id(self._block)

    def get_parent_idx(self) -> int:
        """The index of the block around this one, -1 for none."""
        return self._block.parent_idx

    def get_forward_block_idx(self) -> int:
        """The index of the block whose gradients this one computes, -1 for none."""
        return self._block.forward_block_idx

    def _set_forward_block_idx(self, index: int) -> None:
        """Declares which block this one computes gradients for."""
        self._block.draft.forward_block = int(index)

    def serialize_to_string(self) -> bytes:
        """The block as the bytes of a message `BlockDesc`."""
        message = message_of(self._block.draft.freeze())
        message.idx = self.id
        return message.SerializeToString()

    def op_size(self) -> int:
        """How many ops the block has."""
        return self._block.op_size()

    def op(self, index: int) -> OpDesc:
        """The op at an index."""
        return self._block.ops[index].desc

    def append_op(self) -> OpDesc:
        """Appends an op without type, inputs and outputs."""
        return self._insert_op(self.op_size())

    def _prepend_op(self) -> OpDesc:
        """Inserts an op without type, inputs and outputs in front of all others."""
        return self._insert_op(0)

    def _insert_op(self, index: int) -> OpDesc:
        """Inserts an op without type, inputs and outputs at an index."""
        return self._block.insert_blank_op(index).desc

    def all_vars(self) -> list[Any]:
        """The block's variables."""
        return [var.desc for var in self._block.vars.values()]

    def has_var(self, name: str | bytes) -> bool:
        """Whether the block itself has a variable of this name."""
        return self._block.has_var(_text(name))

    def has_var_recursive(self, name: str | bytes) -> bool:
        """Whether the block or one around it has a variable of this name."""
        return self.find_var_recursive(name) is not None

    def find_var_recursive(self, name: str | bytes) -> Any:
        """The variable that a name refers to in this block or those around it, None if there is none."""
        found = self._block.find_var_recursive(_text(name))
        return None if found is None else found.desc

    def find_var(self, name: str | bytes) -> Any:
        """The variable of this name in the block itself, None if there is none."""
        return self._block.var(_text(name)).desc if self.has_var(name) else None

    def var(self, name: str | bytes) -> Any:
        """The variable of this name, which is declared first if there is none."""
        return self.find_var(name) or self._block.create_var(name=_text(name)).desc

    def _remove_op(self, start: int, end: int) -> None:
        """Removes the ops from index `start` up to `end`, without the latter."""
        for _ in range(start, end):
            self._block._remove_op(start)  # pyright: ignore[reportPrivateUsage]

    def _remove_var(self, name: str | bytes) -> None:
        """Removes a variable from the block, if it is there."""
        self._block._remove_var(_text(name))  # pyright: ignore[reportPrivateUsage]

    def _rename_var(self, name: str | bytes, new_name: str | bytes) -> None:
        """Gives a variable another name, here and in all ops of the block."""
        self._block._rename_var(_text(name), _text(new_name))  # pyright: ignore[reportPrivateUsage]


class OpDesc:
    """An op under the methods that scripts call on `op.desc`. Without an op, it makes a new one in no block. Two
    descriptions of one op are equal.
    """

    def __init__(self, op: Any = None):
        self._op: Any = ALONE["op"]("") if op is None else op

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpDesc) and other._op is self._op

    def __hash__(self) -> int:
        return id(self._op)

    @property
    def frozen(self) -> Op:
        """The op as a frozen value."""
        return self._op.frozen

    def block(self) -> BlockDesc:
        """The block that the op is in."""
        return self._op.block.desc

    def serialize_to_string(self) -> bytes:
        """The op as the bytes of a message `OpDesc`."""
        return message_of(Block(ops=(self.frozen,))).ops[0].SerializeToString()

    def type(self) -> str:
        """The op type."""
        return self._op.type

    def set_type(self, op_type: str) -> None:
        """Changes the op's type."""
        self._op.become(self._op.frozen._replace(type=op_type))

    def copy_from(self, other: OpDesc) -> None:
        """Makes the op a copy of another one."""
        self._op.become(other.frozen)

    def infer_var_type(self, _block: Any) -> None:
        """Does nothing, because the kinds of an op's outputs are set when the op is made."""

    def check_attrs(self) -> None:
        """Adds the defaults of all attributes that the op does not carry."""
        op, schema = self.frozen, schema_of(self.frozen.type)
        if schema is not None:
            self._op.become(op._replace(attrs=FrozenMap({**schema.defaults, **op.attrs})))

    def infer_shape(self, block: BlockDesc) -> None:
        """Declares the dims of the op's outputs in a block, where none are declared. Raises ShapeError."""
        block.type_outputs(self._op.frozen)

    def inputs(self) -> dict[str, list[str]]:
        """The variables of every input slot, by slot."""
        return {slot: list(names) for slot, names in self._op.frozen.inputs.items()}

    def outputs(self) -> dict[str, list[str]]:
        """The variables of every output slot, by slot."""
        return {slot: list(names) for slot, names in self._op.frozen.outputs.items()}

    def input(self, name: str) -> list[str]:
        """The variables of an input slot."""
        return self._op.input(name)

    def output(self, name: str) -> list[str]:
        """The variables of an output slot."""
        return self._op.output(name)

    def input_names(self) -> list[str]:
        """The names of the input slots."""
        return self._op.input_names

    def output_names(self) -> list[str]:
        """The names of the output slots."""
        return self._op.output_names

    def input_arg_names(self) -> list[str]:
        """The names of all variables that the op reads."""
        return self._op.input_arg_names

    def output_arg_names(self) -> list[str]:
        """The names of all variables that the op writes."""
        return self._op.output_arg_names

    def attr_names(self) -> list[str]:
        """The names of the attributes that the op carries."""
        return self._op.attr_names

    def has_attr(self, name: str) -> bool:
        """Whether the op carries an attribute."""
        return self._op.has_attr(name)

    def attr(self, name: str) -> Any:
        """The value of an attribute; for a block its index."""
        value = self._op.attr(name)
        return getattr(value, "idx", value)

    def attr_type(self, name: str) -> AttrType:
        """The kind of an attribute. Raises ValueError for an attribute that the op does not carry."""
        self._op.attr(name)
        value = self._op.frozen.attrs.get(name)
        if value is None:
            return AttrType.INT if name == "op_role" else AttrType.STRINGS
        return AttrType(kind_of_value(value).value)

    def block_attr_id(self, name: str) -> int:
        """The index of the block that an attribute refers to."""
        return self._op.attr(name).idx

    _block_attr_id = block_attr_id

    def _blocks_attr_ids(self, name: str) -> list[int]:
        """The indices of the blocks that an attribute refers to."""
        return [block.idx for block in self._op.attr(name)]

    def set_input(self, slot: str, names: Sequence[str]) -> None:
        """Sets the variables of an input slot."""
        self._op.set_input(slot, names)

    def set_output(self, slot: str, names: Sequence[str]) -> None:
        """Sets the variables of an output slot."""
        self._op.set_output(slot, names)

    def _set_attr(self, name: str, value: Any) -> None:
        """Sets an attribute."""
        self._op.set_attr(name, value)

    set_attr = _set_attr

    def set_block_attr(self, name: str, block: BlockDesc) -> None:
        """Makes an attribute refer to a block."""
        self._op.set_attr(name, BlockRef(block.id))

    def set_blocks_attr(self, name: str, blocks: Sequence[BlockDesc]) -> None:
        """Makes an attribute refer to several blocks."""
        self._op.set_attr(name, BlockRefs(block.id for block in blocks))

    def set_is_target(self, is_target: bool) -> None:
        """Declares whether pruning keeps the op and the ops that it needs."""
        self._op.become(self.frozen._replace(is_target=bool(is_target)))

    def remove_attr(self, name: str) -> None:
        """Removes an attribute from the op."""
        self._op._remove_attr(name)  # pyright: ignore[reportPrivateUsage]

    def _rename_input(self, old_name: str, new_name: str) -> None:
        """Replaces a variable by another among those that the op reads."""
        self._op._rename_input(old_name, new_name)  # pyright: ignore[reportPrivateUsage]

    def _rename_output(self, old_name: str, new_name: str) -> None:
        """Replaces a variable by another among those that the op writes."""
        self._op._rename_output(old_name, new_name)  # pyright: ignore[reportPrivateUsage]


def message_of(block: Block) -> Any:
    """A block as protobuf's message `BlockDesc`."""
    from pstranspile.fluid.proto import ProgramDesc
    from pstranspile.frontends.program_desc import program_to_bytes

    return ProgramDesc.FromString(program_to_bytes(in_script(Program((block,))))).blocks[0]


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


_UNKNOWN = TensorType(dtype_of("float32"), ())


class VarDesc:
    """A variable under the methods that scripts call on `variable.desc`. Given a name, it makes a new variable. Two
    descriptions of one variable are equal.
    """

    VarType = VarType

    def __init__(self, variable: Any):
        self._variable: Any = ALONE["variable"](variable) if isinstance(variable, str) else variable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VarDesc) and other._variable is self._variable

    def __hash__(self) -> int:
        return id(self._variable)

    def name(self) -> str:
        """The variable's name."""
        return self._variable.name

    def set_name(self, name: str) -> None:
        """Gives the variable another name, here and in all ops of its block."""
        self._variable = self._variable.block._rename_var(self._variable.name, name)

    def shape(self) -> list[int]:
        """The declared dims, -1 for an unknown one."""
        return list(self._variable.shape)

    get_shape = shape

    def set_shape(self, shape: Sequence[int]) -> None:
        """Declares other dims."""
        self._variable.redeclare(shape=tuple(whole_dim(dim) for dim in shape))

    def dtype(self) -> VarType:
        """The element type."""
        return self._variable.dtype

    def set_dtype(self, dtype: Any) -> None:
        """Declares another element type."""
        self._variable.redeclare(dtype=dtype_of(dtype))

    def lod_level(self) -> int:
        """The LoD level: how deep the variable's sequences nest."""
        return self._variable.lod_level

    def set_lod_level(self, level: int) -> None:
        """Declares another LoD level."""
        self._variable.redeclare(lod_level=int(level))

    def type(self) -> VarType:
        """The variable's kind, as a VarType."""
        return self._variable.type

    def set_type(self, kind: Any) -> None:
        """Declares another kind of variable."""
        self._change(kind=kind_of(kind))

    def persistable(self) -> bool:
        """Whether the variable is kept from run to run."""
        return self._variable.persistable

    def set_persistable(self, persistable: bool) -> None:
        """Declares whether the variable is kept from run to run."""
        self._change(persistable=bool(persistable))

    def need_check_feed(self) -> bool:
        """Whether runs check the dims and the element type of the value that is fed."""
        return self._variable.need_check_feed

    def set_need_check_feed(self, need_check_feed: bool) -> None:
        """Declares whether runs check the dims and the element type of the value that is fed."""
        self._change(need_check_feed=bool(need_check_feed))

    # variables that are readers

    def shapes(self) -> list[list[int]]:
        """The dims of each tensor that a reader yields."""
        return [list(tensor.shape) for tensor in self._variable.var.readers]

    def set_shapes(self, shapes: Sequence[Sequence[int]]) -> None:
        """Declares the dims of each tensor that a reader yields."""
        self._yields([{"shape": tuple(map(whole_dim, shape))} for shape in shapes])

    def dtypes(self) -> list[VarType]:
        """The element type of each tensor that a reader yields."""
        return [vartype_of(tensor.dtype) for tensor in self._variable.var.readers]

    def set_dtypes(self, dtypes: Sequence[Any]) -> None:
        """Declares the element type of each tensor that a reader yields."""
        self._yields([{"dtype": dtype_of(dtype)} for dtype in dtypes])

    def lod_levels(self) -> list[int]:
        """The LoD level of each tensor that a reader yields."""
        return [tensor.lod_level for tensor in self._variable.var.readers]

    def set_lod_levels(self, levels: Sequence[int]) -> None:
        """Declares the LoD level of each tensor that a reader yields."""
        self._yields([{"lod_level": int(level)} for level in levels])

    def serialize_to_string(self) -> bytes:
        """The variable's declaration as the bytes of a message `VarDesc`."""
        var = self._variable.var
        return message_of(Block(FrozenMap({var.name: var}))).vars[0].SerializeToString()

    def _yields(self, changes: Sequence[dict[str, Any]]) -> None:
        known = self._variable.var.readers
        tensors = (*known, *[_UNKNOWN] * (len(changes) - len(known)))
        made = tuple(tensor._replace(**change) for tensor, change in zip(tensors, changes, strict=False))
        self._change(readers=made)

    def _change(self, **changes: Any) -> None:
        self._variable.block.draft.vars[self.name()] = self._variable.var._replace(**changes)
