"""Which server a slice goes to."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.plan import codes


class Placeable(NamedTuple):
    """What a dispatcher is told of a slice: its name and shape."""

    name: str
    shape: tuple[int, ...]


class Dispatcher(Protocol):
    """Fluid's PSDispatcher: made with the endpoints, asked for one endpoint per slice (A2.43)."""

    def dispatch(self, varlist: Sequence[Placeable]) -> Sequence[str]:
        """One endpoint for each slice, in order."""
        ...


class RoundRobin:
    """Deals slices out in turn; the turn goes on from call to call."""

    def __init__(self, pserver_endpoints: Sequence[str]):
        self._endpoints = tuple(pserver_endpoints)
        self._turn = 0

    def dispatch(self, varlist: Sequence[Placeable]) -> Sequence[str]:
        """The next endpoints in turn, one for each slice."""
        first = self._turn
        self._turn += len(varlist)
        return [self._endpoints[i % len(self._endpoints)] for i in range(first, self._turn)]


class HashName:
    """Server index = crc32 of the slice's name modulo the number of servers.

    Fluid's own HashName does not run (A2.44); this hash is the same on every machine and in every process.
    """

    def __init__(self, pserver_endpoints: Sequence[str]):
        self._endpoints = tuple(pserver_endpoints)

    def dispatch(self, varlist: Sequence[Placeable]) -> Sequence[str]:
        """The endpoint that each slice's name hashes to."""
        return [self._endpoints[zlib.crc32(v.name.encode()) % len(self._endpoints)] for v in varlist]


BUILT_IN: dict[str, type[Any]] = {"RoundRobin": RoundRobin, "HashName": HashName}


def make_dispatcher(split_method: str, endpoints: Sequence[str]) -> Dispatcher:
    """The dispatcher called `RoundRobin`, `HashName`, or `module:Class` for one of the user's own.

    Raises DiagnosticError when the user's class can't be imported or made.
    """
    if split_method in BUILT_IN:
        return BUILT_IN[split_method](endpoints)
    module, _, name = split_method.partition(":")
    try:
        return getattr(importlib.import_module(module), name)(list(endpoints))
    except Exception as reason:  # anything the user's own module does at import or construction
        message = f"split_method {split_method!r}: {type(reason).__name__}: {reason}"
        raise DiagnosticError([error(codes.DISPATCHER, message)]) from reason


def dispatch(dispatcher: Dispatcher, slices: Sequence[Placeable], endpoints: Sequence[str]) -> tuple[str, ...]:
    """Asks the dispatcher and checks its answer. Raises DiagnosticError if it is not one known endpoint per slice."""
    try:
        answer = tuple(dispatcher.dispatch(slices))
    except Exception as reason:  # the user's own code
        message = f"the dispatcher failed on %{slices[0].name}: {type(reason).__name__}: {reason}"
        raise DiagnosticError([error(codes.DISPATCHER, message)]) from reason
    if len(answer) != len(slices):
        message = f"the dispatcher gave {len(answer)} endpoints for {len(slices)} slices of %{slices[0].name}"
        raise DiagnosticError([error(codes.DISPATCHER, message)])
    for name, endpoint in zip((s.name for s in slices), answer, strict=True):
        if endpoint not in endpoints:
            message = f"the dispatcher gave {endpoint!r} for %{name}, which is not a server of the job"
            raise DiagnosticError([error(codes.DISPATCHER, message)])
    return answer
