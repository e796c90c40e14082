"""Scopes, in which variables live between runs."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import cast

import numpy as np

from pstranspile.ir.argument_checks import expect
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.large.table import LargeTable, TableState
from pstranspile.runtime.values import LoDTensor, SelectedRows


class Scope(MutableMapping[str, Value]):
    """Variables by name. Persistable variables of the programs run in a scope stay in it from step to step.

    `scope["w"] = value` keeps a copy, since ops update variables in place. A child scope sees the variables of its
    parents; what is set in it stays in it.
    """

    __slots__ = ("parent", "prepared", "values_here")

    def __init__(self, parent: Scope | None = None):
        if parent is not None:
            expect(parent, Scope, "Scope", "a Scope as parent")
        self.parent = parent
        self.values_here: dict[str, Value] = {}
        self.prepared: dict[object, object] = {}
        """Preparations of the programs that have run in this scope (see `pstranspile.runtime.run.prepared`)."""

    def child(self) -> Scope:
        """A new scope below this one."""
        return Scope(self)

    def share(self, other: Scope) -> None:
        """Makes this scope share the variables of another scope: a variable set in one of them is set in both."""
        expect(other, Scope, "share")
        self.values_here = other.values_here

    def put(self, name: str, value: Value) -> None:
        """Sets a variable without copying the value: in the scope that holds the variable, or in this
        one if none does.
        """
        if name.__class__ is not str:
            expect(name, str, "Scope", "text as the name of a variable")
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values_here:
                scope.values_here[name] = value
                return
            scope = scope.parent
        self.values_here[name] = value

    def __getitem__(self, name: str) -> Value:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values_here:
                return scope.values_here[name]
            scope = scope.parent
        raise KeyError(name)

    def get(self, name: str, default: Value = None) -> Value:
        """The value of a variable, `default` if it has none."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values_here:
                return scope.values_here[name]
            scope = scope.parent
        return default

    def __setitem__(self, name: str, value: Value) -> None:
        if name.__class__ is not str:
            expect(name, str, "Scope", "text as the name of a variable")
        self.values_here[name] = own_copy(value)

    def __delitem__(self, name: str) -> None:
        del self.values_here[name]

    def __iter__(self) -> Iterator[str]:
        scope: Scope | None = self
        seen: dict[str, None] = {}
        while scope is not None:
            seen.update(dict.fromkeys(scope.values_here))
            scope = scope.parent
        return iter(seen)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"Scope({', '.join(self)})"


class ScopeWriter:
    """A scope with parents as a mapping for assignments: `home[name] = value` calls `scope.put(name, value)`."""

    __slots__ = ("scope",)

    def __init__(self, scope: Scope):
        self.scope = scope

    def __setitem__(self, name: str, value: Value) -> None:
        self.scope.put(name, value)


def own_copy(value: Value) -> Value:
    """A copy of a value that shares no memory with it; numbers and lists of numbers become arrays."""
    if value.__class__ is np.ndarray:  # the usual case
        return np.array(value)
    if isinstance(value, LoDTensor):
        return LoDTensor(np.array(value.data), [list(level) for level in value.lod])
    if isinstance(value, SelectedRows):
        return SelectedRows(np.array(value.rows, dtype="int64"), np.array(value.value), int(value.height))
    if isinstance(value, LargeTable):
        return value.copy()
    if isinstance(value, TableState):
        return value
    if isinstance(value, list):
        items = cast("list[Value]", value)
        if any(isinstance(item, np.ndarray | LoDTensor | SelectedRows | list) for item in items):
            return [own_copy(item) for item in items]
        return np.array(items)
    if value.__class__ is tuple or isinstance(value, np.ndarray | int | float | np.generic):
        return np.array(value)
    return value  # objects private to an op, such as a RankTable, are never changed
