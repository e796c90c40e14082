"""What is fetched of a program that runs as if on several devices: each of them gives a value of its own.

One device computes the step, with the rows of all. What a forward op makes is computed once more for the rows of each
device, before the step; all else is the same on every device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.fluid.graph.program import TRAINING
from pstranspile.fluid.graph.pruning import without_roles
from pstranspile.fluid.lod_tensor import to_core
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Program, Var
from pstranspile.runtime.run import run
from pstranspile.runtime.run.batch import chosen, joined, rows_of
from pstranspile.runtime.run.feeds import written_names
from pstranspile.runtime.run.frame import Slices
from pstranspile.runtime.run.scope import Scope
from pstranspile.runtime.values import LoDTensor

_MOST_PROGRAMS = 16
"""Programs whose forward part is kept."""


class Fed(NamedTuple):
    """What a run is fed, by name or variable."""

    values: dict[Any, Any]
    rows: dict[Any, list[int]]
    """How many rows each device has of what was given device by device."""
    parts: Sequence[Mapping[Any, Any]] = ()
    """What each device is fed, where that can't be put together; `values` is what the first one is fed then."""


def shares(values: Mapping[str, Any], rows: Mapping[str, Sequence[int]], devices: int) -> list[dict[str, Any]]:
    """What each device is fed. Of what was not given device by device all have as many rows, the last ones maybe less.

    There are fewer devices where the rows do not suffice. What has one row is fed to all of them.
    """
    counts = {name: list(rows.get(name, ())) or _even(rows_of(value), devices) for name, value in values.items()}
    used = max(map(len, counts.values()), default=devices)
    return [
        {name: _share(value, counts[name], device) for name, value in values.items() if device < used}
        for device in range(used)
    ]


def _even(rows: int, devices: int) -> list[int]:
    most = -(-rows // devices)
    return [min(most, rows - start) for start in range(0, rows, max(most, 1))]


def _share(value: Any, counts: Sequence[int], device: int) -> Any:
    if device < len(counts) > 1:
        start = sum(counts[:device])
        value = chosen(value, range(start, start + counts[device]))[0]
    return LoDTensor(np.array(value.data), value.lod) if isinstance(value, LoDTensor) else np.array(value)


def require_for_all(fed: Fed, devices: int, variables: Mapping[str, Var]) -> None:
    """Raises DiagnosticError where a program that trains is fed something that has no rows for some of the devices.

    All may share the one row of a variable that is kept from run to run, such as a learning rate.
    """
    for key, value in fed.values.items():
        name: str = getattr(key, "name", key)
        counts = fed.rows.get(key) or _even(rows_of(to_core(value)), devices)
        var = variables.get(name)
        if len(counts) != devices and not (var is not None and var.persistable and sum(counts) == 1):
            message = f"{name} is fed for {len(counts)} of {devices} devices; a program that trains needs rows for each"
            raise DiagnosticError([error("run-feed-mismatch", message)])


class _Forward:
    """The forward part of a program, and the scopes of the devices that it ran on."""

    def __init__(self, program: Program):
        self.whole = program  # keeps the program alive, so that its id stays its own
        self.program = without_roles(program, TRAINING)
        self.written = frozenset(written_names(self.program))
        self.kept = [name for name in self.written if (var := program.find_var(name)) is not None and var.persistable]
        self._scopes: list[Scope] = []

    def scope_of(self, device: int, scope: Scope) -> Scope:
        """The scope of a device below that of the run, the same in every run, so that the program is prepared once."""
        if self._scopes and self._scopes[0].parent is not scope:
            self._scopes = []
        while device >= len(self._scopes):
            self._scopes.append(scope.child())
        return self._scopes[device]


class Devices:
    """The devices of an executor, which remembers the forward parts of its programs."""

    def __init__(self) -> None:
        self._forward: dict[int, _Forward] = {}

    def _forward_of(self, program: Program) -> _Forward:
        known = self._forward.get(id(program))
        if known is None:
            if len(self._forward) >= _MOST_PROGRAMS:
                del self._forward[next(iter(self._forward))]
            known = self._forward[id(program)] = _Forward(program)
        return known

    def values(
        self, program: Program, names: Collection[str], fed: Sequence[Mapping[str, Any]], scope: Scope, slices: Slices
    ) -> dict[str, list[Any]]:
        """What each device makes of its share, of those fetched variables that forward ops write."""
        forward = self._forward_of(program)
        own = [name for name in names if name in forward.written and name not in forward.kept]
        result: dict[str, list[Any]] = {name: [] for name in own}
        for device, share in enumerate(fed if own else ()):
            there = forward.scope_of(device, scope)
            for name in forward.kept:
                there.values_here.pop(name, None)
                if (value := scope.get(name)) is not None:
                    there[name] = value
            for name, value in run(forward.program, share, own, there, slices=slices).items():
                result[name].append(value)
        return result


def apart(value: Any, var: Var | None, parts: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What each device has of a value that the step gives: its rows, where rows of the batch are the value's."""
    known: list[list[int]] = [[rows_of(part[name]) for part in parts] for name in parts[0]]
    counts = max(known, key=sum) if known else [0]
    of_batch = var is not None and var.shape[:1] == (-1,) and isinstance(value, np.ndarray | LoDTensor)
    if not of_batch or rows_of(value) != sum(counts):
        return [value] * len(parts)
    return [_share(value, counts, device) for device in range(len(parts))]


def merged(values: Sequence[Any]) -> Any:
    """The values of several devices as one: their rows one after the other; of arrays of tensors, one by one."""
    if isinstance(values[0], list):
        return [merged(items) for items in zip(*values, strict=True)]
    if not isinstance(values[0], np.ndarray | LoDTensor):
        return values[0]
    return joined([{"": value} for value in values], {""})[""]
