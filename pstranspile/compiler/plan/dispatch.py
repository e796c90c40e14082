"""The choice of the server that each slice goes to."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from pstranspile.ir.diagnostics import DiagnosticError, error


class Placeable(NamedTuple):
    """A slice as a dispatcher sees it: its name and shape."""

    name: str
    shape: tuple[int, ...]


class Dispatcher:
    """What every dispatcher is a subclass of, as of Fluid's PSDispatcher. Made with the servers' endpoints."""

    def __init__(self, pserver_endpoints: Sequence[str]):
        self.endpoints = tuple(pserver_endpoints)
        """The servers of the job, in order."""
        self._eps, self._step = list(pserver_endpoints), 0  # what subclasses of Fluid's scripts count with

    @property
    def eps(self) -> list[str]:
        """Fluid's name for `endpoints`."""
        return self._eps

    def reset(self) -> None:
        """Begins again with the first server."""
        self._step = 0

    def dispatch(self, varlist: Sequence[Placeable]) -> Sequence[str]:
        """One endpoint for each slice, in order. Called once for each parameter; to be overridden."""
        raise NotImplementedError(f"{type(self).__name__} has no method dispatch")


class RoundRobin(Dispatcher):
    """Deals slices out in turn; the turn goes on from call to call."""

    def dispatch(self, varlist: Sequence[Placeable]) -> Sequence[str]:
        """The next endpoints in turn, one for each slice."""
        first = self._step
        self._step += len(varlist)
        return [self.endpoints[i % len(self.endpoints)] for i in range(first, self._step)]


def hash_bytes(name: str) -> bytes:
    """The bytes of a name that HashName hashes; names of ProgramDescs may hold what is no UTF-8."""
    return name.encode("utf-8", "surrogatepass")


class HashName(Dispatcher):
    """Server index = crc32 of the slice's name modulo the number of servers.

    Fluid's own HashName does not run; this hash is the same on every machine and in every process.
    """

    def dispatch(self, varlist: Sequence[Placeable]) -> Sequence[str]:
        """The endpoint that each slice's name hashes to."""
        return [self.endpoints[zlib.crc32(hash_bytes(v.name)) % len(self.endpoints)] for v in varlist]


BUILT_IN: dict[str, type[Dispatcher]] = {"RoundRobin": RoundRobin, "HashName": HashName}


def make_dispatcher(split_method: str, endpoints: Sequence[str]) -> Dispatcher:
    """The dispatcher called `RoundRobin`, `HashName`, or `module:Class` for one of the user's own.

    Raises DiagnosticError when the user's class can't be imported or made, or is no subclass of Dispatcher.
    """
    if split_method in BUILT_IN:
        return BUILT_IN[split_method](endpoints)
    module, _, name = split_method.partition(":")
    try:
        result: object = getattr(importlib.import_module(module), name)
        if not (isinstance(result, type) and issubclass(result, Dispatcher)):
            raise TypeError("it is no subclass of pstranspile.Dispatcher")
        return result(list(endpoints))
    except (Exception, SystemExit) as reason:  # anything the user's own module does at import or construction
        message = f"split_method {split_method!r}: {type(reason).__name__}: {reason}"
        raise DiagnosticError([error("dispatcher", message)]) from reason


def dispatch(dispatcher: Dispatcher, slices: Sequence[Placeable], endpoints: Sequence[str]) -> tuple[str, ...]:
    """Asks the dispatcher and checks its answer. Raises DiagnosticError if it is not one known endpoint per slice."""
    try:
        answer = tuple(dispatcher.dispatch(slices))
    except (Exception, SystemExit) as reason:  # the user's own code
        message = f"the dispatcher failed on %{slices[0].name}: {type(reason).__name__}: {reason}"
        raise DiagnosticError([error("dispatcher", message)]) from reason
    if len(answer) != len(slices):
        message = f"the dispatcher gave {len(answer)} endpoints for {len(slices)} slices of %{slices[0].name}"
        raise DiagnosticError([error("dispatcher", message)])
    for name, endpoint in zip((s.name for s in slices), answer, strict=True):
        if endpoint not in endpoints:
            message = f"the dispatcher gave {endpoint!r} for %{name}, which is not a server of the job"
            raise DiagnosticError([error("dispatcher", message)])
    return answer
