"""Programs in double precision: what is left of a difference there is no rounding of single precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pstranspile.compiler.compile import Compiled, Role, compile
from pstranspile.ir.attributes import Floats, float32
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Module, Op, Program, TensorType, Var
from pstranspile.ir.types import DType
from pstranspile.runtime.values import LoDTensor

TYPES = ("dtype", "in_dtype", "out_dtype", "in_data_type", "out_data_type")
"""Attributes that are numbers of element types."""


def in_doubles(program: Program, trainers: int) -> Program:
    """A program with f64 in the place of f32, in what it declares and what its ops make.

    Attributes hold f32. The nearest one to 1 / `trainers`, by which sums of so many gradients become means, is made
    exact. The source may scale by the same number, so it is made exact there too: both sides stay the same program.
    """
    blocks = tuple(
        block._replace(
            vars=FrozenMap({name: _variable(var) for name, var in block.vars.items()}),
            ops=tuple(_op(op, trainers) for op in block.ops),
        )
        for block in program.blocks
    )
    return program._replace(blocks=blocks)


def _variable(var: Var) -> Var:
    return var._replace(
        tensor=None if var.tensor is None else _wider(var.tensor), readers=tuple(_wider(type) for type in var.readers)
    )


def _wider(type: TensorType) -> TensorType:
    return type._replace(dtype=DType.FP64) if type.dtype is DType.FP32 else type


def _op(op: Op, trainers: int) -> Op:
    changed: dict[str, Any] = {name: DType.FP64.value for name in TYPES if op.attrs.get(name) == DType.FP32.value}
    if op.type == "scale" and op.attrs.get("scale") == float32(1 / trainers):
        changed["scale"] = 1 / trainers
    if op.type == "assign_value" and changed:  # which has no list of f64
        changed["value"] = op.attrs.get("fp32_values", Floats(()))
        op = op._replace(type="fill")
    return op._replace(attrs=FrozenMap({**op.attrs, **changed})) if changed else op


def values_in_doubles(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays of f32 as f64, by name."""
    return {name: _value(value) for name, value in values.items()}


def _value(value: Any) -> Any:
    if isinstance(value, LoDTensor):
        return LoDTensor(_value(value.data), value.lod)
    return value.astype("float64") if getattr(value, "dtype", None) == np.float32 else value


def module_in_doubles(module: Module, trainers: int) -> Module:
    """All programs of a module in double precision, as those of a job with so many trainers are."""
    return Module(FrozenMap({name: in_doubles(program, trainers) for name, program in module.programs.items()}))


def compiled_in_doubles(made: Compiled, module: Module) -> Compiled:
    """What was compiled of a module, in double precision, where `module` already is."""
    assert made.job is not None
    trainers = made.plan.trainers
    roles: dict[str, Role] = {}
    for name, role in made.roles().items():
        main, startup = (in_doubles(program, trainers) for program in (role.main, role.startup))
        others = FrozenMap({n: in_doubles(program, trainers) for n, program in role.others.items()})
        roles[name] = Role(name, main, startup, others)
    return compile(module, made.job).with_roles(roles)
