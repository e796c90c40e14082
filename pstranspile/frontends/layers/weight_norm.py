"""Weight normalisation: a parameter given by a direction and a length, which are trained separately."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from pstranspile.frontends.layers.draft import Draft, Value
from pstranspile.ir.model import TensorType, Var


class _Norm:
    """Creates the ops of a norm, in the main program or in the startup program."""

    def __init__(self, draft: Draft, layer: str, of: Value, *, startup: bool):
        self.draft, self.layer, self.dtype, self.startup = draft, layer, of.dtype, startup

    def name(self, what: str) -> str:
        """A new name."""
        return self.draft.names.mint(f"{self.layer}.weight_norm_{what}")

    def op(self, op_type: str, x: str, out: str, dims: Sequence[int], **attrs: object) -> str:
        """Appends an op from x to `out`. `out` is declared with these dims if necessary."""
        block = self.draft.startup if self.startup else self.draft.block
        if out not in block.vars and (self.startup or self.draft.find(out) is None):
            block.vars[out] = Var(out, tensor=TensorType(self.dtype, tuple(dims)))
        if self.startup:
            self.draft.startup_op(op_type, {"X": x}, out, front=False, **attrs)
        else:
            self.draft.op(op_type, {"X": x}, {"Out": out}, attrs)
        return out

    def whole(self, x: str, shape: Sequence[int], kept: Sequence[int], along: int | None, out: str = "") -> str:
        """The norm over the dim `along` (None: over all dims), with the dims `kept`."""
        out = out or self.name("norm")
        names = [self.name(what) for what in ("abs", "pow", "sum")]
        self.op("abs", x, names[0], shape)
        self.op("pow", names[0], names[1], shape, factor=2.0)
        over = {"reduce_all": True} if along is None else {"dim": [along], "reduce_all": False}
        self.op("reduce_sum", names[1], names[2], kept, keep_dim=False, **over)
        return self.op("pow", names[2], out, kept, factor=0.5)

    def except_dim(self, x: str, shape: Sequence[int], dim: int | None, out: str = "") -> str:
        """The norms of the slices of x along `dim`, with the rank of x; None: the norm of x, [1]."""
        out, rank = out or self.name("norm"), len(shape)
        if dim is None:
            return self.whole(x, shape, [1], None, out)
        count, ones = shape[dim], [1] * rank
        rest = prod(shape) // count
        if dim in (0, rank - 1):
            flat = [count, -1] if dim == 0 else [-1, count]
            dims = [rest if size < 0 else size for size in flat]
            matrix = self.op("reshape", x, self.name("reshape"), dims, shape=flat)
            norms = self.whole(matrix, dims, [count], 1 if dim == 0 else 0)
            ones[dim] = count
            return self.op("reshape", norms, out, ones, shape=ones)
        order = list(range(rank))
        order[0], order[dim] = dim, 0
        turned = self.op("transpose", x, self.name("transpose"), [shape[at] for at in order], axis=order)
        flat, ones[0] = [count, -1], count
        matrix = self.op("reshape", turned, self.name("reshape"), [count, rest], shape=flat)
        norms = self.whole(matrix, [count, rest], [count], 1)
        norms = self.op("reshape", norms, self.name("reshape"), ones, shape=ones)
        return self.op("transpose", norms, out, [ones[at] for at in order], axis=order)


def length_dims(shape: Sequence[int], dim: int | None) -> tuple[int, ...]:
    """The dims of the lengths: 1, but for `dim`."""
    return tuple(size if at == dim else 1 for at, size in enumerate(shape))


def start_length(draft: Draft, layer: str, length: Value, direction: Value, dim: int | None) -> None:
    """Initialises the lengths in the startup program with those of the directions. The weight then starts as the
    direction.
    """
    norm = _Norm(draft, layer, direction, startup=True)
    shape = length_dims(direction.shape, dim)
    norm.except_dim(direction.name, direction.shape, dim, length.name)
    norm.op("reshape", length.name, length.name, shape, shape=list(shape))


def normalised(draft: Draft, layer: str, length: Value, direction: Value, dim: int | None) -> Value:
    """length * direction / the norm of the direction, along `dim` (None: as a whole)."""
    norm = _Norm(draft, layer, direction, startup=False).except_dim(direction.name, direction.shape, dim)
    scale = _layer(draft, "elementwise_div", length, Value(draft, norm), axis=-1)
    if dim is not None:
        minted = draft.names.mint("reshape2")
        flat, old = draft.temporary(minted, scale.dtype), draft.temporary(minted, scale.dtype)
        draft.op("reshape2", {"X": scale}, {"Out": flat, "XShape": old}, {"shape": [direction.shape[dim]]})
        scale = flat
    return _layer(draft, "elementwise_mul", direction, scale, axis=-1 if dim is None else dim)


def _layer(draft: Draft, op_type: str, x: Value, y: Value, axis: int) -> Value:
    out = draft.temporary(draft.names.mint(op_type), x.dtype)
    draft.op(op_type, {"X": x, "Y": y}, {"Out": out}, {"axis": axis})
    return out
