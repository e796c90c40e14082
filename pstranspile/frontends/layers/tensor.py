"""Layers that rearrange tensors, create random ones, and multiply matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from pstranspile.frontends.layers.basic import activation, cast, layer, layer_outputs, unary
from pstranspile.frontends.layers.draft import Draft, Value, whole_dim
from pstranspile.frontends.layers.nn import name_layer
from pstranspile.frontends.layers.parameters import Element
from pstranspile.ir.model import FrozenMap
from pstranspile.ir.types import DType, element_type
from pstranspile.ops.shapes import infer_types

# Lists of integers of which some are known only at run time.

Numbers: TypeAlias = Sequence["int | Value"] | Value
"""Integers, each a number or a value [1]; or one value that holds all of them."""


class MixedNumbers(NamedTuple):
    """Numbers in the form that an op takes."""

    attribute: list[int] | None
    """The attribute, with -1 for numbers known only at run time; None if one value holds all numbers."""
    whole_value: Value | None
    """The value that holds all numbers, None if there is none."""
    elements: list[Value]
    """A value for each number, if any of them is known at run time only."""

    def unknown_flags(self, count: int) -> list[bool]:
        """For each of `count` numbers, whether it is known only at run time."""
        if self.attribute is None:
            return [True] * count
        return [bool(self.elements) and number == -1 for number in self.attribute]

    def inputs(self, whole: str, elements: str) -> dict[str, Value | Sequence[Value]]:
        """The inputs that are read at run time, in the slots of these names."""
        if self.whole_value is not None:
            return {whole: self.whole_value}
        return {elements: self.elements} if self.elements else {}


def mixed_numbers(
    numbers: Numbers, constant: Callable[[int], Value], *, narrow: bool = False, truncated: bool = False
) -> MixedNumbers:
    """The numbers in the form that an op takes. Values are marked to get no gradient. `constant` converts a number to a
    value [1].

    `narrow` casts values of 64 bits to int32, as some layers of Fluid do.
    """

    def read(value: Value) -> Value:
        return cast(value.stopped(), "int32") if narrow and value.dtype is DType.INT64 else value.stopped()

    if isinstance(numbers, Value):
        return MixedNumbers(None, read(numbers), [])
    known = [-1 if isinstance(number, Value) else whole_dim(number, truncated=truncated) for number in numbers]
    if not any(isinstance(number, Value) for number in numbers):
        return MixedNumbers(known, None, [])
    return MixedNumbers(
        known, None, [read(n) if isinstance(n, Value) else constant(whole_dim(n, truncated=truncated)) for n in numbers]
    )


def constants_of(draft: Draft, layer: str = "", dtype: DType = DType.INT32) -> Callable[[int], Value]:
    """A function that creates values [1], named after a layer, or after the op that fills them."""

    def constant(number: int) -> Value:
        own = draft.names.mint("fill_constant")
        out = draft.temporary(layer or own, dtype, stop_gradient=True)
        attrs = {"shape": [1], "dtype": dtype, "value": float(number), "force_cpu": True}
        draft.op("fill_constant", {}, {"Out": out}, {**attrs, "str_value": str(number)})
        return out

    return constant


# Layers that gather, scatter, repeat and sort elements, and layers that give dims and sizes.


def gather(x: Value, index: Value, *, overwrite: bool = True) -> Value:
    """The rows of x at `index`. Without `overwrite` the gradient adds up rows that occur more than once."""
    return layer("gather", {"X": x, "Index": index}, x.dtype, {"overwrite": overwrite})


def gather_nd(x: Value, index: Value) -> Value:
    """The slices of x at the positions in the last dim of `index`."""
    return layer("gather_nd", {"X": x, "Index": index}, x.dtype)


def scatter(x: Value, index: Value, updates: Value, *, overwrite: bool = True) -> Value:
    """x with the rows at `index` replaced by the updates, or, without `overwrite`, by their sums."""
    return layer("scatter", {"X": x, "Ids": index, "Updates": updates}, x.dtype, {"overwrite": overwrite})


def scatter_nd_add(x: Value, index: Value, updates: Value) -> Value:
    """x with the updates added at the positions in the last dim of `index`."""
    return layer("scatter_nd_add", {"X": x, "Index": index, "Updates": updates}, x.dtype)


def expand(x: Value, times: Numbers) -> Value:
    """x repeated along each dim. `times` may be values that are known at run time."""
    minted = x.draft.names.mint("expand")
    often = mixed_numbers(times, constants_of(x.draft, minted))
    attrs: dict[str, object] = {} if often.attribute is None else {"expand_times": often.attribute}
    inputs = {"X": x, **often.inputs("ExpandTimes", "expand_times_tensor")}
    return layer("expand", inputs, x.dtype, attrs, name=minted)


def expand_as(x: Value, target: Value) -> Value:
    """x repeated to the dims of `target`.

    Fluid 1.8.5 declares the result with dims of 0, so layers with parameters can't follow it directly.
    """
    return layer("expand_as", {"X": x, "target_tensor": target}, x.dtype).redeclare_dims([0] * len(x.shape))


def one_hot_v2(ids: Value, depth: int, *, allow_out_of_range: bool = False) -> Value:
    """The layer `one_hot` for ids of any dims (`fluid.one_hot`)."""
    attrs = {"depth": depth, "allow_out_of_range": allow_out_of_range}
    return layer("one_hot_v2", {"X": ids}, DType.FP32, attrs).stopped()


def argsort(x: Value, *, axis: int = -1, descending: bool = False) -> tuple[Value, Value]:
    """x sorted along `axis`, and the indices of its elements, i64."""
    attrs = {"axis": axis, "descending": descending}
    out, indices = layer_outputs("argsort", {"X": x}, {"Out": x.dtype, "Indices": DType.INT64}, attrs)
    return out.stopped(), indices.stopped()


def arg_min(x: Value, *, axis: int = 0) -> Value:
    """The index of the smallest element along `axis`, i64."""
    return layer("arg_min", {"X": x}, DType.INT64, {"axis": axis}).stopped()


def unstack(x: Value, *, axis: int = 0, num: int | None = None) -> list[Value]:
    """The slices of x along `axis`, without that dim. Raises ValueError if their number is not known."""
    count = x.shape[axis] if num is None else num
    if count <= 0:
        raise ValueError(f"unstack: the number of slices of %{x.name} along dim {axis} is not known")
    draft = x.draft
    minted = draft.names.mint("unstack")
    outs = [draft.temporary(minted, x.dtype) for _ in range(count)]
    draft.op("unstack", {"X": x}, {"Y": outs}, {"axis": axis, "num": count})
    return outs


def where(condition: Value) -> Value:
    """The positions of the true elements, i64[true elements, dims]."""
    return layer("where_index", {"Condition": condition}, DType.INT64)


def pad(x: Value, paddings: Sequence[int], *, pad_value: float = 0.0) -> Value:
    """x padded with `pad_value`: two numbers for each dim, before and after."""
    return unary("pad", x, paddings=paddings, pad_value=pad_value)


def reverse(x: Value, axis: int | Sequence[int]) -> Value:
    """x reversed along these dims."""
    return unary("reverse", x, axis=[axis] if isinstance(axis, int) else axis)


def cumsum(x: Value, *, axis: int | None = None, exclusive: bool | None = None, reverse: bool | None = None) -> Value:
    """Running sums along `axis`, or, with `exclusive`, without the element itself; `reverse` sums from the end."""
    given = (("axis", axis), ("exclusive", exclusive), ("reverse", reverse))
    return unary("cumsum", x, **{name: value for name, value in given if value is not None})


def shape(x: Value) -> Value:
    """The dims of x, i32."""
    return layer("shape", {"Input": x}, DType.INT32)


def size(x: Value) -> Value:
    """The number of elements of x, i64."""
    return layer("size", {"Input": x}, DType.INT64)


def zeros_like(x: Value) -> Value:
    """Zeros with the dims of x."""
    return layer("fill_zeros_like", {"X": x}, x.dtype, key="zeros_like").stopped()


def ones_like(x: Value) -> Value:
    """Ones with the dims of x."""
    return layer("fill_any_like", {"X": x}, x.dtype, {"value": 1.0}, key="ones_like")


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
    """The mean of all elements, f32[1], typically of a loss."""
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
    """Appends an op that stores the old dims in XShape for its gradient. `more` are further inputs;
    returns the output.
    """
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
    """The same elements with other dims (0: as in x, -1: the rest). With `inplace` x itself has these dims from then
    on.

    `actual_shape` is a variable whose numbers replace a `shape` of numbers at run time.
    """
    minted = name_layer(x.draft, "reshape2", name)
    dims = mixed_numbers(shape, constants_of(x.draft, minted))
    attrs: dict[str, object] = {} if dims.attribute is None else {"shape": dims.attribute}
    given = dims.inputs("Shape", "ShapeTensor")
    in_runs = {"Shape": actual_shape.stopped()} if actual_shape is not None and not given else {}
    made = _with_x_shape("reshape2", "", x, attrs, minted, {**given, **in_runs}, x if inplace else None)
    if in_runs:  # the declared dims are those of `shape`
        op = x.draft.block.ops[-1]
        stated = op._replace(inputs=FrozenMap({slot: names for slot, names in op.inputs.items() if slot != "Shape"}))
        (type_,) = infer_types(stated, x.draft.type_of)["Out"]
        made = made.redeclare_dims(type_.shape if type_ is not None else ())
    return activation(minted, made, act)


def transpose(x: Value, order: Sequence[int], *, name: str | None = None) -> Value:
    """x with its dims in this order."""
    return _with_x_shape("transpose2", "transpose", x, {"axis": order}, name)


def squeeze(x: Value, axes: Sequence[int], *, name: str | None = None) -> Value:
    """x without these dims of size 1; without any axes, without all dims that are known to be 1."""
    made = _with_x_shape("squeeze2", "squeeze", x, {"axes": axes}, name)
    return made if axes else made.redeclare_dims([dim for dim in x.shape if dim != 1])


def unsqueeze(x: Value, axes: Sequence[int], *, name: str | None = None) -> Value:
    """x with dims of size 1 inserted at `axes`."""
    return _with_x_shape("unsqueeze2", "unsqueeze2", x, {"axes": axes}, name)


def flatten(x: Value, *, axis: int = 1, name: str | None = None) -> Value:
    """x as a matrix: the dims before `axis` are the rows, the others the columns."""
    return _with_x_shape("flatten2", "flatten", x, {"axis": axis}, name)


def slice_(x: Value, axes: Sequence[int], starts: Numbers, ends: Numbers) -> Value:
    """The part of x from `starts` to `ends` along `axes` (Fluid's `slice`)."""
    draft, count = x.draft, len(axes)
    minted = name_layer(draft, "slice", None)
    constant = constants_of(draft, minted)
    first, last = mixed_numbers(starts, constant), mixed_numbers(ends, constant)
    inputs = {
        "Input": x,
        **first.inputs("StartsTensor", "StartsTensorList"),
        **last.inputs("EndsTensor", "EndsTensorList"),
    }
    unknown = zip(first.unknown_flags(count), last.unknown_flags(count), strict=True)
    attrs: dict[str, object] = {"axes": axes, "infer_flags": [-1 if any(pair) else 1 for pair in unknown]}
    attrs |= {key: part.attribute for key, part in (("starts", first), ("ends", last)) if part.attribute is not None}
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


# Layers that give random tensors, drawn again in every run.


def uniform_random(
    draft: Draft, shape: Numbers, *, dtype: Element = "f32", low: float = -1.0, high: float = 1.0, seed: int = 0
) -> Value:
    """A tensor of dims `shape`, uniform in [low, high). A seed of 0 means the program's seed."""
    return _random_tensor(draft, "uniform_random", shape, {"min": low, "max": high, "seed": seed}, dtype)


def gaussian_random(
    draft: Draft,
    shape: Numbers,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: Element = "f32",
) -> Value:
    """A tensor of dims `shape`, normal with this mean and standard deviation. A seed of 0 means the program's seed."""
    attrs = {"mean": mean, "std": std, "seed": seed, "dtype": element_type(dtype)}
    return _random_tensor(draft, "gaussian_random", shape, attrs, dtype)


def _random_tensor(draft: Draft, op_type: str, shape: Numbers, attrs: Mapping[str, object], dtype: Element) -> Value:
    minted = draft.names.mint(op_type)
    of_layer = op_type == "uniform_random"  # as in Fluid
    constant = constants_of(draft, minted, DType.INT64) if of_layer else constants_of(draft)
    dims = mixed_numbers(shape, constant, narrow=not of_layer, truncated=True)
    known = {} if dims.attribute is None else {"shape": dims.attribute}
    out = draft.temporary(minted, element_type(dtype))
    draft.op(op_type, dims.inputs("ShapeTensor", "ShapeTensorList"), {"Out": out}, {**known, **attrs})
    return out
