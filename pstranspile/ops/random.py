"""Random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.lazy import lazy_import
from pstranspile.ops.context import Surroundings
from pstranspile.ops.fill import asked_dims, dims_like, made, made_like
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.numeric import first, flag, numpy_dtype, real, text
from pstranspile.ops.random_numbers import (
    Key,
    fluid_uniform_of,
    integers,
    normal,
    stream_key,
    truncated_normal,
    uniform,
    words,
)
from pstranspile.ops.rows import as_declared
from pstranspile.ops.schema import INT, INTS, declare, declare_gradient, longs
from pstranspile.ops.shapes import Types, int_attr, one, outputs_like, shape_rule
from pstranspile.ops.values import Array, LoDTensor, SelectedRows

if TYPE_CHECKING:
    from pstranspile.ops import row_numbers
else:
    row_numbers = lazy_import("pstranspile.ops.row_numbers")

np = lazy_import("numpy")

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
    "X Seed? -> Out Mask",
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
declare(
    "shuffle_batch", "X Seed -> Out ShuffleIdx SeedOut", {"startup_seed": 0}, doc="Out = the rows of X in random order"
)
declare_gradient("shuffle_batch", "ShuffleIdx Out@GRAD -> X@GRAD")


shape_rule("uniform_random", "gaussian_random", "truncated_gaussian_random")(made)
shape_rule("uniform_random_batch_size_like", "gaussian_random_batch_size_like")(made_like)


@shape_rule("dropout")
def _dropout(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    return {"Out": (x,), "Mask": (TensorType(DType.UINT8, x.shape),)}


shape_rule("dropout_grad")(outputs_like(**{"X@GRAD": "Out@GRAD"}))


# Kernels. Numbers belong to elements of the output variable, see pstranspile.ops.random_numbers.

Draw: TypeAlias = Callable[[Key, int, int], Array]
"""From a stream's key, an offset and a count to that many numbers."""


def _uniform(op: Op) -> Draw:
    low, high, kind = real(op, "min"), real(op, "max"), numpy_dtype(int_attr(op, "dtype", 5))
    if low > high:
        raise ValueError(f"min is {low!r}, above max, which is {high!r}")
    diagonal, apart, value = int_attr(op, "diag_num"), int_attr(op, "diag_step") + 1, real(op, "diag_val")
    if apart < 1:
        raise ValueError(f"diag_step is {apart - 1}, below 0")

    def draw(key: Key, offset: int, count: int) -> Array:
        drawn = uniform(key, offset, count, low, high, kind)
        if diagonal > 0:
            first, end = -(-offset // apart), min(diagonal, -(-(offset + count) // apart))  # of those in this slice
            drawn[first * apart - offset : max(end * apart - offset, 0) : apart] = value
        return drawn

    return draw


def _normal(op: Op) -> Draw:
    mean, std, kind = real(op, "mean"), real(op, "std"), numpy_dtype(int_attr(op, "dtype", 5))
    made_by = truncated_normal if op.type.startswith("truncated") else normal

    def draw(key: Key, offset: int, count: int) -> Array:
        return made_by(key, offset, count, mean, std, kind)

    return draw


def _filled(op: Op, draw: Draw, dims: tuple[int, ...], surroundings: Surroundings) -> Array | SelectedRows:
    name = op.outputs["Out"][0]
    if min(dims, default=0) < 0:
        raise ValueError(f"the dims to fill are {list(dims)}")
    key, offset = surroundings.stream(name, int_attr(op, "seed"), name, dims)
    return as_declared(draw(key, offset, prod(dims)).reshape(dims), surroundings.declared(name))


@kernel("uniform_random gaussian_random truncated_gaussian_random")
def _random(op: Op) -> Run:
    draw = _uniform(op) if op.type == "uniform_random" else _normal(op)

    def run(
        ShapeTensor: Array | None, ShapeTensorList: Sequence[Array] | None, surroundings: Surroundings
    ) -> Array | SelectedRows:
        return _filled(op, draw, asked_dims(op, ShapeTensor, ShapeTensorList), surroundings)

    return run


@kernel("uniform_random_batch_size_like gaussian_random_batch_size_like", lod="own")
def _random_like(op: Op) -> Run:
    draw = _uniform(op) if op.type.startswith("uniform") else _normal(op)

    def run(Input: Array | LoDTensor, surroundings: Surroundings) -> Array | SelectedRows:
        return _filled(op, draw, dims_like(op, Input), surroundings)

    return run


def _kept_share(op: Op) -> tuple[float, float]:
    """What elements are divided by that dropout keeps in training, and what all are multiplied with in test."""
    rate, way = real(op, "dropout_prob"), text(op, "dropout_implementation")
    if not 0 <= rate <= 1:
        raise ValueError(f"dropout_prob is {rate!r}, not a probability")
    if way == "upscale_in_train":
        return (1 - rate if rate < 1 else float("inf")), 1.0
    if way == "downgrade_in_infer":
        return 1.0, 1.0 - rate
    raise ValueError(f"dropout_implementation is {way!r}")


@kernel("dropout", "Out Mask", lod="own")
def _dropout_values(op: Op) -> Run:
    rate, test, seed = real(op, "dropout_prob"), flag(op, "is_test"), int_attr(op, "seed")
    in_training, in_test = _kept_share(op)
    fixed, names, source = flag(op, "fix_seed"), op.outputs.get("Mask") or op.outputs["Out"], op.inputs["X"][0]

    def kept(x: Array, lod: list[list[int]] | None, own_seed: Any, surroundings: Surroundings) -> Array:
        if own_seed is not None or fixed:  # a fixed seed promises Fluid's own numbers
            rows = surroundings.rows(source, x.shape, lod) or row_numbers.Rows.one(x.size)
            given = own_seed.data if isinstance(own_seed, LoDTensor) else own_seed
            return fluid_uniform_of(seed if given is None else int(first(given)), rows) >= rate
        stream, _ = surroundings.stream(names[0], 0, source, x.shape, lod)
        if isinstance(stream, int):
            stream = row_numbers.RowStream(stream, row_numbers.Rows.one(x.size))
        return stream.reaches(rate)

    def run(
        X: Array | LoDTensor, Seed: Array | LoDTensor | None, surroundings: Surroundings
    ) -> tuple[Array | LoDTensor, Array | None]:
        x, lod = (X.data, X.lod) if isinstance(X, LoDTensor) else (X, None)
        mask = None if test else kept(x, lod, Seed, surroundings).reshape(x.shape)
        out = x * in_test if mask is None else x * mask / in_training
        return out if lod is None else LoDTensor(out, lod), None if mask is None else mask.astype("uint8")

    return run


@kernel("dropout_grad", "X@GRAD")
def _dropout_grad(op: Op) -> Run:
    test = flag(op, "is_test")
    in_training, in_test = _kept_share(op)

    def run(Mask: Array | None, Out_GRAD: Array) -> Array:
        if test or Mask is None:
            return Out_GRAD * in_test
        return Out_GRAD * Mask / in_training

    return run


@kernel("randint")
def _randint(op: Op) -> Run:
    low, high, kind = int_attr(op, "low"), int_attr(op, "high"), numpy_dtype(int_attr(op, "dtype", 3))
    if low >= high:
        raise ValueError(f"low is {low}, not below high, which is {high}")

    def draw(key: Key, offset: int, count: int) -> Array:
        return integers(key, offset, count, low, high, kind)

    def run(
        ShapeTensor: Array | None, ShapeTensorList: Sequence[Array] | None, surroundings: Surroundings
    ) -> Array | SelectedRows:
        return _filled(op, draw, asked_dims(op, ShapeTensor, ShapeTensorList), surroundings)

    return run


def _order(key: Key, offset: int, count: int) -> Array:
    """The integers below `count` in random order."""
    return np.argsort(words(key, offset, count), kind="stable")


@kernel("randperm")
def _randperm(op: Op) -> Run:
    count, kind = int_attr(op, "n"), numpy_dtype(int_attr(op, "dtype", 3))

    def run(surroundings: Surroundings) -> Array:
        key, _ = surroundings.stream(op.outputs["Out"][0], int_attr(op, "seed"))  # an order has no slices
        return _order(key, 0, count).astype(kind)

    return run


@kernel("sampling_id", lod="own")
def _sampling_id(op: Op) -> Run:
    low, high = real(op, "min"), real(op, "max")

    def run(X: Array | LoDTensor, surroundings: Surroundings) -> Array:
        x, lod = (X.data, X.lod) if isinstance(X, LoDTensor) else (X, None)
        key, offset = surroundings.stream(op.outputs["Out"][0], int_attr(op, "seed"), op.inputs["X"][0], (len(x),), lod)
        drawn = uniform(key, offset, len(x), low, high, "float64")
        above = np.cumsum(x, axis=1, dtype="float64") > drawn[:, None]
        return np.where(above.any(axis=1), above.argmax(axis=1), x.shape[1] - 1)

    return run


@kernel("shuffle_batch", "Out ShuffleIdx SeedOut")
def _shuffle_batch(op: Op) -> Run:
    def run(X: Array, Seed: Array | None) -> tuple[Array, Array, Array]:
        seed = int_attr(op, "startup_seed") if Seed is None else int(first(Seed))
        key, rows = stream_key("shuffle_batch", seed), X.reshape(-1, X.shape[-1])
        places = _order(key, 0, len(rows))
        out = np.empty_like(rows)
        out[places] = rows
        following = (words(key, len(rows), 1) >> np.uint64(1)).astype("int64")
        return out.reshape(X.shape), places.astype("int64"), following

    return run


@kernel("shuffle_batch_grad", "X@GRAD")
def _shuffle_batch_grad(_op: Op) -> Run:
    def run(ShuffleIdx: Array, Out_GRAD: Array) -> Array:
        return Out_GRAD.reshape(-1, Out_GRAD.shape[-1])[ShuffleIdx].reshape(Out_GRAD.shape)

    return run
