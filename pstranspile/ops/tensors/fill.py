"""Constants, copies and conversions."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.gradient import WantedGradients, bare_op, gradient, output_gradients
from pstranspile.ops.schema import (
    BOOL,
    FLOATS,
    INT,
    INTS,
    LONG,
    UNSCOPED,
    bounded,
    declare,
    declare_gradient,
    element_type,
    floats,
    ints,
    long,
    longs,
    words,
)
from pstranspile.ops.shapes import ShapeError, Types, describe, dtype_attr, one, outputs_like, several, shape_rule, size

declare(
    "fill_constant",
    "ValueTensor? ShapeTensor? ShapeTensorList*? -> Out",
    {"shape": longs(), "value": 0.0, "str_value": "", "force_cpu": False, "dtype": element_type(5)},
    part_by_shape=True,
    typed_by="dtype",
    constant=True,
    doc="Out = a tensor of dims `shape`, all elements `value`",
)
declare(
    "fill_constant_batch_size_like",
    "Input -> Out",
    {
        "shape": INTS,
        "input_dim_idx": 0,
        "output_dim_idx": 0,
        "value": 0.0,
        "str_value": "",
        "force_cpu": False,
        "dtype": element_type(5),
    },
    constant=True,
    doc="as fill_constant, one dim taken from Input",
)
declare(
    "fill_any_like",
    "X -> Out",
    {"value": 0.0, "dtype": element_type(-1, unset=True)},
    row_wise=True,
    constant=True,
    doc="Out = a tensor as X, all elements `value`",
)
declare("fill_zeros_like", "X -> Out", row_wise=True, constant=True, doc="Out = zeros, as X")
declare("assign", "X? -> Out", row_wise=True, numbers="in_order", typed_by="X", doc="Out = X")
declare(
    "assign_value",
    "-> Out",
    {
        "shape": bounded(INTS, 0),
        "bool_values": ints(),
        "fp32_values": floats(),
        "int32_values": ints(),
        "int64_values": longs(),
        "dtype": element_type(INT),
    },
    rows="own",
    doc="Out = the listed values",
)
declare(
    "fill",
    "-> Out",
    {"value": FLOATS, "shape": bounded(INTS, 0), "dtype": element_type(5), "force_cpu": False},
    doc="Out = a tensor of dims `shape` with the listed values",
)
declare(
    "cast",
    "X -> Out",
    {"out_dtype": element_type(INT), "in_dtype": INT},
    row_wise=True,
    numbers="in_order",
    doc="Out = X converted to out_dtype",
)
declare(
    "coalesce_tensor",
    "Input* -> Output* FusedOutput",
    {"copy_data": False, "set_constant": False, "constant": 0.0, "check_name": False, "dtype": INT},
    doc="Output = Input, laid one after another in the memory of FusedOutput",
)


shape_rule("fill_zeros_like", "assign")(outputs_like(Out="X"))


@shape_rule("fill_constant", "assign_value")
def types_from_shape(op: Op, types: Types) -> Types:
    """Tensors of dims `shape`. If `shape` is empty, ShapeTensor holds the dims, and each of them is -1."""
    dims = ints_attr(op, "shape")
    if not dims and "ShapeTensor" in types:
        dims = (-1,) * max(size(one(types, "ShapeTensor").shape), 0)
    elif min(dims, default=0) < -1 and "ShapeTensorList" not in types and "ShapeTensor" not in types:
        raise ShapeError(f"shape is {list(dims)}, no dim is below 0")
    return {"Out": (TensorType(dtype_attr(op), dims),)}


@shape_rule("fill_constant_batch_size_like")
def made_like(op: Op, types: Types) -> Types:
    """Tensors of dims `shape`, in which one dim is that of Input (if Input has LoD: its number of sequences)."""
    like = one(types, "Input")
    dims = list(ints_attr(op, "shape"))
    source, target = int_attr(op, "input_dim_idx"), int_attr(op, "output_dim_idx")
    if not 0 <= source < len(like.shape) or not 0 <= target < len(dims):
        raise ShapeError(f"dim {source} of Input, {describe(like)}, cannot be dim {target} of {dims}", "Input")
    dims[target] = -1 if like.lod_level and source == 0 else like.shape[source]
    if any(dim < 0 for at, dim in enumerate(dims) if at != target):
        raise ShapeError(
            f"shape is {list(ints_attr(op, 'shape'))}, only dim {target}, which Input gives, can be below 0"
        )
    return {"Out": (TensorType(dtype_attr(op), tuple(dims)),)}


@shape_rule("fill_any_like")
def _fill_any_like(op: Op, types: Types) -> Types:
    x = one(types, "X")
    return {"Out": (x._replace(dtype=dtype_attr(op, "dtype", x.dtype)),)}


@shape_rule("cast")
def _cast(op: Op, types: Types) -> Types:
    x = one(types, "X")
    gives: Types = {"Out": (x._replace(dtype=dtype_attr(op, "out_dtype")),)}
    if x.dtype is not dtype_attr(op, "in_dtype"):
        raise ShapeError(f"X is {describe(x)}, but in_dtype says {dtype_attr(op, 'in_dtype').text}", "X", gives)
    return gives


@shape_rule("coalesce_tensor")
def _coalesce_tensor(_op: Op, types: Types) -> Types:
    return {"Output": types.get("Input", ())}


@gradient("assign")
def _assign_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    return (bare_op("assign", {"X": output_gradients(op, "Out")}, {"Out": wanted.gradient_names(op, "X")}),)


@gradient("cast")
def _cast_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    attrs = {"in_dtype": op.attrs["out_dtype"], "out_dtype": op.attrs["in_dtype"]}
    return (bare_op("cast", {"X": output_gradients(op, "Out")}, {"Out": wanted.gradient_names(op, "X")}, attrs),)


declare("fill_zeros_like2", "X -> Out", {"dtype": element_type(5)}, doc="as fill_zeros_like, of any element type")


@shape_rule("fill_zeros_like2")
def _fill_zeros_like2(op: Op, types: Types) -> Types:
    return {"Out": (one(types, "X")._replace(dtype=dtype_attr(op)),)}


# Tensors laid out by position: diagonals, triangles, grids, evenly spaced numbers.

declare(
    "range",
    "Start End Step -> Out",
    rows="own",
    constant=True,
    doc="Out = Start, Start + Step, ... up to and without End",
)


@shape_rule("range")
def _range(_op: Op, types: Types) -> Types:
    return {"Out": (TensorType(one(types, "Start").dtype, (-1,)),)}


declare("meshgrid", "X* -> Out*", doc="Out = the coordinates X, spread over the grid of all")
declare_gradient("meshgrid", "X* Out@GRAD* -> X@GRAD*", UNSCOPED)
declare("tril_triu", "X -> Out", {"diagonal": 0, "lower": BOOL}, doc="Out = the lower or the upper triangle of X")
declare_gradient("tril_triu", "Out@GRAD -> X@GRAD")
declare("diag", "Diagonal -> Out", constant=True, doc="Out = a matrix with Diagonal on its diagonal")
declare(
    "diag_embed",
    "Input -> Out",
    {"offset": 0, "dim1": -2, "dim2": -1},
    doc="Out = matrices with the rows of Input on their diagonals",
)
declare(
    "eye",
    "-> Out",
    {"dtype": element_type(5), "num_rows": bounded(LONG, 0), "num_columns": bounded(long(-1), -1)},
    rows="own",
    constant=True,
    doc="Out = a matrix with ones on its diagonal",
)

declare("linspace", "Start Stop Num -> Out", rows="own", doc="Out = Num numbers from Start to Stop, evenly spaced")


@shape_rule("meshgrid")
def _meshgrid(_op: Op, types: Types) -> Types:
    parts = several(types, "X")
    for part in parts:
        if len(part.shape) != 1:
            raise ShapeError(f"X has {describe(part)}, coordinates have one dim", "X")
    dims = tuple(part.shape[0] for part in parts)
    return {"Out": tuple(TensorType(part.dtype, dims) for part in parts)}


@shape_rule("tril_triu")
def _tril_triu(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    if len(x.shape) < 2:
        raise ShapeError(f"X is {describe(x)}, it must have at least two dims", "X")
    return {"Out": (x,)}


shape_rule("tril_triu_grad")(outputs_like(**{"X@GRAD": "Out@GRAD"}))


@shape_rule("diag")
def _diag(_op: Op, types: Types) -> Types:
    x = one(types, "Diagonal")
    if len(x.shape) != 1:
        raise ShapeError(f"Diagonal is {describe(x)}, it must have one dim", "Diagonal")
    return {"Out": (TensorType(x.dtype, x.shape * 2),)}


def diagonal_dims(op: Op, rank: int) -> tuple[int, int] | None:
    """The indices of the two dims of diag_embed's matrices, from 0 on; None if the attributes don't name two dims."""
    dims = int_attr(op, "dim1", -2), int_attr(op, "dim2", -1)
    if not all(-rank <= dim < rank for dim in dims) or dims[0] % rank == dims[1] % rank:
        return None
    return dims[0] % rank, dims[1] % rank


def no_diagonal_dims(op: Op, rank: int) -> str:
    """The error message for an op for which `diagonal_dims` returns None."""
    return f"dim1 {int_attr(op, 'dim1', -2)} and dim2 {int_attr(op, 'dim2', -1)} are not two of {rank} dims"


@shape_rule("diag_embed")
def _diag_embed(op: Op, types: Types) -> Types:
    x = one(types, "Input")
    at = diagonal_dims(op, len(x.shape) + 1)
    if at is None:
        raise ShapeError(f"Input is {describe(x)}: {no_diagonal_dims(op, len(x.shape) + 1)}", "Input")
    size = x.shape[-1] + abs(int_attr(op, "offset")) if x.shape[-1] >= 0 else -1
    dims = list(x.shape[:-1])
    for dim in sorted(at):
        dims.insert(dim, size)
    return {"Out": (TensorType(x.dtype, tuple(dims)),)}


@shape_rule("eye")
def _eye(op: Op, _types: Types) -> Types:
    return {"Out": (TensorType(dtype_attr(op), eye_dims(op)),)}


@shape_rule("linspace")
def _linspace(_op: Op, types: Types) -> Types:
    return {"Out": (TensorType(one(types, "Start").dtype, (-1,)),)}


def eye_dims(op: Op) -> tuple[int, int]:
    """(rows, columns) of an identity matrix."""
    rows, columns = int_attr(op, "num_rows"), int_attr(op, "num_columns", -1)
    return rows, rows if columns == -1 else columns


# Random tensors, dropout, shuffling and random crops.

_EVEN = {
    "min": bounded(-1.0, below="max"),
    "max": 1.0,
    "seed": 0,
    "diag_num": bounded(0, 0),
    "diag_step": bounded(0, 0),
    "diag_val": 1.0,
    "dtype": element_type(5),
}
"""The attributes of ops that draw evenly distributed numbers."""

declare(
    "uniform_random",
    "ShapeTensor? ShapeTensorList*? -> Out",
    {
        "shape": longs(),
        **_EVEN,
    },
    rows="own",
    draws=True,
    part_by_shape=True,
    typed_by="dtype",
    doc="Out = numbers drawn evenly from [min, max)",
)
declare(
    "gaussian_random",
    "ShapeTensor? ShapeTensorList*? -> Out",
    {"shape": longs(), "mean": 0.0, "std": 1.0, "seed": 0, "dtype": element_type(5), "use_mkldnn": False},
    rows="own",
    draws=True,
    part_by_shape=True,
    typed_by="dtype",
    doc="Out = numbers of normal distribution",
)
declare(
    "truncated_gaussian_random",
    "-> Out",
    {"shape": INTS, "mean": 0.0, "std": 1.0, "seed": 0, "dtype": element_type(5)},
    draws=True,
    part_by_shape=True,
    doc="Out = numbers of normal distribution, drawn again beyond two standard deviations",
)
declare(
    "uniform_random_batch_size_like",
    "Input -> Out",
    {
        "shape": INTS,
        "input_dim_idx": 0,
        "output_dim_idx": 0,
        **_EVEN,
    },
    draws=True,
    doc="as uniform_random, one dim taken from Input",
)
declare(
    "gaussian_random_batch_size_like",
    "Input -> Out",
    {
        "shape": INTS,
        "input_dim_idx": 0,
        "output_dim_idx": 0,
        "mean": 0.0,
        "std": 1.0,
        "seed": 0,
        "dtype": element_type(5),
    },
    draws=True,
    doc="as gaussian_random, one dim taken from Input",
)
declare(
    "dropout",
    "X Seed? -> Out Mask~",
    {
        "dropout_prob": bounded(0.5, 0, 1),
        "is_test": False,
        "fix_seed": False,
        "seed": 0,
        "dropout_implementation": words("downgrade_in_infer", "upscale_in_train"),
    },
    draws=True,
    doc="Out = X * Mask, Mask 0 with probability dropout_prob; scaled in training or in test, as asked",
)
declare_gradient("dropout", "Mask Out@GRAD -> X@GRAD", linear=True)
declare(
    "randint",
    "ShapeTensor? ShapeTensorList*? -> Out",
    {"shape": longs(), "low": INT, "high": INT, "dtype": element_type(3), "seed": 0},
    draws=True,
    doc="Out = integers drawn evenly from [low, high)",
)
declare(
    "randperm",
    "-> Out",
    {"n": INT, "dtype": element_type(3), "seed": 0},
    draws=True,
    doc="Out = the integers below `n` in random order",
)
declare(
    "sampling_id",
    "X -> Out",
    {"min": 0.0, "max": 1.0, "seed": 0},
    draws=True,
    doc="Out = a class for each row of X, drawn with the probabilities in it",
)


@shape_rule("sampling_id")
def _sampling_id(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    if len(x.shape) != 2:
        raise ShapeError(f"X is {describe(x)}, rows of probabilities have two dims", "X")
    return {"Out": (TensorType(DType.INT64, x.shape[:1], x.lod_level),)}


declare(
    "shuffle_batch",
    "X Seed -> Out ShuffleIdx SeedOut",
    {"startup_seed": 0},
    may_lack="Seed",
    row_order="by_values",
    draws=True,
    doc="Out = the rows of X in random order",
)
declare_gradient("shuffle_batch", "ShuffleIdx Out@GRAD -> X@GRAD")


shape_rule("gaussian_random", "truncated_gaussian_random")(types_from_shape)


@shape_rule("uniform_random", "randint")
def _uniform_random(op: Op, types: Types) -> Types:
    if "ShapeTensorList" not in types:
        return types_from_shape(op, types)
    unknown = (-1,) * len(types["ShapeTensorList"])  # Fluid declares no dims
    return {"Out": (TensorType(dtype_attr(op), unknown),)}


@shape_rule("randperm")
def _randperm(op: Op, _types: Types) -> Types:
    return {"Out": (TensorType(dtype_attr(op), (int_attr(op, "n"),)),)}


shape_rule("uniform_random_batch_size_like", "gaussian_random_batch_size_like")(made_like)


@shape_rule("dropout")
def _dropout(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    return {"Out": (x,), "Mask": (TensorType(DType.UINT8, x.shape),)}


shape_rule("dropout_grad")(outputs_like(**{"X@GRAD": "Out@GRAD"}))

declare(
    "seed",
    "-> Out",
    {"seed": 0},
    draws=True,
    doc="Out = the attribute `seed`, or if that is 0 a number drawn in every step",
)
declare(
    "random_crop",
    "X Seed -> Out SeedOut~",
    {"shape": bounded(INTS, 1), "startup_seed": 0},
    may_lack="Seed",
    draws=True,
    doc="Out = a random part of X",
)


@shape_rule("seed")
def _seed(_op: Op, _types: Types) -> Types:
    return {"Out": (TensorType(DType.INT32, (1,)),)}


@shape_rule("random_crop")
def _random_crop(op: Op, types: Types) -> Types:
    x, dims = one(types, "X"), ints_attr(op, "shape")
    lead = len(x.shape) - len(dims)
    if lead < 0 or any(0 <= whole < part for whole, part in zip(x.shape[lead:], dims, strict=True)):
        raise ShapeError(f"X is {describe(x)}, it has no parts of dims {list(dims)}", "X")
    return {"Out": (TensorType(x.dtype, (*x.shape[:lead], *dims)),)}


@shape_rule("shuffle_batch")
def _shuffle_batch(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    seed = types.get("Seed", ())
    made = tuple(type_ and type_._replace(shape=type_.shape or (0,)) for type_ in seed)  # as Fluid does
    return {"Out": (x,), "ShuffleIdx": (TensorType(DType.INT64, (-1,)),), "SeedOut": made}
