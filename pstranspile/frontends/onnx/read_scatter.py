"""Nodes that put elements at positions as Fluid's ops."""

from __future__ import annotations

from typing import Any

from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.positions import counted, counted_rows
from pstranspile.frontends.onnx.reading import Reading, attribute, onnx_reader
from pstranspile.frontends.onnx.reshaping import reshape, sizes_of


@onnx_reader("ScatterND")
def _scatter_nd(node: Any, reading: Reading) -> None:
    """Positions are added to; those that are replaced are made 0 before."""
    (data, index, updates), out = node.input, node.output[0]
    how = attribute(node, "reduction", "none")
    if how not in ("none", "add"):
        raise Refused(f"its reduction is {how}; Fluid's scatter_nd_add adds")
    index = counted_rows(index, sizes_of(data, reading)[: reading.dims(index)[-1]], reading)
    if how == "none":
        zeros = reading.made("fill_zeros_like", out, X=data)
        ones = reading.made("fill_any_like", out, {"value": 1.0}, X=updates)
        hits = reading.made("scatter_nd_add", out, X=zeros, Index=index, Updates=ones)
        above = reading.made("greater_than", out, X=hits, Y=zeros)
        data = reading.made("where", out, Condition=above, X=zeros, Y=data)
        reading.draft.stop_gradient.update((zeros, ones, hits, above))
    reading.op("scatter_nd_add", {"X": data, "Index": index, "Updates": updates}, {"Out": out})


@onnx_reader("ScatterElements")
def _scatter_elements(node: Any, reading: Reading) -> None:
    (data, index, updates), out = node.input, node.output[0]
    how = attribute(node, "reduction", "none")
    if how not in ("none", "add") or len(reading.dims(data)) != 1:
        raise Refused("it puts elements along a dim of several; Fluid's scatter puts rows")
    index = counted(index, reading.size(data, 0), reading)
    flat = reading.temp(index)
    reshape(index, flat, [-1], reading)
    inputs = {"X": data, "Ids": flat, "Updates": updates}
    reading.op("scatter", inputs, {"Out": out}, overwrite=how == "none")
