"""Kernels. Optimizers with one learning rate, and running sums of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, real
from pstranspile.runtime.arithmetic import loops, norm, number_of, over_root, root, same_everywhere
from pstranspile.runtime.arithmetic.loops import Reach, RmspropFactors, RowGradient, RowUpdate
from pstranspile.runtime.kernels.kernel import Run, Surroundings, in_place, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import check_ids, first_number
from pstranspile.runtime.kernels.random import fluid_uniform, normal
from pstranspile.runtime.kernels.rows import (
    AS_ROWS,
    GIVEN_ROWS,
    RowsNotFound,
    TableGradient,
    add_rows,
    in_use,
    merge_rows,
    positions,
    row_gradient,
    scatter,
    update_rows,
)
from pstranspile.runtime.large.table import LargeTable, TableState, distinct, threads_of_tables, updates_put_off
from pstranspile.runtime.values import Array, SelectedRows

# Functions that kernels of optimizers share: updates in place, and dense or sparse gradients.


def arrays_to_update(op: Op, slots: str) -> Callable[..., tuple[Array, ...]]:
    """A function from the values of these input slots to the arrays to update.

    An array is the value itself if the op writes the same variable and the value is writable, otherwise a copy. The
    output slot of `Moment` is `MomentOut`; `SquaredAccumulator:SquaredAccumOut` names another one.
    """
    pairs = [(slot, out or f"{slot}Out") for slot, _, out in (word.partition(":") for word in slots.split())]
    same = [in_place(op, slot, out) for slot, out in pairs]
    all_same = all(same)

    def own(*values: Array) -> tuple[Array, ...]:
        if all_same:  # the usual case
            for value in values:
                if not value.flags.writeable:
                    break
            else:
                return values
        return tuple([v if kept and v.flags.writeable else v.copy() for v, kept in zip(values, same, strict=True)])

    return own


REPLACING = frozenset({"sgd", "momentum", "adam"})
"""Optimizer ops that write a read-only parameter, which others share, to new memory without copying it first."""


def read_write_arrays(op: Op) -> Callable[[Array, Array | SelectedRows], tuple[Array, Array]]:
    """A function from the parameter and the gradient to the array to read and the array to write.

    Both are the same array if the op reads and writes the same variable and it is writable. Otherwise a dense update
    writes new memory, and a sparse update changes a copy.
    """
    kept = in_place(op, "Param", "ParamOut")

    def choose(param: Array, gradient: Array | SelectedRows) -> tuple[Array, Array]:
        if kept and param.flags.writeable:
            return param, param
        if isinstance(gradient, SelectedRows):
            param = param.copy()
            return param, param
        return param, np.empty_like(param)

    return choose


PIECE = 1 << 16
"""Elements updated at a time, so that arrays that are read and written several times stay in the processor's cache."""


def whole(gradient: Array | SelectedRows, *arrays: Array) -> tuple[tuple[Array, ...], ...]:
    """The dense gradient and the arrays that an update changes in place, as a tuple of one item.

    Sparse rows are a gradient that is zero in all other rows. Without any rows the result is empty.
    """
    if isinstance(gradient, SelectedRows):
        if not len(gradient.rows):
            return ()
        gradient = scatter(gradient, arrays[0].shape)
    dense: Array = gradient
    for array in arrays:
        if array.size != dense.size:
            raise ValueError("the gradient, the parameter and what is kept of it differ in size")
    return ((dense, *arrays),)


def is_large(array: Array) -> bool:
    """Whether an array is updated in pieces; never where the result of an element depends on its position."""
    return array.size > PIECE and same_everywhere()


def pieces(gradient: Array | SelectedRows, *arrays: Array) -> Iterable[tuple[Array, ...]]:
    """The arrays that `whole` gives, for elementwise updates: large arrays come in pieces."""
    size = arrays[0].size
    if not is_large(arrays[0]) or not all(_in_one_row(array, size) for array in arrays):
        return whole(gradient, *arrays)
    if isinstance(gradient, SelectedRows):
        return _pieces_of_rows(gradient, arrays) if len(gradient.rows) else ()
    if not _in_one_row(gradient, size):
        return whole(gradient, *arrays)
    return _split_pieces(gradient, *arrays)


def update_all(gradient: SelectedRows, step: Callable[..., None], *tables: Array) -> None:
    """Updates the rows as `update_rows` does, and calls `step(None, *pieces of the tables)` for all other rows.

    It may only be used for elementwise updates, whose result does not depend on the position of an element.
    """
    merged = merge_rows([gradient])
    check_ids(merged.rows, len(tables[0]), "row")
    taken = [table.take(merged.rows, axis=0) for table in tables]
    in_pieces = all(_in_one_row(table, tables[0].size) for table in tables)
    for piece in _split_pieces(*tables) if in_pieces else (tables,):
        step(None, *piece)
    step(in_use(merged).reshape(taken[0].shape), *taken)
    for table, changed in zip(tables, taken, strict=True):
        table[merged.rows] = changed


class _SparseUpdates:
    """Elementwise updates by sparse gradients: of every row, as if other rows had a gradient of 0, or, where the op has
    `GIVEN_ROWS`, of the rows that the gradient has.
    """

    def __init__(self, op: Op):
        self._given = GIVEN_ROWS in op.attrs

    def gradient(self, part: SelectedRows) -> RowGradient:
        """The gradient as compiled loops take it."""
        return row_gradient(part, Reach.GIVEN_FROM_ZERO if self._given else Reach.ALL)

    def update(self, part: SelectedRows, step: Callable[..., None], *tables: Array) -> None:
        """Calls `step(gradient, *pieces or rows of the tables)`, which changes these in place."""
        if self._given:
            update_rows(part, step, *tables, from_zero=True)
            return
        for piece in pieces(part, *tables):
            step(*piece)


def _split_pieces(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    flat = [array.reshape(-1) for array in arrays]
    for at in range(0, flat[0].size, PIECE):
        yield tuple([array[at : at + PIECE] for array in flat])


def _in_one_row(array: Array, size: int) -> bool:
    return array.size == size and array.flags.c_contiguous


def _pieces_of_rows(gradient: SelectedRows, arrays: Sequence[Array]) -> Iterator[tuple[Array, ...]]:
    height = len(arrays[0])
    tables = [array.reshape(height, -1) for array in arrays]
    width = tables[0].shape[1]
    value, order = in_use(gradient).reshape(-1, width), gradient.rows.argsort(kind="stable")
    rows, count = gradient.rows[order], max(PIECE // width, 1)
    check_ids(rows, height, "row")
    ends = rows.searchsorted(np.arange(0, height + count, count)).tolist()
    dense = np.zeros((count, width), value.dtype)
    for at, (start, stop) in zip(range(0, height, count), pairwise(ends), strict=True):
        part, places = dense[: height - at], rows[start:stop] - at
        if start < stop:
            add_rows(part, places, value[order[start:stop]])
        yield part, *[table[at : at + count] for table in tables]
        part[places] = 0


# Updates of large tables: an optimizer's kernel applied only to the rows of the gradient.

_AT_ONCE = 1 << 14
"""The most rows that are updated at once."""


def is_update(op: Op) -> bool:
    """Whether an op updates a parameter by its gradient, as optimizers do."""
    return "ParamOut" in op.outputs and "Param" in op.inputs and "Grad" in op.inputs


def for_tables(run: Run, param: int, grad: int, written: Sequence[int | None], *, given_rows: Run | None = None) -> Run:
    """A kernel of an optimizer that also takes a LargeTable as Param, and TableStates for the optimizer's state.

    `param` and `grad` are the positions of these arguments; `written` has, for each result, the position of the
    argument that is the same variable. The kernel gets the gradient's rows as a small dense table, so it computes for
    each row what it computes for a row of any table. Other rows stay unchanged. If there is a kernel that changes the
    `given_rows` alone, it is used, and gets the whole table in memory, which it changes there.
    """

    def run_with_tables(*values: Any) -> Any:
        if values[param].__class__ is not LargeTable:
            return run(*values)
        if not isinstance(values[grad], SelectedRows):
            raise ValueError("Param is a large table, whose gradient must be sparse rows")
        if given_rows is not None and values[param].folder is None:
            kept = [at for at, value in enumerate(values) if at == param or value.__class__ is TableState]
            if all(at in written for at in kept):
                found = None
                if given_rows is not run:  # a kernel of this package
                    found = _update_found_rows(given_rows, values, param, grad, written)
                return _update_in_place(given_rows, values, param, grad, written) if found is None else found
        return _update(given_rows or run, values, param, grad, written)

    return run_with_tables


def _update_found_rows(run: Run, values: Sequence[Any], param: int, grad: int, written: Sequence[int | None]) -> Any:
    """Updates the rows where they lie in the pass that finds them; None, without any change of a row, if compiled loops
    do not have the optimizer. Rows that do not exist are created before, or updated afterwards where not every id gets
    one. Where updates are put off, this one is.
    """
    table: LargeTable = values[param]
    gradient: SelectedRows = values[grad]
    ids, value = gradient.rows, in_use(gradient)
    # Where not every id gets a row, only the update itself tells whether there is any: without one, Adam does nothing.
    together = updates_put_off() if table.rules.at_once else None
    result: tuple[Array, int, int] | None = None

    def apply(update: RowUpdate) -> bool:
        nonlocal result
        held_update = table.held_update(update, ids, value)
        if held_update is None or value.size != len(ids) * table.width:
            raise RowsNotFound
        if not created:
            table.require_ids(ids)
        if together is not None:
            places = held_update.places
            together.add(held_update, lambda missing, different: finish(places, missing, different))
            return True
        ((missing, different),) = loops.update_tables([held_update], threads_of_tables())
        if missing < 0:
            raise RowsNotFound
        result = held_update.places, missing, different
        return True

    def finish(places: Array, missing: int, different: int) -> Any:
        if missing < 0:
            return _update_in_place(run, values, param, grad, written)
        table.begin_after(different - missing)
        if missing:
            left = (places < 0).nonzero()[0]
            rest = list(values)
            rest[grad] = SelectedRows(ids.take(left), value.take(left, axis=0), gradient.height)
            return _update_in_place(run, rest, param, grad, written, begun=True)
        table.end_update()
        return None

    created = len(ids) > 0 and table.create_rows(ids)
    parts = table.parts()
    if not len(ids) or not len(table) or parts is None:
        return None
    found = TableGradient(ids, value, len(table))
    found.apply = apply
    try:
        made = _run_on(run, parts, [found if at == grad else v for at, v in enumerate(values)], param, written)
    except RowsNotFound:
        return None
    del parts  # views of memory that moves when rows are added
    if result is not None:
        of_rest = finish(*result)
        if result[1] == result[2]:  # no row was found
            return of_rest
    return made


def _run_on(run: Run, parts: Sequence[Array], values: Sequence[Any], param: int, written: Sequence[int | None]) -> Any:
    """The results of a kernel that gets the parts of a large table for the table and its states, and changes them."""
    numbers = {at: value.number for at, value in enumerate(values) if value.__class__ is TableState}
    numbers[param] = 0
    made = run(*(parts[numbers[at]] if at in numbers else value for at, value in enumerate(values)))
    results = [made] if len(written) == 1 else list(made)
    results = [values[at] if at in numbers else result for result, at in zip(results, written, strict=True)]
    return results[0] if len(results) == 1 else tuple(results)


def _update_in_place(
    run: Run, values: Sequence[Any], param: int, grad: int, written: Sequence[int | None], *, begun: bool = False
) -> Any:
    """Updates the rows where they lie, by a kernel that changes nothing else. `begun`: other rows of the update have
    been changed before.
    """
    table: LargeTable = values[param]
    gradient: SelectedRows = values[grad]
    ids, back = distinct(gradient.rows)
    places, kept = table.enter_more(ids) if begun else table.enter(ids)
    given = in_use(gradient).reshape(len(back), table.width)
    if len(places) < len(ids):
        taken = kept[back]
        given, back = given[taken], (np.cumsum(kept) - 1)[back[taken]]
    parts = table.parts()
    assert parts is not None
    found = SelectedRows(places[back], given, len(table))
    made = _run_on(run, parts, [found if at == grad else v for at, v in enumerate(values)], param, written)
    del parts  # views of memory that moves when rows are added
    table.end_update()
    return made


def _update(run: Run, values: Sequence[Any], param: int, grad: int, written: Sequence[int | None]) -> Any:
    """Updates the rows in pieces, since a kernel takes several times the memory of the rows that it updates."""
    table: LargeTable = values[param]
    ids, back, gradient_rows = _each_once(values[grad])
    places, kept = table.enter(ids)
    if len(places) < len(ids):
        taken = kept[back]
        gradient_rows, back = gradient_rows[taken], (np.cumsum(kept) - 1)[back[taken]]
    gradient_rows = gradient_rows.reshape(len(back), table.width)
    numbers = {at: value.number for at, value in enumerate(values) if value.__class__ is TableState}
    numbers[param] = 0
    parts: list[Any] = []
    for start in range(0, max(len(places), 1), _AT_ONCE):
        piece = places[start : start + _AT_ONCE]
        here = slice(*back.searchsorted((start, start + len(piece))))
        rows = table.take(piece)
        compact = [np.ascontiguousarray(rows[:, numbers[at]]) if at in numbers else v for at, v in enumerate(values)]
        compact[grad] = SelectedRows(back[here] - start, gradient_rows[here], len(piece))
        made = run(*compact)
        parts = [made] if len(written) == 1 else list(made)
        for place, at in enumerate(written):
            if at in numbers:
                rows[:, numbers[at]] = parts[place]
                parts[place] = values[at]
        table.put(piece, rows)
    table.end_update()
    return parts[0] if len(parts) == 1 else tuple(parts)


def _each_once(part: SelectedRows) -> tuple[Array, Array, Array]:
    """A gradient's distinct ids in ascending order, the index of each row's id among them, and the rows' values.

    The rows are in the order of their ids. Rows with the same id stay in their order.
    """
    given = part.value[: len(part.rows)]
    if (part.rows[1:] > part.rows[:-1]).all():
        return part.rows, np.arange(len(part.rows)), given
    ids, back = np.unique(part.rows, return_inverse=True)
    order = back.argsort(kind="stable")
    return ids, back[order], given[order]


# Arrays are updated in place if the op reads and writes the same variable.


def _with_zeros(param: Array, grad: Any, rate: Any) -> Any:
    """A gradient that is rows in place of a dense one; dense where a learning rate that is negative or not finite
    changes elements whose gradient is 0.
    """
    return scatter(grad, param.shape) if isinstance(grad, SelectedRows) and not 0 <= rate < math.inf else grad


@kernel("sgd", "ParamOut")
def _sgd(op: Op) -> Run:
    writable_arrays, replace, as_rows = arrays_to_update(op, "Param"), read_write_arrays(op), AS_ROWS in op.attrs
    is_in_place = in_place(op, "Param", "ParamOut")

    def in_one_pass(param: Array, grad: SelectedRows, rate: Any) -> bool:
        return loops.sgd_rows(param, row_gradient(grad, Reach.GIVEN if as_rows else Reach.EACH), rate)

    def sparse(param: Array | SelectedRows, grad: SelectedRows, rate: Any) -> Array | SelectedRows:
        held = None if isinstance(param, SelectedRows) else param
        if held is not None and is_in_place and held.flags.writeable and in_one_pass(held, grad, rate):
            return held
        if as_rows:
            grad = merge_rows([grad])
        step = in_use(grad) * -rate
        if isinstance(param, SelectedRows):
            value = writable_arrays(param.value)[0]
            add_rows(value, positions(param, grad.rows, "Param"), step)
            return param._replace(value=value)
        table = param if is_in_place and param.flags.writeable else param.copy()
        add_rows(table, grad.rows, step)
        return table

    def run(Param: Array, Grad: Array, LearningRate: Array) -> Array:
        rate = first_number(LearningRate)
        if as_rows:
            Grad = _with_zeros(Param, Grad, rate)
        if isinstance(Grad, SelectedRows):
            return sparse(Param, Grad, rate)
        param, new = replace(Param, Grad)
        if not loops.sgd(param, Grad, new, rate):
            for g, p, n in pieces(Grad, param, new):
                np.subtract(p, rate * g, out=n)
        return new

    return run


@kernel("momentum", "ParamOut VelocityOut GradShareOut")
def _momentum(op: Op) -> Run:
    mu, nesterov = real(op, "mu"), flag(op, "use_nesterov")
    writable_arrays, replace, sparse = arrays_to_update(op, "Velocity"), read_write_arrays(op), _SparseUpdates(op)
    later = 1 - real(op, "dampening") if "dampening" in op.attrs else 1.0

    def run(
        Param: Array,
        Grad: Array | SelectedRows,
        LearningRate: Array,
        Velocity: Array,
        GradShare: Array | None = None,
    ) -> tuple[Array | None, ...]:
        param, new = replace(Param, Grad)
        (velocity,) = writable_arrays(Velocity)
        rate = first_number(LearningRate)
        share = None if GradShare is None else first_number(GradShare)

        def step(g: Array, p: Array, v: Array, n: Array | None = None) -> None:
            v *= mu
            v += g if share is None else share * g
            np.subtract(p, rate * (g + mu * v if nesterov else v), out=p if n is None else n)

        if isinstance(Grad, SelectedRows):
            rows = sparse.gradient(Grad)
            if share is not None or not loops.momentum_rows(param, rows, velocity, mu, rate, nesterov):
                sparse.update(Grad, step, param, velocity)
        elif share is not None or not loops.momentum(param, Grad, velocity, new, mu, rate, nesterov):
            for piece in pieces(Grad, param, velocity, new):
                step(*piece)
        return new, velocity, None if GradShare is None else np.full_like(GradShare, later)

    return run


@kernel("dgc_momentum", "ParamOut Grad_out VelocityOut")
def _dgc_momentum(op: Op) -> Run:
    mu, nesterov = real(op, "mu"), flag(op, "use_nesterov")
    begin = real(op, "rampup_begin_step")
    writable_arrays = arrays_to_update(op, "Param Velocity")

    def run(
        Param: Array, Grad: Array, LearningRate: Array, Velocity: Array, current_step: Array, nranks: Array
    ) -> tuple[Array | None, ...]:
        if begin < 0:
            return None, None, None
        param, velocity = writable_arrays(Param, Velocity)
        rate, mean = first_number(LearningRate), Grad / first_number(nranks)
        before = first_number(current_step) < begin
        for g, p, v in pieces(mean, param, velocity):
            if before:
                v *= mu
                v += g
                p -= rate * (g + mu * v if nesterov else v)
            else:
                p -= rate * g
        return param, mean, velocity

    return run


@kernel("lars_momentum", "ParamOut VelocityOut")
def _lars_momentum(op: Op) -> Run:
    mu, trust, decay = real(op, "mu"), real(op, "lars_coeff"), real(op, "lars_weight_decay")
    writable_arrays = arrays_to_update(op, "Param Velocity")

    def run(Param: Array, Grad: Array, LearningRate: Array, Velocity: Array) -> tuple[Array, ...]:
        param, velocity = writable_arrays(Param, Velocity)
        number = number_of(param)
        rate = number(first_number(LearningRate))
        for g, p, v in whole(Grad, param, velocity):
            of_param, of_grad = number(norm(p)), number(norm(g))
            if of_param > 0 and of_grad > 0:
                rate = rate * number(trust) * of_param / (of_grad + number(decay) * of_param)
            v *= mu
            v += rate * (g + decay * p)
            p -= v
        return param, velocity

    return run


def _proximal(param: Array, rate: Any, l1: float, l2: float) -> None:
    """The proximal step for l1 and l2, in place."""
    if l1 > 0:
        param[...] = np.sign(param) * np.maximum(np.abs(param) - rate * l1, 0)
    param /= 1 + rate * l2


@kernel("proximal_gd", "ParamOut")
def _proximal_gd(op: Op) -> Run:
    l1, l2 = real(op, "l1"), real(op, "l2")
    writable_arrays = arrays_to_update(op, "Param")

    def run(Param: Array, Grad: Array, LearningRate: Array) -> Array:
        (param,) = writable_arrays(Param)
        rate = first_number(LearningRate)
        for g, p in pieces(Grad, param):
            p -= rate * g
            _proximal(p, rate, l1, l2)
        return param

    return run


@kernel("proximal_adagrad", "ParamOut MomentOut")
def _proximal_adagrad(op: Op) -> Run:
    l1, l2 = real(op, "l1"), real(op, "l2")
    writable_arrays = arrays_to_update(op, "Param Moment")

    def run(Param: Array, Grad: Array, LearningRate: Array, Moment: Array) -> tuple[Array, ...]:
        param, moment = writable_arrays(Param, Moment)
        rate = first_number(LearningRate)
        for g, p, m in pieces(Grad, param, moment):
            m += g * g
            p -= rate * g / np.sqrt(m)
            _proximal(p, rate, l1, l2)
        return param, moment

    return run


def _fluid_noise(seed: int, dtype: Any) -> float:
    """The first number of the polar method over Fluid's generator seeded with `seed`."""
    draw = 0
    while True:
        x, y = (2.0 * float(u) - 1.0 for u in fluid_uniform(seed, draw, 2, dtype))
        size = x * x + y * y
        if 0.0 < size < 1.0:
            return x * float(np.sqrt(-2.0 * np.log(size) / size))
        draw += 2


@kernel("dpsgd", "ParamOut")
def _dpsgd(op: Op) -> Run:
    clip, batch, sigma, seed = real(op, "clip"), real(op, "batch_size"), real(op, "sigma"), int_attr(op, "seed")
    writable_arrays = arrays_to_update(op, "Param")

    def run(Param: Array, Grad: Array, LearningRate: Array, surroundings: Surroundings) -> Array:
        (param,) = writable_arrays(Param)
        if seed:
            noise = _fluid_noise(seed, param.dtype)
        else:  # the stream of the gradient, because a parameter's stream is the same in every step
            noise = float(normal(*surroundings.stream(op.inputs["Grad"][0], 0), 1, dtype="float64")[0])
        rate, shift = first_number(LearningRate), noise * sigma / batch
        for g, p in whole(Grad, param):
            size = float(norm(g))
            p -= rate * (g * (clip / size if size > clip else 1.0) + shift)
        return param

    return run


@plain_kernel(
    "average_accumulates",
    "out_sum_1 out_sum_2 out_sum_3 out_num_accumulates out_old_num_accumulates out_num_updates",
)
def _accumulate(
    param: Array,
    in_sum_1: Array,
    in_sum_2: Array,
    in_sum_3: Array,
    in_num_accumulates: Array,
    in_old_num_accumulates: Array,
    in_num_updates: Array,
    *,
    average_window: float,
    max_average_window: int,
    min_average_window: int,
) -> tuple[Array, ...]:
    updates, accumulates, old = in_num_updates + 1, in_num_accumulates + 1, in_old_num_accumulates
    sums = [in_sum_1 + param, in_sum_2, in_sum_3]
    if first_number(updates) % _SUMMED_AT_MOST == 0:
        sums = [np.zeros_like(param), in_sum_2 + sums[0], in_sum_3]
    count = first_number(accumulates)
    if count >= min_average_window and count >= min(max_average_window, first_number(updates) * average_window):
        sums = [np.zeros_like(param), np.zeros_like(param), sums[0] + sums[1]]
        old, accumulates = accumulates, np.zeros_like(accumulates)
    return (*sums, accumulates, old, updates)


_SUMMED_AT_MOST = 16384
"""After this many updates the first sum is added to the second, so that small terms are not lost in a large sum."""


# Kernels. Optimizers with a learning rate for each element, from averages of its gradients.

# Arrays are updated in place if the op reads and writes the same variable.


class _AdamScales(NamedTuple):
    """The factors of Adam as 0-d arrays, which numpy handles faster than Python numbers."""

    kept1: Array
    new1: Array
    kept2: Array
    new2: Array
    epsilon: Array


@lru_cache(64)
def _adam_scales(beta1: float, beta2: float, epsilon: float, kind: Any) -> tuple[loops.AdamFactors, _AdamScales]:
    factors = loops.AdamFactors(beta1, 1 - beta1, beta2, 1 - beta2, epsilon)
    return factors, _AdamScales(*(np.array(value, kind) for value in factors))


def _adam_moments(scales: _AdamScales, g: Array | None, m: Array, v: Array) -> Array | None:
    """Updates the moments with a gradient and its square, in place. Returns an array that may be used as scratch
    memory.
    """
    m *= scales.kept1
    v *= scales.kept2
    if g is None:
        return None
    spare = scales.new1 * g
    m += spare
    np.multiply(g, scales.new2, out=spare)
    spare *= g
    v += spare
    return spare


def _in_place(op: Op, slot: str) -> bool:
    """Whether the op writes the new value to the variable of an input slot."""
    return op.inputs.get(slot) == op.outputs.get(f"{slot}Out")


@kernel("adam", "ParamOut Moment1Out Moment2Out Beta1PowOut Beta2PowOut Moment2MaxOut")
def _adam(op: Op) -> Run:
    given1, given2, epsilon = real(op, "beta1"), real(op, "beta2"), real(op, "epsilon")
    given_rows = GIVEN_ROWS in op.attrs
    lazy, as_rows, scaled = flag(op, "lazy_mode") or given_rows, AS_ROWS in op.attrs, flag(op, "scaled_epsilon")
    decay = real(op, "decoupled_decay") if "decoupled_decay" in op.attrs else 0.0
    writable_arrays, replace = arrays_to_update(op, "Moment1 Moment2"), read_write_arrays(op)
    own_largest = arrays_to_update(op, "Moment2Max")
    powers_first = _in_place(op, "Beta1Pow") and not flag(op, "powers_after")

    def run(
        Param: Array,
        Grad: Array | SelectedRows,
        LearningRate: Array,
        Moment1: Array,
        Moment2: Array,
        Beta1Pow: Array,
        Beta2Pow: Array,
        Beta1Tensor: Array | None = None,
        Beta2Tensor: Array | None = None,
        Moment2Max: Array | None = None,
    ) -> tuple[Array | None, ...]:
        beta1 = given1 if Beta1Tensor is None else first_number(Beta1Tensor)
        beta2 = given2 if Beta2Tensor is None else first_number(Beta2Tensor)
        param, new = replace(Param, Grad)
        left = number_of(param)(1 - first_number(LearningRate) * decay) if decay else None
        if left is not None and not (given_rows and isinstance(Grad, SelectedRows)):
            param, left = np.multiply(param, left, out=new), None
        moment1, moment2 = writable_arrays(Moment1, Moment2)
        largest = own_largest(Moment2Max) if Moment2Max is not None else ()
        factors, scales = _adam_scales(beta1, beta2, epsilon, Moment1.dtype)
        sparse = isinstance(Grad, SelectedRows) and not as_rows
        if isinstance(Grad, SelectedRows) and sparse and not len(Grad[0]):
            return param, moment1, moment2, Beta1Pow, Beta2Pow, *(largest or (None,))
        alike = Beta1Pow.dtype == Beta2Pow.dtype == Moment1.dtype
        power1, power2 = (
            (Beta1Pow * scales.kept1, Beta2Pow * scales.kept2) if alike else (Beta1Pow * beta1, Beta2Pow * beta2)
        )
        # for sparse rows, Fluid advances powers that are updated in place before it uses them
        used1, used2 = (power1, power2) if sparse and powers_first else (Beta1Pow, Beta2Pow)
        number = number_of(param)
        left1, left2 = float(number(1 - first_number(used1))), float(number(1 - first_number(used2)))
        rate = number(first_number(LearningRate) * float(np.divide(left2**0.5, left1)))
        added = epsilon
        if scaled:
            added = float(number(epsilon) * number(left2**0.5))
            factors, scales = factors._replace(epsilon=added), scales._replace(epsilon=np.array(added, Moment1.dtype))

        def step_by_largest(g: Array | None, p: Array, m: Array, v: Array, most: Array, n: Array | None = None) -> None:
            if left is not None:
                p *= left
            _adam_moments(scales, g, m, v)
            np.maximum(most, v, out=most)
            by = epsilon if sparse and g is None else added
            np.subtract(p, rate * over_root(m, most, by), out=p if n is None else n)

        def step(g: Array | None, p: Array, m: Array, v: Array, n: Array | None = None) -> None:
            if left is not None:
                p *= left
            spare = _adam_moments(scales, g, m, v)
            if sparse:
                # as in Paddle 2.6, epsilon is scaled in the rows that the gradient has
                p -= rate * over_root(m, v, epsilon if g is None else added)
                return
            spare = root(v, spare)
            spare += scales.epsilon
            np.divide(m, spare, out=spare)
            spare *= rate
            np.subtract(p, spare, out=p if n is None else n)

        update = step_by_largest if largest else step
        if isinstance(Grad, SelectedRows):
            apart = as_rows or scaled or is_large(param)
            reach = Reach.GIVEN if sparse and lazy else Reach.ALL_APART if apart else Reach.ALL
            rows, moments = row_gradient(Grad, reach), (moment1, moment2)
            alone = not largest and left is None and same_everywhere()
            if not (alone and loops.adam_rows(param, rows, moments, factors, rate, epsilon if sparse else added)):
                if sparse and lazy:
                    update_rows(Grad, update, param, *moments, *largest)
                elif apart:
                    update_all(Grad, update, param, *moments, *largest)
                else:
                    for piece in pieces(Grad, param, *moments, *largest):
                        update(*piece)
        elif not (
            isinstance(Grad, np.ndarray)
            and not largest
            and same_everywhere()
            and loops.adam(param, Grad, moment1, moment2, new, factors, rate)
        ):
            for piece in pieces(Grad, param, moment1, moment2, *largest, new):
                update(*piece)
        return new, moment1, moment2, power1, power2, *(largest or (None,))

    return run


@kernel("adamax", "ParamOut MomentOut InfNormOut")
def _adamax(op: Op) -> Run:
    beta1, beta2, epsilon = real(op, "beta1"), real(op, "beta2"), real(op, "epsilon")
    of_gradient = flag(op, "epsilon_of_gradient")
    writable_arrays = arrays_to_update(op, "Param Moment InfNorm")

    def run(
        Param: Array, Grad: Array, LearningRate: Array, Moment: Array, InfNorm: Array, Beta1Pow: Array
    ) -> tuple[Array, ...]:
        param, moment, norm = writable_arrays(Param, Moment, InfNorm)
        rate = float(np.divide(first_number(LearningRate), 1 - first_number(Beta1Pow)))
        for g, p, m, u in pieces(Grad, param, moment, norm):
            m *= beta1
            m += (1 - beta1) * g
            u *= beta2
            size = np.abs(g)
            if of_gradient:
                size += epsilon
            else:
                u += epsilon
            np.maximum(size, u, out=u)
            p -= rate * (m / u)
        return param, moment, norm

    return run


@kernel("lamb", "ParamOut Moment1Out Moment2Out Beta1PowOut Beta2PowOut")
def _lamb(op: Op) -> Run:
    beta1, beta2, epsilon = real(op, "beta1"), real(op, "beta2"), real(op, "epsilon")
    decay, corrected = real(op, "weight_decay"), flag(op, "corrected")
    writable_arrays = arrays_to_update(op, "Param Moment1 Moment2")

    def run(
        Param: Array,
        Grad: Array,
        LearningRate: Array,
        Moment1: Array,
        Moment2: Array,
        Beta1Pow: Array,
        Beta2Pow: Array,
    ) -> tuple[Array | None, ...]:
        param, moment1, moment2 = writable_arrays(Param, Moment1, Moment2)
        step = np.zeros_like(param)
        left1, left2 = 1 - first_number(Beta1Pow), 1 - first_number(Beta2Pow)
        for g, p, m, v, r in pieces(Grad, param, moment1, moment2, step):
            m *= beta1
            m += (1 - beta1) * g
            v *= beta2
            v += (1 - beta2) * g * g
            r[...] = (over_root(m / left1, v / left2, epsilon) if corrected else over_root(m, v, epsilon)) + decay * p
        number = number_of(param)
        of_param, of_step = number(norm(param)), number(norm(step))
        adapts = of_param > 0 and of_step > 0 and not (corrected and decay == 0)
        step *= number(first_number(LearningRate)) * (of_param / of_step if adapts else number(1))
        param -= step
        powers = (Beta1Pow * beta1, Beta2Pow * beta2) if corrected else (None, None)
        return param, moment1, moment2, *powers

    return run


@kernel("adagrad decayed_adagrad", "ParamOut MomentOut UpdatesOut")
def _adagrad(op: Op) -> Run:
    falling = real(op, "rate_decay") if "rate_decay" in op.attrs else 0.0
    epsilon = real(op, "epsilon")
    decay = real(op, "decay") if op.type == "decayed_adagrad" else None
    writable_arrays, as_rows = arrays_to_update(op, "Param Moment"), AS_ROWS in op.attrs

    def run(
        Param: Array, Grad: Array, LearningRate: Array, Moment: Array, Updates: Array | None = None
    ) -> tuple[Array | None, ...]:
        param, moment = writable_arrays(Param, Moment)
        rate = first_number(LearningRate)
        if Updates is not None:
            rate = number_of(param)(rate / (1 + first_number(Updates) * falling))

        if as_rows:
            Grad = _with_zeros(Param, Grad, rate)
        sparse = decay is None and isinstance(Grad, SelectedRows)

        def step(g: Array, p: Array, m: Array) -> None:
            square = g * g if decay is None else (1 - decay) * g * g
            if decay is not None:
                m *= decay
            m += square
            change = rate * g
            size = np.sqrt(m) if sparse else root(m, square)
            size += epsilon
            change /= size
            p -= change

        if sparse:
            if not loops.adagrad_rows(param, row_gradient(Grad, Reach.GIVEN), moment, rate, epsilon):
                update_rows(Grad, step, param, moment)
        elif decay is not None or not same_everywhere() or not loops.adagrad(param, Grad, moment, rate, epsilon):
            for piece in pieces(Grad, param, moment):
                step(*piece)
        return param, moment, None if Updates is None else Updates + 1

    return run


@kernel("adadelta", "ParamOut AvgSquaredGradOut AvgSquaredUpdateOut")
def _adadelta(op: Op) -> Run:
    rho, epsilon, scaled = real(op, "rho"), real(op, "epsilon"), flag(op, "scaled")
    writable_arrays = arrays_to_update(op, "Param AvgSquaredGrad AvgSquaredUpdate")
    in_place = _in_place(op, "AvgSquaredUpdate") and not scaled

    def run(
        Param: Array, Grad: Array, AvgSquaredGrad: Array, AvgSquaredUpdate: Array, LearningRate: Array | None = None
    ) -> tuple[Array, ...]:
        if scaled and LearningRate is None:
            raise ValueError("scaled needs LearningRate")
        rate = first_number(LearningRate) if scaled and LearningRate is not None else None
        param, of_grad, of_update = writable_arrays(Param, AvgSquaredGrad, AvgSquaredUpdate)
        for g, p, a, b in pieces(Grad, param, of_grad, of_update):
            a *= rho
            a += (1 - rho) * (g * g)
            change = root((b + epsilon) / (a + epsilon)) * g
            b *= rho
            b += (1 - rho) * (change * change)
            # Fluid computes the step a second time, from the new average if that is updated in place
            step = root((b + epsilon) / (a + epsilon)) * g if in_place else change
            p -= step if rate is None else rate * step
        return param, of_grad, of_update

    return run


@kernel("rmsprop", "ParamOut MomentOut MeanSquareOut MeanGradOut")
def _rmsprop(op: Op) -> Run:
    rho, epsilon, mu = real(op, "decay"), real(op, "epsilon"), real(op, "momentum")
    centered, of_root = flag(op, "centered"), flag(op, "epsilon_of_root")
    writable_arrays = arrays_to_update(op, "Param Moment MeanSquare")
    own_mean, sparse = arrays_to_update(op, "MeanGrad"), _SparseUpdates(op)

    def run(
        Param: Array,
        Grad: Array,
        LearningRate: Array,
        Moment: Array,
        MeanSquare: Array,
        MeanGrad: Array | None = None,
    ) -> tuple[Array | None, ...]:
        param, moment, square = writable_arrays(Param, Moment, MeanSquare)
        rate = first_number(LearningRate)

        if centered and MeanGrad is None:
            raise ValueError("centered needs MeanGrad")
        mean = own_mean(MeanGrad) if centered and MeanGrad is not None else ()

        def step(g: Array, p: Array, m: Array, s: Array, *averages: Array) -> None:
            s *= rho
            s += (1 - rho) * g * g
            spread = s
            for a in averages:
                a *= rho
                a += (1 - rho) * g
                spread = s - a * a
            m *= mu
            if of_root:
                m += g / (np.sqrt(spread) + epsilon)
                p -= rate * m
            else:
                m += rate * g / root(spread + epsilon)
                p -= m

        states = moment, square, *mean
        if isinstance(Grad, SelectedRows):
            factors = RmspropFactors(rho, 1 - rho, epsilon, mu, rate)
            rows, alike = sparse.gradient(Grad), same_everywhere()
            if not (alike and loops.rmsprop_rows(param, rows, states, factors, of_root)):
                sparse.update(Grad, step, param, *states)
        else:
            for piece in pieces(Grad, param, *states):
                step(*piece)
        return param, moment, square, mean[0] if mean else MeanGrad

    return run


@kernel("ftrl", "ParamOut SquaredAccumOut LinearAccumOut")
def _ftrl(op: Op) -> Run:
    l1, l2, power = real(op, "l1"), real(op, "l2"), real(op, "lr_power")
    writable_arrays = arrays_to_update(op, "Param SquaredAccumulator:SquaredAccumOut LinearAccumulator:LinearAccumOut")

    sparse = _SparseUpdates(op)

    def raise_to_power(value: Array) -> Array:
        return root(value) if power == -0.5 else value**-power

    def run(
        Param: Array, Grad: Array, LearningRate: Array, SquaredAccumulator: Array, LinearAccumulator: Array
    ) -> tuple[Array, ...]:
        param, square, linear = writable_arrays(Param, SquaredAccumulator, LinearAccumulator)
        rate = first_number(LearningRate)

        def step(g: Array, p: Array, s: Array, z: Array) -> None:
            before = raise_to_power(s)
            s += g * g
            after = raise_to_power(s)
            z += g
            z -= (after - before) / rate * p
            shrunk = np.sign(z) * l1 - z
            if power == -0.5:
                after = np.sqrt(s)  # in a selection between two values, Fluid computes scalar roots
            p[...] = np.where(np.abs(z) > l1, shrunk / (after / rate + 2 * l2), 0)

        if isinstance(Grad, SelectedRows):
            rows, compiled = sparse.gradient(Grad), power == -0.5 and same_everywhere()
            if not (compiled and loops.ftrl_rows(param, rows, (square, linear), l1, l2, rate)):
                sparse.update(Grad, step, param, square, linear)
        else:
            for piece in pieces(Grad, param, square, linear):
                step(*piece)
        return param, square, linear

    return run
