"""Repeated runs: a feed that has the form of an earlier one is not checked again."""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.lod_tensor import LoDTensor
from pstranspile.fluid.running.feeding import name_of
from pstranspile.fluid.running.watching import tell_run, watchers
from pstranspile.fluid.scope import Scope
from pstranspile.ir.model import Program as FrozenProgram
from pstranspile.runtime.run.prepared import latest_of


class Alike(NamedTuple):
    """The facts of a run that was checked, valid for all runs with the same program, fetched names and form of the
    feed.
    """

    program: FrozenProgram
    """The program as the executor has it. Kept alive here so that its `id` is not used for another program."""
    names: list[str]
    form: tuple[Any, ...]
    played: FrozenProgram
    """The program that is run, with its declarations adapted to the fed values."""
    taken: frozenset[str]
    """The names of the fed values that the run uses."""

    def values(self, fed: Mapping[Any, Any]) -> dict[str, Any]:
        """The arrays and tensors of a feed that the run uses, by name."""
        return {
            name: value if value.__class__ is np.ndarray else value.core()
            for key, value in fed.items()
            if (name := key if key.__class__ is str else name_of(key)) in self.taken
        }


def form_of(fed: Mapping[Any, Any]) -> tuple[Any, ...] | None:
    """The properties of a feed that checks depend on: the names, element types and dims of arrays, all dims but the
    number of rows of sequences.

    None if values other than arrays and tensors are fed, because these are converted.
    """
    result: list[Any] = []
    for key, value in fed.items():
        name = key if key.__class__ is str else name_of(key)
        if value.__class__ is np.ndarray:
            result += name, value.dtype, value.shape
        elif value.__class__ is LoDTensor and (lod := value.lod()):
            result += name, (data := value.data).dtype, len(lod), data.shape[1:]
        else:
            return None
    return tuple(result)


def of_any_rows(program: FrozenProgram, fed: Mapping[Any, Any]) -> bool:
    """Whether all fed names are declared, those fed with sequences for any number of rows."""
    variables = program.main_block.vars
    declared = ((variables.get(name_of(key)), value) for key, value in fed.items())
    return all(var is not None and (value.__class__ is np.ndarray or var.shape[:1] == (-1,)) for var, value in declared)


class Again:
    """Repeats an earlier run on one device with `made`, as long as nothing but the fed values differs."""

    def __init__(
        self,
        program: Program,
        fetch_list: list[Any],
        scope: Scope,
        alike: Alike,
        drawn: Mapping[str, tuple[str, int]],
    ):
        self.names = alike.names
        self._program, self._fetch_list = program, tuple(fetch_list)
        self._scope, self._alike, self._drawn = scope, alike, drawn
        self._fetches = tuple(alike.names)

    def made(self, program: Any, feed: Any, fetch_list: Any, scope: Scope) -> dict[str, Any] | None:
        """The fetched values, by name; None, without running anything, if something differs from the earlier run."""
        if (
            program is not self._program
            or scope is not self._scope
            or fetch_list.__class__ is not list
            or len(fetch_list) != len(self._fetch_list)
            or not all(map(is_, fetch_list, self._fetch_list))
            or feed.__class__ is not dict
            or form_of(feed) != self._alike.form
            or program.freeze() is not self._alike.program
            or program.readers
            or program.schedules
            or watchers()
        ):
            return None
        values = self._alike.values(feed)
        latest = latest_of(scope.core, self._alike.played, tuple(values), self._fetches)
        if latest is None:
            return None
        tell_run(program)
        execution, prepared = latest
        execution.adapt(self._drawn, (), None)
        return prepared.step(values)
