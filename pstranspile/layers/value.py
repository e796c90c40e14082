"""A variable of a program that is being made, with Python's arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

from pstranspile.ir.model import TensorType, Var
from pstranspile.ir.types import DType

if TYPE_CHECKING:
    from pstranspile.layers.draft import Draft

Number = int | float
_INTEGERS = (DType.INT16, DType.INT32, DType.INT64, DType.UINT8, DType.INT8)


class Value:
    """A variable by name, and the draft it is part of.

    `x + y`, `x * 2.0`, `x < y`, ... make the ops that Fluid's Python layer makes for them: with a number on one
    side a `scale` where there is one, else a `fill_constant` and an elementwise op.
    """

    __slots__ = ("draft", "name")

    def __init__(self, draft: Draft, name: str):
        self.draft = draft
        self.name = name

    def __repr__(self) -> str:
        return f"%{self.name}"

    @property
    def var(self) -> Var:
        """The declaration. Raises KeyError when the variable is not declared where ops are being made."""
        found = self.draft.find(self.name)
        if found is None:
            raise KeyError(f"%{self.name} is not declared")
        return found

    @property
    def tensor(self) -> TensorType:
        """Element type, dims and LoD level. Raises ValueError when nothing is known of them."""
        tensor = self.var.tensor
        if tensor is None:
            raise ValueError(f"the type of %{self.name} is not known")
        return tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The dims; -1 where one is known at run time only."""
        return self.tensor.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.tensor.dtype

    @property
    def lod_level(self) -> int:
        """How deep the sequences nest: 0 for plain tensors."""
        return self.tensor.lod_level

    def declared(self, shape: Sequence[int]) -> Value:
        """The same variable, declared with these dims, for the ops after it: where Fluid's differ from the op's own."""
        self.draft.declare(self.var._replace(tensor=self.tensor._replace(shape=tuple(shape))))
        return self

    def stopped(self) -> Value:
        """The same variable, marked to get no gradient."""
        self.draft.stop_gradient.add(self.name)
        return self

    def __neg__(self) -> Value:
        return _scaled(self, -1.0, 0.0)

    def __add__(self, other: Value | Number) -> Value:
        return _scaled(self, 1.0, float(other)) if _number(other) else _binary("elementwise_add", self, other)

    __radd__ = __add__

    def __sub__(self, other: Value | Number) -> Value:
        return _scaled(self, 1.0, -float(other)) if _number(other) else _binary("elementwise_sub", self, other)

    def __rsub__(self, other: Value | Number) -> Value:
        return _scaled(self, -1.0, float(other)) if _number(other) else _binary("elementwise_sub", other, self)

    def __mul__(self, other: Value | Number) -> Value:
        return _scaled(self, float(other), 0.0) if _number(other) else _binary("elementwise_mul", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Value | Number) -> Value:
        if _number(other) and self.dtype not in _INTEGERS:
            return _scaled(self, 1.0 / other, 0.0)
        return _binary("elementwise_div", self, other)

    def __rtruediv__(self, other: Value | Number) -> Value:
        return _binary("elementwise_div", other, self)

    def __pow__(self, other: Value | Number) -> Value:
        return _binary("elementwise_pow", self, other)

    def __rpow__(self, other: Value | Number) -> Value:
        return _binary("elementwise_pow", other, self)

    def __floordiv__(self, other: Value | Number) -> Value:
        return _binary("elementwise_floordiv", self, other)

    def __mod__(self, other: Value | Number) -> Value:
        return _binary("elementwise_mod", self, other)

    def equal(self, other: Value | Number) -> Value:
        """Element by element, whether both are equal (Fluid writes `==`)."""
        return _binary("equal", self, other, DType.BOOL)

    def __lt__(self, other: Value | Number) -> Value:
        return _binary("less_than", self, other, DType.BOOL)

    def __le__(self, other: Value | Number) -> Value:
        return _binary("less_equal", self, other, DType.BOOL)

    def __gt__(self, other: Value | Number) -> Value:
        return _binary("greater_than", self, other, DType.BOOL)

    def __ge__(self, other: Value | Number) -> Value:
        return _binary("greater_equal", self, other, DType.BOOL)


def _number(value: object) -> TypeGuard[Number]:
    return isinstance(value, int | float)


def _scaled(x: Value, factor: float, bias: float) -> Value:
    out = x.draft.fresh("tmp", x.dtype)
    x.draft.op("scale", {"X": x}, {"Out": out}, {"scale": factor, "bias": bias})
    return out


def _filled(like: Value, number: Number, *, left: bool) -> Value:
    """The number as a variable: one element, or on the left side as many as `like` has."""
    draft = like.draft
    out = draft.fresh("tmp", like.dtype, stop_gradient=True)
    shape = like.shape if left else (1,)
    if min(shape) >= 0:
        draft.op("fill_constant", None, {"Out": out}, {"dtype": like.dtype, "shape": shape, "value": number})
        return out
    batch = shape.index(-1)
    dims = [1 if dim < 0 and at != batch else dim for at, dim in enumerate(shape)]
    attrs = {"shape": dims, "value": number, "input_dim_idx": batch, "output_dim_idx": batch}
    draft.op("fill_constant_batch_size_like", {"Input": like}, {"Out": out}, attrs)
    return out


def _binary(op_type: str, x: Value | Number, y: Value | Number, dtype: DType | None = None) -> Value:
    known = x if isinstance(x, Value) else y
    assert isinstance(known, Value)
    left = x if isinstance(x, Value) else _filled(known, x, left=True)
    right = y if isinstance(y, Value) else _filled(known, y, left=False)
    if left.dtype is not right.dtype:
        right = _cast(right, left.dtype)
    draft = known.draft
    out = draft.fresh("tmp", dtype or left.dtype)
    draft.op(op_type, {"X": left, "Y": right}, {"Out": out}, {"axis": 0 if right.shape[:1] == (-1,) else -1})
    return out


def _cast(x: Value, dtype: DType) -> Value:
    out = x.draft.fresh("tmp", dtype)
    x.draft.op("cast", {"X": x}, {"Out": out}, {"in_dtype": x.dtype, "out_dtype": dtype})
    return out
