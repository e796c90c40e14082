"""Layers that gather, scatter, repeat and sort elements, and layers that give dims and sizes."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.frontends.layers.basic import layer, layer_outputs, unary
from pstranspile.frontends.layers.draft import Value
from pstranspile.frontends.layers.mixed import Numbers, constants_of, mixed
from pstranspile.ir.types import DType


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
    often = mixed(times, constants_of(x.draft, minted))
    attrs: dict[str, object] = {} if often.known is None else {"expand_times": often.known}
    inputs = {"X": x, **often.inputs("ExpandTimes", "expand_times_tensor")}
    return layer("expand", inputs, x.dtype, attrs, name=minted)


def expand_as(x: Value, target: Value) -> Value:
    """x repeated to the dims of `target`.

    Fluid 1.8.5 declares the result with dims of 0, so layers with parameters can't follow it directly.
    """
    return layer("expand_as", {"X": x, "target_tensor": target}, x.dtype).declared([0] * len(x.shape))


def one_hot_v2(ids: Value, depth: int, *, allow_out_of_range: bool = False) -> Value:
    """As `one_hot`, for ids of any dims (`fluid.one_hot`)."""
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
