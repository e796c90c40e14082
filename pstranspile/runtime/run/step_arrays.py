"""The values that a variable has in several steps, as arrays by name: what files of feeds and of results hold.

Where all steps have the same shape, `x` is [steps, ...]. A ragged `x` is the concatenated rows of all steps, and
`x@LENS` holds the lengths of its sequences, [steps, batch].

Where shapes change, or sequences are made of sequences, each step has arrays of its own. `3|x` is x in step 3; steps
count from 1. Of a ragged one `3|x|0` are the lengths of the outermost sequences, [batch]; `3|x|1` those of the
sequences that they are made of, and so on; the last ones count rows. A step in which x had no value has none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.expect import expect, path_of
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.describe import describe
from pstranspile.runtime.run.files import write_arrays
from pstranspile.runtime.values import LoDTensor, SelectedRows

LENGTHS = "@LENS"
"""Ends the name of the array that holds the lengths of a ragged input's sequences in all steps."""

_OF_STEP = re.compile(r"([0-9]{1,9})\|(.+)", re.DOTALL)


class StepKey(NamedTuple):
    """What an array of one step is called: the step, counted from 1, the variable, and the level of the lengths that it
    holds, counted from 0 (-1: it holds the value).
    """

    step: int
    name: str
    level: int


def step_key(key: str, names: Container[str]) -> StepKey | None:
    """The parts of an array's name, if the array is of one step; `names` are those of variables."""
    match = None if key in names else _OF_STEP.fullmatch(key)
    if match is None:
        return None
    step, name = int(match[1]), match[2]
    rest, bar, level = name.rpartition("|")
    if name not in names and bar and level.isdecimal() and len(level) < 10:
        return StepKey(step, rest, int(level))
    return StepKey(step, name, -1)


def variable_of(key: str, names: Container[str]) -> str:
    """The variable that an array is for."""
    if key in names:
        return key
    result = step_key(key, names)
    return result.name if result is not None else key.removesuffix(LENGTHS)


def arrays_of(name: str, values: Sequence[Value]) -> dict[str, Any]:
    """The arrays for what a variable was in each step; None where it had no value, which leaves out the step.

    Raises DiagnosticError for what no array can hold.
    """
    for value in values:
        if value is not None and not isinstance(value, np.ndarray | LoDTensor):
            what = "sparse rows" if isinstance(value, SelectedRows) else describe(value)
            raise DiagnosticError([error("run-save-impossible", f"{name} holds {what}, which an .npz file can't")])
    if not values:
        return {name: np.zeros((0,), "float32")}
    if all(value is None for value in values):
        return {}
    if len({_form(value) for value in values}) > 1 or (isinstance(values[0], LoDTensor) and len(values[0].lod) != 1):
        return _by_step(name, values)
    if isinstance(values[0], LoDTensor):
        lengths = np.stack([np.diff(value.lod[0]) for value in values])
        return {name: np.concatenate([value.data for value in values]), f"{name}{LENGTHS}": lengths}
    return {name: np.stack(values)}


def _form(value: Value) -> object:
    """Values of the same form fit into one array."""
    if isinstance(value, LoDTensor):
        return value.data.dtype, value.data.shape[1:], tuple(len(level) for level in value.lod[:1])
    return None if value is None else (value.dtype, value.shape)


def _by_step(name: str, values: Sequence[Value]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for step, value in enumerate(values, 1):
        if isinstance(value, LoDTensor):
            result[f"{step}|{name}"] = value.data
            result.update((f"{step}|{name}|{place}", np.diff(level)) for place, level in enumerate(value.lod))
        elif value is not None:
            result[f"{step}|{name}"] = value
    return result


def stacked(name: str, values: Sequence[Value]) -> dict[str, Any]:
    """What a variable was in every step, as arrays of a file of results: `step/` and what `arrays_of` gives.

    Raises DiagnosticError for what no array can hold.
    """
    return {f"step/{key}": array for key, array in arrays_of(name, values).items()}


def feed_arrays(batches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The arrays of a feed file for what is fed in each step, by name.

    Raises DiagnosticError for what no array can hold.
    """
    names = dict.fromkeys(name for batch in batches for name in batch)
    result: dict[str, Any] = {}
    for name in names:
        values = [batch.get(name) for batch in batches]
        if any(value is None for value in values):
            step = next(step for step, value in enumerate(values, 1) if value is None)
            raise DiagnosticError([error("run-save-impossible", f"{name} is fed, but not in step {step}")])
        result |= arrays_of(name, [v if isinstance(v, LoDTensor | SelectedRows) else np.asarray(v) for v in values])
    return result


def save_feeds(path: str | os.PathLike[str], batches: Sequence[Mapping[str, Any]]) -> None:
    """Writes a feed file (`.npz`) of what is fed in each step, by name: arrays or LoDTensors of any shapes.

    Raises DiagnosticError for what no file can hold, and when it can't be written; TypeError for other arguments.
    """
    name = path_of(path, "save_feeds")
    expect(batches, Sequence, "save_feeds", "a list of mappings, one for each step")
    for batch in batches:
        expect(batch, Mapping, "save_feeds", "a list of mappings, one for each step")
    write_arrays(name, feed_arrays(batches))
