"""Fluid's `layers.nn`: layers with parameters, and what shapes, cuts and counts tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.graph.vartype import dtype_of
from pstranspile.fluid.layers.adapt import (
    adapt,
    check_kind,
    checked_all,
    live,
    named,
    one_op,
    renamed_all,
    to_core,
    wrap,
)
from pstranspile.fluid.lod_tensor import LoDTensor
from pstranspile.fluid.lod_tensor import to_core as value_of
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends import layers as L
from pstranspile.frontends.layers import basic, conv, loss, nn, random, sequence, tensor
from pstranspile.frontends.layers.draft import Value
from pstranspile.frontends.layers.nn import GENERATED
from pstranspile.frontends.layers.nn import inplace_abn as inplace
from pstranspile.frontends.layers.parameters import create_parameter
from pstranspile.ir.attributes import Strings
from pstranspile.ir.types import DType
from pstranspile.runtime.kernels.programs.io import HostFunction, register

mul = one_op(
    "mul",
    "x, y, x_num_col_dims=1, y_num_col_dims=1, name=None",
    "X=x Y=y",
    attrs="x_num_col_dims y_num_col_dims",
)
multiplex = one_op("multiplex", "inputs, index", "X=inputs Ids=index")
sign = one_op("sign", "x", "X=x")
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

renamed_all({name: value for name, value in globals().items() if getattr(value, "__signature__", None) is not None})


# `layers.py_func`: a function of the script as an op.


def _called(function: Callable[..., Any]) -> HostFunction:
    """The function over values of runs; it is given LoDTensors, and none if it takes no arguments."""
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


def _listed(layer: str, given: Any) -> list[Any]:
    items: list[Any] = [] if given is None else list(given) if several(given) else [given]
    for item in items:
        check_kind("py_func", layer, item, ("Variable",))
    return items


def py_func(
    func: Callable[..., Any],
    x: Any,
    out: Any,
    backward_func: Callable[..., Any] | None = None,
    skip_vars_in_backward_input: Any = None,
) -> Any:
    """`out`, variables with declared dims, filled with what `func` gives for the tensors `x`.

    `backward_func` takes x, out and the gradients of out, without what is to be skipped, and gives the gradients of x.
    """
    if not callable(func):
        raise TypeError(f"py_func: func must be a function, not {type(func).__name__}")
    read, written = _listed("x", x), _listed("out", out)
    for variable in written:
        if not variable.shape:
            raise ValueError(f"py_func: the dims of {variable.name} must be declared")
    skipped = {variable.name for variable in _listed("skip_vars_in_backward_input", skip_vars_in_backward_input)}
    unknown = skipped - {variable.name for variable in (*read, *written)}
    if unknown:
        raise ValueError(f"py_func: {min(unknown)} can't be skipped, it is neither in x nor in out")
    draft = live()
    draft.names.mint("py_func")
    attrs = {
        "forward_callable_id": register(_called(func)),
        "backward_callable_id": -1 if backward_func is None else register(_called(backward_func)),
        "backward_skip_vars": Strings(sorted(skipped) if backward_func is not None else ()),
    }
    draft.op("py_func", {"X": to_core(read)}, {"Out": to_core(written)}, attrs)
    return out


_TAIL = "param_attr=None, bias_attr=None, act=None, name=None"
_CONV = "param_attr=None, bias_attr=None, use_cudnn=True, act=None, name=None, data_format='NCHW'"
_NORM = "momentum=0.9, epsilon=1e-05, param_attr=None, bias_attr=None, data_layout='NCHW'"
_MEANS = "moving_mean_name=None, moving_variance_name=None, do_model_average_for_mean_and_var=True"
_POOL = "use_cudnn=True, ceil_mode=False, name=None, exclusive=True, data_format='NCHW'"
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
    """Inputs normalised by counts, sums and sums of squares; a dict as `param_attr` has the first values of these."""
    given = isinstance(param_attr, dict)  # as in Fluid, which takes nothing from anything else
    return _data_norm(input, act, epsilon, cast("Any", param_attr) if given else None, *args, **options)


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
slice = adapt(tensor.slice_, "input, axes, starts, ends", x="input")
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
image_resize = adapt(
    conv.image_resize,
    "input, out_shape=None, scale=None, name=None, resample='BILINEAR', actual_shape=None, align_corners=True, "
    "align_mode=1, data_format='NCHW'",
    x="input",
)
resize_bilinear = adapt(conv.resize_bilinear, f"input, out_shape=None, scale=None, {_SIZE}", x="input")
resize_nearest = adapt(
    conv.resize_nearest,
    "input, out_shape=None, scale=None, name=None, actual_shape=None, align_corners=True, data_format='NCHW'",
    x="input",
)
interpolate = adapt(
    conv.image_resize,
    "input, out_shape=None, scale=None, name=None, resample='BILINEAR', actual_shape=None, align_corners=True, "
    "align_mode=1, data_format='NCHW'",
    x="input",
)
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
    random.uniform_random, "shape, dtype='float32', min=-1.0, max=1.0, seed=0", low="min", high="max"
)
gaussian_random = adapt(random.gaussian_random, "shape, mean=0.0, std=1.0, seed=0, dtype='float32'")


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
    """Channels normalised in groups, image by image; with a scale and a bias where their attributes are given."""
    return _group_norm(input, groups, epsilon, param_attr or False, bias_attr or False, act, data_layout, name)


def topk(input: Any, k: Any, name: str | None = None) -> Any:
    """The k largest elements of each row, and where they are; k may be a variable."""
    if not isinstance(k, Variable):
        return _topk(input, k, name)
    value = to_core(input)
    outputs = {"Out": value.dtype, "Indices": DType.INT64}
    made = basic.layer_outputs("top_k", {"X": value, "K": to_core(k)}, outputs, {"k": 1})
    return [wrap(part.stopped()) for part in made]


for _name in ("sum", "mean", "max", "min", "prod", "all", "any"):
    globals()[f"reduce_{_name}"] = adapt(
        getattr(basic, f"reduce_{_name}"), "input, dim=None, keep_dim=False, name=None", x="input"
    )
for _name in ("add", "sub", "mul", "div", "max", "min", "pow"):
    globals()[f"elementwise_{_name}"] = adapt(
        getattr(basic, f"elementwise_{_name}"), "x, y, axis=-1, act=None, name=None"
    )
for _name in ("mod", "floordiv"):
    globals()[f"elementwise_{_name}"] = adapt(
        getattr(basic, f"elementwise_{_name}"), "x, y, axis=-1, act=None, name=None"
    )


def scale(
    x: Any, scale: Any = 1.0, bias: float = 0.0, bias_after_scale: bool = True, act: Any = None, name: Any = None
) -> Any:
    """scale * x + bias, or scale * (x + bias); `scale` is a number or a variable of one element."""
    with named(name):
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


def stack(x: Any, axis: int = 0) -> Any:
    """Several tensors of one shape, or a single one, along a new dim."""
    return _stack(x if several(x) else [x], axis)


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
    """Volumes of other dims, given or as a multiple."""
    method = "TRILINEAR"
    return image_resize(input, out_shape, scale, name, method, actual_shape, align_corners, align_mode, data_format)


def one_hot(input: Any, depth: Any, allow_out_of_range: bool = False) -> Any:
    """A row of `depth` elements for each id [..., 1], 1 at the id."""
    return hot_rows("one_hot", input, depth, allow_out_of_range)


def hot_rows(op_type: str, input: Any, depth: Any, allow_out_of_range: bool) -> Any:
    """A row of `depth` elements, a number or a variable, for each id, 1 at the id."""
    inputs: dict[str, Value] = {"X": to_core(input)}
    attrs: dict[str, object] = {"allow_out_of_range": allow_out_of_range}
    if isinstance(depth, Variable):
        inputs["depth_tensor"] = to_core(depth).stopped()
    else:
        attrs["depth"] = int(depth)
    return wrap(basic.layer(op_type, inputs, dtype_of("float32"), attrs).stopped())


def autoincreased_step_counter(counter_name: str | None = None, begin: int = 1, step: int = 1) -> Any:
    """A counter (int64 [1]) that goes up in every run."""
    return wrap(basic.step_counter(live(), counter_name or "@STEP_COUNTER@", begin, step))


def _sides(given: Any) -> list[int]:
    """A number for both dims of an image, or one for each."""
    return [given, given] if isinstance(given, int) else list(given)


def im2sequence(
    input: Any,
    filter_size: Any = 1,
    stride: Any = 1,
    padding: Any = 0,
    input_image_size: Any = None,
    out_stride: Any = 1,
    name: str | None = None,
) -> Any:
    """The windows of images as the steps of sequences. `input_image_size` ([images, 2]) tells the part to be taken."""
    paddings = _sides(padding)
    paddings = paddings if len(paddings) == 4 else [*paddings, *paddings]
    attrs = {"kernels": _sides(filter_size), "strides": _sides(stride), "paddings": paddings}
    value = to_core(input)
    inputs = {"X": value}
    if input_image_size is not None:
        inputs["Y"], attrs["out_stride"] = to_core(input_image_size), _sides(out_stride)
    with named(name):
        return wrap(basic.layer_outputs("im2sequence", inputs, {"Out": value.dtype}, attrs)[0])


def ctc_greedy_decoder(
    input: Any, blank: int, input_length: Any = None, padding_value: int = 0, name: Any = None
) -> Any:
    """The likeliest label of every step, without blanks and repetitions."""
    value = to_core(input)
    with named(name):
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


def chunk_eval(
    input: Any,
    label: Any,
    chunk_scheme: str,
    num_chunk_types: int,
    excluded_chunk_types: Any = None,
    seq_length: Any = None,
) -> Any:
    """Precision, recall and F1 of chunks (as in `IOB`), and how many were inferred, labelled and right."""
    kinds = {"Precision": "float32", "Recall": "float32", "F1-Score": "float32"}
    kinds |= dict.fromkeys(("NumInferChunks", "NumLabelChunks", "NumCorrectChunks"), "int64")
    inputs = {"Inference": to_core(input), "Label": to_core(label)}
    if seq_length is not None:
        inputs["SeqLength"] = to_core(seq_length)
    attrs = {
        "num_chunk_types": num_chunk_types,
        "chunk_scheme": chunk_scheme,
        "excluded_chunk_types": list(excluded_chunk_types or []),
    }
    outputs = {slot: dtype_of(kind) for slot, kind in kinds.items()}
    return tuple(wrap(basic.layer_outputs("chunk_eval", inputs, outputs, attrs)))


def filter_by_instag(ins: Any, ins_tag: Any, filter_tag: Any, is_lod: bool, out_val_if_empty: int = 0) -> Any:
    """The instances that carry one of the tags, and their weights."""
    from pstranspile.frontends.layers.sequence import filter_by_instag as core

    values = (to_core(ins), to_core(ins_tag), to_core(filter_tag))
    made = core(*values, is_lod, out_val_if_empty=out_val_if_empty)
    return wrap(list(made))


def rank(input: Any) -> Any:
    """How many dims a tensor has, as a variable."""
    return wrap(basic.fill_constant(live(), [1], dtype_of("int32"), len(input.shape)))


def dice_loss(input: Any, label: Any, epsilon: float = 1e-05, name: Any = None) -> Any:
    """One minus twice the overlap of probabilities and labels over their sum."""
    hot: Value = tensor.one_hot(to_core(label), input.shape[-1])
    value, along = to_core(input), list(range(1, len(input.shape)))
    inside = basic.reduce_sum(value * hot, along)
    both = basic.reduce_sum(value, along) + basic.reduce_sum(hot, along)
    return wrap(basic.reduce_mean((inside * 2.0 / (both + epsilon)) * -1.0 + 1.0))


def spectral_norm(weight: Any, dim: int = 0, power_iters: int = 1, eps: float = 1e-12, name: Any = None) -> Any:
    """The weight divided by its largest singular value, which a few steps of power iteration estimate."""
    from math import prod

    from pstranspile.frontends.layers.parameters import Normal

    value = to_core(weight)
    high = value.shape[dim]
    with named(name):
        layer = value.draft.names.mint("spectral_norm")
        sides = [
            create_parameter(value.draft, layer, None, [length], value.dtype, default=Normal(0.0, 1.0)).stopped()
            for length in (high, prod(value.shape) // high)
        ]
        inputs = {"Weight": value, "U": sides[0], "V": sides[1]}
        attrs = {"dim": dim, "power_iters": power_iters, "eps": eps}
        out = value.draft.fresh(GENERATED, value.dtype)
        value.draft.op("spectral_norm", inputs, {"Out": out}, attrs)
        return wrap(out)


renamed_all({name: value for name, value in globals().items() if getattr(value, "__signature__", None) is not None})
checked_all(globals())


__getattr__ = names_of_fluid(__name__, globals())
