"""Sequences of labels: evaluation of chunks, edit distance, and decoding of frames."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.facts import Below
from pstranspile.ops.gradient import WantedGradients, gradient, like_forward, output_gradients
from pstranspile.ops.schema import INT, INTS, bounded, declare, declare_gradient, element_type, ints, words
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    describe,
    dtype_attr,
    one,
    one_or_none,
    outputs_like,
    require_dims,
    shape_rule,
)
from pstranspile.ops.work import elements, work_rule


@shape_rule("chunk_eval")
def _chunk_eval_types(_op: Op, _types: Types) -> Types:
    rates = {slot: (TensorType(DType.FP32, (1,)),) for slot in ("Precision", "Recall", "F1-Score")}
    counts = ("NumInferChunks", "NumLabelChunks", "NumCorrectChunks")
    return {**rates, **{slot: (TensorType(DType.INT64, (1,)),) for slot in counts}}


@shape_rule("edit_distance")
def _edit_distance_types(_op: Op, _types: Types) -> Types:
    # Fluid declares Out with the dtype of Refs and, if sequences are padded, also its dims; at run time these differ
    return {"SequenceNum": (TensorType(DType.INT64, (1,)),)}


@shape_rule("ctc_align")
def _ctc_align_types(_op: Op, types: Types) -> Types:
    x = one(types, "Input")
    if not types.get("InputLength"):
        return {"Output": (TensorType(x.dtype, (-1, *x.shape[1:]), x.lod_level),)}
    length = types["InputLength"][0]
    lengths = None if length is None else TensorType(length.dtype, (x.shape[0], 1))
    return {"Output": (x,), "OutputLength": (lengths,)}


declare(
    "ctc_align",
    "Input InputLength? -> Output OutputLength?",
    {"blank": 0, "merge_repeated": True, "padding_value": 0},
    rows="own",
    row_order="by_values",
    doc="Output = Input without repeats and blanks",
)
declare(
    "edit_distance",
    "Hyps Refs HypsLength? RefsLength? -> SequenceNum Out",
    {"normalized": False},
    rows="own",
    doc="Out = how many changes turn each Hyps into its Refs",
)
declare(
    "chunk_eval",
    "Inference Label SeqLength? -> Precision Recall F1-Score NumInferChunks NumLabelChunks NumCorrectChunks",
    {
        "num_chunk_types": bounded(INT, 0),
        "chunk_scheme": words("IOB", "IOE", "IOBES", "plain"),
        "excluded_chunk_types": ints(),
    },
    rows="own",
    doc="precision, recall and F1 of chunks found in sequences",
)


# Linear-chain conditional random fields.

declare(
    "linear_chain_crf",
    "Emission Transition Label Length? -> Alpha~ EmissionExps~ TransitionExps~ LogLikelihood",
    domains={"Label": Below("Emission", -1)},
    doc="LogLikelihood = that of the label paths under a linear chain",
    calls=90,
    calls_per_step=1,
)
declare_gradient(
    "linear_chain_crf",
    "Emission Transition Label Length? Alpha EmissionExps TransitionExps LogLikelihood@GRAD -> "
    "Emission@GRAD Transition@GRAD",
    calls=99,
    calls_per_step=3,
)
declare(
    "crf_decoding",
    "Emission Transition Label? Length? -> ViterbiPath",
    domains={"Label": Below("Emission", -1)},
    doc="ViterbiPath = the likeliest path under a linear chain, or whether it is Label",
    calls=32,
    calls_per_step=5,
)


def _require_chain(types: Types) -> TensorType:
    x, w = one(types, "Emission"), one_or_none(types, "Transition")
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


@work_rule("linear_chain_crf", "crf_decoding", factors="Emission", family="recurrent")
def _chain_work(_op: Op, types: Types) -> float:
    return 2.0 * elements(types, "Emission") * one(types, "Emission").shape[-1]


# Connectionist temporal classification: the loss of label sequences without an alignment to frames.


@shape_rule("warpctc")
def _warpctc_types(_op: Op, types: Types) -> Types:
    x = one(types, "Logits")
    padded = bool(types.get("LogitsLength"))
    if len(x.shape) < (3 if padded else 2):
        kind = "padded sequences must have 3" if padded else "ragged sequences must have 2"
        raise ShapeError(f"Logits is {describe(x)}, {kind} dims", "Logits")
    return {"Loss": (TensorType(x.dtype, (-1, 1)),)}


declare(
    "warpctc",
    "Logits Label LogitsLength? LabelLength? -> WarpCTCGrad~ Loss",
    {"blank": bounded(0, 0), "norm_by_times": False},
    domains={"Label": Below("Logits", -1)},
    doc="Loss = connectionist temporal classification",
)
declare_gradient("warpctc", "Logits LogitsLength? WarpCTCGrad Loss@GRAD -> Logits@GRAD")


# Ragged sequences padded, cut, reversed and enumerated.

declare(
    "sequence_enumerate",
    "X -> Out",
    {"win_size": bounded(INT, 1), "pad_value": 0, "@ALL_KERNELS_MUST_COMPUTE_RUNTIME_SHAPE@": True},
    doc="Out = the windows of ids around each position",
)
declare(
    "sequence_erase",
    "X -> Out",
    {"tokens": INTS},
    rows="own",
    row_order="by_values",
    doc="Out = X without the listed tokens",
)

declare(
    "sequence_mask",
    "X MaxLenTensor? -> Y",
    {"maxlen": -1, "out_dtype": element_type(INT)},
    constant=True,
    doc="Y = ones up to each length of X, zeros after it",
)
declare(
    "sequence_pad",
    "X PadValue -> Out Length",
    {"padded_length": bounded(-1, -1)},
    numbers="moved",
    doc="Out = the sequences of X, padded to one length, Length = their lengths",
)
declare_gradient("sequence_pad", "X Out@GRAD -> X@GRAD")
declare("sequence_unpad", "X Length -> Out", numbers="moved", doc="Out = the rows of X up to Length, joined")
declare_gradient("sequence_unpad", "X Out@GRAD -> X@GRAD")
declare(
    "sequence_reshape",
    "X -> Out",
    {"new_dim": INT},
    numbers="moved",
    doc="Out = the rows of X at width new_dim, sequence by sequence",
)
declare_gradient("sequence_reshape", "X Out@GRAD -> X@GRAD")
declare("sequence_reverse", "X -> Y", doc="Y = each sequence of X in reverse order")
declare(
    "sequence_scatter",
    "X Ids Updates -> Out",
    rows="own",
    domains={"Ids": Below("X", 1)},
    doc="Out = X with Updates added at Ids, sequence by sequence",
)
declare_gradient("sequence_scatter", "Ids Updates Out@GRAD -> X@GRAD Updates@GRAD", result_lod="none")
declare(
    "sequence_slice",
    "X Offset Length -> Out",
    rows="own",
    domains={"Offset": "zero", "Length": "positive"},
    row_order="by_values",
    numbers="moved",
    doc="Out = a part of each sequence of X",
)
declare_gradient("sequence_slice", "X Offset Length Out@GRAD -> X@GRAD", result_lod="none")

shape_rule("sequence_erase")(outputs_like(Out="X"))
shape_rule("sequence_reverse")(outputs_like(Y="X"))


@shape_rule("sequence_enumerate")
def _sequence_enumerate_types(op: Op, types: Types) -> Types:
    x = one(types, "X")
    return {"Out": (x._replace(shape=(x.shape[0], int_attr(op, "win_size"))),)}


@shape_rule("sequence_mask")
def _sequence_mask_types(op: Op, types: Types) -> Types:
    width = -1 if op.inputs.get("MaxLenTensor") else int_attr(op, "maxlen", -1)
    return {"Y": (TensorType(dtype_attr(op, "out_dtype"), (*one(types, "X").shape, width if width > 0 else -1)),)}


@shape_rule("sequence_pad")
def _sequence_pad_types(op: Op, types: Types) -> Types:
    x, rows = one(types, "X"), int_attr(op, "padded_length", -1)
    # Fluid declares 1 row for each sequence if the longest one decides at run time
    return {"Out": (TensorType(x.dtype, (-1, rows, *x.shape[1:])),), "Length": (TensorType(DType.INT64, (-1,)),)}


@shape_rule("sequence_unpad")
def _sequence_unpad_types(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    return {"Out": (TensorType(x.dtype, (-1, *(x.shape[2:] or (1,))), 1),)}


@shape_rule("sequence_reshape")
def _sequence_reshape_types(op: Op, types: Types) -> Types:
    x = one(types, "X")
    return {"Out": (x._replace(shape=(-1, int_attr(op, "new_dim"))),)}


@shape_rule("sequence_scatter", "sequence_slice")
def _rows_of_x(_op: Op, types: Types) -> Types:
    return {"Out": (one(types, "X")._replace(lod_level=0),)}  # for sequence_slice, the number of rows is an upper limit


@gradient("sequence_reverse")
def _sequence_reverse_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    return (
        like_forward(op, "sequence_reverse", {"X": output_gradients(op, "Y")}, {"Y": wanted.gradient_names(op, "X")}),
    )
