"""Ops about shapes and elements in ONNX: other dims of the same elements, parts, tables, constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.frontends.onnx.graph import Graph, Refused, onnx_writer, refuse_given
from pstranspile.frontends.onnx.library import ELEMENT_TYPES
from pstranspile.ir.model import Op
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import flag, int_attr, ints_attr, real, text

# Other dims


@onnx_writer("reshape", "reshape2")
def _reshape(op: Op, graph: Graph) -> None:
    refuse_given(op, "Shape", "ShapeTensor")
    dims = graph.constant([*ints_attr(op, "shape")])
    graph.node("Reshape", [graph.input(op, "X"), dims], op.outputs["Out"])


@onnx_writer("transpose", "transpose2")
def _transpose(op: Op, graph: Graph) -> None:
    graph.node("Transpose", [graph.input(op, "X")], op.outputs["Out"], perm=[*ints_attr(op, "axis")])


@onnx_writer("squeeze", "squeeze2")
def _squeeze(op: Op, graph: Graph) -> None:
    axes, dims = ints_attr(op, "axes"), graph.dims(op.inputs["X"][0])
    chosen = [at for at in axes or range(len(dims)) if dims[at] == 1 or (axes and dims[at] == -1)]
    if not axes and -1 in dims:
        raise Refused("which of its dims are of size 1 is known at run time only", op.inputs["X"][0])
    graph.node("Squeeze", [graph.input(op, "X"), graph.constant(chosen)], op.outputs["Out"])


@onnx_writer("unsqueeze", "unsqueeze2")
def _unsqueeze(op: Op, graph: Graph) -> None:
    refuse_given(op, "AxesTensor", "AxesTensorList")
    value, rank, axes = graph.input(op, "X"), graph.rank(op.inputs["X"][0]), ints_attr(op, "axes")
    for number, axis in enumerate(axes):  # one after another: an axis counts the dims inserted before
        at = axis if axis >= 0 else axis + rank + number + 1
        to = op.outputs["Out"] if number == len(axes) - 1 else ()
        value = graph.node("Unsqueeze", [value, graph.constant([at])], to)


@onnx_writer("flatten", "flatten2")
def _flatten(op: Op, graph: Graph) -> None:
    graph.node("Flatten", [graph.input(op, "X")], op.outputs["Out"], axis=int_attr(op, "axis", 1))


@onnx_writer("shape")
def _shape(op: Op, graph: Graph) -> None:
    dims = graph.node("Shape", [graph.input(op, "Input")])
    graph.node("Cast", [dims], op.outputs["Out"], to=ELEMENT_TYPES[DType.INT32])


# Parts, and several as one


@onnx_writer("concat")
def _concat(op: Op, graph: Graph) -> None:
    refuse_given(op, "AxisTensor")
    graph.node("Concat", [graph.read(name) for name in op.inputs["X"]], op.outputs["Out"], axis=int_attr(op, "axis"))


@onnx_writer("stack")
def _stack(op: Op, graph: Graph) -> None:
    axis = graph.constant([int_attr(op, "axis")])
    parts = [graph.node("Unsqueeze", [graph.read(name), axis]) for name in op.inputs["X"]]
    graph.node("Concat", parts, op.outputs["Y"], axis=int_attr(op, "axis"))


@onnx_writer("split")
def _split(op: Op, graph: Graph) -> None:
    refuse_given(op, "AxisTensor", "SectionsTensorList")
    sections, axis = [*ints_attr(op, "sections")], int_attr(op, "axis")
    if -1 in sections:
        whole = graph.dims(op.inputs["X"][0])[axis]
        if whole < 0:
            raise Refused("the size of one of its sections is known at run time only", op.inputs["X"][0])
        sections[sections.index(-1)] = whole - sum(sections) - 1
    sizes = [graph.constant(sections)] if sections else []
    graph.node("Split", [graph.input(op, "X"), *sizes], op.outputs["Out"], axis=axis)


@onnx_writer("slice", "strided_slice")
def _slice(op: Op, graph: Graph) -> None:
    lists = ("StartsTensor", "EndsTensor", "StridesTensor", "StartsTensorList", "EndsTensorList", "StridesTensorList")
    refuse_given(op, *lists)
    bounds = [ints_attr(op, name) for name in ("starts", "ends", "axes")]
    if op.type == "strided_slice":
        bounds.append(ints_attr(op, "strides"))
        if min(bounds[-1], default=1) < 0:
            raise Refused("it has a stride below 0, from which Fluid counts from the far end")
    cut = [graph.input(op, "Input"), *(graph.constant([*numbers]) for numbers in bounds)]
    gone = [*ints_attr(op, "decrease_axis")]
    if not gone:
        graph.node("Slice", cut, op.outputs["Out"])
    elif len(gone) == graph.rank(op.inputs["Input"][0]):
        graph.node("Reshape", [graph.node("Slice", cut), graph.constant([1])], op.outputs["Out"])
    else:
        graph.node("Squeeze", [graph.node("Slice", cut), graph.constant(gone)], op.outputs["Out"])


@onnx_writer("expand")
def _expand(op: Op, graph: Graph) -> None:
    refuse_given(op, "ExpandTimes", "expand_times_tensor")
    times = graph.constant([*ints_attr(op, "expand_times")])
    graph.node("Tile", [graph.input(op, "X"), times], op.outputs["Out"])


@onnx_writer("pad")
def _pad(op: Op, graph: Graph) -> None:
    sizes = ints_attr(op, "paddings")
    pads, value = graph.constant([*sizes[::2], *sizes[1::2]]), graph.like(real(op, "pad_value"), op.inputs["X"][0])
    graph.node("Pad", [graph.input(op, "X"), pads, value], op.outputs["Out"], mode="constant")


@onnx_writer("pad2d")
def _pad2d(op: Op, graph: Graph) -> None:
    refuse_given(op, "Paddings")
    top, bottom, left, right = ints_attr(op, "paddings")
    last = text(op, "data_format") == "NHWC"
    pads = [0, top, left, 0, 0, bottom, right, 0] if last else [0, 0, top, left, 0, 0, bottom, right]
    inputs = [graph.input(op, "X"), graph.constant(pads), graph.like(real(op, "pad_value"), op.inputs["X"][0])]
    graph.node("Pad", inputs, op.outputs["Out"], mode=text(op, "mode"))


# Elements by index


@onnx_writer("lookup_table", "lookup_table_v2")
def _lookup(op: Op, graph: Graph) -> None:
    ids, table = graph.input(op, "Ids"), graph.input(op, "W")
    if op.type == "lookup_table":
        ids = graph.node("Squeeze", [ids, graph.constant([-1])])
    padding = int_attr(op, "padding_idx", -1)
    if padding == -1:
        graph.node("Gather", [table, ids], op.outputs["Out"], axis=0)
        return
    rows = graph.node("Gather", [table, ids], axis=0)
    empty = graph.node("Equal", [ids, graph.like(padding, op.inputs["Ids"][0])])
    empty = graph.node("Unsqueeze", [empty, graph.constant([-1])])
    graph.node("Where", [empty, graph.like(0.0, op.inputs["W"][0]), rows], op.outputs["Out"])


@onnx_writer("gather")
def _gather(op: Op, graph: Graph) -> None:
    index = graph.input(op, "Index")
    if graph.rank(op.inputs["Index"][0]) == 2:
        index = graph.node("Squeeze", [index, graph.constant([1])])
    graph.node("Gather", [graph.input(op, "X"), index], op.outputs["Out"], axis=0)


@onnx_writer("gather_nd")
def _gather_nd(op: Op, graph: Graph) -> None:
    index = graph.node("Cast", [graph.input(op, "Index")], to=ELEMENT_TYPES[DType.INT64])
    graph.node("GatherND", [graph.input(op, "X"), index], op.outputs["Out"])


@onnx_writer("one_hot", "one_hot_v2")
def _one_hot(op: Op, graph: Graph) -> None:
    refuse_given(op, "depth_tensor")
    ids, made = graph.input(op, "X"), op.outputs["Out"][0]
    if op.type == "one_hot":
        ids = graph.node("Squeeze", [ids, graph.constant([-1])])
    if graph.dtype(op.inputs["X"][0]) is not DType.INT64:
        ids = graph.node("Cast", [ids], to=ELEMENT_TYPES[DType.INT64])
    depth, off_on = graph.constant(int_attr(op, "depth")), graph.constant([0, 1], graph.dtype(made))
    graph.node("OneHot", [ids, depth, off_on], [made])


@onnx_writer("top_k")
def _top_k(op: Op, graph: Graph) -> None:
    refuse_given(op, "K")
    count = graph.constant([int_attr(op, "k", 1)])
    graph.node("TopK", [graph.input(op, "X"), count], [*op.outputs["Out"], *op.outputs["Indices"]])


@onnx_writer("arg_max", "arg_min")
def _arg_max(op: Op, graph: Graph) -> None:
    kind, keep, axis = "ArgMax" if op.type == "arg_max" else "ArgMin", flag(op, "keepdims"), int_attr(op, "axis")
    attrs: dict[str, Any] = {"axis": axis, "keepdims": int(keep or graph.rank(op.inputs["X"][0]) == 1)}
    made = op.outputs["Out"][0]
    if graph.dtype(made) is DType.INT64:
        graph.node(kind, [graph.input(op, "X")], [made], **attrs)
    else:
        graph.node(
            "Cast", [graph.node(kind, [graph.input(op, "X")], **attrs)], [made], to=ELEMENT_TYPES[graph.dtype(made)]
        )


# Constants and other element types


@onnx_writer("cast")
def _cast(op: Op, graph: Graph) -> None:
    made, source = op.outputs["Out"], op.inputs["X"][0]
    if graph.dtype(made[0]) is DType.FP16 and graph.dtype(source) in (DType.FP32, DType.FP64):
        raise Refused("it rounds to f16 toward zero, ONNX to the nearest", source)
    graph.node("Cast", [graph.input(op, "X")], made, to=ELEMENT_TYPES[graph.dtype(made[0])])


@onnx_writer("fill_constant", "assign_value")
def _constant(op: Op, graph: Graph) -> None:
    refuse_given(op, "ValueTensor", "ShapeTensor", "ShapeTensorList")
    made, dims = op.outputs["Out"][0], [*ints_attr(op, "shape")]
    if op.type == "assign_value":
        lists = (op.attrs.get(f"{kind}_values") for kind in ("fp32", "int32", "int64", "bool"))
        values = np.array(next(values for values in lists if values)).reshape(dims)
    else:
        number = text(op, "str_value")
        values = np.full(dims, float(number) if number else real(op, "value"))
    graph.node("Identity", [graph.constant(values, graph.dtype(made))], [made])


@onnx_writer("fill_constant_batch_size_like")
def _constant_like(op: Op, graph: Graph) -> None:
    source, made = graph.input(op, "Input"), op.outputs["Out"][0]
    dims, at, of = ints_attr(op, "shape"), int_attr(op, "output_dim_idx"), int_attr(op, "input_dim_idx")
    parts = [graph.constant([dim]) for dim in dims]
    parts[at] = graph.node("Shape", [source], start=of, end=of + 1)
    whole = graph.node("Concat", parts, axis=0)
    number = text(op, "str_value")
    value = graph.constant(float(number) if number else real(op, "value"), graph.dtype(made))
    graph.node("Expand", [value, whole], [made])


@onnx_writer("fill_zeros_like")
def _zeros_like(op: Op, graph: Graph) -> None:
    dims = graph.node("Shape", [graph.input(op, "X")])
    graph.node("Expand", [graph.like(0.0, op.inputs["X"][0]), dims], op.outputs["Out"])


@onnx_writer("dropout")
def _dropout(op: Op, graph: Graph) -> None:
    if not flag(op, "is_test"):
        raise Refused("it drops elements at random; a program cut down for inference (--fetch) does not")
    x, rate = graph.input(op, "X"), real(op, "dropout_prob")
    if text(op, "dropout_implementation") == "upscale_in_train":
        graph.node("Identity", [x], op.outputs["Out"])
    else:
        graph.node("Mul", [x, graph.like(1.0 - rate, op.inputs["X"][0])], op.outputs["Out"])
