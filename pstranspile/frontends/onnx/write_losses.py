"""Losses of classes in ONNX, from scores and labels of rows."""

from __future__ import annotations

from pstranspile.frontends.onnx.graph import Graph, Refused, onnx_writer
from pstranspile.ir.model import Op
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import flag, int_attr


def _at_label(op: Op, graph: Graph, scores: str, axis: int) -> tuple[str, str]:
    """The scores at the labels, which have a dim of size 1 there, and whether a label is to be ignored."""
    (name,) = op.inputs["Label"]
    if graph.dtype(name) not in (DType.INT64, DType.INT32):
        raise Refused("its labels are no whole numbers", name)
    label = graph.input(op, "Label")
    ignored = graph.node("Equal", [label, graph.like(int_attr(op, "ignore_index", -100), name)])
    safe = graph.node("Where", [ignored, graph.like(0, name), label])
    return graph.node("GatherElements", [scores, safe], axis=axis), ignored


@onnx_writer("softmax_with_cross_entropy")
def _softmax_with_cross_entropy(op: Op, graph: Graph) -> None:
    (source,) = op.inputs["Logits"]
    axis, logits = int_attr(op, "axis", -1) % graph.rank(source), graph.input(op, "Logits")
    logarithms = graph.node("LogSoftmax", [logits], axis=axis)
    if flag(op, "soft_label"):
        weighted = graph.node("Mul", [graph.input(op, "Label"), logarithms])
        total = graph.node("ReduceSum", [weighted, graph.constant([axis])], keepdims=1)
        graph.node("Neg", [total], op.outputs["Loss"])
    else:
        picked, ignored = _at_label(op, graph, logarithms, axis)
        loss = graph.node("Neg", [picked])
        graph.node("Where", [ignored, graph.like(0.0, source), loss], op.outputs["Loss"])
    if op.outputs.get("Softmax"):
        graph.node("Softmax", [logits], op.outputs["Softmax"], axis=axis)
