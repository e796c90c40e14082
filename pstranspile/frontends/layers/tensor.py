"""Layers that rearrange tensors, and matrix products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pstranspile.frontends.layers.basic import activation, layer, layer_outputs
from pstranspile.frontends.layers.draft import Value
from pstranspile.frontends.layers.mixed import Numbers, constants_of, mixed
from pstranspile.frontends.layers.nn import name_layer
from pstranspile.frontends.layers.parameters import Element
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.types import DType, element_type
from pstranspile.ops.shapes import infer_types


def concat(values: Sequence[Value], *, axis: int = 0, name: str | None = None) -> Value:
    """Tensors one after another along `axis`."""
    return layer("concat", {"X": values}, values[0].dtype, {"axis": axis}, name=name)


def matmul(
    x: Value,
    y: Value,
    *,
    transpose_x: bool = False,
    transpose_y: bool = False,
    alpha: float = 1.0,
    name: str | None = None,
) -> Value:
    """alpha * x @ y over the last two dims, leading dims broadcast."""
    attrs = {"transpose_X": transpose_x, "transpose_Y": transpose_y, "alpha": alpha}
    return layer("matmul", {"X": x, "Y": y}, x.dtype, attrs, name=name)


def mean(x: Value, *, name: str | None = None) -> Value:
    """The mean of all elements, f32[1]: what a loss ends in."""
    return layer("mean", {"X": x}, x.dtype, name=name)


def _with_x_shape(
    op_type: str,
    key: str,
    x: Value,
    attrs: dict[str, object],
    name: str | None,
    more: Mapping[str, Value | Sequence[Value]] | None = None,
    out: Value | None = None,
) -> Value:
    """An op that stores the old dims in XShape for its gradient. `more` are further inputs, `out` is the output."""
    outputs: dict[str, DType | Value] = {"Out": x.dtype if out is None else out, "XShape": x.dtype}
    return layer_outputs(op_type, {"X": x, **(more or {})}, outputs, attrs, key=key, name=name)[0]


def reshape(
    x: Value,
    shape: Numbers,
    *,
    actual_shape: Value | None = None,
    act: str | None = None,
    name: str | None = None,
    inplace: bool = False,
) -> Value:
    """The same elements with other dims (0: as in x, -1: the rest). With `inplace` x itself gets them from then on.

    `actual_shape` is a variable whose numbers replace a `shape` of numbers at run time.
    """
    minted = name_layer(x.draft, "reshape2", name)
    dims = mixed(shape, constants_of(x.draft, minted))
    attrs: dict[str, object] = {} if dims.known is None else {"shape": dims.known}
    given = dims.inputs("Shape", "ShapeTensor")
    in_runs = {"Shape": actual_shape.stopped()} if actual_shape is not None and not given else {}
    made = _with_x_shape("reshape2", "", x, attrs, minted, {**given, **in_runs}, x if inplace else None)
    if in_runs:  # the declared dims are those of `shape`
        op = x.draft.block.ops[-1]
        stated = op._replace(inputs=FrozenMap({slot: names for slot, names in op.inputs.items() if slot != "Shape"}))
        (type_,) = infer_types(stated, x.draft.type_of)["Out"]
        made = made.declared(type_.shape if type_ is not None else ())
    return activation(minted, made, act)


def transpose(x: Value, order: Sequence[int], *, name: str | None = None) -> Value:
    """x with its dims in this order."""
    return _with_x_shape("transpose2", "transpose", x, {"axis": order}, name)


def squeeze(x: Value, axes: Sequence[int], *, name: str | None = None) -> Value:
    """x without these dims of size 1; without any axes, without all that are known to be."""
    made = _with_x_shape("squeeze2", "squeeze", x, {"axes": axes}, name)
    return made if axes else made.declared([dim for dim in x.shape if dim != 1])


def unsqueeze(x: Value, axes: Sequence[int], *, name: str | None = None) -> Value:
    """x with dims of size 1 put in."""
    return _with_x_shape("unsqueeze2", "unsqueeze2", x, {"axes": axes}, name)


def flatten(x: Value, *, axis: int = 1, name: str | None = None) -> Value:
    """x as a matrix: the dims before `axis` are the rows, the others the columns."""
    return _with_x_shape("flatten2", "flatten", x, {"axis": axis}, name)


def slice_(x: Value, axes: Sequence[int], starts: Numbers, ends: Numbers) -> Value:
    """The part of x from `starts` to `ends` along `axes` (Fluid's `slice`)."""
    draft, count = x.draft, len(axes)
    minted = name_layer(draft, "slice", None)
    constant = constants_of(draft, minted)
    first, last = mixed(starts, constant), mixed(ends, constant)
    inputs = {
        "Input": x,
        **first.inputs("StartsTensor", "StartsTensorList"),
        **last.inputs("EndsTensor", "EndsTensorList"),
    }
    unknown = zip(first.unknown(count), last.unknown(count), strict=True)
    attrs: dict[str, object] = {"axes": axes, "infer_flags": [-1 if any(pair) else 1 for pair in unknown]}
    attrs |= {key: part.known for key, part in (("starts", first), ("ends", last)) if part.known is not None}
    return layer("slice", inputs, x.dtype, attrs, name=minted)


def split(x: Value, parts: int | Sequence[int], *, dim: int = -1, name: str | None = None) -> list[Value]:
    """x cut along `dim` into equal parts, or into parts of these sizes."""
    draft = x.draft
    minted = name_layer(draft, "split", name)
    axis = dim % len(x.shape)
    sections = [] if isinstance(parts, int) else list(parts)
    number = parts if isinstance(parts, int) else 0
    outs = [draft.temporary(minted, x.dtype) for _ in range(number or len(sections))]
    draft.op("split", {"X": x}, {"Out": outs}, {"axis": axis, "num": number, "sections": sections})
    return outs


def stack(values: Sequence[Value], *, axis: int = 0) -> Value:
    """Tensors along a new dim."""
    return layer("stack", {"X": values}, values[0].dtype, {"axis": axis}, out="Y")


def one_hot(ids: Value, depth: int) -> Value:
    """A row of `depth` elements for each id [..., 1], 1 at the id."""
    return layer("one_hot", {"X": ids}, DType.FP32, {"depth": depth}).stopped()


def fill_constant_batch_size_like(
    like: Value,
    shape: Sequence[int],
    dtype: Element,
    value: float,
    *,
    input_dim: int = 0,
    output_dim: int = 0,
    force_cpu: bool = False,
) -> Value:
    """A tensor of dims `shape`, every element `value`, one dim taken from `like` at run time."""
    kind = element_type(dtype)
    text = str(int(value)) if kind in (DType.INT64, DType.INT32) else str(float(value))
    attrs = {
        "shape": shape,
        "dtype": kind,
        "value": value,
        "str_value": text,
        "input_dim_idx": input_dim,
        "output_dim_idx": output_dim,
        "force_cpu": force_cpu,
    }
    return layer("fill_constant_batch_size_like", {"Input": like}, kind, attrs).stopped()
