"""Layers of `layers.nn` that are one op each."""

from __future__ import annotations

from pstranspile.fluid.layers.adapt import one_op, renamed_all

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
