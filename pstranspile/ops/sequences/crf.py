"""Linear-chain conditional random fields."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import ShapeError, Types, describe, given, one, require_dims, shape_rule

declare(
    "linear_chain_crf",
    "Emission Transition Label Length? -> Alpha~ EmissionExps~ TransitionExps~ LogLikelihood",
    doc="LogLikelihood = that of the label paths under a linear chain",
)
declare_gradient(
    "linear_chain_crf",
    "Emission Transition Label Length? Alpha EmissionExps TransitionExps LogLikelihood@GRAD -> "
    "Emission@GRAD Transition@GRAD",
)
declare(
    "crf_decoding",
    "Emission Transition Label? Length? -> ViterbiPath",
    doc="ViterbiPath = the likeliest path under a linear chain, or whether it is Label",
)


def _require_chain(types: Types) -> TensorType:
    x, w = one(types, "Emission"), given(types, "Transition")
    padded = bool(types.get("Length"))
    if len(x.shape) != (3 if padded else 2):
        kind = "padded sequences must have 3" if padded else "ragged sequences must have 2"
        raise ShapeError(f"Emission is {describe(x)}, {kind} dims", "Emission")
    if w is not None:
        require_dims(w, (x.shape[-1] + 2 if x.shape[-1] >= 0 else -1, x.shape[-1]), "Transition")
    return x


@shape_rule("linear_chain_crf")
def _likelihood_types(_op: Op, types: Types) -> Types:
    x = _require_chain(types)
    flat = x._replace(lod_level=0)
    return {
        "Alpha": (flat,),
        "EmissionExps": (flat,),
        "TransitionExps": types.get("Transition", (None,)),
        "LogLikelihood": (TensorType(x.dtype, (-1 if len(x.shape) == 2 else x.shape[0], 1)),),
    }


@shape_rule("crf_decoding")
def _path_types(_op: Op, types: Types) -> Types:
    x = _require_chain(types)
    dims = (x.shape[0], 1) if len(x.shape) == 2 else x.shape[:2]
    return {"ViterbiPath": (TensorType(DType.INT64, dims, x.lod_level),)}
