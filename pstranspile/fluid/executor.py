"""Fluid's `executor`: programs are run in scopes."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from pstranspile.fluid.framework import default_main_program
from pstranspile.fluid.graph.operator import Operator
from pstranspile.fluid.graph.plain import Fetched, several
from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.graph.vartype import numpy_name
from pstranspile.fluid.hooks import tell_run
from pstranspile.fluid.lod_tensor import LoDTensor, from_core, to_core
from pstranspile.fluid.missing import refused
from pstranspile.fluid.places import Place
from pstranspile.fluid.scope import Scope
from pstranspile.ir.model import Program as FrozenProgram
from pstranspile.run import run
from pstranspile.values import LoDTensor as CoreLoDTensor

_SCOPES = [Scope()]


def global_scope() -> Scope:
    """The scope in use."""
    return _SCOPES[0]


@contextmanager
def scope_guard(scope: Scope) -> Generator[None]:
    """Programs of the block run in another scope."""
    before, _SCOPES[0] = _SCOPES[0], scope
    try:
        yield
    finally:
        _SCOPES[0] = before


class Executor:
    """Runs programs on the CPU; `place` says where the script wants them run."""

    def __init__(self, place: Place | None = None):
        self.place = place
        self._closed = False
        self._machines: list[Any] = []

    def close(self) -> None:
        """Tells the servers of a cluster that this trainer ends. Programs can't be run any more."""
        self._closed = True
        for machine in self._machines:
            machine.leave()
        self._machines.clear()

    def run(
        self,
        program: Any = None,
        feed: Any = None,
        fetch_list: Any = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = False,
        return_merged: bool = True,
        use_prune: bool = False,
    ) -> Any:
        """Runs a program once (default: the main program in use) and gives what is fetched, in order.

        Arrays, or LoDTensors without `return_numpy`. Raises DiagnosticError for what can't be run, EOFException when a
        reader of the program has no more data, RuntimeError after `close`.
        """
        if self._closed:
            raise RuntimeError("the executor was closed")
        if use_prune:
            raise refused("Executor.run(use_prune=True)", "run a program of what is wanted, as clone(for_test=True)")
        program, scope = plain_program(program), scope or global_scope()
        names = [_name(item) for item in fetch_list or ()] if several(fetch_list) else None
        names = [_name(fetch_list)] if names is None and fetch_list is not None else names or []
        wanted = [name for name in names if name is not None]
        fed = self._fed(program, feed)
        made = self._values(program, fed, wanted, scope)
        return [None if name is None else _given(made[name], name, return_numpy) for name in names]

    def _fed(self, program: Program, feed: Any) -> dict[str, Any]:
        if several(feed):
            if len(feed) != 1:
                raise ValueError(f"{len(feed)} feeds for one device; all is computed on one")
            feed = feed[0]
        if feed is not None and not isinstance(feed, Mapping):
            raise TypeError(f"what is fed is a dict by name, not a {type(feed).__name__}")
        given: dict[Any, Any] = {**feed} if feed else {}
        for reader in program.readers:
            if reader.started and not given:
                given |= reader.next()
        return {_name(name) or "": value for name, value in given.items()}

    def _values(self, program: Program, fed: dict[str, Any], wanted: list[str], scope: Scope) -> Mapping[str, Any]:
        frozen = program.freeze()
        variables = frozen.main_block.vars
        known = {name: taken(value, variables.get(name)) for name, value in fed.items()}
        if program.machine is not None:
            if program.machine not in self._machines:
                self._machines.append(program.machine)
            return program.machine.run(program, known, wanted, scope.core)
        tell_run(program)
        return run(frozen, known, wanted, scope.core)

    def train_from_dataset(
        self,
        program: Any = None,
        dataset: Any = None,
        scope: Scope | None = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Any = None,
        fetch_info: Any = None,
        print_period: int = 100,
        fetch_handler: Any = None,
    ) -> None:
        """Runs a program once for every batch of a dataset; prints what is fetched every `print_period` steps."""
        if dataset is None:
            raise RuntimeError("train_from_dataset needs a dataset")
        names = [_name(item) or "" for item in fetch_list or ()]
        told = list(fetch_info or names)
        for number, fed in enumerate(dataset.feed_dicts()):
            shown = names and (number + 1) % print_period == 0
            made = self.run(program, fed, names if shown else [], scope=scope, return_numpy=False)
            if shown:
                print("  ".join(f"{info}: {np.asarray(value)}" for info, value in zip(told, made, strict=True)))
        if fetch_handler is not None:
            last = {
                key: (scope or global_scope()).find_var(_name(var) or "") for key, var in fetch_handler.var_dict.items()
            }
            fetch_handler.handler({key: None if v is None else np.array(v.get_tensor()) for key, v in last.items()})

    infer_from_dataset = train_from_dataset


def plain_program(program: Any) -> Program:
    """The program that something stands for: one in use for None, a compiled one's, one of a value."""
    if program is None:
        return default_main_program()
    inner = getattr(program, "inner_program", program)
    if isinstance(inner, FrozenProgram):
        return Program.of(inner)
    if not isinstance(inner, Program):
        raise TypeError(f"an executor runs Programs, not a value of type {type(program).__name__}")
    return inner


def _name(item: Any) -> str | None:
    """The name of what is fetched or fed; None for an op, which gives nothing."""
    if isinstance(item, Variable):
        return item.name
    if isinstance(item, str):
        return item
    if isinstance(item, Operator):
        return None
    raise TypeError(f"fetch_list takes variables and their names, not a value of type {type(item).__name__}")


def taken(value: Any, var: Any) -> Any:
    """A fed value as runs take it: lists become arrays of the declared element type."""
    value = to_core(value)
    if isinstance(value, CoreLoDTensor) and var is not None and var.tensor is not None and not var.tensor.lod_level:
        return value.data
    if several(value) and not isinstance(value, CoreLoDTensor):
        value = np.asarray(value, numpy_name(var.dtype) if var is not None and var.dtype is not None else None)
    return value


def _given(value: Any, name: str, return_numpy: bool) -> Any:
    if not return_numpy:
        return from_core(value)
    if isinstance(value, CoreLoDTensor):
        if value.lod:
            raise RuntimeError(f"{name} is ragged and can't be given as an array alone: pass return_numpy=False")
        return value.data.view(Fetched)
    if several(value):
        return [_given(item, name, True) for item in value]
    return value.view(Fetched) if isinstance(value, np.ndarray) else value


def _fetch_var(name: str, scope: Scope | None = None, return_numpy: bool = True) -> Any:
    """The value of a variable of a scope. Raises ValueError if it has none."""
    var = (scope or global_scope()).find_var(name)
    if var is None:
        raise ValueError(f"the scope has no variable {name}: a run keeps persistable ones only")
    tensor: LoDTensor = var.get_tensor()
    return np.array(tensor) if return_numpy else tensor


fetch_var = _fetch_var
