"""Random tensors, dropout, shuffling and random crops."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.schema import INT, INTS, declare, declare_gradient, longs
from pstranspile.ops.shapes import ShapeError, Types, describe, dtype_attr, one, outputs_like, shape_rule
from pstranspile.ops.tensors.fill import made, made_like

declare(
    "uniform_random",
    "ShapeTensor? ShapeTensorList*? -> Out",
    {"shape": longs(), "min": -1.0, "max": 1.0, "seed": 0, "diag_num": 0, "diag_step": 0, "diag_val": 1.0, "dtype": 5},
    doc="Out = numbers drawn evenly from [min, max)",
)
declare(
    "gaussian_random",
    "ShapeTensor? ShapeTensorList*? -> Out",
    {"shape": longs(), "mean": 0.0, "std": 1.0, "seed": 0, "dtype": 5, "use_mkldnn": False},
    doc="Out = numbers of normal distribution",
)
declare(
    "truncated_gaussian_random",
    "-> Out",
    {"shape": INTS, "mean": 0.0, "std": 1.0, "seed": 0, "dtype": 5},
    doc="Out = numbers of normal distribution, drawn again beyond two standard deviations",
)
declare(
    "uniform_random_batch_size_like",
    "Input -> Out",
    {
        "shape": INTS,
        "input_dim_idx": 0,
        "output_dim_idx": 0,
        "min": -1.0,
        "max": 1.0,
        "seed": 0,
        "diag_num": 0,
        "diag_step": 0,
        "diag_val": 1.0,
        "dtype": 5,
    },
    doc="as uniform_random, one dim taken from Input",
)
declare(
    "gaussian_random_batch_size_like",
    "Input -> Out",
    {"shape": INTS, "input_dim_idx": 0, "output_dim_idx": 0, "mean": 0.0, "std": 1.0, "seed": 0, "dtype": 5},
    doc="as gaussian_random, one dim taken from Input",
)
declare(
    "dropout",
    "X Seed? -> Out Mask~",
    {
        "dropout_prob": 0.5,
        "is_test": False,
        "fix_seed": False,
        "seed": 0,
        "dropout_implementation": "downgrade_in_infer",
    },
    doc="Out = X * Mask, Mask 0 with probability dropout_prob; scaled in training or in test, as asked",
)
declare_gradient("dropout", "Mask Out@GRAD -> X@GRAD")
declare(
    "randint",
    "ShapeTensor? ShapeTensorList*? -> Out",
    {"shape": longs(), "low": INT, "high": INT, "dtype": 3, "seed": 0},
    doc="Out = integers drawn evenly from [low, high)",
)
declare("randperm", "-> Out", {"n": INT, "dtype": 3, "seed": 0}, doc="Out = the integers below `n` in random order")
declare(
    "sampling_id",
    "X -> Out",
    {"min": 0.0, "max": 1.0, "seed": 0},
    doc="Out = a class for each row of X, drawn with the probabilities in it",
)


@shape_rule("sampling_id")
def _sampling_id(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    if len(x.shape) != 2:
        raise ShapeError(f"X is {describe(x)}, rows of probabilities have two dims", "X")
    return {"Out": (TensorType(DType.INT64, x.shape[:1]),)}


declare(
    "shuffle_batch",
    "X Seed -> Out ShuffleIdx SeedOut",
    {"startup_seed": 0},
    may_lack="Seed",
    doc="Out = the rows of X in random order",
)
declare_gradient("shuffle_batch", "ShuffleIdx Out@GRAD -> X@GRAD")


shape_rule("gaussian_random", "truncated_gaussian_random")(made)


@shape_rule("uniform_random", "randint")
def _uniform_random(op: Op, types: Types) -> Types:
    if "ShapeTensorList" not in types:
        return made(op, types)
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

declare("seed", "-> Out", {"seed": 0}, doc="Out = the attribute `seed`, or if that is 0 a number drawn in every step")
declare(
    "random_crop",
    "X Seed -> Out SeedOut~",
    {"shape": INTS, "startup_seed": 0},
    may_lack="Seed",
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
    made = tuple(type_ and type_._replace(shape=type_.shape or (0,)) for type_ in seed)  # Fluid's dims of an unknown
    return {"Out": (x,), "ShuffleIdx": (TensorType(DType.INT64, (-1,)),), "SeedOut": made}
