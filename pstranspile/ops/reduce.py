"""Reductions over dims."""

from __future__ import annotations

from pstranspile.ops.schema import declare, declare_gradient, ints

_REDUCE = {"dim": ints(0), "keep_dim": False, "reduce_all": False, "in_dtype": -1, "out_dtype": -1}

declare("reduce_sum", "X -> Out", _REDUCE, doc="Out = X summed over `dim`, or over all dims")
declare_gradient("reduce_sum", "X Out@GRAD -> X@GRAD")
declare("reduce_mean", "X -> Out", _REDUCE, doc="Out = the mean of X over `dim`")
declare_gradient("reduce_mean", "X Out@GRAD -> X@GRAD")
declare("reduce_max", "X -> Out", _REDUCE, doc="Out = the largest elements of X over `dim`")
declare_gradient("reduce_max", "X Out Out@GRAD -> X@GRAD")
declare("reduce_min", "X -> Out", _REDUCE, doc="Out = the smallest elements of X over `dim`")
declare_gradient("reduce_min", "X Out Out@GRAD -> X@GRAD")
declare("reduce_prod", "X -> Out", _REDUCE, doc="Out = the product of X over `dim`")
declare_gradient("reduce_prod", "X Out Out@GRAD -> X@GRAD")
declare("reduce_all", "X -> Out", _REDUCE, doc="Out = whether all elements of X over `dim` are true")
declare("reduce_any", "X -> Out", _REDUCE, doc="Out = whether any element of X over `dim` is true")
declare("isfinite", "X -> Out", doc="Out = whether no element of X is infinite or not a number")
