"""Kernels. Constants, copies and conversions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, ints_attr, real, text
from pstranspile.ops.shapes import Dims
from pstranspile.ops.tensors.fill import diagonal_dims, eye_dims, no_diagonal_dims
from pstranspile.runtime.arithmetic import loops
from pstranspile.runtime.kernels.kernel import Run, Surroundings, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.numeric import first_number, formula, integers_from, numpy_dtype
from pstranspile.runtime.kernels.random import (
    Rows,
    RowStream,
    Source,
    fluid_uniform_of,
    integers,
    normal,
    stream_key,
    truncated_normal,
    uniform,
    words,
)
from pstranspile.runtime.kernels.rows import as_declared
from pstranspile.runtime.values import Array, LoDTensor, SelectedRows
from pstranspile.runtime.values.encoding import to_float16


def asked_dims(op: Op, tensor: Array | None, parts: Sequence[Array] | None) -> tuple[int, ...]:
    """The dims of the result: from ShapeTensor, from ShapeTensorList, or from the attribute `shape`."""
    return integers_from(tensor, parts, ints_attr(op, "shape"))


def _constant(op: Op, kind: str) -> Any:
    """The value to fill with, of element type `kind`: `str_value` if there is one, else `value`."""
    written = text(op, "str_value")
    if not written:
        return _of_kind(kind, real(op, "value"))
    try:
        # Integers are parsed as integers, because a float64 does not hold 64 bits
        return _of_kind(kind, float(written) if kind.startswith("float") else int(written))
    except ValueError:
        return _of_kind(kind, float(written))


def _of_kind(kind: str, number: float) -> Any:
    return to_float16(np.array(number))[()] if kind == "float16" else np.dtype(kind).type(number)


def _plain_constant(op: Op) -> str | None:
    """The constant as an expression, if it depends on the op's attributes only; otherwise None."""
    if any(op.input_names):
        return None
    kind = numpy_dtype(int_attr(op, "dtype", 5))
    constant = np.array(_constant(op, kind), kind).item()
    if constant != constant or constant in (float("inf"), float("-inf")):  # these have no literal
        return None
    dims = tuple(ints_attr(op, "shape"))
    return f"np.array([{constant!r}], {kind!r})" if dims == (1,) else f"np.full({dims!r}, {constant!r}, {kind!r})"


@kernel("fill_constant", inline=_plain_constant)
def _fill_constant(op: Op) -> Run:
    kind = numpy_dtype(int_attr(op, "dtype", 5))
    constant = _constant(op, kind)

    name = op.outputs["Out"][0]

    def run(
        ValueTensor: Array | None, ShapeTensor: Array | None, ShapeTensorList: list[Array], surroundings: Surroundings
    ) -> Array | SelectedRows:
        value = constant if ValueTensor is None else first_number(ValueTensor)
        filled = np.full(asked_dims(op, ShapeTensor, ShapeTensorList), value, kind)
        return as_declared(filled, surroundings.declaration(name))

    return run


def dims_like(op: Op, like: Array | LoDTensor) -> tuple[int, ...]:
    """The dims of the result of a ..._batch_size_like op: `shape`, in which one dim is that of Input (with LoD: its
    number of sequences).
    """
    dims = list(ints_attr(op, "shape"))
    source = int_attr(op, "input_dim_idx")
    ragged = isinstance(like, LoDTensor)
    size = len(like.lod[-1]) - 1 if ragged and source == 0 else (like.data if ragged else like).shape[source]
    dims[int_attr(op, "output_dim_idx")] = size
    return tuple(dims)


@kernel("fill_constant_batch_size_like", lod="own")
def _fill_constant_batch_size_like(op: Op) -> Run:
    kind = numpy_dtype(int_attr(op, "dtype", 5))
    constant = _constant(op, kind)

    def run(Input: Array | LoDTensor) -> Array:
        return np.full(dims_like(op, Input), constant, kind)

    return run


@plain_kernel("fill_any_like")
def _fill_any_like_values(X: Array, *, value: float, dtype: int = -1) -> Array:
    return np.full(X.shape, value, X.dtype if dtype < 0 else numpy_dtype(dtype))


formula("fill_zeros_like", "np.zeros({X}.shape, {X}.dtype)")


@plain_kernel("assign")
def _assign(X: Any) -> Any:
    return copy_value(X)


def copy_value(value: Any) -> Any:
    """A copy of a value that shares no memory with it. Raises ValueError for a value that can't be copied."""
    if isinstance(value, SelectedRows):
        return SelectedRows(value.rows.copy(), value.value.copy(), value.height)
    if isinstance(value, LoDTensor):
        return LoDTensor(value.data.copy(), value.lod)
    if isinstance(value, list):
        return [None if item is None else copy_value(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, np.ndarray):
        return value.copy()
    raise ValueError(f"a {type(value).__name__} can't be assigned")


_VALUES = {"bool": "bool_values", "int32": "int32_values", "int64": "int64_values", "float32": "fp32_values"}


@kernel("assign_value")
def _assign_value(op: Op) -> Run:
    kind, dims = numpy_dtype(int_attr(op, "dtype")), ints_attr(op, "shape")
    if kind not in _VALUES:
        raise ValueError(f"dtype is {kind}, which assign_value has no values for")
    value = np.array(op.attrs[_VALUES[kind]], kind).reshape(dims)

    def run() -> Array:
        return value.copy()

    return run


@kernel("fill")
def _fill(op: Op) -> Run:
    value = np.array(op.attrs["value"], numpy_dtype(int_attr(op, "dtype", 5))).reshape(ints_attr(op, "shape"))

    def run() -> Array:
        return value.copy()

    return run


def _plain_cast(op: Op) -> str | None:
    kind = numpy_dtype(int_attr(op, "out_dtype"))
    return None if kind == "float16" else f"{{X}}.astype({kind!r})"


@plain_kernel("cast", inline=_plain_cast)
def _cast_values(X: Array, *, kind: str = per_op(lambda op: numpy_dtype(int_attr(op, "out_dtype")))) -> Array:
    return to_float16(X) if kind == "float16" and X.dtype != kind else X.astype(kind)


formula("fill_zeros_like2", lambda op: f"np.zeros({{X}}.shape, {numpy_dtype(int_attr(op, 'dtype', 5))!r})")


# Kernels. Tensors laid out by position: diagonals, triangles, grids, evenly spaced numbers.


@plain_kernel("range", lod="none")
def _range_values(Start: Array, End: Array, Step: Array) -> Array:
    start, end, step = first_number(Start), first_number(End), first_number(Step)
    if step == 0:
        raise ValueError("Step is 0")
    return np.arange(start, end, step).astype(Start.dtype)


@plain_kernel("meshgrid", lod="none")
def _meshgrid_values(X: list[Array]) -> list[Array]:
    if any(part.ndim != 1 for part in X):
        raise ValueError("coordinates have one dim")
    return list(np.meshgrid(*X, indexing="ij"))


@plain_kernel("meshgrid_grad", "X@GRAD", lod="none")
def _meshgrid_grad(Out_GRAD: list[Array]) -> list[Array]:
    axes = range(len(Out_GRAD))
    return [
        np.add.reduce(gradient, axis=tuple(axis for axis in axes if axis != number))
        for number, gradient in enumerate(Out_GRAD)
    ]


@plain_kernel("tril_triu")
def _tril_triu_values(X: Array, *, diagonal: int, lower: bool) -> Array:
    return np.tril(X, diagonal) if lower else np.triu(X, diagonal)


@plain_kernel("tril_triu_grad", "X@GRAD", lod="none")
def _tril_triu_grad(Out_GRAD: Array, *, diagonal: int, lower: bool) -> Array:
    return _tril_triu_values(Out_GRAD, diagonal=diagonal, lower=lower)


@plain_kernel("diag", lod="none")
def _diag_values(Diagonal: Array) -> Array:
    if Diagonal.ndim != 1:
        raise ValueError(f"Diagonal has dims {list(Diagonal.shape)}, it must have one")
    return np.diag(Diagonal)


@plain_kernel("diag_embed", lod="none")
def _diag_embed_values(Input: Array, *, op: Op, offset: int) -> Array:
    at = diagonal_dims(op, Input.ndim + 1)
    if at is None:
        raise ValueError(no_diagonal_dims(op, Input.ndim + 1))
    count = Input.shape[-1]
    size = count + abs(offset)
    result = np.zeros((*Input.shape[:-1], size, size), Input.dtype)
    places = np.arange(count)
    result[..., places + max(-offset, 0), places + max(offset, 0)] = Input
    return np.ascontiguousarray(np.moveaxis(result, (-2, -1), at))


@kernel("eye")
def _eye_values(op: Op) -> Run:
    dims, made = eye_dims(op), numpy_dtype(int_attr(op, "dtype", 5))
    if min(dims) < 0:
        raise ValueError(f"a matrix can't have the dims {list(dims)}")

    def run() -> Array:
        return np.eye(*dims, dtype=made)

    return run


@plain_kernel("linspace", lod="none")
def _linspace_values(Start: Array, Stop: Array, Num: Array) -> Array:
    count = first_number(Num)
    if count < 1:
        raise ValueError(f"Num is {count}, it must be positive")
    start, stop = Start.reshape(-1)[0], Stop.reshape(-1)[0]
    result = np.full(count, (stop - start) / Start.dtype.type(max(count - 1, 1)))
    result[0] = start
    return np.add.accumulate(result)  # accumulated as in Fluid, also in f32


# Kernels. Random tensors, dropout, shuffling and random crops.
#
# Crops are drawn as in Fluid, by C++'s `minstd_rand`: x -> 48271 * x mod 2**31 - 1.

# Numbers belong to elements of the output variable, see pstranspile.runtime.kernels.random.

Draw: TypeAlias = Callable[[Source, int, int], Array]
"""A function from a stream, an offset and a count to that many numbers."""


def drawer(op: Op, kind: str) -> Draw:
    """The function that draws the numbers of an op of this type with its attributes. Raises ValueError."""
    return _uniform(op) if kind == "uniform_random" else _normal(op, truncated=kind.startswith("truncated"))


def _uniform(op: Op) -> Draw:
    low, high, kind = real(op, "min"), real(op, "max"), numpy_dtype(int_attr(op, "dtype", 5))
    if low > high:
        raise ValueError(f"min is {low!r}, above max, which is {high!r}")
    diagonal, apart, value = int_attr(op, "diag_num"), int_attr(op, "diag_step") + 1, real(op, "diag_val")
    if apart < 1:
        raise ValueError(f"diag_step is {apart - 1}, below 0")

    def draw(key: Source, offset: int, count: int) -> Array:
        drawn = uniform(key, offset, count, low, high, kind)
        if diagonal > 0:
            first, end = -(-offset // apart), min(diagonal, -(-(offset + count) // apart))  # those of this slice
            drawn[first * apart - offset : max(end * apart - offset, 0) : apart] = value
        return drawn

    return draw


def _normal(op: Op, *, truncated: bool) -> Draw:
    mean, std, kind = real(op, "mean"), real(op, "std"), numpy_dtype(int_attr(op, "dtype", 5))
    made_by = truncated_normal if truncated else normal

    def draw(key: Source, offset: int, count: int) -> Array:
        return made_by(key, offset, count, mean, std, kind)

    return draw


def _draw_tensor(op: Op, draw: Draw, dims: tuple[int, ...], surroundings: Surroundings) -> Array | SelectedRows:
    name = op.outputs["Out"][0]
    if min(dims, default=0) < 0:
        raise ValueError(f"the dims to fill are {list(dims)}")
    key, offset = surroundings.stream(name, int_attr(op, "seed"), name, dims)
    return as_declared(draw(key, offset, prod(dims)).reshape(dims), surroundings.declaration(name))


@kernel("uniform_random gaussian_random truncated_gaussian_random")
def _random(op: Op) -> Run:
    draw = drawer(op, op.type)

    def run(
        ShapeTensor: Array | None, ShapeTensorList: Sequence[Array] | None, surroundings: Surroundings
    ) -> Array | SelectedRows:
        return _draw_tensor(op, draw, asked_dims(op, ShapeTensor, ShapeTensorList), surroundings)

    return run


@kernel("uniform_random_batch_size_like gaussian_random_batch_size_like", lod="own")
def _random_like(op: Op) -> Run:
    draw = drawer(op, op.type.removesuffix("_batch_size_like"))

    def run(Input: Array | LoDTensor, surroundings: Surroundings) -> Array | SelectedRows:
        return _draw_tensor(op, draw, dims_like(op, Input), surroundings)

    return run


def _kept_share(op: Op) -> tuple[float, float]:
    """(divisor of the kept elements in training, factor of all elements in test mode) of dropout."""
    rate, way = real(op, "dropout_prob"), text(op, "dropout_implementation")
    if not 0 <= rate <= 1:
        raise ValueError(f"dropout_prob is {rate!r}, not a probability")
    if way == "upscale_in_train":
        return (1 - rate if rate < 1 else float("inf")), 1.0
    if way == "downgrade_in_infer":
        return 1.0, 1.0 - rate
    raise ValueError(f"dropout_implementation is {way!r}")


def _apply_mask(x: Array, mask: Array, divisor: float) -> Array:
    """The elements of x that the mask keeps, divided by a number, and zeros (of their signs) for the others."""
    if mask.dtype.char in "?B" and mask.shape == x.shape != ():
        out = np.empty_like(x)
        if loops.masked(x, mask.view(np.uint8), divisor, out):
            return out
    return x * mask / divisor


@kernel("dropout", "Out Mask", lod="own")
def _dropout_values(op: Op) -> Run:
    rate, test, seed = real(op, "dropout_prob"), flag(op, "is_test"), int_attr(op, "seed")
    in_training, in_test = _kept_share(op)
    fixed, names, source = flag(op, "fix_seed"), op.outputs.get("Mask") or op.outputs["Out"], op.inputs["X"][0]

    def keep_mask(x: Array, lod: list[list[int]] | None, own_seed: Any, surroundings: Surroundings) -> Array:
        if own_seed is not None or fixed:  # a fixed seed gives the same numbers as in Fluid
            rows = surroundings.rows(source, x.shape, lod) or Rows.single_row(x.size)
            given = own_seed.data if isinstance(own_seed, LoDTensor) else own_seed
            return fluid_uniform_of(seed if given is None else int(first_number(given)), rows) >= rate
        stream, _ = surroundings.stream(names[0], 0, source, x.shape, lod)
        if isinstance(stream, int):
            stream = RowStream(stream, Rows.single_row(x.size))
        return stream.reaches(rate)

    def run(
        X: Array | LoDTensor, Seed: Array | LoDTensor | None, surroundings: Surroundings
    ) -> tuple[Array | LoDTensor, Array | None]:
        x, lod = (X.data, X.lod) if isinstance(X, LoDTensor) else (X, None)
        mask = None if test else keep_mask(x, lod, Seed, surroundings).reshape(x.shape)
        out = x * in_test if mask is None else _apply_mask(x, mask, in_training)
        return out if lod is None else LoDTensor(out, lod), None if mask is None else mask.view("uint8")

    return run


@kernel("dropout_grad", "X@GRAD")
def _dropout_grad(op: Op) -> Run:
    test = flag(op, "is_test")
    in_training, in_test = _kept_share(op)

    def run(Mask: Array | None, Out_GRAD: Array) -> Array:
        if test or Mask is None:
            return Out_GRAD * in_test
        return _apply_mask(Out_GRAD, Mask, in_training)

    return run


@kernel("randint")
def _randint(op: Op) -> Run:
    low, high, kind = int_attr(op, "low"), int_attr(op, "high"), numpy_dtype(int_attr(op, "dtype", 3))
    if low >= high:
        raise ValueError(f"low is {low}, not below high, which is {high}")

    def draw(key: Source, offset: int, count: int) -> Array:
        return integers(key, offset, count, low, high, kind)

    def run(
        ShapeTensor: Array | None, ShapeTensorList: Sequence[Array] | None, surroundings: Surroundings
    ) -> Array | SelectedRows:
        return _draw_tensor(op, draw, asked_dims(op, ShapeTensor, ShapeTensorList), surroundings)

    return run


def _order(key: Source, offset: int, count: int) -> Array:
    """The integers 0 to count - 1 in random order."""
    return np.argsort(words(key, offset, count), kind="stable")


@plain_kernel("randperm")
def _randperm(
    surroundings: Surroundings, *, n: int, kind: str = per_op(lambda op: numpy_dtype(int_attr(op, "dtype", 3))), op: Op
) -> Array:
    key, _ = surroundings.stream(op.outputs["Out"][0], int_attr(op, "seed"))  # an order has no slices
    return _order(key, 0, n).astype(kind)


@plain_kernel("sampling_id", lod="own")
def _sampling_id(
    X: Array | LoDTensor, surroundings: Surroundings, *, op: Op, min: float, max: float
) -> Array | LoDTensor:
    x, lod = (X.data, X.lod) if isinstance(X, LoDTensor) else (X, None)
    key, offset = surroundings.stream(op.outputs["Out"][0], int_attr(op, "seed"), op.inputs["X"][0], (len(x),), lod)
    drawn = uniform(key, offset, len(x), min, max, "float64")
    above = np.cumsum(x, axis=1, dtype="float64") > drawn[:, None]
    places = np.where(above.any(axis=1), above.argmax(axis=1), x.shape[1] - 1)
    return places if lod is None else LoDTensor(places, lod)


@plain_kernel("shuffle_batch", "Out ShuffleIdx SeedOut")
def _shuffle_batch(X: Array, Seed: Array | None, *, op: Op) -> tuple[Array, Array, Array]:
    seed = int_attr(op, "startup_seed") if Seed is None else int(first_number(Seed))
    key, rows = stream_key("shuffle_batch", seed), X.reshape(-1, X.shape[-1])
    places = _order(key, 0, len(rows))
    out = np.empty_like(rows)
    out[places] = rows
    following = (words(key, len(rows), 1) >> np.uint64(1)).astype("int64")
    return out.reshape(X.shape), places.astype("int64"), following


@plain_kernel("shuffle_batch_grad", "X@GRAD")
def _shuffle_batch_grad(ShuffleIdx: Array, Out_GRAD: Array) -> Array:
    return Out_GRAD.reshape(-1, Out_GRAD.shape[-1])[ShuffleIdx].reshape(Out_GRAD.shape)


_FACTOR, _MODULUS = 48271, (1 << 31) - 1


@plain_kernel("seed")
def _seed_values(surroundings: Surroundings, *, op: Op, seed: int) -> Array:
    if seed:
        return np.array([seed], "int32")
    key, offset = surroundings.stream(op.outputs["Out"][0], 0)
    return integers(key, offset, 1, 1, _MODULUS, "int32")


def _state_after(state: int, count: int) -> int:
    """The state of the generator after `count` steps. A state of 0, which would stay 0, is replaced by 1."""
    return (state % (1 << 64) % _MODULUS or 1) * pow(_FACTOR, count, _MODULUS) % _MODULUS


def _draw_number(state: int, top: int) -> tuple[int, int]:
    """(a number of 0 .. top, the generator's state afterwards). Numbers beyond the last multiple of top + 1 are drawn
    again.
    """
    share = (_MODULUS - 2) // (top + 1)
    while True:
        state = _state_after(state, 1)
        if state - 1 < share * (top + 1):
            return (state - 1) // share, state


def _part(dims: tuple[int, ...], part: tuple[int, ...], state: int) -> tuple[slice, ...]:
    index: list[slice] = []
    for whole, size in zip(dims, part, strict=True):
        begin, state = _draw_number(state, whole - size)
        index.append(slice(begin, begin + size))
    return tuple(index)


@plain_kernel("random_crop", "Out SeedOut", lod="none")
def _random_crop_values(
    X: Array, Seed: Array | None, surroundings: Surroundings, *, op: Op, shape: Dims
) -> tuple[Array, Array]:
    lead = X.ndim - len(shape)
    if lead < 0 or any(whole < size for whole, size in zip(X.shape[lead:], shape, strict=True)):
        raise ValueError(f"X has dims {list(X.shape)}, it has no parts of dims {list(shape)}")
    seed = int_attr(op, "startup_seed") if Seed is None else first_number(Seed)
    count = prod(X.shape[:lead])
    whole = X.reshape(count, *X.shape[lead:])
    result = np.empty((count, *shape), X.dtype)
    rows = surroundings.rows(op.inputs["X"][0], X.shape[:lead]) or Rows.single_row(count)
    for number, place in enumerate(rows.positions().tolist()):
        result[number] = whole[(number, *_part(X.shape[lead:], shape, _state_after(seed, place * len(shape))))]
    following = _state_after(seed, rows.whole_elements() * len(shape) + 1)
    return result.reshape(*X.shape[:lead], *shape), np.array([following], "int64")
