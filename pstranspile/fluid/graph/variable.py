"""Variables and parameters of Fluid's programs, each a view on a declaration in a draft of a block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pstranspile.fluid.graph.desc import VarDesc
from pstranspile.fluid.graph.values import VarType, dtype_of, numpy_name, several, vartype_of
from pstranspile.frontends.layers.draft import Value
from pstranspile.frontends.layers.tensor import mixed_numbers
from pstranspile.ir.attributes import Ints
from pstranspile.ir.model import ParameterInfo, TensorType, Var
from pstranspile.ir.types import DType

# `variable[...]`: slices and items of variables.

FAR = 10_000_000
"""The end of a slice up to the last element; for longer dims it is `MOST`."""
MOST = 2**31 - 1


class _DimSlice(NamedTuple):
    """A slice of one dim; its bounds are numbers, or variables whose values are known at run time only."""

    axis: int
    start: Any
    end: Any
    step: int = 1
    is_item: bool = False


def item(variable: Any, index: Any) -> Any:
    """The part of a variable that an index, a slice, or a tuple of both selects; indices may be variables.

    Raises IndexError for more indices than dims, TypeError for other things than numbers, variables, slices and `...`.
    """
    rank = len(variable.shape)
    given: list[Any] = [*index] if several(index) else [index]
    dots = [at for at, part in enumerate(given) if part is Ellipsis]
    if dots:
        given[dots[0] : dots[0] + 1] = [slice(None)] * (rank - len(given) + 1)
    if len(given) > rank:
        raise IndexError(f"{len(given)} indices for {variable.name}, which has {rank} dims")
    parts: list[_DimSlice] = []
    turned: list[int] = []
    for axis, part in enumerate(given):
        if isinstance(part, slice) and _bounds(part) == (None, None, -1):
            turned.append(axis)
        elif not isinstance(part, slice) or _bounds(part) != (None, None, None):
            parts.append(_part(variable, axis, part))
    made = _slice_variable(variable, parts) if parts else variable.value
    if turned:
        out = made.draft.fresh(f"{variable.name}_slice_reverse", made.dtype)
        made.draft.op("reverse", {"X": made}, {"Out": out}, {"axis": turned})
        made = out
    return variable if made.name == variable.name else variable.block.program.wrap(made)


def _bounds(part: Any) -> tuple[Any, Any, Any]:
    return part.start, part.stop, part.step


def _part(variable: Any, axis: int, part: Any) -> _DimSlice:
    last = FAR if variable.shape[axis] <= FAR else MOST
    if isinstance(part, slice):
        begin, stop, by = _bounds(part)
        step = 1 if by is None else int(by)
        start = (0 if step > 0 else -1) if begin is None else _bound(variable, begin)
        return _DimSlice(axis, start, (last if step > 0 else -MOST) if stop is None else _bound(variable, stop), step)
    start = _bound(variable, part)
    if not isinstance(start, Value):
        return _DimSlice(axis, start, last if start == -1 else start + 1, is_item=True)
    draft, one = start.draft, _constant(variable)(1)
    end = draft.fresh("_generated_var", DType.INT32)
    draft.op("elementwise_add", {"X": start, "Y": one}, {"Out": end}, {"axis": -1})
    return _DimSlice(axis, start, end, is_item=True)


def _bound(variable: Any, given: Any) -> int | Value:
    """A bound or index as a number, or as the value of a variable. Raises TypeError for other things."""
    held = getattr(given, "value", None)
    if isinstance(held, Value):
        return held
    try:
        return given.__index__()
    except (AttributeError, TypeError):
        text = f"{variable.name} is indexed by whole numbers, variables and slices, not by {given!r}"
        raise TypeError(text) from None


def _constant(variable: Any) -> Callable[[int], Value]:
    """A function that makes constants in the block of the variable, because loops or branches that read them come
    later.
    """

    def constant(number: int) -> Value:
        draft = variable.block.program.live()
        with draft.enter_block(variable.block.idx):
            out = draft.fresh("_generated_var", DType.INT32, stop_gradient=True)
            attrs = {"shape": [1], "dtype": DType.INT32, "value": float(number), "force_cpu": True}
            draft.op("fill_constant", {}, {"Out": out}, attrs)
        return out

    return constant


def _slice_variable(variable: Any, parts: list[_DimSlice]) -> Value:
    value: Value = variable.value
    constant = _constant(variable)
    starts = mixed_numbers([part.start for part in parts], constant)
    ends = mixed_numbers([part.end for part in parts], constant)
    unknown = zip(starts.unknown_flags(len(parts)), ends.unknown_flags(len(parts)), strict=True)
    attrs: dict[str, Any] = {
        "axes": [part.axis for part in parts],
        "starts": starts.attribute,
        "ends": ends.attribute,
        "decrease_axis": Ints([part.axis for part in parts if part.is_item]),
        "infer_flags": [-1 if any(pair) else 1 for pair in unknown],
    }
    steps = [part.step for part in parts]
    op_type = "slice" if all(step == 1 for step in steps) else "strided_slice"
    if op_type == "strided_slice":
        attrs["strides"] = steps
    lists = {**starts.inputs("", "StartsTensorList"), **ends.inputs("", "EndsTensorList")}
    out = value.draft.fresh(f"{variable.name}_{op_type}", value.dtype)
    value.draft.op(op_type, {"Input": value, **lists}, {"Out": out}, attrs)
    return out


class Variable:
    """A variable of a block, by name; its operators add the ops that Fluid adds for them."""

    def __init__(self, block: Any, name: str | None = None, **declared: Any):
        """The variable of this name; with other arguments, which are those of `Block.create_var`, it is
        declared first.
        """
        if name is None or declared:
            name = str(block.create_var(name=name, **declared).name)
        self.block = block
        self.name = name
        self.error_clip: Any = None
        self.is_data = False
        self.notes: dict[str, Any] = {}
        """Notes that a script has stored with `_set_info`."""

    later = False
    """Whether expressions follow the rules of 2.x: whole numbers become float32 when divided or
    combined with a float.
    """
    methods: Callable[[str], Any] | None = None
    """Returns the function behind the name of a method of a later version, or None."""

    def __getattr__(self, name: str) -> Any:
        function = Variable.methods(name) if Variable.methods and not name.startswith("_") else None
        if function is None:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'", name=name, obj=self)
        return partial(function, self)

    def __repr__(self) -> str:
        return self.to_string(False)

    __str__ = __repr__
    __hash__ = object.__hash__

    @property
    def var(self) -> Var:
        """The declaration. Raises ValueError when the block no longer has this variable."""
        result = self.block.draft.vars.get(self.name)
        if result is None:
            raise ValueError(f"block {self.block.idx} has no variable {self.name}")
        return result

    @property
    def value(self) -> Value:
        """The variable as the value that layers of this package take."""
        return self.block.program.live().value(self.name)

    @property
    def desc(self) -> VarDesc:
        """The declaration under the method names of Fluid's descriptions."""
        return VarDesc(self)

    def redeclare(self, **changes: Any) -> None:
        """Changes fields of the `TensorType` that the variable is declared with."""
        tensor = self.var.tensor or TensorType(dtype_of("float32"), ())
        self.block.draft.vars[self.name] = self.var._replace(tensor=tensor._replace(**changes))

    @property
    def shape(self) -> tuple[int, ...]:
        """The declared dims, -1 for one that is known at run time only."""
        return self.var.shape

    @property
    def dtype(self) -> VarType:
        """The element type."""
        dtype = self.var.dtype
        return vartype_of(dtype) if dtype is not None else VarType.FP32

    @property
    def lod_level(self) -> int:
        """The LoD level: how deep the variable's sequences nest."""
        tensor = self.var.tensor
        return tensor.lod_level if tensor is not None else 0

    @property
    def type(self) -> VarType:
        """The variable's kind, as a VarType."""
        return VarType(self.var.kind.value)

    @property
    def persistable(self) -> bool:
        """Whether the variable is kept from run to run."""
        return self.var.persistable

    @persistable.setter
    def persistable(self, persistable: bool) -> None:
        self.block.draft.vars[self.name] = self.var._replace(persistable=bool(persistable))

    @property
    def need_check_feed(self) -> bool:
        """Whether runs check the dims and the element type of the value that is fed."""
        return self.var.need_check_feed

    @property
    def stop_gradient(self) -> bool:
        """Whether the variable gets no gradient."""
        return self.name in self.block.program.stopped

    @stop_gradient.setter
    def stop_gradient(self, stop: bool) -> None:
        (self.block.program.stopped.add if stop else self.block.program.stopped.discard)(self.name)

    @property
    def grad_name(self) -> str:
        """The name of the gradient."""
        return f"{self.name}@GRAD"

    @property
    def op(self) -> Any:
        """The last op of the block that writes the variable, None if there is none."""
        return next((op for op in reversed(self.block.ops) if self.name in op.output_arg_names), None)

    def _set_info(self, key: str, value: Any) -> None:
        """Stores a note about the variable under a key."""
        self.notes[key] = value

    def _get_info(self, key: str) -> Any:
        """The note under a key, None if there is none."""
        return self.notes.get(key)

    def _set_error_clip(self, error_clip: Any) -> None:
        """Sets the clip that `append_backward(callbacks=[clip.error_clip_callback])` applies to the variable's
        gradient.
        """
        self.error_clip = error_clip

    def to_string(self, throw_on_error: bool = True, with_details: bool = False) -> str:
        """The declaration as text. With `throw_on_error`, raises ValueError for a variable declared without an element
        type.
        """
        untyped = self.block.program.untyped.get(self.name)
        if throw_on_error and untyped is not None and untyped is self.var.tensor:
            raise ValueError(f"{self.name} is declared without an element type")
        kept = ", persistable" if self.persistable else ""
        if with_details:
            kept += f", stop_gradient={self.stop_gradient}, is_data={self.is_data}"
        if self.var.tensor is None:
            return f"{self.name}: {self.type!r}{kept}"
        level = f", lod_level={self.lod_level}" if self.lod_level else ""
        dims = ", ".join(map(str, self.shape))
        return f"{self.name}: {self.type.name}.{numpy_name(self.dtype)}[{dims}]{level}{kept}"

    def _to_readable_code(self) -> str:
        """The declaration as text."""
        return self.to_string(True)

    def astype(self, dtype: Any) -> Variable:
        """A new variable with this one's values, converted to another element type."""
        value, kind = self.value, dtype_of(dtype)
        out = value.draft.fresh("tmp", kind)
        value.draft.op("cast", {"X": value}, {"Out": out}, {"in_dtype": value.dtype, "out_dtype": kind})
        return self.block.program.wrap(out)

    def __getitem__(self, index: Any) -> Variable:
        return item(self, index)

    def __len__(self) -> int:
        if self.type is VarType.LOD_TENSOR_ARRAY:
            raise TypeError(f"the length of {self.name} is known at run time only: use layers.array_length")
        if not self.shape or self.shape[0] < 0:
            raise TypeError(f"the length of {self.name} is known at run time only: its dims are {list(self.shape)}")
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[index] for index in range(len(self)))

    def __bool__(self) -> bool:
        return True  # as in Fluid's static graphs, whatever the value at run time is

    def __matmul__(self, other: Any) -> Any:
        return NotImplemented if Variable.methods is None else self.matmul(other)

    def __neg__(self) -> Variable:
        return self.block.program.wrap(-self.value)


def last_op(var: Variable) -> Any:
    """The last op in the block of a variable."""
    return var.block.ops[-1]


def operand(value: Any) -> Any:
    """The other operand of an expression with a variable, as the value that layers of this package take."""
    if isinstance(value, Variable):
        return value.value
    return value.item() if isinstance(value, np.generic) else value


def as_floats(var: Any) -> Any:
    """A variable of whole numbers converted to float32; anything else unchanged."""
    return var.astype("float32") if isinstance(var, Variable) and numpy_name(var.dtype) in _WHOLE else var


_WHOLE = ("uint8", "int8", "int16", "int32", "int64")
_DIVISIONS = ("__truediv__", "__rtruediv__")
_FLOORED = ("__floordiv__", "__mod__")


def _operator(name: str) -> Callable[[Variable, Any], Variable]:
    def method(self: Variable, other: Any) -> Variable:
        if Variable.later and (name in _DIVISIONS or isinstance(other, float)):
            self, other = as_floats(self), as_floats(other)
        other = operand(other)
        if not isinstance(other, Value | int | float):
            return NotImplemented
        made = self.block.program.wrap(getattr(Value, name)(self.value, other))
        if Variable.later and name in _FLOORED:
            last_op(made)._set_attr("floored", True)
        return made

    method.__name__ = name
    return method


def _equal(self: Variable, other: Any) -> Any:
    other = operand(other)
    if not isinstance(other, Value | int | float):
        return NotImplemented
    return self.block.program.wrap(self.value.equal(other))


def _not_equal(self: Variable, other: Any) -> Any:
    other = operand(other)
    if not isinstance(other, Value | int | float):
        return NotImplemented
    return self.block.program.wrap(self.value.not_equal(other))


for _name in [
    "__add__",
    "__radd__",
    "__sub__",
    "__rsub__",
    "__mul__",
    "__rmul__",
    "__truediv__",
    "__rtruediv__",
    "__pow__",
    "__rpow__",
    "__floordiv__",
    "__mod__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
]:
    setattr(Variable, _name, _operator(_name))
Variable.__div__ = Variable.__truediv__  # type: ignore[attr-defined]
Variable.__eq__ = _equal
Variable.__ne__ = _not_equal
Variable.__hash__ = object.__hash__


class Parameter(Variable):
    """A variable that training changes."""

    def __init__(self, block: Any, name: str):
        super().__init__(block, name)
        self.gradient_clip_attr: Any = None

    @property
    def info(self) -> ParameterInfo:
        """The parameter's facts beside its declaration, such as its learning rate and whether it is trained."""
        return self.var.parameter or ParameterInfo()

    def _change(self, **changes: Any) -> None:
        self.block.draft.vars[self.name] = self.var._replace(parameter=self.info._replace(**changes))

    @property
    def do_model_average(self) -> bool:
        """Whether averages of parameters include this one."""
        return self.name not in self.block.program.unaveraged

    @do_model_average.setter
    def do_model_average(self, averaged: bool | None) -> None:
        kept = self.block.program.unaveraged
        (kept.add if averaged is False else kept.discard)(self.name)

    @property
    def trainable(self) -> bool:
        """Whether training changes the parameter."""
        return self.info.trainable

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        self._change(trainable=bool(trainable))

    @property
    def is_distributed(self) -> bool:
        """Whether the parameter is a table that only the servers have."""
        return self.info.is_distributed

    @is_distributed.setter
    def is_distributed(self, distributed: bool) -> None:
        self._change(is_distributed=bool(distributed))

    @property
    def optimize_attr(self) -> dict[str, float]:
        """The factor on the optimizer's learning rate, under the key `learning_rate`."""
        return {"learning_rate": self.info.learning_rate}

    @optimize_attr.setter
    def optimize_attr(self, attributes: dict[str, float]) -> None:
        self._change(learning_rate=float(attributes.get("learning_rate", 1.0)))

    @property
    def regularizer(self) -> Any:
        """The weight decay of the parameter, None if it follows the optimizer's."""
        from pstranspile.fluid.regularizer import of_core
        from pstranspile.frontends.autodiff.optimizers import regularizer_of

        return of_core(regularizer_of(self.block.program.live(), self.name))

    @regularizer.setter
    def regularizer(self, decay: Any) -> None:
        kept = self.block.program.regularizers
        kept.pop(self.name, None)
        if decay is not None:
            kept[self.name] = decay.core()
        self._change(regularizer=None if decay is None else str(decay.core()))
