"""Seeds, and parts of images drawn by them as Fluid draws: by C++'s `minstd_rand`, x -> 48271 * x mod 2**31 - 1."""

from __future__ import annotations

from math import prod

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.lazy import lazy_import
from pstranspile.ops.context import Surroundings
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.numeric import first
from pstranspile.ops.random_numbers import integers
from pstranspile.ops.row_numbers import Rows
from pstranspile.ops.schema import INTS, declare
from pstranspile.ops.shapes import ShapeError, Types, describe, int_attr, ints_attr, one, shape_rule
from pstranspile.ops.values import Array

np = lazy_import("numpy")

declare("seed", "-> Out", {"seed": 0}, doc="Out = the attribute `seed`, or if that is 0 a number drawn in every step")
declare("random_crop", "X Seed -> Out SeedOut", {"shape": INTS, "startup_seed": 0}, doc="Out = a random part of X")

_FACTOR, _MODULUS = 48271, (1 << 31) - 1


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


@kernel("seed")
def _seed_values(op: Op) -> Run:
    seed = int_attr(op, "seed")

    def run(surroundings: Surroundings) -> Array:
        if seed:
            return np.array([seed], "int32")
        key, offset = surroundings.stream(op.outputs["Out"][0], 0)
        return integers(key, offset, 1, 1, _MODULUS, "int32")

    return run


def _after(state: int, count: int) -> int:
    """The state of the generator `count` steps on. A state that would stay 0 is taken for 1."""
    return (state % (1 << 64) % _MODULUS or 1) * pow(_FACTOR, count, _MODULUS) % _MODULUS


def _drawn(state: int, top: int) -> tuple[int, int]:
    """A number of 0 .. top, and the state afterwards: numbers beyond a multiple of top + 1 are drawn again."""
    share = (_MODULUS - 2) // (top + 1)
    while True:
        state = _after(state, 1)
        if state - 1 < share * (top + 1):
            return (state - 1) // share, state


def _part(dims: tuple[int, ...], part: tuple[int, ...], state: int) -> tuple[slice, ...]:
    index: list[slice] = []
    for whole, size in zip(dims, part, strict=True):
        begin, state = _drawn(state, whole - size)
        index.append(slice(begin, begin + size))
    return tuple(index)


@kernel("random_crop", "Out SeedOut", lod="none")
def _random_crop_values(op: Op) -> Run:
    part = ints_attr(op, "shape")

    def run(X: Array, Seed: Array | None, surroundings: Surroundings) -> tuple[Array, Array]:
        lead = X.ndim - len(part)
        if lead < 0 or any(whole < size for whole, size in zip(X.shape[lead:], part, strict=True)):
            raise ValueError(f"X has dims {list(X.shape)}, it has no parts of dims {list(part)}")
        seed = int_attr(op, "startup_seed") if Seed is None else first(Seed)
        count = prod(X.shape[:lead])
        whole = X.reshape(count, *X.shape[lead:])
        found = np.empty((count, *part), X.dtype)
        rows = surroundings.rows(op.inputs["X"][0], X.shape[:lead]) or Rows.one(count)
        for number, place in enumerate(rows.positions().tolist()):
            found[number] = whole[(number, *_part(X.shape[lead:], part, _after(seed, place * len(part))))]
        following = _after(seed, rows.whole_elements() * len(part) + 1)
        return found.reshape(*X.shape[:lead], *part), np.array([following], "int64")

    return run
