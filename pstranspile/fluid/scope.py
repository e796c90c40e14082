"""Fluid's scopes, as wrappers of the scopes that runs use.

Fluid's `default_scope_funcs` are a stack of scopes; its functions work in the innermost one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from pstranspile.fluid.lod_tensor import LoDTensor, LoDTensorArray
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.runtime.kernels.sequences.arrays import RankTable
from pstranspile.runtime.run.scope import Scope as CoreScope
from pstranspile.runtime.values import LoDTensor as CoreLoDTensor
from pstranspile.runtime.values import SelectedRows as CoreSelectedRows

__all__ = ["enter_local_scope", "find_var", "get_cur_scope", "leave_local_scope", "scoped_function", "var"]


class ScopeTensor(LoDTensor):
    """The tensor of a variable in a scope; changing it changes the variable."""

    def __init__(self, scope: CoreScope, name: str):
        super().__init__()
        self._scope, self._name = scope, name

    @property
    def data(self) -> Any:
        """The elements. Raises RuntimeError if the variable has no value."""
        value = self._scope.get(self._name)
        if value is None:
            raise RuntimeError(f"{self._name} holds nothing yet")
        return value.data if isinstance(value, CoreLoDTensor) else value

    def _get_dims(self) -> list[int]:
        """The dims of the tensor; for a table on servers, those of the whole table."""
        value = self._scope.get(self._name)
        return _dims(value) if isinstance(value, CoreSelectedRows) else super()._get_dims()

    def lod(self) -> list[list[int]]:
        """The offsets of each LoD level."""
        value = self._scope.get(self._name)
        return value.lod if isinstance(value, CoreLoDTensor) else self._lod

    def set(self, data: Any, place: Any = None) -> None:
        """Sets the elements of the variable to a copy of `data`."""
        self._scope.put(self._name, np.array(data))
        if self._lod:
            self.set_lod(self._lod)

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Sets the offsets of each LoD level."""
        super().set_lod(lod)
        if self._scope.get(self._name) is not None:
            self._scope.put(self._name, CoreLoDTensor(self.data, self._lod) if self._lod else self.data)

    def _clear(self) -> None:
        """Removes the elements, but keeps the dims."""
        super()._clear()
        self._scope.put(self._name, None)


class SelectedRowsView:
    """A variable of a scope, as sparse rows."""

    def __init__(self, scope: CoreScope, name: str):
        self._scope, self._name = scope, name

    def as_selected_rows(self) -> CoreSelectedRows:
        """The value; if it is something else, sparse rows without any row."""
        value = self._scope.get(self._name)
        if isinstance(value, CoreSelectedRows):
            return value
        elements = value if isinstance(value, np.ndarray) else np.zeros((0, 1), "float32")
        return CoreSelectedRows(np.zeros(0, "int64"), elements, 0)

    def rows(self) -> list[int]:
        """The indices of the rows."""
        return list(map(int, self.as_selected_rows().rows))

    def set_rows(self, rows: Sequence[int]) -> None:
        """Sets the indices of the rows."""
        self._scope.put(self._name, self.as_selected_rows()._replace(rows=np.asarray(rows, "int64")))

    def sync_index(self) -> None:
        """Does nothing, because rows are looked up by their indices directly."""

    def numel(self) -> int:
        """The number of elements of the rows."""
        return int(self.as_selected_rows().value.size)

    def height(self) -> int:
        """The number of rows of the whole matrix."""
        return int(self.as_selected_rows().height)

    def set_height(self, height: int) -> None:
        """Sets the number of rows of the whole matrix."""
        self._scope.put(self._name, self.as_selected_rows()._replace(height=int(height)))

    def get_tensor(self) -> Any:
        """The elements of the rows, as a tensor."""
        return _RowsTensor(self)

    def set_value(self, value: Any) -> None:
        """Sets the elements of the rows."""
        self._scope.put(self._name, self.as_selected_rows()._replace(value=np.array(value)))

    @property
    def value(self) -> Any:
        """The elements of the rows, as an array."""
        return self.as_selected_rows().value


def _dims(value: CoreSelectedRows) -> list[int]:
    return [len(value.rows) or int(value.height), *value.value.shape[1:]]


class SelectedRows(SelectedRowsView):
    """Sparse rows outside of a scope, with the indices of the rows and the number of rows of the whole matrix."""

    def __init__(self, rows: Sequence[int] = (), height: int = 0):
        super().__init__(CoreScope(), "rows")
        self.set_rows(rows)
        self.set_height(height)


class _RowsTensor(LoDTensor):
    """The elements of sparse rows, as a tensor."""

    def __init__(self, view: SelectedRowsView):
        super().__init__()
        self._view = view

    @property
    def data(self) -> Any:
        """The elements of the rows, as an array."""
        return self._view.value

    def _get_dims(self) -> list[int]:
        """The dims of the elements; if there are no rows, those of the whole matrix."""
        return _dims(self._view.as_selected_rows())

    def set(self, data: Any, place: Any = None) -> None:
        """Sets the elements of the rows."""
        self._view.set_value(data)


class WholeNumber(int):
    """A whole number as the value of a variable, instead of a tensor."""


class LoDRankTable:
    """The sequences of a ragged tensor sorted by length, longest first."""

    def __init__(self, table: RankTable):
        self._table = table

    def items(self) -> list[tuple[int, int]]:
        """Pairs of a sequence's index and its length."""
        return list(zip(self._table.order.tolist(), self._table.lengths.tolist(), strict=True))


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
        """The variable as an array of tensors, which is made if the variable has another value."""
        value: Any = self._scope.get(self._name)
        if not isinstance(value, list):
            value = list[Any]()
            self._scope.put(self._name, value)
        return LoDTensorArray(value)  # pyright: ignore[reportUnknownArgumentType]

    def get_lod_rank_table(self) -> LoDRankTable:
        """The variable as a rank table. Raises RuntimeError when it has another value."""
        value = self._scope.get(self._name)
        if not isinstance(value, RankTable):
            raise RuntimeError(f"{self._name} holds no rank table")
        return LoDRankTable(value)

    def name(self) -> str:
        """The variable's name."""
        return self._name

    def set_int(self, value: int) -> None:
        """Sets the variable to a whole number, instead of a tensor."""
        self._scope.put(self._name, WholeNumber(value))

    def is_int(self) -> bool:
        """Whether the variable is a whole number, instead of a tensor."""
        return isinstance(self._scope.get(self._name), WholeNumber)

    def get_int(self) -> int:
        """The whole number. Raises RuntimeError if the variable has another value."""
        value = self._scope.get(self._name)
        if not isinstance(value, WholeNumber):
            raise RuntimeError(f"{self._name} holds no whole number alone")
        return int(value)

    def get_fetch_list(self) -> LoDTensorArray:
        """The variable as an array of tensors, to which a caller may add others."""
        return self.get_lod_tensor_array()


class Scope:
    """Variables by name. Variables that are persistable in a program keep their values here between runs."""

    def __init__(self, core: CoreScope | None = None, parent: Scope | None = None):
        self.core = CoreScope() if core is None else core
        self._declared_names: set[str] = set()
        self._parent, self._is_in_pool = parent, True

    def var(self, name: str) -> ScopeVariable:
        """The variable of this name, which is made first if there is none."""
        self._declared_names.add(name)
        return ScopeVariable(self.core, name)

    def declare(self, names: frozenset[str]) -> None:
        """Makes variables without values, if there are none of these names."""
        self._declared_names |= names

    def let_go(self, names: Iterable[str]) -> None:
        """Removes the values of variables of this scope."""
        for name in names:
            self.core.values_here.pop(name, None)

    def find_var(self, name: str) -> ScopeVariable | None:
        """The variable of this name in this scope or those around it, None if there is none."""
        if name in self._declared_names or self.core.get(name) is not None:
            return ScopeVariable(self.core, name)
        return None if self._parent is None else self._parent.find_var(name)

    def new_scope(self) -> Scope:
        """A new scope inside this one, which also sees the variables of this one."""
        return Scope(self.core.child(), self)

    def _remove_from_pool(self) -> None:
        """Releases the scope. Raises RuntimeError for a second call."""
        if not self._is_in_pool:
            raise RuntimeError("Deleting a nonexistent scope is not allowed")
        self._is_in_pool = False

    def drop_kids(self) -> None:
        """Does nothing, because the scopes of runs are released when they end."""

    def local_var_names(self) -> list[str]:
        """The names of the variables of this scope itself."""
        return sorted({*self._declared_names, *self.core.values_here})

    def erase(self, names: Sequence[str]) -> None:
        """Removes variables."""
        self.let_go(names)
        self._declared_names.difference_update(names)


_STACK = [Scope()]


def get_cur_scope() -> Scope:
    """The innermost scope of the stack."""
    return _STACK[-1]


def enter_local_scope() -> None:
    """Enters a new scope inside the innermost one."""
    _STACK.append(_STACK[-1].new_scope())


def leave_local_scope() -> None:
    """Leaves the innermost scope, and drops its variables."""
    _STACK.pop()
    _STACK[-1].drop_kids()


def var(name: str) -> ScopeVariable:
    """The variable of this name in the innermost scope, which is made first if there is none."""
    return _STACK[-1].var(name)


def find_var(name: str) -> ScopeVariable | None:
    """The variable of this name, None if neither the innermost scope nor one around it has it."""
    return _STACK[-1].find_var(name)


def scoped_function(func: Callable[[], Any]) -> None:
    """Calls a function in a new scope."""
    enter_local_scope()
    try:
        func()
    finally:
        leave_local_scope()


__getattr__ = names_of_fluid(__name__, globals())
