"""Nodes that make one number of many as Fluid's ops: sums, means, norms, shares."""

from __future__ import annotations

import math
from typing import Any

from pstranspile.frontends.onnx.reading import Reading, attribute, axes_of, onnx_reader, positive
from pstranspile.frontends.onnx.reshaping import transpose

_REDUCTIONS = {
    "ReduceSum": "reduce_sum",
    "ReduceMean": "reduce_mean",
    "ReduceMax": "reduce_max",
    "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_prod",
    "ReduceL1": "reduce_sum",
    "ReduceL2": "reduce_sum",
    "ReduceSumSquare": "reduce_sum",
    "ReduceLogSum": "reduce_sum",
    "ReduceLogSumExp": "reduce_sum",
}
_BEFORE = {"ReduceL1": "abs", "ReduceL2": "square", "ReduceSumSquare": "square"}
_AFTER = {"ReduceL2": "sqrt", "ReduceLogSum": "log"}


@onnx_reader(*_REDUCTIONS)
def _reduce(node: Any, reading: Reading) -> None:
    kind, source, out = node.op_type, node.input[0], node.output[0]
    rank, axes = len(reading.dims(source)), axes_of(node, reading)
    chosen = positive(axes, rank) if axes else [*range(rank)]
    if (not axes and attribute(node, "noop_with_empty_axes", 0)) or not rank:
        chosen = []
    keep = bool(attribute(node, "keepdims", 1))
    if not keep and len(chosen) == rank:
        reading.scalars.add(out)
    if kind == "ReduceLogSumExp" and chosen:
        _log_sum_exp(source, out, chosen, keep, reading)
        return
    given = _function(_BEFORE.get(kind), source, reading)
    last = _AFTER.get(kind)
    if not chosen:
        reading.alias(out, _function(last, given, reading))
        return
    made = reading.temp(out) if last else out
    _reduced(_REDUCTIONS[kind], given, made, chosen, keep, reading)
    if last:
        reading.op(last, {"X": made}, {"Out": out})


def _function(op_type: str | None, value: str, reading: Reading) -> str:
    if op_type is None:
        return value
    return reading.made(op_type, value, X=value)


def _reduced(op_type: str, source: str, out: str, axes: list[int], keep: bool, reading: Reading) -> None:
    whole = len(axes) == len(reading.dims(source))
    reading.op(op_type, {"X": source}, {"Out": out}, keep_dim=keep, reduce_all=whole, dim=axes)


def _log_sum_exp(source: str, out: str, axes: list[int], keep: bool, reading: Reading) -> None:
    """The logarithm of a sum of powers, of what is left of the largest, so that no power is too large."""
    largest, rest = _less_largest(source, axes, reading)
    summed = reading.temp(out)
    _reduced("reduce_sum", _function("exp", rest, reading), summed, axes, True, reading)
    wide = out if keep else reading.temp(out)
    reading.op("elementwise_add", {"X": _function("log", summed, reading), "Y": largest}, {"Out": wide})
    if not keep:  # the sum of one element is this, with the dims that are left
        _reduced("reduce_sum", wide, out, axes, False, reading)


def _less_largest(source: str, axes: list[int], reading: Reading) -> tuple[str, str]:
    """The largest elements along axes, and what is left of all of them."""
    _reduced("reduce_max", source, largest := reading.temp(source), axes, True, reading)
    return largest, reading.made("elementwise_sub", source, X=source, Y=largest)


@onnx_reader("Softmax", "LogSoftmax")
def _softmax(node: Any, reading: Reading) -> None:
    source, out, axis = node.input[0], node.output[0], attribute(node, "axis", -1)
    if node.op_type == "Softmax":
        reading.op("softmax", {"X": source}, {"Out": out}, axis=axis)
        return
    axes = positive([axis], len(reading.dims(source)))
    rest, summed = _less_largest(source, axes, reading)[1], reading.temp(out)
    _reduced("reduce_sum", _function("exp", rest, reading), summed, axes, True, reading)
    reading.op("elementwise_sub", {"X": rest, "Y": _function("log", summed, reading)}, {"Out": out})


@onnx_reader("LpNormalization")
def _lp_normalization(node: Any, reading: Reading) -> None:
    source, out = node.input[0], node.output[0]
    axes = positive([attribute(node, "axis", -1)], len(reading.dims(source)))
    first = attribute(node, "p", 2) == 1
    powers = _function("abs" if first else "square", source, reading)
    _reduced("reduce_sum", powers, norm := reading.temp(out), axes, True, reading)
    norm = norm if first else _function("sqrt", norm, reading)
    bound = reading.made("clip", out, {"min": _TINY, "max": math.inf}, X=norm)
    reading.op("elementwise_div", {"X": source, "Y": bound}, {"Out": out})


_TINY = 1e-30
"""What a row of zeros is divided by, which leaves it zeros."""


@onnx_reader("Hardmax")
def _hardmax(node: Any, reading: Reading) -> None:
    source, out = node.input[0], node.output[0]
    rank = len(reading.dims(source))
    axis: int = attribute(node, "axis", -1) % rank
    width = reading.dims(source)[axis]
    at = reading.made("arg_max", out, {"axis": axis, "keepdims": False}, X=source)
    hot = reading.made("one_hot_v2", out, {"depth": width}, X=at)
    if axis == rank - 1:
        reading.alias(out, hot)
    else:
        transpose(hot, out, [*range(axis), rank - 1, *range(axis, rank - 1)], reading)
