"""ATen operators that look up rows of embedding tables, one by one or in bags, as ops of a program."""

from __future__ import annotations

import math
from typing import Any

from pstranspile.frontends.layers.draft import Refused
from pstranspile.frontends.onnx.read_tensors import (
    expand,
    of_one_shape,
    reshape,
    sizes_of,
    with_x_shape,
)
from pstranspile.frontends.onnx.reading import is_code
from pstranspile.frontends.torch.elements import comparison_flags, detached, reduce_axes
from pstranspile.frontends.torch.tensors import append_slice, extrema_along
from pstranspile.frontends.torch.tracing import Tracing, argument, aten
from pstranspile.ir.types import DType
from pstranspile.ops.tables.embedding import SERVED_RANK


@aten("embedding")
def _embedding(node: Any, tracing: Tracing, out: str) -> None:
    weight, ids = node.args[0], tracing.as_type(tracing.value(node.args[1]), DType.INT64)
    padding, sparse = argument(node, 2, "padding_idx", -1), bool(argument(node, 4, "sparse", False))
    scalar, by_count = tracing.is_scalar(ids), bool(argument(node, 3, "scale_grad_by_freq", False))
    made = tracing.temp(out) if scalar or by_count else out
    if padding < 0 or (not sparse and _stays_zero(weight, padding, tracing)):
        looked_up(tracing.value(weight), ids, made, padding, sparse, tracing)
    else:  # the padding row keeps its value, and gets no gradient
        looked_up(tracing.value(weight), ids, rows := tracing.temp(out), -1, sparse, tracing)
        kept = tracing.op_result("assign", out, X=rows)
        here = comparison_flags("equal", ids, tracing.constant_of(padding, DType.INT64, out), tracing)
        with_x_shape("unsqueeze2", here, wide := tracing.temp(out), tracing, axes=[len(tracing.dims(ids))])
        tracing.draft.stop_gradient.update((kept, wide))
        condition, first, second = of_one_shape([wide, kept, rows], tracing)
        tracing.op("where", {"Condition": condition, "X": first, "Y": second}, {"Out": made})
    if by_count:
        divided = tracing.temp(out) if scalar else out
        _by_count(made, ids, tracing.value(weight), divided, tracing, sparse=sparse)
        made = divided
    if scalar:
        reshape(made, out, [tracing.dims(tracing.value(weight))[1]], tracing)


def _by_count(rows: str, ids: str, weight: str, out: str, tracing: Tracing, *, sparse: bool) -> None:
    """`out` is the rows of a table with these ids (i64); the gradient of each is divided by how often the batch has its
    id.
    """
    if sparse:
        raise Refused("it has both sparse and scale_grad_by_freq, for which torch has no gradient")
    kind = tracing.dtype(rows)
    reshape(ids, places := tracing.temp(ids), [-1, 1], tracing)
    expand(tracing.constant_of(0, kind, out), zeros := tracing.temp(out), [tracing.size(weight, 0)], tracing)
    reshape(ids, flat := tracing.temp(ids), [-1], tracing)
    each = tracing.op_result("fill_any_like", out, {"value": 1.0}, X=tracing.as_type(flat, kind))
    counts = tracing.op_result("scatter_nd_add", out, X=tracing.resolve_alias(zeros), Index=places, Updates=each)
    found = tracing.op_result("gather", out, X=counts, Index=flat)
    scalar = tracing.is_scalar(ids)
    reshape(found, wide := tracing.temp(out), [1, 1] if scalar else [*sizes_of(ids, tracing), 1], tracing)
    tracing.draft.stop_gradient.update((places, flat, each, counts, found, wide))
    held = detached(rows, tracing)
    # this term is 0, and its gradient that of the rows
    way = tracing.op_result("elementwise_sub", out, X=rows, Y=held)
    tracing.op(
        "elementwise_add", {"X": held, "Y": tracing.op_result("elementwise_div", out, X=way, Y=wide)}, {"Out": out}
    )


def _stays_zero(weight: Any, padding: int, tracing: Tracing) -> bool:
    """Whether row `padding` of a table is 0 and stays so: all uses of the table are embeddings with this padding."""
    array = tracing.arrays.get(tracing.value(weight))
    alike = all(
        user.target.__name__.startswith("embedding.") and argument(user, 2, "padding_idx", -1) == padding
        for user in weight.users
    )
    return alike and array is not None and not array[padding].any()


def looked_up(weight: str, ids: str, out: str, padding: int, sparse: bool, tracing: Tracing) -> None:
    """`out` is the rows of a table with these ids (i64), with zeros for the id `padding` (-1: no padding).

    Rows of a sparse table lie on the servers of a cluster and are looked up there, by ids of rank 2: others are looked
    up as a column, whose rows `lookup_table` gives without the column's dim. Their gradients are added up before they
    are sent, as DistributedDataParallel does.
    """
    attrs = {"is_sparse": sparse, "remote_prefetch": sparse, "padding_idx": padding}
    attrs |= {"merge_rows": True} if sparse else {}
    if not sparse or len(tracing.dims(ids)) == SERVED_RANK:
        tracing.op("lookup_table_v2", {"W": weight, "Ids": ids}, {"Out": out}, **attrs)
        return
    reshape(ids, column := tracing.temp(ids), [-1, 1], tracing)
    tracing.draft.stop_gradient.add(column)
    vector = len(tracing.dims(ids)) == 1
    rows = out if vector else tracing.temp(out)
    tracing.op("lookup_table", {"W": weight, "Ids": column}, {"Out": rows}, **attrs)
    if not vector:
        reshape(rows, out, [*sizes_of(ids, tracing), tracing.dims(weight)[1]], tracing)


_SUM, _MEAN, _MAX = 0, 1, 2


@aten("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(node: Any, tracing: Tracing, out: str) -> None:
    weight, indices, offsets = node.args[:3]
    mode, padding = argument(node, 4, "mode", _SUM), _padding_of_bags(node)
    sparse, weights = bool(argument(node, 5, "sparse", False)), argument(node, 6, "per_sample_weights")
    if argument(node, 3, "scale_grad_by_freq", False):
        raise Refused("it has scale_grad_by_freq, for which torch divides the gradients of bags by counts of other ids")
    matrix = _matrix(indices, offsets, tracing)
    ids = tracing.as_type(tracing.value(indices) if matrix is None else matrix, DType.INT64)
    looked_up(tracing.value(weight), ids, rows := tracing.temp(out), -1, sparse, tracing)
    if weights is not None:
        factors = tracing.value(weights)
        reshape(factors, wide := tracing.temp(factors), [*sizes_of(ids, tracing), 1], tracing)
        rows = tracing.op_result("elementwise_mul", out, X=rows, Y=wide)
    counted_in = None if padding is None else _other_than(padding, ids, tracing)
    last = bool(argument(node, 7, "include_last_offset", False))
    bags = _InRows(tracing) if matrix is not None else _AtOffsets(tracing, tracing.value(offsets), rows, last)
    if mode == _MAX:
        made = bags.largest(_left_out(rows, counted_in, -math.inf, tracing))
        if counted_in is not None:  # a bag with ids of padding only gives 0
            empty = comparison_flags("equal", made, tracing.constant_of(-math.inf, tracing.dtype(made), out), tracing)
            made = _left_out(made, tracing.op_result("logical_not", out, X=empty), 0.0, tracing)
    else:
        made = bags.total(_left_out(rows, counted_in, 0.0, tracing))
        if mode == _MEAN:
            made = _mean_of_bags(made, bags, rows, counted_in, tracing)
    tracing.parts[node.name] = [made, None, None, None]


def _padding_of_bags(node: Any) -> int | None:
    """The id that bags leave out; None if there is none.

    A negative one of `embedding_bag` counts from the table's end; for the operators that it calls it is none.
    """
    padding = argument(node, 8, "padding_idx", None)
    if padding is None or padding >= 0:
        return padding
    return padding + node.args[0].meta["val"].shape[0] if node.target.__name__.startswith("embedding_bag") else None


def _other_than(padding: int, ids: str, tracing: Tracing) -> str:
    """Whether each id differs from `padding`, with a last dim of 1 to broadcast over the elements of a row."""
    other = comparison_flags("not_equal", ids, tracing.constant_of(padding, DType.INT64, ids), tracing)
    with_x_shape("unsqueeze2", other, wide := tracing.temp(ids), tracing, axes=[len(tracing.dims(ids))])
    tracing.draft.stop_gradient.add(wide)
    return wide


def _left_out(rows: str, kept: str | None, number: float, tracing: Tracing) -> str:
    """The rows, with `number` where the mask `kept` is false (None: all rows are kept)."""
    if kept is None:
        return rows
    filler = tracing.constant_of(number, tracing.dtype(rows), rows)
    condition, x, y = of_one_shape([kept, rows, filler], tracing)
    return tracing.op_result("where", rows, Condition=condition, X=x, Y=y)


def _mean_of_bags(total: str, bags: _InRows | _AtOffsets, rows: str, kept: str | None, tracing: Tracing) -> str:
    """The sums of bags divided by their numbers of ids, padding left out; 0 for a bag without ids."""
    if kept is None and isinstance(bags, _InRows):
        width = tracing.size(rows, 1)
        if not is_code(width):
            return tracing.scaled(total, 1 / width)
    kind = tracing.dtype(rows)
    append_slice(rows, column := tracing.temp(rows), len(tracing.dims(rows)) - 1, 0, 1, 1, tracing)
    ones = tracing.op_result("fill_any_like", rows, {"value": 1.0}, X=column)
    tracing.draft.stop_gradient.update((column, ones))
    each = ones if kept is None else tracing.as_type(kept, kind)
    count = bags.total(each)
    least = tracing.op_result("elementwise_max", rows, X=count, Y=tracing.constant_of(1, kind, rows))
    tracing.draft.stop_gradient.update((each, count, least))
    return tracing.op_result("elementwise_div", rows, X=total, Y=least)


def _matrix(indices: Any, offsets: Any, tracing: Tracing) -> str | None:
    """The matrix of ids [bags, ids] that was flattened into indices and offsets; None if there was none."""
    if indices.op != "call_function" or not indices.target.__name__.startswith(("view", "reshape")):
        return None
    if offsets.op != "call_function" or not offsets.target.__name__.startswith("arange"):
        return None
    matrix = indices.args[0]
    shape = matrix.meta["val"].shape
    numbers = list(offsets.args)
    if len(shape) != 2 or not isinstance(shape[1], int) or len(numbers) < 3 or numbers[2] != shape[1]:
        return None
    return tracing.value(matrix)


class _InRows:
    """Bags that are the rows of a matrix of ids."""

    def __init__(self, tracing: Tracing):
        self.tracing = tracing

    def total(self, rows: str) -> str:
        """The sums [bags, width] of rows [bags, ids, width]."""
        reduce_axes("reduce_sum", rows, made := self.tracing.temp(rows), [1], False, self.tracing)
        return made

    def largest(self, rows: str) -> str:
        """The maxima [bags, width] of rows [bags, ids, width]."""
        return extrema_along("max", rows, rows, 1, False, self.tracing)[0]


class _AtOffsets:
    """Bags that begin at offsets into rows [ids, width]; with `last` the last offset is the end of the last bag."""

    def __init__(self, tracing: Tracing, offsets: str, rows: str, last: bool):
        self.tracing = tracing
        self.offsets = tracing.as_type(offsets, DType.INT64)
        self.count = tracing.integer("Add", tracing.size(offsets, 0), -1) if last else tracing.size(offsets, 0)
        self.ids = tracing.size(rows, 0)
        self.last = last
        self._bags = ""

    def bags(self) -> str:
        """The index of the bag of each id [ids, 1]: the number of offsets at or before the id, less one."""
        if not self._bags:
            tracing, of = self.tracing, self.offsets
            begins = of
            if self.last:
                append_slice(of, begins := tracing.temp(of), 0, 0, -1, 1, tracing)
            with_x_shape("unsqueeze2", begins, places := tracing.temp(of), tracing, axes=[1])
            longer = tracing.integer("Add", self.ids, 1)
            zeros = tracing.temp(of)
            expand(tracing.constant_of(0, DType.INT64, of), zeros, [longer], tracing)
            ones = tracing.op_result("fill_any_like", of, {"value": 1.0}, X=begins)
            marks = tracing.op_result("scatter_nd_add", of, X=tracing.resolve_alias(zeros), Index=places, Updates=ones)
            passed = tracing.op_result("cumsum", of, {"axis": 0}, X=marks)
            append_slice(passed, inside := tracing.temp(of), 0, 0, -1, 1, tracing)
            bags = tracing.scaled(inside, 1.0, -1.0)
            with_x_shape("unsqueeze2", bags, column := tracing.temp(of), tracing, axes=[1])
            made = (begins, places, zeros, ones, marks, passed, inside, bags, column)
            tracing.draft.stop_gradient.update(made)
            self._bags = column
        return self._bags

    def total(self, rows: str) -> str:
        """The sums [bags, width] of rows [ids, width]."""
        tracing, kind = self.tracing, self.tracing.dtype(rows)
        expand(
            tracing.constant_of(0, kind, rows),
            zeros := tracing.temp(rows),
            [self.count, tracing.size(rows, 1)],
            tracing,
        )
        zeros = tracing.resolve_alias(zeros)
        tracing.draft.stop_gradient.add(zeros)
        return tracing.op_result("scatter_nd_add", rows, X=zeros, Index=self.bags(), Updates=rows)

    def largest(self, rows: str) -> str:
        """The maxima [bags, width] of rows [ids, width]; 0 for a bag without ids."""
        tracing, ends = self.tracing, self.offsets
        if not self.last:
            whole = tracing.as_type(tracing.size_variable(self.ids), DType.INT64)
            ends = tracing.op_result("concat", rows, {"axis": 0}, X=[ends, whole])
        ends = tracing.as_type(ends, DType.INT32)
        tracing.draft.stop_gradient.add(ends)
        bags = tracing.op_result("lod_reset", rows, X=rows, Y=ends)
        made, places = tracing.temp(rows), tracing.temp(rows)
        tracing.op("sequence_pool", {"X": bags}, {"Out": made, "MaxIndex": places}, pooltype="MAX", pad_value=0.0)
        return made
