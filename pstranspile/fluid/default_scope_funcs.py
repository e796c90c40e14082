"""Fluid's `default_scope_funcs`: a stack of scopes, the innermost of which functions work in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pstranspile.fluid.scope import Scope, ScopeVariable

__all__ = ["enter_local_scope", "find_var", "get_cur_scope", "leave_local_scope", "scoped_function", "var"]

_STACK = [Scope()]


def get_cur_scope() -> Scope:
    """The innermost scope."""
    return _STACK[-1]


def enter_local_scope() -> None:
    """Goes into a new scope below the innermost one."""
    _STACK.append(_STACK[-1].new_scope())


def leave_local_scope() -> None:
    """Goes back to the scope around the innermost one, with which its variables end."""
    _STACK.pop()
    _STACK[-1].drop_kids()


def var(name: str) -> ScopeVariable:
    """The variable of this name in the innermost scope, which is made if there is none."""
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
