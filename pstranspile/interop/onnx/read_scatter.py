"""Nodes that put elements at positions as Fluid's ops."""

from __future__ import annotations

from typing import Any

from pstranspile.interop.onnx.graph import Refused
from pstranspile.interop.onnx.reading import Reading, attribute, onnx_reader
from pstranspile.interop.onnx.reshaping import reshape


@onnx_reader("ScatterND")
def _scatter_nd(node: Any, reading: Reading) -> None:
    """Positions are added to; those that are replaced are made 0 before."""
    (data, index, updates), out = node.input, node.output[0]
    how = attribute(node, "reduction", "none")
    if how not in ("none", "add"):
        raise Refused(f"its reduction is {how}; Fluid's scatter_nd_add adds")
    if how == "none":
        zeros, ones, hits, above, cleared = (reading.temp(out) for _ in range(5))
        reading.op("fill_zeros_like", {"X": data}, {"Out": zeros})
        reading.op("fill_any_like", {"X": updates}, {"Out": ones}, value=1.0)
        reading.op("scatter_nd_add", {"X": zeros, "Index": index, "Updates": ones}, {"Out": hits})
        reading.op("greater_than", {"X": hits, "Y": zeros}, {"Out": above})
        reading.op("where", {"Condition": above, "X": zeros, "Y": data}, {"Out": cleared})
        reading.draft.stop_gradient.update((zeros, ones, hits, above))
        data = cleared
    reading.op("scatter_nd_add", {"X": data, "Index": index, "Updates": updates}, {"Out": out})


@onnx_reader("ScatterElements")
def _scatter_elements(node: Any, reading: Reading) -> None:
    (data, index, updates), out = node.input, node.output[0]
    how = attribute(node, "reduction", "none")
    if how not in ("none", "add") or len(reading.dims(data)) != 1:
        raise Refused("it puts elements along a dim of several; Fluid's scatter puts rows")
    flat = reading.temp(index)
    reshape(index, flat, [-1], reading)
    inputs = {"X": data, "Ids": flat, "Updates": updates}
    reading.op("scatter", inputs, {"Out": out}, overwrite=how == "none")
