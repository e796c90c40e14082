"""Variables under the names that Fluid's descriptions (`variable.desc`) have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pstranspile.fluid.graph.desc import ALONE, message_of
from pstranspile.fluid.graph.vartype import VarType, dtype_of, kind_of, vartype_of
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Block, TensorType

_UNKNOWN = TensorType(dtype_of("float32"), ())


class VarDesc:
    """What scripts ask of `variable.desc`; with a name, that of a new one. Two are equal of one variable."""

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
        """The declared dims."""
        return list(self._variable.shape)

    get_shape = shape

    def set_shape(self, shape: Sequence[int]) -> None:
        """Declares other dims."""
        self._variable.redeclare(shape=tuple(int(dim) for dim in shape))

    def dtype(self) -> VarType:
        """The element type."""
        return self._variable.dtype

    def set_dtype(self, dtype: Any) -> None:
        """Declares another element type."""
        self._variable.redeclare(dtype=dtype_of(dtype))

    def lod_level(self) -> int:
        """How deep the sequences nest."""
        return self._variable.lod_level

    def set_lod_level(self, level: int) -> None:
        """Declares another LoD level."""
        self._variable.redeclare(lod_level=int(level))

    def type(self) -> VarType:
        """The kind of variable."""
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
        """Whether the dims and the element type of what is fed are looked at."""
        return self._variable.need_check_feed

    def set_need_check_feed(self, need_check_feed: bool) -> None:
        """Declares whether the dims and the element type of what is fed are looked at."""
        self._change(need_check_feed=bool(need_check_feed))

    # what a reader yields

    def shapes(self) -> list[list[int]]:
        """The dims of each tensor that a reader yields."""
        return [list(tensor.shape) for tensor in self._variable.var.readers]

    def set_shapes(self, shapes: Sequence[Sequence[int]]) -> None:
        """Declares the dims of each tensor that a reader yields."""
        self._yields([{"shape": tuple(map(int, shape))} for shape in shapes])

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
        """The declaration as the bytes of a message `VarDesc`."""
        var = self._variable.var
        return message_of(Block(FrozenMap({var.name: var}))).vars[0].SerializeToString()

    def _yields(self, changes: Sequence[dict[str, Any]]) -> None:
        known = self._variable.var.readers
        tensors = (*known, *[_UNKNOWN] * (len(changes) - len(known)))
        made = tuple(tensor._replace(**change) for tensor, change in zip(tensors, changes, strict=False))
        self._change(readers=made)

    def _change(self, **changes: Any) -> None:
        self._variable.block.draft.vars[self.name()] = self._variable.var._replace(**changes)
