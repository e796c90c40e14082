"""Ops exported to ONNX compute what the real Fluid was recorded to compute."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from pstranspile.frontends.onnx.writing import WRITERS, onnx_bytes
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Block, FrozenMap, Program, TensorType, Var
from pstranspile.ops import with_defaults
from tests import opdata
from tests.frontends.onnx.programs import played

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

RECORDED = {
    name: meta["type"]
    for name in opdata.names()
    if (meta := opdata.Recording(name).meta)["kind"] != "program" and meta["type"] in WRITERS and "quirk" not in meta
}


def exported(recording: opdata.Recording) -> tuple[bytes, dict[str, Any], dict[str, Any]]:
    """The model of a recorded op, what is fed to it, and what it should compute. Raises DiagnosticError."""
    op = with_defaults(opdata.make_op(recording.meta))
    variables: dict[str, Var] = {}
    values: dict[str, dict[str, Any]] = {"in": {}, "out": {}}
    for side, slots in (("in", op.inputs), ("out", op.outputs)):
        for slot, names in slots.items():
            for number, name in enumerate(names):
                key = f"{side}/{slot}/{number}"
                if key in recording.arrays:
                    value = recording.value(key)
                    data, levels = (value.data, len(value.lod)) if hasattr(value, "lod") else (value, 0)
                    tensor = TensorType(opdata.DTYPES[data.dtype.name], data.shape, levels)
                    values[side][name] = data
                    variables[name] = Var(name, tensor=tensor)
    program = Program((Block(FrozenMap(variables), (op,)),))
    targets = [name for name, value in values["out"].items() if value.size and name in _computed(op)]
    return (
        onnx_bytes(program, [*values["in"]], targets, {}),
        values["in"],
        {name: values["out"][name] for name in targets},
    )


def _computed(op: Any) -> set[str]:
    """The outputs that inference has: no statistics, masks or dims of what was there before."""
    return {name for slot in ("Out", "Output", "Y", "Loss") for name in op.outputs.get(slot, ())}


@pytest.mark.parametrize("op_type", sorted({*RECORDED.values()}))
def test_recorded_ops_compute_the_same(op_type: str):
    outcomes: Counter[str] = Counter()
    for name in (name for name, recorded in RECORDED.items() if recorded == op_type):
        try:
            model, feed, wanted = exported(opdata.Recording(name))
        except DiagnosticError as refused:
            outcomes[refused.diagnostics[0].code] += 1
            continue
        if not wanted:  # sparse rows, or nothing
            continue
        try:
            computed = played(model, feed)
        except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:  # a gap of this runtime: doubles, mostly
            outcomes["the runtime has none"] += 1
            continue
        for got, want in zip(computed, wanted.values(), strict=True):
            assert got.dtype == want.dtype
            assert got.shape == want.shape, name
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=name)
        outcomes["the same"] += 1
    assert outcomes.keys() <= {"the same", "onnx-op", "the runtime has none"}
    assert outcomes["the same"] or op_type == "conv2d_transpose", outcomes  # whose recordings have channels last
