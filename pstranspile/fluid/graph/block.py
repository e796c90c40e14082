"""Blocks of Fluid's programs and the ops in them, each op a view on an op in a draft of a block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pstranspile.fluid.graph.desc import ALONE, AttrType, BlockDesc, OpDesc
from pstranspile.fluid.graph.values import dtype_of, kind_of, several
from pstranspile.fluid.graph.variable import Parameter, Variable
from pstranspile.fluid.running.flags import require_static
from pstranspile.frontends.layers.draft import BlockDraft, whole_dim
from pstranspile.ir.attributes import BlockRef, BlockRefs
from pstranspile.ir.diagnostics import did_you_mean, nearest
from pstranspile.ir.model import FrozenMap, Op, ParameterInfo, TensorType, Var
from pstranspile.ir.types import OpRole
from pstranspile.ops import schema_of
from pstranspile.ops.schema import op_schemas

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
            from pstranspile.frontends.program_desc import stack_of

            place = self.frozen.location
            script = place and (place.script or place)
            return [*stack_of(script)] if script and script.line else []
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
            from pstranspile.frontends.layers.draft import attributes, infer_attr

            schema, given = schema_of(op.type), plain(val)
            known = name in GENERIC or (schema is not None and name in schema.attrs)
            made = attributes(op.type, {name: given}) if known else {name: infer_attr(given)}
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
        self._rename(old_name, new_name, inputs=_rename_in_slots(self.frozen.inputs, old_name, new_name))

    def _rename_output(self, old_name: str, new_name: str) -> None:
        """Replaces a variable by another among those that the op writes."""
        self._rename(old_name, new_name, outputs=_rename_in_slots(self.frozen.outputs, old_name, new_name))

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


def _rename_in_slots(slots: Mapping[str, tuple[str, ...]], old: str, new: str) -> FrozenMap[str, tuple[str, ...]]:
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


# The variables of a block as a mapping.


class Vars(Mapping[str, Variable]):
    """A live mapping from names to the variables of a block."""

    def __init__(self, block: Any):
        self._block = block

    def __getitem__(self, name: str) -> Variable:
        if name not in self._block.draft.vars:
            raise KeyError(name)
        return self._block.view(name)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._block.draft.vars))

    def __len__(self) -> int:
        return len(self._block.draft.vars)

    def pop(self, name: str, *default: Any) -> Any:
        """Removes a variable from the block and returns it, or the default if there is none."""
        if name not in self._block.draft.vars and default:
            return default[0]
        result = self[name]
        del self._block.draft.vars[name]
        return result

    def __delitem__(self, name: str) -> None:
        self.pop(name)


class Block:
    """A block of a program: a view on the variables and ops that the block's draft has."""

    def __init__(self, program: Any, idx: int):
        self.program = program
        self.idx = idx
        self.id = idx
        self._views: dict[str, Variable] = {}
        self._ops: dict[int, Operator] = {}

    @property
    def drafts_index(self) -> int:
        """The index of the block, which attributes of ops store to refer to it."""
        return self.idx

    @property
    def draft(self) -> BlockDraft:
        """The draft that has the block's variables and ops."""
        return self.program.drafts[self.idx]

    def __repr__(self) -> str:
        return self.to_string(False)

    def to_string(self, throw_on_error: bool, with_details: bool = False) -> str:
        """The block as text: its variables, then its ops."""
        lines = [f"    {var.to_string(throw_on_error, with_details)}" for var in self.vars.values()] + [
            f"    {op!r}" for op in self.ops
        ]
        return "\n".join([f"{{ // block {self.idx}", *lines, "}"])

    @property
    def desc(self) -> BlockDesc:
        """The block under the method names of Fluid's descriptions."""
        return BlockDesc(self)

    def _to_readable_code(self, skip_op_callstack: bool = True) -> str:
        """The block as text."""
        return self.to_string(True)

    @property
    def parent_idx(self) -> int:
        """The index of the block around this one, -1 for none."""
        return self.draft.parent

    @property
    def forward_block_idx(self) -> int:
        """The index of the forward block that this block computes gradients for, -1 for none."""
        return self.draft.forward_block

    # variables

    @property
    def vars(self) -> Vars:
        """The variables by name."""
        return Vars(self)

    def view(self, name: str) -> Variable:
        """The variable of this block with a name; every call returns the same object."""
        view = self._views.get(name)
        is_parameter = self.draft.vars[name].parameter is not None
        if view is None or isinstance(view, Parameter) != is_parameter:
            view = self._views[name] = (Parameter if is_parameter else Variable)(self, name)
        return view

    def adopt(self, view: Variable) -> None:
        """Makes an object the view on a variable that is already declared in the block."""
        self._views[view.name] = view

    def has_var(self, name: str) -> bool:
        """Whether the block itself has a variable of this name."""
        return name in self.draft.vars

    def var(self, name: str) -> Variable:
        """The variable of this name in the block itself. Raises ValueError if there is none."""
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"var takes the name of a variable, a str, not a value of type {type(name).__name__}")
        if name not in self.draft.vars:
            raise ValueError(f"block {self.idx} has no variable {name}{did_you_mean(name, self.draft.vars)}")
        return self.view(name)

    def _find_var_recursive(self, name: str) -> Variable | None:
        """The variable that a name means in this block: its own, or one of the blocks around it."""
        index = self.idx
        while index >= 0:
            block = self.program.block(index)
            if block.has_var(name):
                return block.view(name)
            index = block.parent_idx
        return None

    def _var_recursive(self, name: str) -> Variable:
        """The variable that a name means in this block or those around it. Raises ValueError if there is none."""
        result = self._find_var_recursive(name)
        if result is None:
            raise ValueError(f"there is no variable {name} in block {self.idx} or those around it")
        return result

    find_var_recursive = _find_var_recursive

    def all_parameters(self) -> list[Parameter]:
        """The parameters in order of declaration."""
        return list(self.iter_parameters())

    def iter_parameters(self) -> Iterator[Parameter]:
        """The parameters in order of declaration."""
        return (var for var in self.vars.values() if isinstance(var, Parameter))

    def create_var(
        self,
        *,
        name: str | None = None,
        shape: Any = None,
        dtype: Any = None,
        lod_level: int | None = None,
        type: Any = None,
        persistable: bool | None = None,
        stop_gradient: bool = False,
        is_data: bool = False,
        need_check_feed: bool = False,
        **others: Any,
    ) -> Variable:
        """Declares a variable, or changes the declaration of an existing one by the arguments that are not None.

        Raises ValueError where the existing variable has another element type, other dims or another LoD level.
        """
        from pstranspile.fluid import unique_name

        require_static()
        name = name or unique_name.generate("_generated_var")
        known = self.draft.vars.get(name)
        tensor = known.tensor if known is not None else None
        if shape is not None or dtype is not None or lod_level is not None:
            base = tensor or TensorType(dtype_of("float32"), ())
            untyped = dtype is None and tensor is None
            tensor = TensorType(
                dtype_of(dtype) if dtype is not None else base.dtype,
                tuple(whole_dim(dim) for dim in shape) if shape is not None else base.shape,
                lod_level if lod_level is not None else base.lod_level,
            )
            if untyped:
                self.program.untyped[name] = tensor
        _agree(known, tensor)
        var = (known or Var(name))._replace(tensor=tensor, need_check_feed=need_check_feed)
        if type is not None:
            var = var._replace(kind=kind_of(type))
        if persistable is not None:
            var = var._replace(persistable=persistable)
        self.draft.vars[name] = var
        if stop_gradient:
            self.program.stopped.add(name)
        view = self.view(name)
        view.is_data = is_data
        if "initializer" in others and others["initializer"] is not None:
            others["initializer"](view, self)
        return view

    def create_parameter(
        self, *, name: str | None = None, shape: Any, dtype: Any, initializer: Any = None, **others: Any
    ) -> Parameter:
        """Declares a parameter in block 0; an initializer makes the op that fills the parameter in this block, unless
        one is there.

        Raises ValueError without dims or element type, and for a dim below 0.
        """
        from pstranspile.fluid import unique_name

        if not shape or dtype is None or any(whole_dim(dim) < 0 for dim in shape):
            raise ValueError(f"a parameter has known dims and an element type, not {shape!r} and {dtype!r}")
        name = name or unique_name.generate("_generated_var")
        tensor = TensorType(dtype_of(dtype), tuple(whole_dim(dim) for dim in shape), others.get("lod_level") or 0)
        decay = others.get("regularizer")
        info = ParameterInfo(
            others.get("trainable", True),
            _rate(others.get("optimize_attr")),
            others.get("is_distributed", False),
            None if decay is None else str(decay.core()),
        )
        program = self.program
        program.drafts[0].vars[name] = Var(name, tensor=tensor, persistable=True, parameter=info)
        program.regularizers.pop(name, None)
        if decay is not None:
            program.regularizers[name] = decay.core()
        if others.get("stop_gradient"):
            program.stopped.add(name)
        if others.get("do_model_average") is False:
            program.unaveraged.add(name)
        result = program.global_block().view(name)
        assert isinstance(result, Parameter)
        if initializer is not None and not any(name in op.output_names for op in self.draft.all_ops()):
            initializer(result, self)
        return result

    def _remove_var(self, name: str) -> None:
        """Removes a variable from the block, if it is there."""
        self.draft.vars.pop(name, None)

    def _rename_var(self, name: str, new_name: str) -> Variable:
        """Gives a variable another name, here and in all ops of the block."""
        vars = self.draft.vars
        held = {new_name if key == name else key: var for key, var in vars.items()}
        held[new_name] = held[new_name]._replace(name=new_name)
        vars.clear()
        vars.update(held)
        for op in self.ops:
            op._rename_input(name, new_name)  # pyright: ignore[reportPrivateUsage]
            op._rename_output(name, new_name)  # pyright: ignore[reportPrivateUsage]
        return self.view(new_name)

    def _clone_variable(self, var: Variable, force_persistable: bool = True) -> Variable:
        """Declares a variable like one of another block, and returns it."""
        self.draft.vars[var.name] = var.var._replace(parameter=None, persistable=force_persistable or var.persistable)
        return self.view(var.name)

    # ops

    @property
    def ops(self) -> list[Operator]:
        """The ops in order; every call returns the same objects."""
        held = list(self.draft.all_ops())
        views = {id(op): self._ops.get(id(op)) or Operator(self, op) for op in held}
        self._ops = views
        return [views[id(op)] for op in held]

    def op(self, index: int) -> Operator:
        """The op at an index; negative indices count from the end. Raises IndexError for an index out of range."""
        draft, size = self.draft, self.op_size()
        place = index + size if index < 0 else index
        if not 0 <= place < size:
            raise IndexError(f"block {self.idx} has {size} ops, none at {index}")
        front = len(draft.front)
        held = draft.front[front - 1 - place] if place < front else draft.ops[place - front]
        view = self._ops[id(held)] = self._ops.get(id(held)) or Operator(self, held)
        return view

    def op_size(self) -> int:
        """How many ops the block has."""
        return len(self.draft.ops) + len(self.draft.front)

    def _settle(self) -> list[Op]:
        """Joins the ops that were put in front with the others, and returns the list, which callers may change."""
        draft = self.draft
        draft.ops[:0] = list(reversed(draft.front))
        draft.front.clear()
        return draft.ops

    def replace(self, view: Operator, op: Op) -> None:
        """Puts another op where `view` has its own. Raises ValueError when the op of `view` is no
        longer in the block.
        """
        draft = self.draft
        for held in (draft.ops, draft.front):
            for index, known in enumerate(held):
                if known is view.frozen:
                    held[index] = op
                    self._ops.pop(id(known), None)
                    self._ops[id(op)] = view
                    view.frozen = op
                    return
        raise ValueError(f"block {self.idx} does not hold this op of type {view.type}")

    def append_op(
        self,
        type: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> Operator:
        """Appends an op to the block, and declares the variables that it writes with the dims that follow from its
        inputs.
        """
        return self._add_op(type, inputs, outputs, attrs, front=False)

    def insert_blank_op(self, index: int) -> Operator:
        """Inserts an op without a type at an index (`op.desc.copy_from` gives it one)."""
        made = Op("", role=None, role_vars=None)
        self._settle().insert(index, made)
        view = self._ops[id(made)] = Operator(self, made)
        return view

    def _prepend_op(
        self,
        type: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> Operator:
        """Inserts an op in front of all others, like `append_op`."""
        return self._add_op(type, inputs, outputs, attrs, front=True)

    prepend_op = _prepend_op

    def _insert_op(
        self,
        index: int,
        type: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operator:
        """Inserts an op at an index, like `append_op`."""
        made = self._add_op(type, inputs, outputs, attrs, front=False)
        held = self._settle()
        held.insert(index, held.pop())
        return made

    def _remove_op(self, index: int) -> None:
        """Removes the op at an index."""
        del self._settle()[index]

    def _add_op(
        self,
        type: str | None,
        inputs: Mapping[str, Any] | None,
        outputs: Mapping[str, Any] | None,
        attrs: Mapping[str, Any] | None,
        *,
        front: bool,
    ) -> Operator:
        if type is None:  # scripts compare this message and the next one
            raise ValueError("`type` to initialized an Operator can not be None.")
        live = self.program.live()
        input_names = inputs and {slot: names_in(held) for slot, held in inputs.items() if held is not None}
        written = {slot: names_in(held) for slot, held in (outputs or {}).items() if held is not None}
        rest = {name: plain(value) for name, value in (attrs or {}).items() if value is not None}
        role, role_vars = rest.pop("op_role", None), rest.pop("op_role_var", None)
        schema = schema_of(type)
        if schema is None:
            near = nearest(type, op_schemas())
            hint = f" Did you mean {near}?" if near else ""
            raise ValueError(f'Operator "{type}" has not been registered.{hint}')
        rest = {name: value for name, value in rest.items() if name in schema.attrs or name in GENERIC}
        with (
            live.enter_block(self.idx),
            live.roles(
                live.role if role is None else OpRole(int(role)), *(live.role_vars if role_vars is None else role_vars)
            ),
        ):
            made = live.op(type, input_names, written, rest, front=front)
        for name in made.output_names if self.program.untyped else ():
            self.program.untyped.pop(name, None)
        view = self._ops[id(made)] = Operator(self, made)
        return view


def _agree(known: Var | None, wanted: TensorType | None) -> None:
    if known is not None and known.tensor is not None and wanted is not None and known.tensor != wanted:
        raise ValueError(f"{known.name} is declared as {known.tensor} already, not as {wanted}")


def _rate(attributes: Any) -> float:
    return attributes.get("learning_rate", 1.0) if attributes else 1.0
