"""Tensors concatenated, stacked and split."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.gradient import Wanted, bare_op, gradient, like_forward, output_gradients
from pstranspile.ops.schema import INT, UNSCOPED, declare, declare_gradient, ints, optional
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, fits, one, several, shape_rule

declare(
    "concat",
    "X* AxisTensor? -> Out",
    {"use_mkldnn": False, "axis": 0, "use_quantizer": False, "num": optional("int"), "sections": optional("ints")},
    doc="Out = all X one after another along `axis`",
)
declare_gradient(
    "concat",
    "X* AxisTensor? Out@GRAD -> X@GRAD*",
    {"axis": 0, "use_mkldnn": False, "use_quantizer": False},
)
declare(
    "split",
    "X AxisTensor? SectionsTensorList*? -> Out*",
    {"sections": ints(), "num": 0, "axis": 0},
    doc="Out = X cut along `axis` into `num` equal parts or into `sections`",
)
declare("stack", "X* -> Y", {"axis": 0}, doc="Y = all X along a new dim `axis`")
declare_gradient("stack", "Y@GRAD -> X@GRAD*")


def axis_of(op: Op, tensor: TensorType, rank: int = 0) -> int:
    """The attribute `axis` as a non-negative number. Raises ShapeError if X has no such dim."""
    axis, rank = int_attr(op, "axis"), rank or len(tensor.shape)
    if not -rank <= axis < rank:
        raise ShapeError(f"axis is {axis}, but X is {describe(tensor)}", "X")
    return axis % rank


def _with_dim(tensor: TensorType, axis: int, dim: int) -> TensorType:
    return tensor._replace(shape=(*tensor.shape[:axis], dim, *tensor.shape[axis + 1 :]))


@shape_rule("concat")
def _concat(op: Op, types: Types) -> Types:
    parts = several(types, "X")
    first = parts[0]
    if "AxisTensor" in types:
        return {}
    axis = axis_of(op, first)
    for part in parts[1:]:
        if len(part.shape) != len(first.shape) or part.dtype is not first.dtype:
            disagree("X", part, "the first part", first)
        if not fits(_with_dim(part, axis, -1).shape, _with_dim(first, axis, -1).shape):
            disagree("X", part, "the first part", first)
    dims = [part.shape[axis] for part in parts]
    return {"Out": (_with_dim(first, axis, -1 if min(dims) < 0 else sum(dims)),)}


@shape_rule("split")
def _split(op: Op, types: Types) -> Types:
    x = one(types, "X")
    if "AxisTensor" in types or "SectionsTensorList" in types:
        return {}
    axis = axis_of(op, x)
    whole, number, sections = x.shape[axis], int_attr(op, "num"), ints_attr(op, "sections")
    if number > 0:
        if whole >= 0 and whole % number:
            raise ShapeError(f"X is {describe(x)}, dim {axis} cannot be cut into {number} equal parts", "X")
        sections = (whole // number if whole >= 0 else -1,) * number
    elif whole >= 0:
        known = sum(section for section in sections if section >= 0)
        if known > whole or (known != whole and -1 not in sections):
            raise ShapeError(f"X is {describe(x)}, dim {axis} cannot be cut into {list(sections)}", "X")
        sections = tuple(section if section >= 0 else whole - known for section in sections)
    lod = x.lod_level if axis else 0
    return {"Out": tuple(_with_dim(x, axis, section)._replace(lod_level=lod) for section in sections)}


@shape_rule("stack")
def _stack(op: Op, types: Types) -> Types:
    parts = several(types, "X")
    for part in parts[1:]:
        if not fits(part.shape, parts[0].shape):
            disagree("X", part, "the first part", parts[0])
    first = parts[0]
    axis = axis_of(op, first, len(first.shape) + 1)
    return {"Y": (first._replace(shape=(*first.shape[:axis], len(parts), *first.shape[axis:])),)}


@shape_rule("stack_grad")
def _stack_grad(op: Op, types: Types) -> Types:
    stacked = one(types, "Y@GRAD")
    axis = axis_of(op, stacked)
    part = TensorType(stacked.dtype, (*stacked.shape[:axis], *stacked.shape[axis + 1 :]))
    return {"X@GRAD": (part,) * len(op.outputs["X@GRAD"])}


@gradient("split")
def _split_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "AxisTensor": op.inputs.get("AxisTensor", ())}
    return (like_forward(op, "concat", inputs, {"Out": wanted.kept(op, "X")}),)


declare("unbind", "X -> Out*", {"axis": 0}, doc="Out = the slices of X along `axis`, without that dim")
declare("unstack", "X -> Y*", {"axis": 0, "num": INT}, doc="Y = the slices of X along `axis`, without that dim")
declare_gradient("unstack", "Y@GRAD* -> X@GRAD")

declare("partial_concat", "X* -> Out", {"start_index": 0, "length": -1}, doc="Out = columns of all X, side by side")
declare_gradient("partial_concat", "X* Out@GRAD -> X@GRAD*", {"start_index": 0, "length": -1, **UNSCOPED})
declare(
    "partial_sum",
    "X* -> Out",
    {"use_mkldnn": False, "start_index": 0, "length": -1},
    doc="Out = the sum of columns of all X",
)
declare_gradient("partial_sum", "X* Out@GRAD -> X@GRAD*", {"length": -1, "start_index": 0, **UNSCOPED})


@gradient("unbind")
def _unbind_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    return (like_forward(op, "stack", {"X": output_gradients(op, "Out")}, {"Y": wanted.kept(op, "X")}),)


def _partial_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    """The gradient of a partial op, which carries only the choice of columns."""
    inputs = {"X": op.inputs["X"], "Out@GRAD": output_gradients(op, "Out")}
    attrs = {name: op.attrs[name] for name in ("start_index", "length")}
    return (bare_op(f"{op.type}_grad", inputs, {"X@GRAD": wanted.placed(op, "X")}, attrs),)


gradient("partial_concat", "partial_sum")(_partial_gradient)


@shape_rule("unbind", "unstack")
def _unbind(op: Op, types: Types) -> Types:
    x, slot = one(types, "X"), "Out" if op.type == "unbind" else "Y"
    axis = axis_of(op, x)
    parts = len(op.outputs[slot])
    if not fits(x.shape[axis : axis + 1], (parts,)):
        raise ShapeError(f"X is {describe(x)}, dim {axis} can't be cut into {parts} slices", "X")
    lod = x.lod_level if op.type == "unbind" and axis else 0
    # of one dim Fluid makes parts without dims, which are not known here
    part = TensorType(x.dtype, (*x.shape[:axis], *x.shape[axis + 1 :]), lod)
    return {slot: (part,) * parts}


@shape_rule("unstack_grad")
def _unstack_grad(op: Op, types: Types) -> Types:
    parts = several(types, "Y@GRAD")
    axis = axis_of(op, parts[0], len(parts[0].shape) + 1)
    dims = parts[0].shape
    return {"X@GRAD": (TensorType(parts[0].dtype, (*dims[:axis], len(parts), *dims[axis:])),)}


@shape_rule("partial_concat", "partial_sum")
def _partial(op: Op, types: Types) -> Types:
    parts = several(types, "X")
    for part in parts:
        if len(part.shape) != 2 or part.dtype is not parts[0].dtype or not fits(part.shape, parts[0].shape):
            disagree("X", part, "the first part", parts[0])
    width, start, length = parts[0].shape[1], int_attr(op, "start_index"), int_attr(op, "length", -1)
    if length < 0:
        length = width - start if width >= 0 and start >= 0 else -1
        if start < 0 and op.type == "partial_concat":  # for partial_sum Fluid declares more columns than there are
            length = -start
    columns = length * len(parts) if op.type == "partial_concat" and length >= 0 else length
    return {"Out": (TensorType(parts[0].dtype, (parts[0].shape[0], columns)),)}
