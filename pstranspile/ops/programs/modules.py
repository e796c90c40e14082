"""Steps of training that a module of another library computes: one op for its forward and its backward pass."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.schema import STRING, STRINGS, declare, declare_gradient
from pstranspile.ops.shapes import ShapeError, Types, shape_rule

STEP = "torch_step"
"""The op type of a step that a module of PyTorch computes."""

_ONE_OP = "the step is one op of torch, of which nothing within is known"

declare(
    STEP,
    "X* Param* Table*? Fixed*? Buffer*? -> Out Gradients* Rows*? BufferOut*?",
    {
        "source": STRING,
        "fed": STRINGS,
        "parameters": STRINGS,
        "tables": STRINGS,
        "fixed": STRINGS,
        "buffers": STRINGS,
        "is_sparse": True,
    },
    lists_may_be_empty=True,
    rows="own",
    row_order="by_values",
    opaque=_ONE_OP,
    doc="Out = the loss of the batch X by a module of torch, which `source` (FILE.py:NAME) gives; Gradients and Rows = "
    "its gradients by Param and Table; the step is one op of torch",
)
declare_gradient(
    STEP,
    "Table*? Gradients* Rows*? Out@GRAD -> Param@GRAD* Table@GRAD*?",
    lists_may_be_empty=True,
    opaque=_ONE_OP,
    sparse_gradient="Table@GRAD",
)


@shape_rule(STEP)
def _torch_step(_op: Op, types: Types) -> Types:
    parameters, tables, buffers = (tuple(types.get(slot, ())) for slot in ("Param", "Table", "Buffer"))
    known = [one for one in (*parameters, *tables) if one is not None]
    if not parameters and not tables:
        raise ShapeError("neither Param nor Table has a variable, so there is nothing to train", "Param")
    loss = TensorType(known[0].dtype, (1,)) if known else None
    return {"Out": (loss,), "Gradients": parameters, "Rows": tables, "BufferOut": buffers}


@shape_rule(f"{STEP}_grad")
def _torch_step_grad(_op: Op, types: Types) -> Types:
    return {"Param@GRAD": tuple(types.get("Gradients", ())), "Table@GRAD": tuple(types.get("Rows", ()))}
