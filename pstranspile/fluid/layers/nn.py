"""Fluid's `layers.nn`: layers with parameters, and layers that reshape, cut, sample and count tensors."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from pstranspile.fluid import unique_name
from pstranspile.fluid.framework import convert_np_dtype_to_dtype_
from pstranspile.fluid.graph.values import dtype_of, numpy_name, several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.layers.adapt import (
    adapt,
    check_kind,
    check_variable,
    every,
    live,
    made_by,
    name_first_layer,
    one_op,
    to_core,
    with_argument_checks,
    wrap,
)
from pstranspile.fluid.layers.tensor import assign, fill_constant, zeros
from pstranspile.fluid.lod_tensor import LoDTensor
from pstranspile.fluid.lod_tensor import to_core as value_of
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.param_attr import core_attr
from pstranspile.frontends import layers as L
from pstranspile.frontends.layers import basic, conv, loss, nn, parameters, sequence, tensor
from pstranspile.frontends.layers.draft import Value, whole_dim
from pstranspile.frontends.layers.nn import GENERATED
from pstranspile.frontends.layers.nn import inplace_abn as inplace
from pstranspile.ir.attributes import Strings
from pstranspile.ir.types import DType
from pstranspile.runtime.kernels.programs.io import HostFunction, register

# `layers.py_func`: a function of the script as an op.


def _as_host_function(function: Callable[..., Any]) -> HostFunction:
    """The script's function over values of runs; it gets LoDTensors, or nothing if it takes no arguments."""
    takes_none = not inspect.signature(function).parameters

    def call(values: Sequence[Any]) -> list[Any]:
        given = [LoDTensor(getattr(value, "data", value), getattr(value, "lod", ())) for value in map(_plain, values)]
        made = function() if takes_none else function(*given)
        items: list[Any] = [*made] if several(made) else [made]
        return [_value(item) for item in items]

    return call


def _plain(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.ndarray | np.generic) else value


def _value(item: Any) -> Any:
    if item is None or isinstance(item, LoDTensor):
        return value_of(item)
    return np.asarray(item)


def _as_variable_list(layer: str, given: Any) -> list[Any]:
    items: list[Any] = [] if given is None else list(given) if several(given) else [given]
    for item in items:
        check_kind("py_func", layer, item, ("Variable",))
    return items


@with_argument_checks
def py_func(
    func: Callable[..., Any],
    x: Any,
    out: Any,
    backward_func: Callable[..., Any] | None = None,
    skip_vars_in_backward_input: Any = None,
) -> Any:
    """`out`, variables with declared dims, filled with the results of `func` for the tensors `x`.

    `backward_func` takes x, out and the gradients of out, without the skipped ones, and returns the gradients of x.
    """
    if not callable(func):
        raise TypeError(f"py_func: func must be a function, not {type(func).__name__}")
    read, written = _as_variable_list("x", x), _as_variable_list("out", out)
    for variable in written:
        if not variable.shape:
            raise ValueError(f"py_func: the dims of {variable.name} must be declared")
    skipped = {
        variable.name for variable in _as_variable_list("skip_vars_in_backward_input", skip_vars_in_backward_input)
    }
    unknown = skipped - {variable.name for variable in (*read, *written)}
    if unknown:
        raise ValueError(f"py_func: {min(unknown)} can't be skipped, it is neither in x nor in out")
    draft = live()
    draft.names.mint("py_func")
    attrs = {
        "forward_callable_id": register(_as_host_function(func)),
        "backward_callable_id": -1 if backward_func is None else register(_as_host_function(backward_func)),
        "backward_skip_vars": Strings(sorted(skipped) if backward_func is not None else ()),
    }
    draft.op("py_func", {"X": to_core(read)}, {"Out": to_core(written)}, attrs)
    return out


_TAIL = "param_attr=None, bias_attr=None, act=None, name=None"
_CONV = "param_attr=None, bias_attr=None, use_cudnn=True, act=None, name=None, data_format='NCHW'"
_NORM = "momentum=0.9, epsilon=1e-05, param_attr=None, bias_attr=None, data_layout='NCHW'"
_MEANS = "moving_mean_name=None, moving_variance_name=None, do_model_average_for_mean_and_var=True"
_POOL = "use_cudnn=True, ceil_mode=False, name=None, exclusive=True, data_format='NCHW'"
_RESIZED = (
    "input, out_shape=None, scale=None, name=None, resample='BILINEAR', actual_shape=None, align_corners=True, "
    "align_mode=1, data_format='NCHW'"
)
_REDUCED = "input, dim=None, keep_dim=False, name=None"
_PAIR = "x, y, axis=-1, act=None, name=None"
_SIZE = "name=None, actual_shape=None, align_corners=True, align_mode=1, data_format='NCHW'"

fc = adapt(L.fc, f"input, size, num_flatten_dims=1, {_TAIL}", x="input")
embedding = adapt(
    L.embedding,
    "input, size, is_sparse=False, is_distributed=False, padding_idx=None, param_attr=None, dtype='float32'",
    ids="input",
)
conv2d = adapt(
    L.conv2d, f"input, num_filters, filter_size, stride=1, padding=0, dilation=1, groups=None, {_CONV}", x="input"
)
conv2d_transpose = adapt(
    L.conv2d_transpose,
    f"input, num_filters, output_size=None, filter_size=None, padding=0, stride=1, dilation=1, groups=None, {_CONV}",
    x="input",
)
_VOLUME = _CONV.replace("NCHW", "NCDHW")
conv3d = adapt(
    conv.conv3d, f"input, num_filters, filter_size, stride=1, padding=0, dilation=1, groups=None, {_VOLUME}", x="input"
)
conv3d_transpose = adapt(
    conv.conv3d_transpose,
    f"input, num_filters, output_size=None, filter_size=None, padding=0, stride=1, dilation=1, groups=None, {_VOLUME}",
    x="input",
)
pool3d = adapt(
    conv.pool3d,
    "input, pool_size=-1, pool_type='max', pool_stride=1, pool_padding=0, global_pooling=False, "
    + _POOL.replace("NCHW", "NCDHW"),
    x="input",
)
pool2d = adapt(
    L.pool2d,
    f"input, pool_size=-1, pool_type='max', pool_stride=1, pool_padding=0, global_pooling=False, {_POOL}",
    x="input",
)
batch_norm = adapt(
    L.batch_norm,
    f"input, act=None, is_test=False, {_NORM}, in_place=False, name=None, {_MEANS}, use_global_stats=False",
    x="input",
)
_ABN = f"input, act=None, is_test=False, {_NORM}, name=None, {_MEANS}, use_global_stats=False, act_alpha=1.0"
inplace_abn = adapt(inplace, _ABN, x="input")
layer_norm = adapt(
    L.layer_norm,
    f"input, scale=True, shift=True, begin_norm_axis=1, epsilon=1e-05, {_TAIL}",
    x="input",
)
_group_norm = adapt(
    nn.group_norm,
    "input, groups, epsilon=1e-05, param_attr=None, bias_attr=None, act=None, data_layout='NCHW', name=None",
    x="input",
)
instance_norm = adapt(nn.instance_norm, "input, epsilon=1e-05, param_attr=None, bias_attr=None, name=None", x="input")
_data_norm = adapt(
    nn.data_norm,
    f"input, act=None, epsilon=1e-05, starts=None, data_layout='NCHW', in_place=False, name=None, {_MEANS}, "
    "slot_dim=-1, sync_stats=False, summary_decay_rate=0.9999999, enable_scale_and_shift=False",
    "do_model_average_for_mean_and_var sync_stats",
    x="input",
)


def data_norm(
    input: Any, act: str | None = None, epsilon: float = 1e-05, param_attr: Any = None, *args: Any, **options: Any
) -> Any:
    """Inputs normalised by counts, sums and sums of squares; a dict as `param_attr` has the first values of these
    three.
    """
    starts = param_attr if _is_dict(param_attr) else None  # as in Fluid, which ignores other values
    return _data_norm(input, act, epsilon, starts, *args, **options)


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


softmax = adapt(L.softmax, "input, use_cudnn=False, name=None, axis=-1", x="input")
dropout = adapt(
    L.dropout,
    "x, dropout_prob, is_test=False, seed=None, name=None, dropout_implementation='downgrade_in_infer'",
    probability="dropout_prob",
    implementation="dropout_implementation",
)
split = adapt(tensor.split, "input, num_or_sections, dim=-1, name=None", x="input", parts="num_or_sections")
l2_normalize = adapt(nn.l2_normalize, "x, axis, epsilon=1e-12, name=None")
matmul = adapt(L.matmul, "x, y, transpose_x=False, transpose_y=False, alpha=1.0, name=None")
_topk = adapt(loss.top_k, "input, k, name=None", x="input")
transpose = adapt(L.transpose, "x, perm, name=None", order="perm")
row_conv = adapt(sequence.row_conv, "input, future_context_size, param_attr=None, act=None", x="input")
reshape = adapt(tensor.reshape, "x, shape, actual_shape=None, act=None, inplace=False, name=None")
squeeze = adapt(tensor.squeeze, "input, axes, name=None", x="input")
unsqueeze = adapt(tensor.unsqueeze, "input, axes, name=None", x="input")
flatten = adapt(tensor.flatten, "x, axis=1, name=None")
_stack = adapt(tensor.stack, "x, axis=0", values="x")
unstack = adapt(tensor.unstack, "x, axis=0, num=None")
slice = adapt(tensor.slice_, "input, axes, starts, ends", called="slice", x="input")
lod_reset = adapt(sequence.lod_reset, "x, y=None, target_lod=None")
lrn = adapt(nn.lrn, "input, n=5, k=1.0, alpha=0.0001, beta=0.75, name=None, data_format='NCHW'", x="input")
pad = adapt(tensor.pad, "x, paddings, pad_value=0.0, name=None")
pad2d = adapt(
    conv.pad2d,
    "input, paddings=[0, 0, 0, 0], mode='constant', pad_value=0.0, data_format='NCHW', name=None",
    x="input",
)
label_smooth = adapt(loss.label_smooth, "label, prior_dist=None, epsilon=0.1, dtype='float32', name=None")
smooth_l1 = adapt(loss.smooth_l1, "x, y, inside_weight=None, outside_weight=None, sigma=1.0")
image_resize = adapt(conv.image_resize, _RESIZED, x="input")
resize_bilinear = adapt(conv.resize_bilinear, f"input, out_shape=None, scale=None, {_SIZE}", x="input")
resize_nearest = adapt(
    conv.resize_nearest,
    "input, out_shape=None, scale=None, name=None, actual_shape=None, align_corners=True, data_format='NCHW'",
    x="input",
)
interpolate = adapt(conv.image_resize, _RESIZED, called="interpolate", x="input")
gather = adapt(tensor.gather, "input, index, overwrite=True", x="input")
gather_nd = adapt(tensor.gather_nd, "input, index, name=None", x="input")
scatter = adapt(tensor.scatter, "input, index, updates, name=None, overwrite=True", x="input")
scatter_nd_add = adapt(tensor.scatter_nd_add, "ref, index, updates, name=None", x="ref")
expand = adapt(tensor.expand, "x, expand_times, name=None", times="expand_times")
expand_as = adapt(tensor.expand_as, "x, target_tensor, name=None", target="target_tensor")
where = adapt(tensor.where, "condition")
shape = adapt(tensor.shape, "input", x="input")
size = adapt(tensor.size, "input", x="input")
clip = adapt(basic.clip, "x, min, max, name=None", low="min", high="max")
clip_by_norm = adapt(basic.clip_by_norm, "x, max_norm, name=None")
mean = adapt(L.mean, "x, name=None")
maxout = adapt(conv.maxout, "x, groups, name=None, axis=1")
space_to_depth = adapt(conv.space_to_depth, "x, blocksize, name=None")
pixel_shuffle = adapt(conv.pixel_shuffle, "x, upscale_factor")
shuffle_channel = adapt(conv.shuffle_channel, "x, group, name=None")
log_loss = adapt(loss.log_loss, "input, label, epsilon=0.0001, name=None", probability="input")
cos_sim = adapt(loss.cos_sim, "X, Y", x="X", y="Y")
add_position_encoding = adapt(sequence.add_position_encoding, "input, alpha, beta, name=None", x="input")
bilinear_tensor_product = adapt(
    L.bilinear_tensor_product, "x, y, size, act=None, name=None, param_attr=None, bias_attr=None"
)
merge_selected_rows = adapt(basic.merge_selected_rows, "x, name=None")
get_tensor_from_selected_rows = adapt(basic.get_tensor_from_selected_rows, "x, name=None")
continuous_value_model = adapt(nn.continuous_value_model, "input, cvm, use_cvm=True", x="input")
linear_chain_crf = adapt(L.linear_chain_crf, "input, label, param_attr=None, length=None", x="input")
crf_decoding = adapt(L.crf_decoding, "input, param_attr, label=None, length=None", x="input")
uniform_random = adapt(
    tensor.uniform_random, "shape, dtype='float32', min=-1.0, max=1.0, seed=0", low="min", high="max"
)
gaussian_random = adapt(tensor.gaussian_random, "shape, mean=0.0, std=1.0, seed=0, dtype='float32'")


@with_argument_checks
def group_norm(
    input: Any,
    groups: int,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
) -> Any:
    """Channels normalised in groups, image by image; with a scale and a bias if their attributes are given."""
    return _group_norm(input, groups, epsilon, param_attr or False, bias_attr or False, act, data_layout, name)


@with_argument_checks
def topk(input: Any, k: Any, name: str | None = None) -> Any:
    """The k largest elements of each row and their indices; k may be a variable."""
    if not isinstance(k, Variable):
        return _topk(input, k, name)
    return made_by("top_k", {"X": input, "K": k}, "Out Indices:int64", {"k": 1}, stopped="*")


reduce_sum = adapt(basic.reduce_sum, _REDUCED, x="input")
reduce_mean = adapt(basic.reduce_mean, _REDUCED, x="input")
reduce_max = adapt(basic.reduce_max, _REDUCED, x="input")
reduce_min = adapt(basic.reduce_min, _REDUCED, x="input")
reduce_prod = adapt(basic.reduce_prod, _REDUCED, x="input")
reduce_all = adapt(basic.reduce_all, _REDUCED, x="input")
reduce_any = adapt(basic.reduce_any, _REDUCED, x="input")
elementwise_add = adapt(basic.elementwise_add, _PAIR)
elementwise_sub = adapt(basic.elementwise_sub, _PAIR)
elementwise_mul = adapt(basic.elementwise_mul, _PAIR)
elementwise_div = adapt(basic.elementwise_div, _PAIR)
elementwise_max = adapt(basic.elementwise_max, _PAIR)
elementwise_min = adapt(basic.elementwise_min, _PAIR)
elementwise_pow = adapt(basic.elementwise_pow, _PAIR)
elementwise_mod = adapt(basic.elementwise_mod, _PAIR)
elementwise_floordiv = adapt(basic.elementwise_floordiv, _PAIR)
mul = one_op(
    "mul",
    "x, y, x_num_col_dims=1, y_num_col_dims=1, name=None",
    "X=x Y=y",
    attrs="x_num_col_dims y_num_col_dims",
)
multiplex = one_op("multiplex", "inputs, index", "X=inputs Ids=index")
_sign = one_op("sign", "x", "X=x")
sampling_id = one_op("sampling_id", "x, min=0.0, max=1.0, seed=0, dtype='float32'", "X=x", "Out:int64", "min max seed")
shard_index = one_op(
    "shard_index",
    "input, index_num, nshards, shard_id, ignore_value=-1",
    "X=input",
    attrs="index_num nshards shard_id ignore_value",
)
hash = one_op("hash", "input, hash_size, num_hash=1, name=None", "X=input", attrs="num_hash mod_by=hash_size")
gather_tree = one_op("gather_tree", "ids, parents", "Ids=ids Parents=parents")
unique = one_op("unique", "x, dtype='int32'", "X=x", "Out Index:int32*", "dtype")
unique_with_counts = one_op("unique_with_counts", "x, dtype='int32'", "X=x", "Out Index:int32 Count:int32*", "dtype")
similarity_focus = one_op("similarity_focus", "input, axis, indexes, name=None", "X=input", attrs="axis indexes")
temporal_shift = one_op("temporal_shift", "x, seg_num, shift_ratio=0.25, name=None", "X=x", attrs="seg_num shift_ratio")
fsp_matrix = one_op("fsp", "x, y", "X=x Y=y", key="fsp_matrix")
pad_constant_like = one_op("pad_constant_like", "x, y, pad_value=0.0, name=None", "X=x Y=y", attrs="pad_value")
index_select = one_op("index_select", "input, index, dim=0", "X=input Index=index", attrs="dim")
index_sample = one_op("index_sample", "x, index", "X=x Index=index")
roll = one_op("roll", "input, shifts, dims=None", "X=input", attrs="shifts dims")
flip = one_op("flip", "input, dims, name=None", "X=input", attrs="dims")
bmm = one_op("bmm", "x, y, name=None", "X=x Y=y")
dot = one_op("dot", "x, y, name=None", "X=x Y=y")
dist = one_op("dist", "x, y, p=2", "X=x Y=y", attrs="p")
mean_iou = one_op(
    "mean_iou",
    "input, label, num_classes",
    "Predictions=input Labels=label",
    "OutMeanIou:float32 OutWrong:int32 OutCorrect:int32*",
    "num_classes",
)
grid_sampler = one_op("grid_sampler", "x, grid, name=None", "X=x Grid=grid", "Output")
logical_and = one_op("logical_and", "x, y, out=None, name=None", "X=x Y=y", "Out:bool")
logical_or = one_op("logical_or", "x, y, out=None, name=None", "X=x Y=y", "Out:bool")
logical_xor = one_op("logical_xor", "x, y, out=None, name=None", "X=x Y=y", "Out:bool")
logical_not = one_op("logical_not", "x, out=None, name=None", "X=x", "Out:bool")
uniform_random_batch_size_like = one_op(
    "uniform_random_batch_size_like",
    "input, shape, dtype='float32', input_dim_idx=0, output_dim_idx=0, min=-1.0, max=1.0, seed=0",
    "Input=input",
    "Out:float32",
    "shape dtype input_dim_idx output_dim_idx min max seed",
)
gaussian_random_batch_size_like = one_op(
    "gaussian_random_batch_size_like",
    "input, shape, input_dim_idx=0, output_dim_idx=0, mean=0.0, std=1.0, seed=0, dtype='float32'",
    "Input=input",
    "Out:float32",
    "shape dtype input_dim_idx output_dim_idx mean std seed",
)
log1p = one_op("log1p", "x, out=None, name=None", "X=x")

mish = one_op("mish", "x, threshold=20, name=None", "X=x", attrs="threshold")

addmm = one_op(
    "addmm", "input, x, y, alpha=1.0, beta=1.0, name=None", "Input=input X=x Y=y", attrs="Alpha=alpha Beta=beta"
)

allclose = one_op(
    "allclose",
    "input, other, rtol=1e-05, atol=1e-08, equal_nan=False, name=None",
    "Input=input Other=other",
    "Out:bool",
    "rtol atol equal_nan",
)

_crossed = one_op("cross", "input, other, dim=None", "X=input Y=other", attrs="dim")

_diagonals = one_op("diag_embed", "input, offset=0, dim1=-2, dim2=-1", "Input=input", attrs="offset dim1 dim2")

_windows = one_op(
    "unfold",
    "x, kernel_sizes, strides, paddings, dilations, name=None",
    "X=x",
    "Y",
    "kernel_sizes strides paddings dilations",
)


@with_argument_checks
def scale(
    x: Any, scale: Any = 1.0, bias: float = 0.0, bias_after_scale: bool = True, act: Any = None, name: Any = None
) -> Any:
    """scale * x + bias, or scale * (x + bias); `scale` is a number or a variable of one element."""
    with name_first_layer(name):
        attrs: dict[str, object] = {"bias": float(bias), "bias_after_scale": bias_after_scale}
        value = to_core(x)
        inputs = {"X": value}
        if isinstance(scale, Variable):
            inputs["ScaleTensor"] = to_core(scale)
        else:
            attrs["scale"] = float(scale)
        layer = value.draft.names.mint("scale")
        made = basic.layer("scale", inputs, value.dtype, attrs, name=layer)
        return wrap(basic.activation(layer, made, act))


@with_argument_checks
def stack(x: Any, axis: int = 0) -> Any:
    """Several tensors of one shape, or a single one, joined along a new dim."""
    return _stack(x if several(x) else [x], axis)


@with_argument_checks
def sum(x: Any) -> Any:
    """The sum of several tensors of one shape."""
    return wrap(basic.sums(to_core(x if several(x) else [x])))


def resize_trilinear(
    input: Any,
    out_shape: Any = None,
    scale: Any = None,
    name: Any = None,
    actual_shape: Any = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCDHW",
) -> Any:
    """Volumes resized to given dims, or by a factor."""
    method = "TRILINEAR"
    return image_resize(input, out_shape, scale, name, method, actual_shape, align_corners, align_mode, data_format)


@with_argument_checks
def one_hot(input: Any, depth: Any, allow_out_of_range: bool = False) -> Any:
    """A row of `depth` elements for each id [..., 1], all 0 but a 1 at the id."""
    return hot_rows("one_hot", input, depth, allow_out_of_range)


def hot_rows(op_type: str, input: Any, depth: Any, allow_out_of_range: bool) -> Any:
    """A row of `depth` elements for each id, all 0 but a 1 at the id; `depth` is a number or a variable."""
    inputs: dict[str, Any] = {"X": input}
    attrs: dict[str, Any] = {"allow_out_of_range": allow_out_of_range}
    if isinstance(depth, Variable):
        to_core(depth).stopped()
        inputs["depth_tensor"] = depth
    else:
        attrs["depth"] = int(depth)
    return made_by(op_type, inputs, "Out:float32", attrs, stopped="*")[0]


def autoincreased_step_counter(counter_name: str | None = None, begin: int = 1, step: int = 1) -> Any:
    """A counter (int64 [1]) that increases by `step` in every run."""
    return wrap(basic.step_counter(live(), counter_name or "@STEP_COUNTER@", begin, step))


def _sides(given: Any) -> list[int]:
    """A number for each of the two dims of an image, from one number for both or a list."""
    return [given, given] if isinstance(given, int) else list(given)


@with_argument_checks
def im2sequence(
    input: Any,
    filter_size: Any = 1,
    stride: Any = 1,
    padding: Any = 0,
    input_image_size: Any = None,
    out_stride: Any = 1,
    name: str | None = None,
) -> Any:
    """The windows of images as the steps of sequences. `input_image_size` ([images, 2]) limits the part of each image
    that is used.
    """
    paddings = _sides(padding)
    paddings = paddings if len(paddings) == 4 else [*paddings, *paddings]
    attrs = {"kernels": _sides(filter_size), "strides": _sides(stride), "paddings": paddings}
    if input_image_size is not None:
        attrs["out_stride"] = _sides(out_stride)
    return made_by("im2sequence", {"X": input, "Y": input_image_size}, attrs=attrs, name=name)[0]


@with_argument_checks
def ctc_greedy_decoder(
    input: Any, blank: int, input_length: Any = None, padding_value: int = 0, name: Any = None
) -> Any:
    """The most probable label of every step, without blanks and repetitions."""
    value = to_core(input)
    with name_first_layer(name):
        layer = value.draft.names.mint("ctc_greedy_decoder")
        best: Value = to_core(_topk(input, 1)[1])
        if input_length is None:
            outputs = {"Output": dtype_of("int64")}
            return wrap(
                basic.layer_outputs(
                    "ctc_align", {"Input": best}, outputs, {"merge_repeated": True, "blank": blank}, name=layer
                )[0]
            )
        squeezed = tensor.squeeze(best, [2])
        attrs = {"merge_repeated": True, "blank": blank, "padding_value": padding_value}
        outputs = {"Output": dtype_of("int64"), "OutputLength": dtype_of("int64")}
        inputs = {"Input": squeezed, "InputLength": to_core(input_length)}
        return tuple(wrap(basic.layer_outputs("ctc_align", inputs, outputs, attrs, name=layer)))


chunk_eval = one_op(
    "chunk_eval",
    "input, label, chunk_scheme, num_chunk_types, excluded_chunk_types=None, seq_length=None",
    "Inference=input Label=label SeqLength=seq_length",
    "Precision:float32 Recall:float32 F1-Score:float32 "
    "NumInferChunks:int64 NumLabelChunks:int64 NumCorrectChunks:int64",
    "num_chunk_types chunk_scheme excluded_chunk_types:items",
    gives=every,
)


def filter_by_instag(ins: Any, ins_tag: Any, filter_tag: Any, is_lod: bool, out_val_if_empty: int = 0) -> Any:
    """The instances that have one of the tags, and their weights."""
    values = (to_core(ins), to_core(ins_tag), to_core(filter_tag))
    made = sequence.filter_by_instag(*values, is_lod, out_val_if_empty=out_val_if_empty)
    return wrap(list(made))


@with_argument_checks
def rank(input: Any) -> Any:
    """The number of dims of a tensor, as a variable."""
    return wrap(basic.fill_constant(live(), [1], dtype_of("int32"), len(input.shape)))


def dice_loss(input: Any, label: Any, epsilon: float = 1e-05, name: Any = None) -> Any:
    """One minus the Dice coefficient: twice the overlap of probabilities and labels divided by their sum."""
    hot: Value = tensor.one_hot(to_core(label), input.shape[-1])
    value, along = to_core(input), list(range(1, len(input.shape)))
    inside = basic.reduce_sum(value * hot, along)
    both = basic.reduce_sum(value, along) + basic.reduce_sum(hot, along)
    return wrap(basic.reduce_mean((inside * 2.0 / (both + epsilon)) * -1.0 + 1.0))


@with_argument_checks
def spectral_norm(weight: Any, dim: int = 0, power_iters: int = 1, eps: float = 1e-12, name: Any = None) -> Any:
    """The weight divided by its largest singular value, which a few steps of power iteration estimate."""
    value = to_core(weight)
    high = value.shape[dim]
    with name_first_layer(name):
        layer = value.draft.names.mint("spectral_norm")
        sides = [
            parameters.create_parameter(
                value.draft, layer, None, [length], value.dtype, default=parameters.Normal(0.0, 1.0)
            ).stopped()
            for length in (high, prod(value.shape) // high)
        ]
        inputs = {"Weight": value, "U": sides[0], "V": sides[1]}
        attrs = {"dim": dim, "power_iters": power_iters, "eps": eps}
        out = value.draft.fresh(GENERATED, value.dtype)
        value.draft.op("spectral_norm", inputs, {"Out": out}, attrs)
        return wrap(out)


def cross(input: Any, other: Any, dim: int | None = None) -> Any:
    """The cross products of the vectors along `dim`, by default along the first dim with 3 elements."""
    return _crossed(input, other, dim or None)


def diag_embed(input: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Matrices with the rows of a tensor on their diagonals. Raises AssertionError for dims that do not exist or are
    equal.
    """
    value = input if isinstance(input, Variable) else assign(input)
    dims = len(value.shape)
    if abs(dim1) > dims or abs(dim2) > dims or dim1 % (dims + 1) == dim2 % (dims + 1):
        raise AssertionError(f"dim1 and dim2 are two dims of {dims + 1}, not {dim1} and {dim2}")
    made = _diagonals(value, offset, dim1, dim2)
    made.stop_gradient = True
    return made


def _pair(name: str, given: Any) -> list[int]:
    if isinstance(given, int):
        return [given, given]
    if not isinstance(given, list) or len(given) != 2:  # pyright: ignore[reportUnknownArgumentType]
        raise AssertionError(f"unfold: {name} is a whole number or a list of two, not {given!r}")
    return given  # pyright: ignore[reportUnknownVariableType]


@with_argument_checks
def unfold(x: Any, kernel_sizes: Any, strides: Any = 1, paddings: Any = 0, dilations: Any = 1, name: Any = None) -> Any:
    """The windows of images as columns. Raises AssertionError and ValueError for settings of the wrong length."""
    if len(x.shape) != 4:
        raise AssertionError(f"unfold takes images [N, C, H, W], not {list(x.shape)}")
    around: list[int] = [paddings] if isinstance(paddings, int) else list(paddings)
    if len(around) not in (1, 2, 4):
        raise ValueError(f"unfold: paddings are a whole number or a list of two or four, not {paddings!r}")
    around = around * (4 // len(around))
    sizes, steps = _pair("kernel_sizes", kernel_sizes), _pair("strides", strides)
    return _windows(x, sizes, steps, around, _pair("dilations", dilations), name)


@with_argument_checks
def affine_channel(
    x: Any, scale: Any = None, bias: Any = None, data_layout: str = "NCHW", name: Any = None, act: Any = None
) -> Any:
    """x multiplied by a scale and plus a bias, one of each for each channel."""
    with name_first_layer(name):
        value = to_core(x)
        layer = value.draft.names.mint("affine_channel")
        inputs = {"X": value, "Scale": to_core(scale), "Bias": to_core(bias)}
        made = basic.layer("affine_channel", inputs, value.dtype, {"data_layout": data_layout}, name=layer)
        return wrap(basic.activation(layer, made, act))


@with_argument_checks
def affine_grid(theta: Any, out_shape: Any, name: Any = None) -> Any:
    """For each pixel of images of `out_shape`, its position in the original image under the affine map `theta`."""
    if not several(out_shape) and not isinstance(out_shape, Variable):
        raise ValueError(f"affine_grid: out_shape is a list or a variable, not a {type(out_shape).__name__}")
    if isinstance(out_shape, Variable):
        return made_by("affine_grid", {"Theta": theta, "OutputShape": out_shape}, "Output")[0]
    return made_by("affine_grid", {"Theta": theta}, "Output", {"output_shape": list(out_shape)})[0]


def meshgrid(input: Any, name: Any = None) -> list[Any]:
    """The coordinates of the points of a grid, from the coordinates along each dim."""
    if not isinstance(input, list):
        raise TypeError(f"meshgrid takes a list of variables, not a {type(input).__name__}")
    values: list[Any] = to_core(input)
    draft = live()
    layer = draft.names.mint("meshgrid")
    made = [draft.temporary(layer, value.dtype) for value in values]
    draft.op("meshgrid", {"X": values}, {"Out": made})
    return wrap(made)


def elementwise_equal(x: Any, y: Any, name: Any = None) -> Any:
    """Whether two tensors are equal, element by element."""
    attrs = {"force_cpu": False}
    return made_by("equal", {"X": x, "Y": y}, "Out:bool", attrs, key="elementwise_equal", stopped="*")[0]


@with_argument_checks
def addcmul(input: Any, tensor1: Any, tensor2: Any, value: Any = 1.0, out: Any = None, name: Any = None) -> Any:
    """input + tensor1 * tensor2 * value. Raises TypeError for a value of the wrong type: an int for integer tensors,
    else a float.
    """
    wanted = int if to_core(input).dtype in (DType.INT32, DType.INT64) else float
    if not isinstance(value, wanted):
        raise TypeError(f"addcmul: value must be {wanted.__name__}, not {type(value).__name__}")
    product: Any = elementwise_mul(tensor1, tensor2)
    made = elementwise_add(input, product * value)
    return made if out is None else assign(made, out)


@with_argument_checks
def clamp(input: Any, min: Any = None, max: Any = None, output: Any = None, name: Any = None) -> Any:
    """Limits elements to at least `min` and at most `max`, numbers or variables. Raises AssertionError if both are
    None.
    """
    if min is None and max is None:
        raise AssertionError("clamp needs min or max")
    inputs, attrs = {"X": input}, {"min": sys.float_info.min, "max": sys.float_info.max}
    for slot, attr, bound in (("Min", "min", min), ("Max", "max", max)):
        if isinstance(bound, Variable):
            to_core(bound).stopped()
            inputs[slot] = bound
        elif bound is not None:
            attrs[attr] = bound
    return made_by("clip", inputs, attrs=attrs, key="clamp", into={"Out": output})[0]


@with_argument_checks
def logsumexp(x: Any, dim: Any = None, keepdim: bool = False, out: Any = None, name: Any = None) -> Any:
    """The logarithm of the sum of the exponentials along dims. Raises AssertionError if x is None."""
    assert x is not None, "logsumexp: x must be Variable, not None"
    check_variable("logsumexp", "x", x, ("float32", "float64"))
    summed = basic.reduce_sum(basic.exp(to_core(x)), dim, keep_dim=keepdim)
    if out is None:
        return wrap(basic.log(summed, name=name))
    return wrap(basic.layer_outputs("log", {"X": summed}, {"Out": to_core(out)}, key="logsumexp")[0])


def log_softmax(input: Any, axis: int | None = None, dtype: Any = None, name: Any = None) -> Any:
    """The logarithm of the softmax along a dim (default: the last one), of the input converted to `dtype` if given."""
    if dtype is None:
        check_variable("log_softmax", "input", input, ("float16", "float32", "float64"))
    layer, held = nn.name_layer(live(), "log_softmax", name), input
    if dtype is not None:
        kind = dtype_of(dtype)
        attrs = {"in_dtype": dtype_of(input.dtype), "out_dtype": kind}
        held = made_by("cast", {"X": held}, f"Out:{numpy_name(kind)}", attrs, name=layer)[0]
    softmax = {"axis": -1 if axis is None else axis, "use_cudnn": False}
    held = made_by("softmax", {"X": held}, attrs=softmax, name=layer)[0]
    return made_by("log", {"X": held}, name=layer)[0]


def t(input: Any, name: Any = None) -> Any:
    """A matrix transposed; a vector unchanged. Raises ValueError for more than two dims."""
    if len(input.shape) > 2:
        raise ValueError(f"t takes matrices and vectors, not {list(input.shape)}: use transpose")
    if len(input.shape) == 1:
        return input
    return made_by("transpose2", {"X": input}, "Out XShape", {"axis": [1, 0]}, key="t", name=name)[0]


def nonzero(input: Any, as_tuple: bool = False) -> Any:
    """The indices of elements other than 0: a row for each element, or with `as_tuple` a column for each dim."""
    made, dims = where(input), len(input.shape)
    if not as_tuple:
        return made
    if dims == 1:
        return (made,)
    return tuple(slice(made, [dims - 1], [dim], [dim + 1]) for dim in range(dims))


def scatter_nd(index: Any, updates: Any, shape: Any, name: Any = None) -> Any:
    """Zeros with the dims `shape`, to which updates are added at the given indices."""
    return scatter_nd_add(zeros(shape, updates.dtype), index, updates, name)


def _as_pair(name: str, value: Any) -> list[int]:
    """A number for height and one for width, from a single number or two. Raises ValueError for another count."""
    held = list(value) if several(value) else [value, value]
    if len(held) != 2:
        raise ValueError(f"deformable_conv: {name} must be a number or two, not {value!r}")
    return held


@with_argument_checks
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
    """Images convolved at sampling positions shifted by `offset`, with samples multiplied by `mask` if `modulated`.

    Raises ValueError if the channels can't be divided into `groups`, and for settings of the wrong length.
    """
    draft = live()
    x = to_core(input)
    channels = x.shape[1]
    if channels < 0 or channels % (groups or 1):
        raise ValueError(f"deformable_conv: %{x.name} has {channels} channels, which {groups} groups can't share")
    size = _as_pair("filter_size", filter_size)
    minted = nn.name_layer(draft, "deformable_conv", name)
    start = parameters.Normal(0.0, (2.0 / (size[0] * size[1] * channels)) ** 0.5)
    shape = (num_filters, channels // (groups or 1), *size)
    kernel = parameters.create_parameter(draft, minted, core_attr(param_attr, draft), shape, x.dtype, default=start)
    attrs = {
        "strides": _as_pair("stride", stride),
        "paddings": _as_pair("padding", padding),
        "dilations": _as_pair("dilation", dilation),
        "groups": groups or 1,
        "deformable_groups": deformable_groups or 1,
        "im2col_step": im2col_step or 64,
    }
    inputs = {"Input": x, "Filter": kernel, "Offset": to_core(offset)}
    if modulated:
        inputs["Mask"] = to_core(mask)
    op_type = "deformable_conv" if modulated else "deformable_conv_v1"
    out = basic.layer(op_type, inputs, x.dtype, attrs, out="Output", name=minted)
    return wrap(nn.bias(minted, out, core_attr(bias_attr, draft), 1, 2))


def _inputs_and_attrs(
    helper: LayerHelper, given: Any, attr: str, one: str, many: str, unknown: int = -1, *, truncated: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs and attributes of an op for a setting that is a variable, or a list of numbers and variables.

    The attribute has `unknown` in the place of each variable.
    """
    if isinstance(given, Variable):
        given.stop_gradient = True
        return {one: given}, {}
    if not several(given) or not given:
        raise TypeError(f"{helper.layer_type}: {attr} is a list, a tuple or a variable, not {given!r}")
    numbers = [unknown if isinstance(dim, Variable) else whole_dim(dim, truncated=truncated) for dim in given]
    if not any(isinstance(dim, Variable) for dim in given):
        return {}, {attr: numbers}
    return {many: [_part(helper, dim) for dim in given]}, {attr: numbers}


def _part(helper: LayerHelper, number: Any) -> Any:
    """A number, or a variable, as a variable without a gradient."""
    if isinstance(number, Variable):
        number.stop_gradient = True
        return number
    return fill_constant([1], "int32", number, force_cpu=True, out=helper.create_variable_for_type_inference("int32"))


def _kind(layer: str, dtype: Any, *kinds: str) -> Any:
    """An element type, which must be one of `kinds`. Raises TypeError for others."""
    kind = convert_np_dtype_to_dtype_(dtype)
    if kind not in [convert_np_dtype_to_dtype_(known) for known in kinds]:
        raise TypeError(f"{layer}: the element type is one of {', '.join(kinds)}, not {dtype}")
    return kind


def _append_crop_op(helper: LayerHelper, x: Variable, *sizes: tuple[Any, str, str, str, int], **attrs: Any) -> Any:
    out = helper.create_variable_for_type_inference(x.dtype)
    inputs: dict[str, Any] = {"X": x}
    for given, attr, one, many, unknown in sizes:
        read, known = _inputs_and_attrs(helper, given, attr, one, many, unknown)
        inputs |= read
        attrs |= known
    helper.append_op(type=helper.layer_type, inputs=inputs, outputs={"Out": out}, attrs=attrs)
    return out


def crop(x: Any, shape: Any = None, offsets: Any = None, name: str | None = None) -> Any:
    """The part of x that begins at `offsets` (default: 0), with the dims `shape`, a list or the dims of a variable."""
    helper = LayerHelper("crop", name=name)
    start = [0] * len(x.shape) if offsets is None else offsets
    trained = [given for given in (shape, offsets) if isinstance(given, Variable) and not given.stop_gradient]
    out = _append_crop_op(helper, x, (shape, "shape", "Y", "Y", -1), (start, "offsets", "Offsets", "Offsets", -1))
    for given in trained:  # this op reads only dims and numbers, but other ops may need the gradients
        given.stop_gradient = False
    return out


@with_argument_checks
def crop_tensor(x: Any, shape: Any = None, offsets: Any = None, name: str | None = None) -> Any:
    """A part of a tensor as `crop` returns it; dims and offsets may be variables, as a whole or one by one. A dim of -1
    extends to the end.

    Raises TypeError for values that are not whole numbers, ValueError for dims of 0 or below -1 and negative offsets.
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
    unknown = [-1] * len(x.shape)  # dims that a variable determines in each run
    return _append_crop_op(helper, x, (start, "offsets", "Offsets", "OffsetsTensor", -1), sizes, offsets=unknown)


_BOUNDS = (("starts", "StartsTensor"), ("ends", "EndsTensor"), ("strides", "StridesTensor"))


@with_argument_checks
def strided_slice(input: Any, axes: Any, starts: Any, ends: Any, strides: Any) -> Any:
    """A slice as `slice` returns it, with a step along each of the axes; bounds and steps may be variables, as a whole
    or one by one.
    """
    helper = LayerHelper("strided_slice")
    inputs: dict[str, Any] = {"Input": input}
    attrs: dict[str, Any] = {"axes": list(axes)}
    for (attr, slot), given in zip(_BOUNDS, (starts, ends, strides), strict=True):
        read, known = _inputs_and_attrs(helper, given, attr, slot, f"{slot}List")
        inputs |= read
        attrs |= known
    lists = [given for given in (starts, ends, strides) if several(given)]
    attrs["infer_flags"] = [
        -1 if any(isinstance(given[at], Variable) for given in lists if at < len(given)) else 1
        for at in range(len(attrs["axes"]))
    ]
    return made_by("strided_slice", inputs, attrs=attrs, name=helper.name)[0]


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


@with_argument_checks
def lod_append(x: Any, level: Any) -> Any:
    """x with one more level of LoD: offsets (ints) from 0 to the number of rows, or the LoD of a variable."""
    if not isinstance(level, Variable) and not several(level):
        raise ValueError(f"lod_append: level is a list, a tuple or a variable, not {level!r}")
    check_variable("lod_append", "x", x, ("float32", "float64", "int32", "int64"))
    if isinstance(level, Variable):
        return made_by("lod_reset", {"X": x, "Y": level}, attrs={"append": True}, key="lod_append")[0]
    attrs = {"append": True, "target_lod": list(level)}
    return made_by("lod_reset", {"X": x}, attrs=attrs, key="lod_append")[0]


@with_argument_checks
def random_crop(x: Any, shape: Any, seed: Any = None) -> Any:
    """A random part of each instance of x, with the dims `shape`, another one in every step.

    `seed` is the first seed, by default a random number, or a variable that changes from step to step. Raises
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
    inputs, into = {"X": x, "Seed": seed}, {"SeedOut": seed}
    return made_by("random_crop", inputs, "Out SeedOut", attrs, name=helper.name, into=into)[0]


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
    """Whole numbers drawn from [low, high), or from [0, low) if `high` is None.

    Raises ValueError for an empty interval, TypeError for other element types than int32 and int64.
    """
    low, high = (0, low) if high is None else (low, high)
    if low >= high:
        raise ValueError(f"randint: low is {low} and high {high}, nothing lies between them")
    helper = LayerHelper("randint", name=name)
    kind = _kind("randint", dtype or "int64", "int32", "int64")
    dims = [1] if shape is None else shape
    inputs, attrs = _inputs_and_attrs(helper, dims, "shape", "ShapeTensor", "ShapeTensorList", truncated=True)
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
    """Numbers drawn from the standard normal distribution, with another seed for every layer.

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
    sizes = [pool_size] * dims if isinstance(pool_size, int) else list(pool_size)
    attrs: dict[str, Any] = {"ksize": sizes, "adaptive": True}
    if pool_type == "avg":
        return made_by(op_type, {"X": input}, attrs={"pooling_type": pool_type, **attrs}, name=name)[0]
    made = made_by(op_type, {"X": input}, "Out Mask:int32", attrs, name=name)
    return tuple(made) if require_index else made[0]


@with_argument_checks
def adaptive_pool2d(
    input: Any, pool_size: Any, pool_type: str = "max", require_index: bool = False, name: str | None = None
) -> Any:
    """Images pooled to `pool_size`, a number or one for each dim; with `require_index` also the indices
    of the maxima.
    """
    return _adaptive_pool(2, input, pool_size, pool_type, require_index, name)


@with_argument_checks
def adaptive_pool3d(
    input: Any, pool_size: Any, pool_type: str = "max", require_index: bool = False, name: str | None = None
) -> Any:
    """Volumes pooled to `pool_size`, a number or one for each dim; with `require_index` also the
    indices of the maxima.
    """
    return _adaptive_pool(3, input, pool_size, pool_type, require_index, name)


@with_argument_checks
def sign(x: Any) -> Any:
    """-1, 0 or 1 for every element of a variable or an array."""
    return _sign(assign(x) if isinstance(x, np.ndarray) else x)


def image_resize_short(input: Any, out_short_len: int, resample: str = "BILINEAR") -> Any:
    """Images resized so that the shorter side has a given length, with unchanged proportions."""
    if len(input.shape) != 4:
        raise ValueError(f"image_resize_short takes images [N, C, H, W], not {list(input.shape)}")
    sides = list(input.shape[2:4])
    short = sides.index(min(sides))
    longer = int(float(sides[1 - short]) * (float(out_short_len) / float(sides[short])) + 0.5)
    sides[short], sides[1 - short] = out_short_len, longer
    return image_resize(input=input, out_shape=sides, resample=resample)


__getattr__ = names_of_fluid(__name__, globals())
