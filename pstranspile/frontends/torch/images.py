"""ATen operators on images as ops of a program: convolution, pooling, resizing."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from pstranspile.frontends.layers.draft import Refused
from pstranspile.frontends.onnx.read_tensors import sizes_of, with_x_shape
from pstranspile.frontends.onnx.reading import is_code
from pstranspile.frontends.torch.elements import reduce_axes
from pstranspile.frontends.torch.tracing import Tracing, argument, aten
from pstranspile.ir.attributes import Double
from pstranspile.ir.types import DType
from pstranspile.ops.images.channels import RATIOS, SIZES


def _numbers_per_dim(numbers: Any, count: int) -> list[int]:
    """One number for each of the `count` spatial dims; a single number is repeated for all of them."""
    listed = [numbers] if isinstance(numbers, int) else list(numbers)
    return [int(number) for number in (listed * count if len(listed) == 1 else listed)]


class _Filter(NamedTuple):
    """The settings of a convolution, with one number for each spatial dim."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int
    transposed: bool = False
    output_size: list[int] | None = None


@aten("conv1d", "conv2d", "conv3d", "convolution")
def _convolution(node: Any, tracing: Tracing, out: str) -> None:
    count = len(tracing.dims(tracing.value(node.args[1]))) - 2
    x, made = _as_batch(node, count, out, tracing)
    _convolution_of(node, count, x, tracing, made)
    _finish(made, out, tracing)


def _convolution_of(node: Any, count: int, x: str, tracing: Tracing, out: str) -> None:
    stride, padding = argument(node, 3, "stride", 1), argument(node, 4, "padding", 0)
    dilation, groups = _numbers_per_dim(argument(node, 5, "dilation", 1), count), argument(node, 6, "groups", 1)
    if node.target.__name__.startswith("convolution"):
        transposed, outside, groups = bool(node.args[6]), node.args[7], node.args[8]
        wanted = _transposed_output_dims(node, tracing, outside, count) if transposed else None
        moved = _Filter(
            _numbers_per_dim(stride, count), _numbers_per_dim(padding, count), dilation, groups, transposed, wanted
        )
        _append_convolution(node, x, moved, out, tracing)
        return
    if isinstance(padding, str):
        size = tracing.dims(tracing.value(node.args[1]))[2:]
        spans = [(width - 1) * apart if padding == "same" else 0 for width, apart in zip(size, dilation, strict=True)]
        padding = [span // 2 for span in spans]
        if any(span % 2 for span in spans):  # uneven padding: the extra element is added at the end
            sides = [0, 0, 0, 0, *(count for span in spans for count in (0, span % 2))]
            x = tracing.op_result("pad", x, {"paddings": sides, "pad_value": 0.0}, X=x)
    _append_convolution(
        node,
        x,
        _Filter(_numbers_per_dim(stride, count), _numbers_per_dim(padding, count), dilation, groups),
        out,
        tracing,
    )


def _as_batch(node: Any, count: int, out: str, tracing: Tracing) -> tuple[str, str]:
    """The images of a node with `count` spatial dims, and the variable that gets what is made of them: `out`, or
    another for a single image, which is a batch of one.
    """
    x = tracing.value(node.args[0])
    if len(tracing.dims(x)) == count + 2:
        return x, out
    with_x_shape("unsqueeze2", x, wide := tracing.temp(x), tracing, axes=[0])
    return wide, tracing.temp(out)


def _finish(made: str, out: str, tracing: Tracing) -> None:
    """`out` is what was made of a batch, or of a single image without the dim of a batch."""
    if made != out:
        with_x_shape("squeeze2", made, out, tracing, axes=[0])


@aten("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv_transpose(node: Any, tracing: Tracing, out: str) -> None:
    count = len(tracing.dims(tracing.value(node.args[1]))) - 2
    x, made = _as_batch(node, count, out, tracing)
    _conv_transpose_of(node, count, x, tracing, made)
    _finish(made, out, tracing)


def _conv_transpose_of(node: Any, count: int, x: str, tracing: Tracing, out: str) -> None:
    stride, padding, dilation = (
        _numbers_per_dim(argument(node, at, "", default), count) for at, default in ((3, 1), (4, 0), (7, 1))
    )
    wanted = _transposed_output_dims(node, tracing, argument(node, 5, "output_padding", 0), count)
    _append_convolution(
        node, x, _Filter(stride, padding, dilation, argument(node, 6, "groups", 1), True, wanted), out, tracing
    )


def _transposed_output_dims(node: Any, tracing: Tracing, outside: Any, count: int) -> list[int] | None:
    """The spatial dims of a transposed convolution's result; None without output_padding.

    Raises Refused if they are known at run time only.
    """
    if not any(_numbers_per_dim(outside, count)):
        return None
    sizes = tracing.shape_of(node.meta["val"], tracing.value(node.args[0]))[-count:]
    if any(map(is_code, sizes)):
        raise Refused("it has output_padding, and images of dims that a run knows")
    return sizes


def _append_convolution(node: Any, x: str, moved: _Filter, out: str, tracing: Tracing) -> None:
    """`out` is the convolution of images `x` with the node's filters. With one dim, images have height 1."""
    weight, bias = tracing.value(node.args[1]), argument(node, 2, "bias")
    flat = len(moved.stride) == 1
    if flat:
        with_x_shape("unsqueeze2", x, wide := tracing.temp(x), tracing, axes=[2])
        with_x_shape("unsqueeze2", weight, filters := tracing.temp(weight), tracing, axes=[2])
        x, weight = wide, filters
        one_line = (moved.stride, [1]), (moved.padding, [0]), (moved.dilation, [1])
        stride, padding, dilation = ([*first, *rest] for rest, first in one_line)
        size = None if moved.output_size is None else [1, *moved.output_size]
        moved = _Filter(stride, padding, dilation, moved.groups, moved.transposed, size)
    kind = f"conv{len(moved.stride)}d" + ("_transpose" if moved.transposed else "")
    made = tracing.temp(out) if bias is not None or flat else out
    attrs: dict[str, object] = {"strides": moved.stride, "paddings": moved.padding}
    attrs |= {"dilations": moved.dilation, "groups": moved.groups}
    if moved.output_size is not None:
        attrs["output_size"] = moved.output_size
    tracing.op(kind, {"Input": x, "Filter": weight}, {"Output": made}, **attrs)
    if bias is not None:
        added = tracing.temp(out) if flat else out
        tracing.op("elementwise_add", {"X": made, "Y": tracing.value(bias)}, {"Out": added}, axis=1)
        made = added
    if flat:
        with_x_shape("squeeze2", made, out, tracing, axes=[2])


class _PoolingWindows(NamedTuple):
    """The windows of a pooling, with one number for each spatial dim."""

    size: list[int]
    stride: list[int]
    padding: list[int]


@aten("max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d", "max_pool2d_with_indices", "max_pool3d", "avg_pool3d")
def _pool(node: Any, tracing: Tracing, out: str) -> None:
    name = node.target.__name__.split(".")[0]
    count = int(name[8])
    x, made = _as_batch(node, count, out, tracing)
    _pool_of(node, count, x, tracing, made)
    _finish(made, out, tracing)
    if name.endswith("indices"):
        tracing.parts[node.name] = [out, None]


def _pool_of(node: Any, count: int, x: str, tracing: Tracing, out: str) -> None:
    size, name = _numbers_per_dim(node.args[1], count), node.target.__name__
    stride = _numbers_per_dim(argument(node, 2, "stride") or size, count)
    window = _PoolingWindows(size, stride, _numbers_per_dim(argument(node, 3, "padding", 0), count))
    average = name.startswith("avg")
    if average:
        ceil, whole = bool(argument(node, 4, "ceil_mode", False)), bool(argument(node, 5, "count_include_pad", True))
    else:
        ceil, whole = bool(argument(node, 5, "ceil_mode", False)), False
    attrs: dict[str, object] = {"pooling_type": "avg" if average else "max", "exclusive": not whole}
    if ceil and _reaches_out(sizes_of(x, tracing)[2:], window):
        if average:
            raise Refused("it has ceil_mode, whose windows past the end are counted otherwise")
        attrs["ceil_mode"] = True
    append_pool(x, window, out, attrs, tracing)


def _reaches_out(sizes: Sequence[int], window: _PoolingWindows) -> bool:
    """Whether the last window of some dim reaches past the end of the padded image.

    Raises Refused if the sizes are known at run time only, or if a window would begin past the end of the image, which
    torch leaves out.
    """
    if any(map(is_code, sizes)):
        raise Refused("it has ceil_mode, and images of dims that a run knows")
    result = False
    for size, width, step, padding in zip(sizes, *window, strict=True):
        rest = (size + 2 * padding - width) % step
        if rest and (size + 2 * padding - width) // step * step + step >= size + padding:
            raise Refused("it has ceil_mode, and a window that begins past the end")
        result |= rest > 0
    return result


def append_pool(x: str, window: _PoolingWindows, out: str, attrs: dict[str, object], tracing: Tracing) -> None:
    """`out` is the maximum or the mean of each window of images `x`."""
    flat = len(window.size) == 1
    if flat:
        with_x_shape("unsqueeze2", x, wide := tracing.temp(x), tracing, axes=[2])
        x, window = wide, _PoolingWindows([1, *window.size], [1, *window.stride], [0, *window.padding])
    made = tracing.temp(out) if flat else out
    shaped: dict[str, object] = {"ksize": window.size, "strides": window.stride, "paddings": window.padding}
    tracing.op(f"pool{len(window.size)}d", {"X": x}, {"Out": made}, **shaped, **attrs)
    if flat:
        with_x_shape("squeeze2", made, out, tracing, axes=[2])


@aten("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "_adaptive_avg_pool2d")
def _adaptive_pool(node: Any, tracing: Tracing, out: str) -> None:
    name, x = node.target.__name__.split(".")[0].lstrip("_"), tracing.value(node.args[0])
    count = 1 if "1d" in name else 2
    sizes = sizes_of(x, tracing)[-count:]
    given: list[Any] = _numbers_per_dim(node.args[1], count) if isinstance(node.args[1], int) else list(node.args[1])
    wanted = [size if new is None else int(new) for size, new in zip(sizes, given, strict=True)]
    kind = "avg" if "avg" in name else "max"
    if wanted == [1] * count and kind == "avg":
        rank = len(tracing.dims(x))
        reduce_axes("reduce_mean", x, out, [*range(rank - count, rank)], True, tracing)
    elif any(map(is_code, (*sizes, *wanted))):
        raise Refused("its images have dims that a run knows")
    else:
        window = _PoolingWindows(wanted, [1] * count, [0] * count)
        append_pool(x, window, out, {"pooling_type": kind, "adaptive": True, "exclusive": False}, tracing)
    if "max" in name:
        tracing.parts[node.name] = [out, None]


_RESIZED = {
    "upsample_nearest1d": "nearest_interp",
    "upsample_nearest2d": "nearest_interp",
    "upsample_linear1d": "bilinear_interp",
    "upsample_bilinear2d": "bilinear_interp",
    "upsample_bicubic2d": "bicubic_interp",
    "upsample_trilinear3d": "trilinear_interp",
}


@aten(*_RESIZED)
def _interpolate(node: Any, tracing: Tracing, out: str) -> None:
    """Images resized by interpolation. Raises Refused for sizes that are known at run time only.

    Where positions do not follow from the sizes in single precision, the distances are stated: in double precision, and
    for a scale that is not the ratio of the sizes.
    """
    kind, overload = node.target.__name__.split(".")
    x, count = tracing.value(node.args[0]), int(kind[-2])
    nearest = "nearest" in kind
    aligned = False if nearest else bool(node.args[2])
    after = 2 if nearest else 3
    scales = [*(argument(node, after, "scale_factors") or ())] if overload == "vec" else [*node.args[after:]]
    sizes, wanted = sizes_of(x, tracing)[2:], tracing.shape_of(node.meta["val"], x)[2:]
    if any(map(is_code, (*sizes, *wanted))):
        raise Refused("its images have dims that a run knows")
    attrs: dict[str, object] = {"align_corners": aligned, "align_mode": 0, "interp_method": _RESIZED[kind][:-7]}
    ratios = [_distance(*one, aligned=aligned) for one in zip(sizes, wanted, scales or [None] * count, strict=True)]
    plain = aligned or all(
        abs(r * new - size) < 1e-9 * size for size, new, r in zip(sizes, wanted, ratios, strict=True)
    )
    if not plain or (tracing.dtype(x) is DType.FP64 and not nearest):
        attrs |= {name: Double(ratio) for name, ratio in zip(RATIOS[-count:], ratios, strict=True)}
    if count == 1:
        with_x_shape("unsqueeze2", x, wide := tracing.temp(x), tracing, axes=[2])
        x, wanted = wide, [1, *wanted]
    attrs |= dict(zip(SIZES[-len(wanted) :], wanted, strict=True))
    made = tracing.temp(out) if count == 1 else out
    tracing.op(_RESIZED[kind], {"X": x}, {"Out": made}, **attrs)
    if count == 1:
        with_x_shape("squeeze2", made, out, tracing, axes=[2])


@aten("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
def _interpolate_antialiased(node: Any, tracing: Tracing, out: str) -> None:
    """Images resized with a filter as wide as the elements of the smaller image: a product with a matrix for each of
    the two dims. Raises Refused for sizes that are known at run time only.
    """
    x, torch = tracing.value(node.args[0]), import_module("torch")
    sizes, wanted = sizes_of(x, tracing)[2:], tracing.shape_of(node.meta["val"], x)[2:]
    if any(map(is_code, (*sizes, *wanted))):
        raise Refused("its images have dims that a run knows")
    overload = node.target.__name__.partition(".")[2]
    scales = [*(argument(node, 3, "scale_factors") or ())] if overload == "vec" else [*node.args[3:]]
    resize = getattr(torch.ops.aten, node.target.__name__.partition(".")[0])
    sides: list[str] = []
    for size, new, scale in zip(sizes, wanted, scales or [None, None], strict=True):
        each = torch.eye(size, dtype=torch.float64).reshape(1, 1, size, size)
        matrix = resize.default(each, [new, size], bool(node.args[2]), scale, None)[0, 0]
        tracing.known_values[name := tracing.temp(out)] = matrix.to(node.meta["val"].dtype).numpy()
        sides.append(name)
    rows = tracing.op_result("matmul", out, X=sides[0], Y=x)
    tracing.op("matmul", {"X": rows, "Y": sides[1]}, {"Out": out}, transpose_Y=True)


def _distance(size: int, new: int, scale: float | None, *, aligned: bool) -> float:
    """How far neighbouring elements of a resized dim are apart in the old one."""
    if aligned:
        return (size - 1) / (new - 1) if new > 1 else 0.0
    return 1 / scale if scale else size / new
