"""What single op types imply for dims (see `uses`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pstranspile.ir.model import Op
from pstranspile.proof.dims import Known, Term, constant
from pstranspile.proof.use_sequences import SEQUENCE_RULES
from pstranspile.proof.uses import ONE, Made, Rule, Uses, int_of, out_of


def _elementwise(uses: Uses, op: Op) -> Made:
    x, y = uses.of(op.input("X")), uses.of(op.input("Y"))
    if x is None or y is None:
        return None if x is None else out_of(op, x._replace(numbers=()))
    if len(y.dims) > len(x.dims):
        x, y = y, x
    axis = int_of(op, "axis", -1)
    inner = y.dims
    while len(inner) > 1 and inner[-1] == ONE and axis >= 0:
        inner = inner[:-1]
    start = axis if 0 <= axis <= len(x.dims) - len(inner) else len(x.dims) - len(y.dims)
    dims = list(x.dims)
    for place, dim in enumerate(inner if start == axis else y.dims, start):
        there = uses.equations.resolved(dims[place])
        dim = uses.equations.resolved(dim)
        if there == ONE:
            dims[place] = dim
        elif dim != ONE:
            uses.equations.equate(there, dim)
    lod = x.lod or y.lod
    if x.lod and y.lod and start == 0:
        uses.equations.equate(x.lod.rows, y.lod.rows)
    return out_of(op, x._replace(dims=tuple(dims), lod=lod, numbers=()))


def _alike(uses: Uses, op: Op) -> Made:
    """All inputs have the same dims (`sum`, `stack`)."""
    given = [known for name in op.inputs.get("X", ()) if (known := uses.of(name)) is not None]
    for other in given[1:]:
        uses.same(given[0].dims, other.dims)
    return None


def _concat(uses: Uses, op: Op) -> Made:
    given = [known for name in op.inputs.get("X", ()) if (known := uses.of(name)) is not None]
    for other in given[1:]:
        for place, (a, b) in enumerate(zip(given[0].dims, other.dims, strict=False)):
            if place != int_of(op, "axis") % len(given[0].dims):
                uses.equations.equate(a, b)
    return None


def _mul(uses: Uses, op: Op) -> Made:
    x, y = uses.of(op.input("X")), uses.of(op.input("Y"))
    if x is None or y is None:
        return None
    rows, cols = int_of(op, "x_num_col_dims", 1), int_of(op, "y_num_col_dims", 1)
    uses.equations.equate(uses.product(x.dims[rows:]), uses.product(y.dims[:cols]))
    return out_of(op, x._replace(dims=(*x.dims[:rows], *y.dims[cols:])))


def _matmul(uses: Uses, op: Op) -> Made:
    x, y = uses.of(op.input("X")), uses.of(op.input("Y"))
    if x is None or y is None or min(len(x.dims), len(y.dims)) < 2:
        return None
    a, b = list(x.dims), list(y.dims)
    if op.attrs.get("transpose_X", op.attrs.get("trans_x")):
        a[-2:] = a[:-3:-1]
    if op.attrs.get("transpose_Y", op.attrs.get("trans_y")):
        b[-2:] = b[:-3:-1]
    uses.equations.equate(a[-1], b[-2])
    if len(a) == len(b):
        uses.same(tuple(a[:-2]), tuple(b[:-2]))
    longer = a if len(a) >= len(b) else b
    return out_of(op, x._replace(dims=(*longer[:-2], a[-2], b[-1]), lod=x.lod if len(a) == 2 else None, numbers=()))


def _reshape(uses: Uses, op: Op) -> Made:
    x, wanted = uses.of(op.input("X")), uses.ints(op, "shape")
    if x is None or not wanted:
        return None
    if op.input("Shape") or op.inputs.get("ShapeTensor"):
        return None
    dims = [
        x.dims[place] if dim == 0 and place < len(x.dims) else constant(dim) if dim > 0 else None
        for place, dim in enumerate(wanted)
    ]
    total, given = uses.product(x.dims), uses.product(dim for dim in dims if dim is not None)
    rest = total.times(given, -1) if given.factor else uses.fresh()
    if None not in dims:
        uses.equations.equate(total, given)
    done = tuple(rest if dim is None else dim for dim in dims)
    lod = x.lod if uses.equations.resolved(done[0]) == uses.equations.resolved(x.dims[0]) else None
    return out_of(op, x._replace(dims=done, lod=lod))


def _slice(uses: Uses, op: Op) -> Made:
    x, axes = uses.of(op.input("Input")), uses.ints(op, "axes")
    if x is None:
        return None
    starts, ends = (_limits(uses, op, which, [x.dims[axis] for axis in axes]) for which in ("Start", "End"))
    dims, numbers = list(x.dims), x.numbers
    for axis, start, end in zip(axes, starts, ends, strict=True):
        dims[axis] = _cut(uses, dims[axis], start, end)
        numbers = numbers[start:end] if axis == 0 and start is not None else ()
    dropped = set(uses.ints(op, "decrease_axis"))
    kept = tuple(dim for i, dim in enumerate(dims) if i not in dropped) or (ONE,)
    return out_of(op, x._replace(dims=kept, lod=None if 0 in axes else x.lod, numbers=numbers))


_END = 1 << 20
"""What lies past the end of any dim that is open."""


def _limits(uses: Uses, op: Op, which: str, dims: Sequence[Term]) -> list[int | None]:
    """Where a slice starts or ends in each of its dims, from the end if below 0; None where that is not known."""
    names = op.inputs.get(f"{which}sTensorList", ())
    if op.input(f"{which}sTensor"):
        return [None] * len(dims)
    if len(names) != len(dims):
        given = uses.ints(op, f"{which.lower()}s")
        return [*given] if len(given) == len(dims) else [None] * len(dims)
    result: list[int | None] = []
    for name, dim in zip(names, dims, strict=True):
        term, more = next(iter(known.numbers if (known := uses.of(name)) is not None else ()), None) or (None, -_END)
        if term is not None:  # cut where another dim ends: the two are meant to be as long
            uses.equations.equate(term, dim)
        same = term is not None and uses.equations.resolved(term) == uses.equations.resolved(dim)
        result.append((more if more > -_END else None) if term is None else (more or _END) if same else None)
    return result


def _cut(uses: Uses, dim: Term, start: int | None, end: int | None) -> Term:
    """What a slice leaves of a dim."""
    size = uses.equations.resolved(dim).number
    if start is None or end is None:
        return uses.fresh()
    if size is not None:
        return constant(max(len(range(size)[start:end]), 1))
    if 0 <= start < end < _END:
        uses.least.append((dim, end))
        return constant(end - start)
    cut = (start if start >= 0 else _END) + (0 if end >= _END else -end if end < 0 else _END)
    return dim if not cut else uses.shortened(dim, cut) if cut < _END else uses.fresh()


def _scale(uses: Uses, op: Op) -> Made:
    x, bias = uses.of(op.input("X")), op.attrs.get("bias")
    uses.rows(op)
    if x is None or not x.numbers or op.attrs.get("scale") != 1 or not isinstance(bias, int | float):
        return None
    return out_of(op, x._replace(numbers=tuple((term, more + int(bias)) for term, more in x.numbers)))


def _constant(uses: Uses, op: Op) -> Made:
    value, shape = op.attrs.get("value"), uses.ints(op, "shape")
    if shape != (1,) or not isinstance(value, int | float) or op.input("ShapeTensor") or abs(value) >= _END:
        return None
    return out_of(op, Known((ONE,), None, ((None, int(value)),)))


def _shape(uses: Uses, op: Op) -> Made:
    x = uses.of(op.input("Input"))
    return (
        None
        if x is None
        else out_of(op, x._replace(dims=(constant(len(x.dims)),), lod=None, numbers=tuple((dim, 0) for dim in x.dims)))
    )


def _gather(uses: Uses, op: Op) -> Made:
    x, index = uses.of(op.input("X")), uses.of(op.input("Index"))
    if x is None or index is None:
        return None
    uses.index(op.input("Index"), op, x.dims[0])
    return out_of(op, x._replace(dims=(index.dims[0], *x.dims[1:]), lod=None))


def _tdm_sampler(uses: Uses, op: Op) -> Made:
    """Leaves are places in `Travel`; it and `Layer` are the tree, which has no row for each of the batch."""
    travel = uses.of(op.input("Travel"))
    if travel is not None:
        uses.index(op.input("X"), op, travel.dims[0])
    return None


def _gather_nd(uses: Uses, op: Op) -> Made:
    x, index = uses.of(op.input("X")), uses.of(op.input("Index"))
    depth = uses.equations.resolved(index.dims[-1]).number if index is not None and index.dims else None
    if x is None or index is None or depth is None:
        return None
    for dim in x.dims[:depth]:
        uses.index(op.input("Index"), op, dim)
    return out_of(op, x._replace(dims=(*index.dims[:-1], *x.dims[depth:]), lod=None))


def _labelled(uses: Uses, op: Op) -> Made:
    """What is predicted and its labels have the same dims but the last."""
    given = [known for name in op.input_names if (known := uses.known.get(name)) is not None]
    for other in given[1:]:
        if len(other.dims) > 2:
            uses.same(given[0].dims[:-1], other.dims[:-1])
    uses.rows(op)
    return None


def _batch_size_like(uses: Uses, op: Op) -> Made:
    like, wanted = uses.of(op.input("Input")), list(uses.ints(op, "shape"))
    if like is None or not wanted:
        return None
    there, here = int_of(op, "input_dim_idx"), int_of(op, "output_dim_idx")
    rows: Term = like.lod.sequences if like.lod is not None and there == 0 else like.dims[there]
    dims = tuple(rows if i == here else constant(d) if d >= 0 else uses.fresh() for i, d in enumerate(wanted))
    return out_of(op, like._replace(dims=dims, lod=None, numbers=()))


_ELEMENTWISE = (
    *("elementwise_add", "elementwise_sub", "elementwise_mul", "elementwise_div", "elementwise_max"),
    *("elementwise_min", "elementwise_pow", "elementwise_mod", "elementwise_floordiv", "less_than", "less_equal"),
    *("greater_than", "greater_equal", "equal", "not_equal", "logical_and", "logical_or", "logical_xor"),
)

RULES: Mapping[str, Rule] = {
    **SEQUENCE_RULES,
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(("reshape", "reshape2"), _reshape),
    **dict.fromkeys(("fill_constant_batch_size_like", "uniform_random_batch_size_like"), _batch_size_like),
    "sum": _alike,
    "concat": _concat,
    "stack": _alike,
    "mul": _mul,
    "matmul": _matmul,
    "matmul_v2": _matmul,
    "slice": _slice,
    "scale": _scale,
    "fill_constant": _constant,
    "shape": _shape,
    "gather": _gather,
    "gather_nd": _gather_nd,
    "tdm_sampler": _tdm_sampler,
    "softmax_with_cross_entropy": _labelled,
    "cross_entropy": _labelled,
    "cross_entropy2": _labelled,
}
"""Op type -> its rule. Ops without one work row by row, or are among those with rows of their own."""
