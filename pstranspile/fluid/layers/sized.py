"""Layers of `layers.nn` and `layers.loss` that cut, draw and pool by sizes that scripts give."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.fluid import unique_name
from pstranspile.fluid.framework import convert_np_dtype_to_dtype_
from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.initializer import Constant
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.layers import nn as nn_layers
from pstranspile.fluid.layers import tensor
from pstranspile.fluid.layers.adapt import check_variable, checked_all, live, one_op, to_core, wrap
from pstranspile.fluid.layers.tensor import assign, fill_constant
from pstranspile.fluid.param_attr import core_attr
from pstranspile.frontends.layers import basic
from pstranspile.frontends.layers.basic import layer
from pstranspile.frontends.layers.nn import bias, name_layer
from pstranspile.frontends.layers.parameters import Normal, create_parameter
from pstranspile.ir.model import Var
from pstranspile.ir.types import DType, VarKind

# Layers of `layers.nn` whose samples are moved.


def _both(name: str, value: Any) -> list[int]:
    """A number for height and width, or one for each. Raises ValueError for another count."""
    held = list(value) if several(value) else [value, value]
    if len(held) != 2:
        raise ValueError(f"deformable_conv: {name} must be a number or two, not {value!r}")
    return held


def deformable_conv(
    input: Any,
    offset: Any,
    mask: Any,
    num_filters: int,
    filter_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int | None = None,
    deformable_groups: int | None = None,
    im2col_step: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    modulated: bool = True,
    name: str | None = None,
) -> Any:
    """Images convolved, with samples moved by `offset`, and if `modulated` multiplied by `mask`.

    Raises ValueError for groups that can't share the channels, and for settings of another length.
    """
    draft = live()
    x = to_core(input)
    channels = x.shape[1]
    if channels < 0 or channels % (groups or 1):
        raise ValueError(f"deformable_conv: %{x.name} has {channels} channels, which {groups} groups can't share")
    size = _both("filter_size", filter_size)
    minted = name_layer(draft, "deformable_conv", name)
    start = Normal(0.0, (2.0 / (size[0] * size[1] * channels)) ** 0.5)
    shape = (num_filters, channels // (groups or 1), *size)
    kernel = create_parameter(draft, minted, core_attr(param_attr, draft), shape, x.dtype, default=start)
    attrs = {
        "strides": _both("stride", stride),
        "paddings": _both("padding", padding),
        "dilations": _both("dilation", dilation),
        "groups": groups or 1,
        "deformable_groups": deformable_groups or 1,
        "im2col_step": im2col_step or 64,
    }
    inputs = {"Input": x, "Filter": kernel, "Offset": to_core(offset)}
    if modulated:
        inputs["Mask"] = to_core(mask)
    op_type = "deformable_conv" if modulated else "deformable_conv_v1"
    out = layer(op_type, inputs, x.dtype, attrs, out="Output", name=minted)
    return wrap(bias(minted, out, core_attr(bias_attr, draft), 1, 2))


checked_all(globals())


# Ragged tensors as arrays of steps, longest sequence first, and the rows of a batch apart by a mask.

_reordered = one_op("reorder_lod_tensor_by_rank", "x, rank_table", "X=x RankTable=rank_table")


def reorder_lod_tensor_by_rank(x: Any, rank_table: Any) -> Any:
    """The sequences of x, or its rows, in the order of a rank table. Raises TypeError for what is no rank table."""
    if to_core(rank_table).var.kind is not VarKind.LOD_RANK_TABLE:
        raise TypeError(f"reorder_lod_tensor_by_rank: {rank_table.name} is no rank table")
    return _reordered(x, rank_table)


def lod_rank_table(x: Any, level: int = 0) -> Any:
    """The sequences of x by length."""
    draft = live()
    draft.names.mint("lod_rank_table")
    table = draft.declare(Var(draft.names.mint("lod_rank_table"), VarKind.LOD_RANK_TABLE))
    draft.op("lod_rank_table", {"X": to_core(x)}, {"Out": table}, {"level": level})
    return wrap(table)


def max_sequence_len(rank_table: Any) -> Any:
    """The length of the longest sequence of a rank table, int64 [1]."""
    key = "max_seqence_len"  # Fluid's spelling
    return wrap(basic.layer("max_sequence_len", {"RankTable": to_core(rank_table)}, DType.INT64, key=key))


def lod_tensor_to_array(x: Any, table: Any) -> Any:
    """The steps of ragged x as an array: in each the rows of all sequences that still have one."""
    draft, value = live(), to_core(x)
    draft.names.mint("lod_tensor_to_array")
    name = draft.names.mint("lod_tensor_to_array")
    tensor = value.tensor._replace(lod_level=max(value.lod_level - 1, 0))
    array = draft.declare(Var(name, VarKind.LOD_TENSOR_ARRAY, tensor))
    draft.op("lod_tensor_to_array", {"X": value, "RankTable": to_core(table)}, {"Out": array})
    return wrap(array)


def array_to_lod_tensor(x: Any, table: Any) -> Any:
    """The ragged tensor whose steps an array holds."""
    value = to_core(x)
    inputs = {"X": value, "RankTable": to_core(table)}
    made = basic.layer("array_to_lod_tensor", inputs, value.dtype)
    tensor = made.tensor._replace(shape=value.shape, lod_level=value.lod_level + 1)
    return wrap(made.draft.declare(made.var._replace(tensor=tensor)))


def shrink_memory(x: Any, i: Any, table: Any) -> Any:
    """The rows of x whose sequences still have a step i."""
    value = to_core(x)
    inputs = {"X": value, "I": to_core(i), "RankTable": to_core(table)}
    return wrap(basic.layer("shrink_rnn_memory", inputs, value.dtype, key="shrink_memory"))


def split_lod_tensor(input: Any, mask: Any, level: int = 0) -> Any:
    """The rows (or sequences of a level) of a batch whose mask (bool [n, 1]) holds, and the others."""
    value = to_core(input)
    outputs = {"OutTrue": value.dtype, "OutFalse": value.dtype}
    made = basic.layer_outputs("split_lod_tensor", {"X": value, "Mask": to_core(mask)}, outputs, {"level": level})
    return tuple(wrap(made))


def merge_lod_tensor(in_true: Any, in_false: Any, x: Any, mask: Any, level: int = 0) -> Any:
    """What `split_lod_tensor` has split: rows of both in the order of x."""
    first = to_core(in_true)
    inputs = {"X": to_core(x), "Mask": to_core(mask), "InTrue": first, "InFalse": to_core(in_false)}
    return wrap(basic.layer("merge_lod_tensor", inputs, first.dtype, {"level": level}))


checked_all(globals())


nn: Any = nn_layers


def _sized(
    helper: LayerHelper, given: Any, attr: str, one: str, many: str, unknown: int = -1
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers of an op as inputs and attributes: a variable, or a list in which variables may stand.

    The attribute says `unknown` of variables.
    """
    if isinstance(given, Variable):
        given.stop_gradient = True
        return {one: given}, {}
    if not several(given) or not given:
        raise TypeError(f"{helper.layer_type}: {attr} is a list, a tuple or a variable, not {given!r}")
    numbers = [unknown if isinstance(dim, Variable) else int(dim) for dim in given]
    if not any(isinstance(dim, Variable) for dim in given):
        return {}, {attr: numbers}
    return {many: [_part(helper, dim) for dim in given]}, {attr: numbers}


def _part(helper: LayerHelper, number: Any) -> Any:
    """A number as a variable that gets no gradient."""
    if isinstance(number, Variable):
        number.stop_gradient = True
        return number
    return fill_constant([1], "int32", number, force_cpu=True, out=helper.create_variable_for_type_inference("int32"))


def _kind(layer: str, dtype: Any, *kinds: str) -> Any:
    """An element type that a layer has. Raises TypeError for others."""
    kind = convert_np_dtype_to_dtype_(dtype)
    if kind not in [convert_np_dtype_to_dtype_(known) for known in kinds]:
        raise TypeError(f"{layer}: the element type is one of {', '.join(kinds)}, not {dtype}")
    return kind


def _cut(helper: LayerHelper, x: Variable, *sizes: tuple[Any, str, str, str, int], **attrs: Any) -> Any:
    out = helper.create_variable_for_type_inference(x.dtype)
    inputs: dict[str, Any] = {"X": x}
    for given, attr, one, many, unknown in sizes:
        read, known = _sized(helper, given, attr, one, many, unknown)
        inputs |= read
        attrs |= known
    helper.append_op(type=helper.layer_type, inputs=inputs, outputs={"Out": out}, attrs=attrs)
    return out


def crop(x: Any, shape: Any = None, offsets: Any = None, name: str | None = None) -> Any:
    """x from `offsets` on (default: the start), of the dims `shape`, or of those of a variable."""
    helper = LayerHelper("crop", name=name)
    start = [0] * len(x.shape) if offsets is None else offsets
    trained = [given for given in (shape, offsets) if isinstance(given, Variable) and not given.stop_gradient]
    out = _cut(helper, x, (shape, "shape", "Y", "Y", -1), (start, "offsets", "Offsets", "Offsets", -1))
    for given in trained:  # only their dims and numbers are read; other ops may need their gradients
        given.stop_gradient = False
    return out


def crop_tensor(x: Any, shape: Any = None, offsets: Any = None, name: str | None = None) -> Any:
    """A part of a tensor like `crop`'s; dims and offsets may be variables, all together or one by one. A dim of -1 goes
    to the end.

    Raises TypeError for what are no whole numbers, ValueError for dims of 0 and below -1 and negative offsets.
    """
    helper = LayerHelper("crop_tensor", name=name)
    start = [0] * len(x.shape) if offsets is None else offsets
    for what, given, least in (("shape", shape, -1), ("offsets", start, 0)):
        for number in given if several(given) else ():
            if not isinstance(number, Variable | int):
                raise TypeError(f"crop_tensor: {what} has whole numbers and variables, not {number!r}")
            if isinstance(number, int) and (number < least or (what == "shape" and number == 0)):
                raise ValueError(f"crop_tensor: {what} has {number}")
    sizes = (shape, "shape", "Shape", "ShapeTensor", 0)
    unknown = [-1] * len(x.shape)  # what a variable says in each run
    return _cut(helper, x, (start, "offsets", "Offsets", "OffsetsTensor", -1), sizes, offsets=unknown)


_BOUNDS = (("starts", "StartsTensor"), ("ends", "EndsTensor"), ("strides", "StridesTensor"))


def strided_slice(input: Any, axes: Any, starts: Any, ends: Any, strides: Any) -> Any:
    """A slice like `slice`'s with a step along each of the axes; bounds and steps may be variables, all together or one
    by one.
    """
    helper = LayerHelper("strided_slice")
    inputs: dict[str, Any] = {"Input": input}
    attrs: dict[str, Any] = {"axes": list(axes)}
    for (attr, slot), given in zip(_BOUNDS, (starts, ends, strides), strict=True):
        read, known = _sized(helper, given, attr, slot, f"{slot}List")
        inputs |= read
        attrs |= known
    lists = [given for given in (starts, ends, strides) if several(given)]
    attrs["infer_flags"] = [
        -1 if any(isinstance(given[at], Variable) for given in lists if at < len(given)) else 1
        for at in range(len(attrs["axes"]))
    ]
    out = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op(type="strided_slice", inputs=inputs, outputs={"Out": out}, attrs=attrs)
    return out


def randperm(
    n: int, out: Any = None, dtype: Any = "int64", device: Any = None, stop_gradient: bool = True, seed: int = 0
) -> Any:
    """The whole numbers below `n` in random order.

    Raises ValueError for `n` below 1, TypeError for other element types than int32 and int64.
    """
    if n < 1:
        raise ValueError(f"randperm: n is {n}, there are no numbers below it")
    if device not in (None, "cpu", "gpu"):
        raise ValueError(f"randperm: device is 'cpu' or 'gpu', not {device!r}")
    helper, kind = LayerHelper("randperm"), _kind("randperm", dtype, "int64", "int32")
    made = helper.create_variable_for_type_inference(kind) if out is None else out
    if made.dtype != kind:
        raise TypeError(f"randperm: out holds {made.dtype!r}, not {dtype}")
    if stop_gradient:
        made.stop_gradient = True
    attrs = {"n": n, "dtype": kind, "seed": seed}
    helper.append_op(type="randperm", inputs={}, outputs={"Out": made}, attrs=attrs)
    return made


def lod_append(x: Any, level: Any) -> Any:
    """x with one more level of sequences: offsets (ints) from 0 to the number of rows, or the level of a variable."""
    if not isinstance(level, Variable) and not several(level):
        raise ValueError(f"lod_append: level is a list, a tuple or a variable, not {level!r}")
    check_variable("lod_append", "x", x, ("float32", "float64", "int32", "int64"))
    helper = LayerHelper("lod_append")
    out = helper.create_variable_for_type_inference(x.dtype)
    given = isinstance(level, Variable)
    inputs = {"X": x, "Y": level} if given else {"X": x}
    attrs: dict[str, Any] = {"append": True} if given else {"append": True, "target_lod": list(level)}
    helper.append_op(type="lod_reset", inputs=inputs, outputs={"Out": out}, attrs=attrs)
    return out


def random_crop(x: Any, shape: Any, seed: Any = None) -> Any:
    """A random part of each tensor of x, of the dims `shape`, another one in every step.

    `seed` is a number to begin with, by default a random one, or a variable that changes from step to step. Raises
    ValueError for anything else.
    """
    helper = LayerHelper("random_crop")
    attrs: dict[str, Any] = {"shape": list(shape)}
    if seed is None:
        seed = int(np.random.randint(-65536, 65536))
    if isinstance(seed, int):
        attrs["startup_seed"] = seed
        seed = helper.create_variable(name=unique_name.generate("random_crop_seed"), dtype="int64", persistable=True)
    elif not isinstance(seed, Variable):
        raise ValueError(f"random_crop: seed is a whole number or a variable, not {seed!r}")
    out = helper.create_variable_for_type_inference(x.dtype)
    outputs = {"Out": out, "SeedOut": seed}
    helper.append_op(type="random_crop", inputs={"X": x, "Seed": seed}, outputs=outputs, attrs=attrs)
    return out


def randint(
    low: int,
    high: int | None = None,
    shape: Any = None,
    out: Any = None,
    dtype: Any = None,
    device: Any = None,
    stop_gradient: bool = False,
    seed: int = 0,
    name: str | None = None,
) -> Any:
    """Whole numbers drawn from [low, high), or [0, low).

    Raises ValueError where there are none between the two, TypeError for other element types than int32 and int64.
    """
    low, high = (0, low) if high is None else (low, high)
    if low >= high:
        raise ValueError(f"randint: low is {low} and high {high}, nothing lies between them")
    helper = LayerHelper("randint", name=name)
    kind = _kind("randint", dtype or "int64", "int32", "int64")
    inputs, attrs = _sized(helper, [1] if shape is None else shape, "shape", "ShapeTensor", "ShapeTensorList")
    out = helper.create_variable_for_type_inference(kind) if out is None else out
    helper.append_op(
        type="randint",
        inputs=inputs,
        outputs={"Out": out},
        attrs={**({} if inputs else attrs), "low": low, "high": high, "seed": seed, "dtype": kind},
    )
    out.stop_gradient = stop_gradient
    return out


def randn(
    shape: Any,
    out: Any = None,
    dtype: Any = None,
    device: Any = None,
    stop_gradient: bool = True,
    name: str | None = None,
) -> Any:
    """Numbers of the standard normal distribution, others for every layer.

    Raises TypeError for other element types than float32 and float64, AssertionError for a shape without dims.
    """
    if not several(shape):
        raise TypeError(f"randn: shape is a list or a tuple, not {shape!r}")
    if not shape:
        raise AssertionError("randn: shape has no dims")
    helper = LayerHelper("randn", name=name)
    kind = _kind("randn", dtype or "float32", "float32", "float64")
    out = helper.create_variable_for_type_inference(kind) if out is None else out
    attrs = {"shape": list(shape), "mean": 0.0, "std": 1.0, "seed": int(np.random.randint(0, 100)), "dtype": kind}
    helper.append_op(type="gaussian_random", inputs={}, outputs={"Out": out}, attrs=attrs)
    out.stop_gradient = stop_gradient
    return out


def _adaptive_pool(dims: int, input: Any, pool_size: Any, pool_type: str, require_index: bool, name: str | None) -> Any:
    layer = f"adaptive_pool{dims}d"
    if pool_type not in ("max", "avg"):
        raise ValueError(f"{layer}: pool_type is 'max' or 'avg', not {pool_type!r}")
    if pool_type == "avg" and require_index:
        raise ValueError(f"{layer}: means have no index, require_index goes with pool_type='max'")
    op_type = f"max_pool{dims}d_with_index" if pool_type == "max" else f"pool{dims}d"
    helper = LayerHelper(op_type, name=name)
    sizes = [pool_size] * dims if isinstance(pool_size, int) else list(pool_size)
    out = helper.create_variable_for_type_inference(input.dtype)
    mask = helper.create_variable_for_type_inference("int32") if pool_type == "max" else None
    attrs = {"pooling_type": pool_type, "ksize": sizes, "adaptive": True}
    outputs = {"Out": out} if mask is None else {"Out": out, "Mask": mask}
    helper.append_op(type=op_type, inputs={"X": input}, outputs=outputs, attrs=attrs)
    return (out, mask) if require_index else out


def adaptive_pool2d(
    input: Any, pool_size: Any, pool_type: str = "max", require_index: bool = False, name: str | None = None
) -> Any:
    """Images pooled to `pool_size`, a number or one for each dim; with `require_index` also where the maxima were."""
    return _adaptive_pool(2, input, pool_size, pool_type, require_index, name)


def adaptive_pool3d(
    input: Any, pool_size: Any, pool_type: str = "max", require_index: bool = False, name: str | None = None
) -> Any:
    """Volumes pooled to `pool_size`, a number or one for each dim; with `require_index` also where the maxima were."""
    return _adaptive_pool(3, input, pool_size, pool_type, require_index, name)


def sign(x: Any) -> Any:
    """-1, 0 or 1 for every element of a variable or an array."""
    return nn.sign(assign(x) if isinstance(x, np.ndarray) else x)


def diag(diagonal: Any) -> Any:
    """The matrix with the elements of a variable or an array on its diagonal."""
    return tensor.diag(assign(diagonal) if isinstance(diagonal, np.ndarray) else diagonal)


def image_resize_short(input: Any, out_short_len: int, resample: str = "BILINEAR") -> Any:
    """Images whose shorter side gets a length, and the other side one in proportion."""
    if len(input.shape) != 4:
        raise ValueError(f"image_resize_short takes images [N, C, H, W], not {list(input.shape)}")
    sides = list(input.shape[2:4])
    short = sides.index(min(sides))
    longer = int(float(sides[1 - short]) * (float(out_short_len) / float(sides[short])) + 0.5)
    sides[short], sides[1 - short] = out_short_len, longer
    return nn.image_resize(input=input, out_shape=sides, resample=resample)


def center_loss(
    input: Any, label: Any, num_classes: int, alpha: Any, param_attr: Any, update_center: bool = True
) -> Any:
    """Half the squared distance to the centre of the row's class; centres move by `alpha`, a float or a variable."""
    helper = LayerHelper("center_loss", param_attr=param_attr)
    centers = helper.create_parameter(param_attr, [num_classes, input.shape[1]], input.dtype)
    centers.stop_gradient = True
    rate = alpha
    if not isinstance(alpha, Variable):
        rate = helper.create_global_variable(
            name="centerloss_alpha", shape=[1], dtype="float32", persistable=True, stop_gradient=True
        )
        helper.startup_program.global_block().create_var(name=rate.name, shape=[1], dtype="float32", persistable=True)
        helper.set_variable_initializer(rate, Constant(alpha))
    difference, loss = (helper.create_variable_for_type_inference(input.dtype) for _ in range(2))
    helper.append_op(
        type="center_loss",
        inputs={"X": input, "Label": label, "Centers": centers, "CenterUpdateRate": rate},
        outputs={"SampleCenterDiff": difference, "Loss": loss, "CentersOut": centers},
        attrs={"cluster_num": num_classes, "need_update": update_center},
    )
    return loss
