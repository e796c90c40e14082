"""Fluid's scopes over those that runs take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pstranspile.fluid.lod_tensor import LoDTensor, LoDTensorArray, from_core
from pstranspile.run.scope import Scope as CoreScope
from pstranspile.values import LoDTensor as CoreLoDTensor
from pstranspile.values import SelectedRows as CoreSelectedRows


class ScopeTensor(LoDTensor):
    """The tensor of a variable of a scope: what is set here is set there."""

    def __init__(self, scope: CoreScope, name: str):
        super().__init__()
        self._scope, self._name = scope, name

    @property
    def data(self) -> Any:
        """The elements. Raises RuntimeError while the variable holds none."""
        value = self._scope.get(self._name)
        if value is None:
            raise RuntimeError(f"{self._name} holds nothing yet")
        return value.data if isinstance(value, CoreLoDTensor) else value

    def lod(self) -> list[list[int]]:
        """The offsets of each level."""
        value = self._scope.get(self._name)
        return value.lod if isinstance(value, CoreLoDTensor) else self._lod

    def set(self, data: Any, place: Any = None) -> None:
        """Sets the elements; the scope keeps a copy."""
        self._scope.put(self._name, np.array(data))
        if self._lod:
            self.set_lod(self._lod)

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Sets the offsets of each level."""
        super().set_lod(lod)
        if self._scope.get(self._name) is not None:
            self._scope.put(self._name, CoreLoDTensor(self.data, self._lod) if self._lod else self.data)

    def _is_initialized(self) -> bool:
        return self._scope.get(self._name) is not None


class SelectedRowsView:
    """Sparse rows of a variable of a scope."""

    def __init__(self, scope: CoreScope, name: str):
        self._scope, self._name = scope, name

    def _value(self) -> CoreSelectedRows:
        value = self._scope.get(self._name)
        return (
            value
            if isinstance(value, CoreSelectedRows)
            else CoreSelectedRows(np.zeros(0, "int64"), np.zeros((0, 1), "float32"), 0)
        )

    def rows(self) -> list[int]:
        """The numbers of the rows."""
        return list(map(int, self._value().rows))

    def set_rows(self, rows: Sequence[int]) -> None:
        """Sets the numbers of the rows."""
        self._scope.put(self._name, self._value()._replace(rows=np.asarray(rows, "int64")))

    def height(self) -> int:
        """How many rows the whole has."""
        return int(self._value().height)

    def set_height(self, height: int) -> None:
        """Sets how many rows the whole has."""
        self._scope.put(self._name, self._value()._replace(height=int(height)))

    def get_tensor(self) -> Any:
        """The rows' elements."""
        return _Rows(self)

    def set_value(self, value: Any) -> None:
        """Sets the rows' elements."""
        self._scope.put(self._name, self._value()._replace(value=np.array(value)))

    @property
    def value(self) -> Any:
        """The rows' elements as an array."""
        return self._value().value


class _Rows(LoDTensor):
    """The elements of sparse rows."""

    def __init__(self, view: SelectedRowsView):
        super().__init__()
        self._view = view

    @property
    def data(self) -> Any:
        """The elements."""
        return self._view.value

    def set(self, data: Any, place: Any = None) -> None:
        """Sets the elements."""
        self._view.set_value(data)


class ScopeVariable:
    """A variable of a scope."""

    def __init__(self, scope: CoreScope, name: str):
        self._scope, self._name = scope, name

    def get_tensor(self) -> ScopeTensor:
        """The variable as a tensor."""
        return ScopeTensor(self._scope, self._name)

    def get_selected_rows(self) -> SelectedRowsView:
        """The variable as sparse rows."""
        return SelectedRowsView(self._scope, self._name)

    def get_lod_tensor_array(self) -> LoDTensorArray:
        """The variable as an array of tensors."""
        value = from_core(self._scope.get(self._name))
        return value if isinstance(value, LoDTensorArray) else LoDTensorArray()

    def name(self) -> str:
        """The variable's name."""
        return self._name


class Scope:
    """Variables by name; what is persistable in the programs run here stays here."""

    def __init__(self, core: CoreScope | None = None):
        self.core = CoreScope() if core is None else core
        self._known: set[str] = set()

    def var(self, name: str) -> ScopeVariable:
        """The variable of this name, which is made if there is none."""
        self._known.add(name)
        return ScopeVariable(self.core, name)

    def find_var(self, name: str) -> ScopeVariable | None:
        """The variable of this name, None if there is none."""
        known = name in self._known or self.core.get(name) is not None
        return ScopeVariable(self.core, name) if known else None

    def new_scope(self) -> Scope:
        """A scope that also sees the variables of this one."""
        return Scope(self.core.child())

    def drop_kids(self) -> None:
        """Nothing: the scopes of runs end with them."""

    def local_var_names(self) -> list[str]:
        """The variables of this scope itself."""
        return sorted({*self._known, *self.core.values_here})

    def erase(self, names: Sequence[str]) -> None:
        """Forgets variables."""
        for name in names:
            self.core.values_here.pop(name, None)
            self._known.discard(name)
