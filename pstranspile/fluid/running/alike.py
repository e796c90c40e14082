"""Feeds that look like those of an earlier run, which need no second look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pstranspile.fluid.lod_tensor import LoDTensor
from pstranspile.fluid.running.feeding import name_of
from pstranspile.ir.model import Program


class Alike(NamedTuple):
    """A run that was checked, for those with the same program, fetched names and form of what is fed."""

    program: Program
    """The program as the executor has it; keeps its id its own."""
    names: list[str]
    form: tuple[Any, ...]
    played: Program
    """The program that is run: with the declarations of what is fed."""
    taken: frozenset[str]
    """What the run takes of the feed."""

    def values(self, fed: Mapping[Any, Any]) -> dict[str, Any]:
        """Arrays and tensors that are fed, as the run takes them, by name."""
        return {
            name: value if value.__class__ is np.ndarray else value.core()
            for key, value in fed.items()
            if (name := key if key.__class__ is str else name_of(key)) in self.taken
        }


def form_of(fed: Mapping[Any, Any]) -> tuple[Any, ...] | None:
    """What checks of a feed look at: the names, element types and dims of arrays, all dims but the rows of sequences.

    None if other values than arrays and tensors are fed, which are converted.
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


def of_any_rows(program: Program, fed: Mapping[Any, Any]) -> bool:
    """Whether all that is fed is declared, what is fed as sequences for any number of rows."""
    variables = program.main_block.vars
    declared = ((variables.get(name_of(key)), value) for key, value in fed.items())
    return all(var is not None and (value.__class__ is np.ndarray or var.shape[:1] == (-1,)) for var, value in declared)
