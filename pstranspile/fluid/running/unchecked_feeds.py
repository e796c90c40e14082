"""Programs that accept fed values of any form.

Fluid compares a fed value with the declaration of its variable only if the variable is marked, and even then not the
LoD.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pstranspile.ir.model import FrozenMap, Program, TensorType, Var
from pstranspile.ir.types import DType, VarKind, element_type
from pstranspile.ops.gradients.versions import FLOATS
from pstranspile.runtime.run.feeds import mismatch
from pstranspile.runtime.values import LoDTensor

_MOST = 16
"""The greatest number of programs in a cache of `declared_as_fed`."""

Cache = dict[object, tuple[Program, Program]]
"""Programs with changed declarations, by the program that they were made of and the changes. Both programs are kept
alive, so that an `id` in a key is not used again.
"""


def declared_as_fed(program: Program, feeds: Mapping[str, Any], cache: Cache, *, any_dims: bool = False) -> Program:
    """The program, with variables declared as the values that they are fed, where these differ from the declaration.

    Values fed to marked variables were compared with the declarations before. With `any_dims`, dims that differ are
    declared as unknown, so that later feeds fit as well.
    """
    variables = program.main_block.vars
    found: dict[str, TensorType] = {}
    for name, value in feeds.items():
        var = variables.get(name)
        fed = None if var is None or var.kind is not VarKind.LOD_TENSOR else _type_of(value)
        if fed is None or var is None or var.tensor is None or not mismatch(var, value):
            continue
        both = {fed.dtype, var.tensor.dtype}
        if len(both) == 1 or not both.issubset(FLOATS) or not _meets_kept(program, name, var.tensor.dtype):
            found[name] = fed._replace(shape=_dims_of_both(var.tensor.shape, fed.shape)) if any_dims else fed
    if not found:
        return program
    key = (id(program), *found.items())
    known = cache.get(key)
    if known is None:
        while len(cache) >= _MOST:
            del cache[next(iter(cache))]
        known = cache[key] = program, _redeclare_variables(program, found)
    return known[1]


def _dims_of_both(declared: tuple[int, ...], fed: tuple[int, ...]) -> tuple[int, ...]:
    if len(declared) != len(fed):
        return (-1,) * len(fed)
    return tuple(one if one == other else -1 for one, other in zip(declared, fed, strict=True))


def _meets_kept(program: Program, name: str, dtype: DType) -> bool:
    """Whether an op combines values computed from a variable with a persistable variable of this element type, such as
    a parameter.

    Fluid's ops refuse two element types there, so the script can't have meant to feed another one.
    """
    variables, derived = program.main_block.vars, {name}
    for block in program.blocks:
        for op in block.ops:
            read = set(op.input_names)
            if read.isdisjoint(derived):
                continue
            others = (variables[other] for other in read - derived if other in variables)
            if any(other.persistable and other.dtype is dtype for other in others):
                return True
            derived.update(op.output_names)
    return False


def _redeclare_variables(program: Program, types: Mapping[str, TensorType]) -> Program:
    main = program.main_block
    changed: dict[str, Var] = {name: main.vars[name]._replace(tensor=tensor) for name, tensor in types.items()}
    first = main._replace(vars=FrozenMap({**main.vars, **changed}))
    return program._replace(blocks=(first, *program.blocks[1:]))


def _type_of(value: Any) -> TensorType | None:
    """The type of a variable that has this value, None for a value that no tensor variable can have."""
    data, levels = (value.data, len(value.lod)) if isinstance(value, LoDTensor) else (value, 0)
    if not isinstance(data, np.ndarray):
        return None
    try:
        dtype: DType = element_type(data.dtype.name)
    except ValueError:
        return None
    return TensorType(dtype, (-1, *data.shape[1:]) if data.ndim else (), levels)
