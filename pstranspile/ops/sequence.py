"""Ragged sequences: rows held together by LoD."""

from __future__ import annotations

from pstranspile.ops.schema import INT, declare, declare_gradient, ints

declare(
    "sequence_pool",
    "X -> Out MaxIndex",
    {"is_test": False, "pooltype": "AVERAGE", "pad_value": 0.0},
    doc="Out = one row of each sequence: its sum, average, maximum, first, ...",
)
declare_gradient("sequence_pool", "X MaxIndex- Out@GRAD -> X@GRAD")
declare(
    "sequence_softmax",
    "X -> Out",
    {"use_cudnn": False, "data_format": "AnyLayout"},
    doc="Out = softmax within each sequence",
)
declare_gradient("sequence_softmax", "X Out Out@GRAD -> X@GRAD")
declare(
    "sequence_expand",
    "X Y -> Out",
    {"ref_level": -1},
    doc="Out = each sequence of X repeated as Y's level ref_level says",
)
declare_gradient("sequence_expand", "X Y Out@GRAD -> X@GRAD")
declare("sequence_concat", "X* -> Out", doc="Out = the sequences of all X, joined one by one")
declare_gradient("sequence_concat", "X* Out@GRAD -> X@GRAD*")
declare(
    "sequence_conv",
    "X PaddingData? Filter -> Out",
    {"paddingTrainable": False, "contextLength": INT, "contextStart": 0, "contextStride": 1},
    doc="Out = the rows around each row, contextLength of them, times Filter",
)
declare_gradient("sequence_conv", "X Filter Out@GRAD -> X@GRAD Filter@GRAD")
declare(
    "lod_reset",
    "X Y? -> Out",
    {"target_lod": ints(), "append": False},
    doc="Out = X with another LoD, from Y or target_lod",
)
declare_gradient("lod_reset", "X Out@GRAD -> X@GRAD")
