"""Running one op on values, for tests of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pstranspile.ir.model import Block, FrozenMap, Program, TensorType, Var
from pstranspile.ir.types import DType, VarKind
from pstranspile.ops.build import make_op
from pstranspile.runtime.run.frame import Execution, Frame
from pstranspile.runtime.run.scope import Scope, own_copy
from pstranspile.runtime.values import SelectedRows


def compute(
    op_type: str,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    attrs: Mapping[str, Any] | None = None,
    *,
    folder: Path | str = ".",
    seed: int = 1,
    step: int = 0,
    sparse: tuple[str, ...] = (),
    slices: Mapping[str, tuple[str, int]] | None = None,
) -> Frame:
    """The variables after an op ran once; read them with `.find(name)`.

    `inputs` maps slots to a value or a list of values, `outputs` slots to a variable name or a list of names. Input
    variables are named after their slots (`X`, or `X0`, `X1`, ...); an output of the same name is the same variable.
    Variables in `sparse` are declared as SELECTED_ROWS. The op works on copies of the values.
    """
    values: dict[str, Any] = {}
    slots: dict[str, list[str]] = {}
    for slot, value in inputs.items():
        if isinstance(value, list):
            slots[slot] = [f"{slot}{number}" for number in range(len(value))]
            values.update(zip(slots[slot], value, strict=True))
        else:
            slots[slot] = [slot]
            values[slot] = value
    results = {slot: names if isinstance(names, list) else [names] for slot, names in outputs.items()}
    op = make_op(op_type, slots, results, attrs)
    declared = {
        name: Var(
            name,
            VarKind.SELECTED_ROWS
            if name in sparse or isinstance(values.get(name), SelectedRows)
            else VarKind.LOD_TENSOR,
            TensorType(DType.FP32, ()),
        )
        for name in (*values, *(name for names in results.values() for name in names))
    }
    program = Program((Block(FrozenMap(declared), (op,)),), random_seed=seed)
    execution = Execution(program, Scope(), slices=slices, folder=folder)
    execution.step = step
    frame = Frame(execution)
    frame.local.update({name: own_copy(value) for name, value in values.items()})
    frame.execute()
    return frame
