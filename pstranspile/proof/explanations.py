"""Explanations of why an op's result on shares of a batch differs, with numbers, and what to write instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from pstranspile.compiler.analysis.reductions import is_linear_backward
from pstranspile.ir.model import Op, Program
from pstranspile.ir.types import OpRole
from pstranspile.ops import facts_of
from pstranspile.proof.compare import plain


class Machines(NamedTuple):
    """The words for the machines that share a batch: `kind` names one of them, `first` precedes its number."""

    kind: str
    first: str
    of_torch: bool
    """Whether advice is given in terms of PyTorch functions."""

    def format_counts(self, numbers: Mapping[int, float], step: int) -> str:
        """Formats numbers by machine, at most `_MOST_SHOWN` of them: `12 on rank 0, 31 on rank 1 in step 3`.

        `step` counts from 0.
        """
        shown = [f"{number:g} on {self.first}{index}" for index, number in numbers.items()]
        more = [f"and so on of {len(shown)}"] if len(shown) > _MOST_SHOWN else []
        return f"{', '.join([*shown[:_MOST_SHOWN], *more])} in step {step + 1}"


TRAINERS = Machines("trainer", "trainer_", of_torch=False)
"""Machines of every mode but ddp."""

RANKS = Machines("rank", "rank ", of_torch=True)
"""Machines of mode ddp, as PyTorch calls them."""

_MOST_SHOWN = 4
"""The most machines whose numbers are shown."""


class Meaning(NamedTuple):
    """Why the results of an op on shares of a batch do not combine to its result on the whole batch.

    `instead` says what to write instead; it is empty where no advice holds in every case.
    """

    why: str
    instead: str = ""
    parts: tuple[tuple[Op, str], ...] = ()
    """Further ops of the same computation, each with a sentence on its part in it."""
    doubtful: bool = False
    """Whether another op is more likely the cause: the count of the mean is the same on every machine, or nothing can
    be said of what the op does.
    """
    vague: bool = False
    """Whether nothing can be said of what the op does with the rows of the batch."""


class ComputedValues(NamedTuple):
    """Functions that return the values of a variable in a step."""

    on_shares: Callable[[str], Mapping[int, Any]]
    """The values on the shares of the batch, by machine number."""
    on_whole: Callable[[str], Any]
    """The value on the whole batch."""
    micro_batches: int
    """To how many micro-batches the rows are dealt; 1 if they are dealt to none."""


_ALONG = frozenset({"top_k", "top_k_v2", "arg_max", "arg_min", "argsort", "cumsum", "softmax", "log_softmax"})
"""Ops that compare rows with each other if they work along the first dim."""

_LARGEST = frozenset({"reduce_max", "reduce_min"})
"""Ops that find the largest or smallest row if their result has no dim of rows."""

_MOVING = frozenset(
    {"gather", "gather_nd", "index_select", "flip", "reverse", "roll", "scatter", "concat", "slice", "strided_slice"}
)
"""Ops that reorder rows if they work along the first dim."""

_PRODUCTS = frozenset({"matmul", "matmul_v2", "mul", "bmm"})
"""Ops that compute sums of products."""

_SCATTERS = frozenset({"scatter_nd_add", "scatter"})
"""Ops that add up rows, such as counts of ids, if their result has no dim of rows."""

_GATHER = "gather the rows of all ranks before, as torch.distributed.nn.functional.all_gather does"
"""Advice in PyTorch's terms for an op that needs rows of other shares."""


def meaning_of(
    op: Op, program: Program, machines: Machines, computed: ComputedValues, pairs: Collection[str], step: int
) -> Meaning:
    """Explains why an op of a training program is a cause.

    `pairs` are the variables that have a value for each pair of rows. `step` counts from 0.
    """
    kind, one = op.type.removesuffix("_grad"), machines.kind
    scope = op.attrs.get("op_namescope", "")
    if isinstance(scope, str) and ("@CLIP" in scope or "gradient_clip" in scope):
        return Meaning(f"each {one} clips the gradient of its own share of the batch")
    if _of_own_backward(op) and not is_linear_backward(program):
        return Meaning(
            f"this backward is not linear in the gradient that it is given, and each {one} is given that of its own "
            "share's loss",
            "clip the gradients of parameters (torch.nn.utils.clip_grad_norm_), which are averaged before"
            if machines.of_torch
            else "",
        )
    facts = facts_of(kind)
    if facts.draws and any(seed in op.attrs for seed in ("seed", "fix_seed")):
        return Meaning(f"each {one} draws numbers of its own")
    together = _of_one_operator(op, program)
    if kind == "batch_norm" or any(_normalises(other) for other in together):
        instead = "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model), or a norm that is computed row by row"
        return Meaning(
            f"it works on the batch as a whole: each {one} has the mean and the variance of its own share of the batch",
            instead if machines.of_torch else "",
        )
    if _rows_by_rows(op, pairs):
        return Meaning(
            f"it compares rows with all rows of the batch, and each {one} has only its own share of them",
            _GATHER if machines.of_torch else "",
        )
    if kind in _ALONG or any(other.type in _LARGEST and _without_rows(other, program) for other in together):
        return Meaning(
            f"it compares rows of the batch with each other, and each {one} has only its own share of them",
            f"compare within each row, or {_GATHER}" if machines.of_torch else "",
            _rows_in_order(op, program),
        )
    if states := _states_alone(op, program):
        names = ", ".join(f"%{name}" for name in states)
        return Meaning(
            f"the buffer {names} is computed of the rows of the batch: every {one} has that of its own share"
            + (", and DDP keeps that of rank 0" if machines.of_torch else ""),
            "all-reduce what is computed over the rows before it is written into the buffer"
            if machines.of_torch
            else "",
        )
    adds_up = kind == "reduce_sum" or _adds_up_rows(op, program)
    if not op.type.endswith("_grad") and (facts.mean_of_rows or adds_up):
        return _of_reduction(op, kind, program, machines, computed, step)
    if kind in _MOVING:
        return Meaning(
            f"it puts rows of the batch beside other rows, and each {one} has only its own share of them",
            f"{_GATHER}, or take the others from the same row" if machines.of_torch else "",
            _order_of(op, program),
        )
    if facts.opaque:
        why = (
            f"{facts.opaque}; of the shares of a batch it makes, in the mean of all {one}s, something else than of all"
        )
        instead = 'where torch can export the model, the check of it without step="torch" names the line'
        return Meaning(why, instead if machines.of_torch else "")
    if facts.mean_of_rows or kind == "reduce_sum":
        return _of_reduction(op, kind, program, machines, computed, step)
    if kind == "elementwise_div" and (made := _of_quotient(op, program, machines, computed, step)) is not None:
        return made
    if not op.type.endswith("_grad") and _of_whole_batch(op, program):
        return _not_linear(machines)
    if _of_rows_and_whole(op, program):
        return Meaning(
            "it combines each row with a mean, a variance or another number that is computed over the rows of the "
            f"batch, and each {one} computes it over its own share",
            _INSTEAD_OF_NUMBERS if machines.of_torch else "",
        )
    if _of_whole_batch(op, program):
        return _not_linear(machines)
    if kind in _REGROUPING:
        return Meaning(f"it puts the rows of the batch into groups, and those of a share are others on each {one}")
    if _of_rows_to_rows(_forward_of(op, program), program):
        why = f"it combines rows of the batch with each other, and each {one} has only its own share of them"
        return Meaning(why, doubtful=True, vague=True)
    return Meaning(f"it works on the batch as a whole, and each {one} has a share of it", doubtful=True, vague=True)


def _of_own_backward(op: Op) -> bool:
    """Whether an op is of a backward that no rule derives."""
    of_rule = op.origin is None or bool(op.origin.rule)
    return op.role == OpRole.BACKWARD and not of_rule and not op.type.endswith("_grad")


_REGROUPING = frozenset({"reshape", "reshape2", "unfold", "split", "unstack"})
"""Ops that distribute the rows of a batch over groups."""

_INSTEAD_OF_NUMBERS = "compute it row by row, or all-reduce those numbers before"
"""Advice in PyTorch's terms for an op that is not linear in values computed over the whole batch."""


def _not_linear(machines: Machines) -> Meaning:
    return Meaning(
        f"it is not linear in numbers that are computed over the rows of the batch, and each {machines.kind} computes "
        "them over its own",
        _INSTEAD_OF_NUMBERS if machines.of_torch else "",
    )


def compares_rows(op: Op, pairs: Collection[str], program: Program) -> bool:
    """Whether a forward op computes floating-point numbers for each pair of rows of the batch. `pairs` are the
    variables that have a value for each of these.
    """
    floats = any(_is_float(name, program) for name in op.output_names)
    return floats and _role_forward(op) and _rows_by_rows(op, pairs)


def of_integers(op: Op, program: Program) -> bool:
    """Whether an op writes flags and whole numbers only."""
    return not any(_is_float(name, program) for name in op.output_names if name)


def _is_float(name: str, program: Program) -> bool:
    var = program.main_block.vars.get(name)
    return var is not None and var.tensor is not None and var.tensor.dtype.text in ("f16", "f32", "f64")


def _of_reduction(
    op: Op, kind: str, program: Program, machines: Machines, computed: ComputedValues, step: int
) -> Meaning:
    """The explanation for a sum or a mean over rows."""
    division = _division(op, program)
    if division is not None:
        made = _of_division(op, division, program, machines, computed, step)
        if made is not None:
            return made
    made = _of_undivided(op, kind, program, machines, computed, step)
    doubtful = division is not None and -1 not in _shape(division.input("Y") or "", program)
    return made._replace(doubtful=doubtful)


def _of_undivided(
    op: Op, kind: str, program: Program, machines: Machines, computed: ComputedValues, step: int
) -> Meaning:
    """The explanation for a sum or a mean over rows that no division turns into another mean."""
    one, ofall = machines.kind, f"{machines.kind}s"
    shares = _arrays(computed.on_shares(op.input("X") or ""))
    rows = {index: float(len(value)) for index, value in shares.items() if value.ndim}
    user = _first_not_linear(_forward_of(op, program), program)
    if facts_of(kind).mean_of_rows:
        if len(set(rows.values())) > 1:
            return _of_other_rows(op, program, machines, rows, step)
        return Meaning(
            f"what is computed of this mean over the batch is not linear, and each {one} has a mean of its own",
            "compute it row by row, or all-reduce the mean before" if machines.of_torch else "",
            _curve(op, user or _product_with_own(_forward_of(op, program), program), "mean"),
        )
    if user is not None:
        return Meaning(
            f"what is computed of this sum over the batch is not linear, and each {one} has a sum of its own",
            "compute it row by row, or all-reduce the sum before" if machines.of_torch else "",
            _curve(op, user, "sum"),
        )
    return Meaning(
        f"it adds up the rows of a share, and of what {ofall} make of their sums the mean is taken",
        "take the mean over the rows, or multiply the sum by the number of ranks" if machines.of_torch else "",
    )


def _of_other_rows(op: Op, program: Program, machines: Machines, rows: Mapping[int, float], step: int) -> Meaning:
    """The explanation for a mean over selected rows, or all rows of a share, whose number differs between machines."""
    one, numbers = machines.kind, machines.format_counts(rows, step)
    if _is_row_selection(op.input("X") or "", program):
        return Meaning(
            f"this mean counts {numbers}, which are chosen and not as many on every {one}, and the mean of the "
            f"{one}s' means weighs them alike",
            _ALL_REDUCED if machines.of_torch else "",
        )
    return Meaning(
        f"it is a mean over rows that are not the same number on every {one} ({numbers})",
        "give every rank as many rows, or multiply the loss by its rows times the ranks by all rows"
        if machines.of_torch
        else "",
    )


_ALL_REDUCED = "divide the sum by the all-reduced count, and multiply it by the number of ranks"
"""Advice in PyTorch's terms for a mean that divides by a count."""


def _is_row_selection(name: str, program: Program) -> bool:
    """Whether a value consists of rows that were selected from the batch by a condition."""
    wanted = {name}
    for op in reversed(program.main_block.ops):
        if wanted.intersection(op.output_names):
            if op.type in ("where_index", "masked_select", "nonzero"):
                return True
            wanted.update(op.input_names)
    return False


def _of_division(
    op: Op, division: Op, program: Program, machines: Machines, computed: ComputedValues, step: int
) -> Meaning | None:
    """The explanation for a sum that is the dividend or the divisor of a division.

    None if the divisor is the same on every machine, or has a value for each row.
    """
    one, ofall, divisor = machines.kind, f"{machines.kind}s", division.input("Y") or ""
    arrays = _arrays(computed.on_shares(divisor))
    first = next(iter(arrays.values()), None)
    if first is None or -1 in _shape(divisor, program):
        return None
    if all(value.shape == first.shape and (value == first).all() for value in arrays.values()):
        return _of_equal_counts(divisor, arrays, program, machines, computed, step)
    counts = {index: float(value.sum(dtype="float64")) for index, value in arrays.items()}
    numbers, counted = machines.format_counts(counts, step), _reduction_of(divisor, program)
    parts = [
        (other, f"this is the {what} of the mean whose {'count' if op is counted else 'sum'} is at {_place(op)}")
        for other, what in ((division, "division"), (counted, "count"))
        if other is not None and other.location is not None and str(other.location) != str(op.location)
    ]
    if _of_parameters(divisor, program):
        return Meaning(
            f"this ratio divides by {numbers}, which each {one} computes over its own rows: it is not linear in that, "
            f"and the mean of the {ofall}' ratios is not the ratio of the whole",
            "compute the ratio row by row, or all-reduce both sums before" if machines.of_torch else "",
            tuple(parts),
        )
    if len(set(counts.values())) > 1:
        why = f"this mean counts {numbers}, rows, tokens or weights that are not as many on every {one}"
    else:
        why = f"with a division it is a mean over rows, tokens or weights that are not as many on every {one}"
    instead = (
        _ALL_REDUCED
        if machines.of_torch
        else f"divide by a number that all {ofall} have in common, such as the rows of a batch"
    )
    return Meaning(f"{why}, and the mean of the {ofall}' means weighs them alike", instead, tuple(parts))


def _rows_in_order(op: Op, program: Program) -> tuple[tuple[Op, str], ...]:
    """The ops at other lines that take rows in the order that an op finds, with what is said of them."""
    reached, found = {*op.output_names}, dict[str, Op]()
    for later in _later_forward_ops(op, program):
        if reached.isdisjoint(later.input_names):
            continue
        if later.type in _MOVING and (later.input("Index") in reached or later.input("Ids") in reached):
            if later.location is not None and str(later.location) != str(op.location):
                found.setdefault(str(later.location), later)
        elif not any(_is_float(name, program) for name in later.output_names):
            reached.update(later.output_names)
    what = f"this puts rows of the batch beside other rows, in the order that is found at {_place(op)}"
    return tuple((one, what) for one in found.values())


def _order_of(op: Op, program: Program) -> tuple[tuple[Op, str], ...]:
    """The op at another line that finds the order in which an op takes rows, with what is said of it; empty if the
    order is not found by comparing rows.
    """
    forward = _forward_of(op, program)
    wanted = {name for name in forward.input_names if not _is_float(name, program)}
    for before in reversed(program.main_block.ops):
        if not _role_forward(before) or wanted.isdisjoint(before.output_names):
            continue
        if before.type in _ALONG:
            if before.location is None or str(before.location) == str(op.location):
                return ()
            what = f"this compares rows of the batch with each other, for the order in which {_place(op)} takes them"
            return ((before, what),)
        wanted.update(name for name in before.input_names if not _is_float(name, program))
    return ()


def _of_quotient(op: Op, program: Program, machines: Machines, computed: ComputedValues, step: int) -> Meaning | None:
    """The explanation for the quotient of two means, such as that of losses and that of a mask; None for another."""
    counted, above = (_reduction_of(op.input(name) or "", program) for name in ("Y", "X"))
    if counted is None or above is None or not facts_of(counted.type).mean_of_rows or not _of_whole_batch(op, program):
        return None
    if _of_parameters(op.input("Y") or "", program):
        return None
    return _of_division(above, op, program, machines, computed, step)


def _of_equal_counts(
    divisor: str, shares: Mapping[int, Any], program: Program, machines: Machines, computed: ComputedValues, step: int
) -> Meaning | None:
    """The explanation for a mean of which every machine has the same count, but one machine does not have that of all
    together: it deals the whole batch to micro-batches otherwise, or the least count of a mean is 1. None if it has.
    """
    counted = _reduction_of(divisor, program)
    if counted is None or divisor not in _of_batch(program) or _of_parameters(divisor, program):
        return None
    share_sums = {index: float(value.sum(dtype="float64")) for index, value in shares.items()}
    value = plain(computed.on_whole(divisor))
    whole = 0.0 if value is None else float(value.sum(dtype="float64"))
    times = 1 if facts_of(counted.type).mean_of_rows else len(share_sums)
    if all(math.isclose(whole, count * times, rel_tol=1e-6) for count in share_sums.values()):
        if all(math.isclose(whole, count * times, rel_tol=_ROUNDING) for count in share_sums.values()):
            return None
        return Meaning(
            f"this mean counts {machines.format_counts(share_sums, step)}, with a number added to each: these do not "
            f"add up to the count of the whole, and where {machines.kind}s count unlike numbers of rows, tokens or "
            "weights, the mean of their means weighs them alike",
            _ALL_REDUCED if machines.of_torch else "",
        )
    where = "in a micro-batch of one process" if computed.micro_batches > 1 else "in one process"
    return Meaning(
        f"this mean counts {whole:g} {where}, and {machines.format_counts(share_sums, step)}: they are not as many "
        "rows, tokens or weights, and the mean of the means weighs them alike",
        _ALL_REDUCED if machines.of_torch else "",
    )


_ROUNDING = 2.0**-40
"""The relative difference that rounding makes, at most, in a sum in double precision."""


def _place(op: Op) -> str:
    """The line of an op as words; its type if the line is not known."""
    return f"line {op.location.line}" if op.location is not None else op.type


def _role_forward(op: Op) -> bool:
    return (op.role or OpRole.FORWARD) in (OpRole.FORWARD, OpRole.FORWARD | OpRole.LOSS)


def _later_forward_ops(op: Op, program: Program) -> list[Op]:
    """The forward ops that follow an op in the program."""
    ops = program.main_block.ops
    at = next((place for place, other in enumerate(ops) if other is op), len(ops))
    return [later for later in ops[at + 1 :] if _role_forward(later)]


def _division(op: Op, program: Program) -> Op | None:
    """The division that takes this sum as its dividend or its divisor, and so makes a mean; None if there is none."""
    reached = {*op.output_names}
    for later in _later_forward_ops(op, program):
        if later.type == "elementwise_div":
            above, below = later.input("X") in reached, later.input("Y") in reached
            if above != below:
                return later
        if later.type == "reciprocal" and later.input("X") in reached:
            reached.update(later.output_names)
        passes_on = facts_of(later.type).numbers != "computed" or later.type in _BOUNDING
        if passes_on and not reached.isdisjoint(later.input_names):
            reached.update(later.output_names)
    return None


_BOUNDING = frozenset({"scale", "clip", "elementwise_max", "elementwise_min", "where"})
"""Ops that keep a count from being 0, and others by whose results sums are still divided."""


def _reduction_of(name: str, program: Program) -> Op | None:
    """The reduction over rows from which a value without rows is computed; None if there is none."""
    wanted = {name}
    for op in reversed(program.main_block.ops):
        if _role_forward(op) and wanted.intersection(op.output_names):
            if op.type == "reduce_sum" or facts_of(op.type).mean_of_rows:
                return op
            wanted.update(op.input_names)
    return None


_LINEAR = frozenset(
    {"scale", "cast", "sum", "elementwise_add", "elementwise_sub", "reduce_sum", "reduce_mean", "mean", "assign"}
)
"""Ops whose results are linear in all their inputs together."""


def _first_not_linear(op: Op, program: Program) -> Op | None:
    """The first op whose result is not linear in the outputs of an op; None if all of the loss is. It is taken not to
    be linear where that cannot be derived from its type.
    """
    reached, batch = {*op.output_names}, _of_batch(program)
    for later in _later_forward_ops(op, program):
        read = reached.intersection(later.input_names)
        if not read:
            continue
        if later.type not in _LINEAR and facts_of(later.type).numbers not in ("moved", "in_order"):
            others = [name for name in later.input_names if name not in reached]
            product = later.type == "elementwise_mul" or (later.type == "elementwise_div" and later.input("X") in read)
            if not product or len(read) > 1 or any(_of_values(name, program) for name in batch.intersection(others)):
                return later
        reached.update(later.output_names)
    return None


def _product_with_own(op: Op, program: Program) -> Op | None:
    """The first product of the outputs of an op, or of what moves them, with another value of the batch that has no dim
    of rows, such as the share of rows that a condition holds for; None if there is none.
    """
    reached, batch = {*op.output_names}, _of_batch(program)
    for later in _later_forward_ops(op, program):
        if reached.isdisjoint(later.input_names):
            continue
        others = batch.intersection(later.input_names) - reached
        if later.type == "elementwise_mul" and any(-1 not in _shape(name, program) for name in others):
            return later
        reached.update(later.output_names)
    return None


def _of_values(name: str, program: Program) -> bool:
    """Whether a value depends on the feed otherwise than by flags and whole numbers, such as the number of rows."""
    variables = program.main_block.vars
    return any(var.need_check_feed for one in _made_of(name, program) if (var := variables.get(one)) is not None)


def _made_of(name: str, program: Program) -> set[str]:
    """The variable itself, and the floating-point variables from which forward ops compute it."""
    wanted = {name}
    for op in reversed(program.main_block.ops):
        if _role_forward(op) and not wanted.isdisjoint(op.output_names):
            wanted.update(one for one in op.input_names if _is_float(one, program))
    return wanted


def _curve(op: Op, user: Op | None, what: str) -> tuple[tuple[Op, str], ...]:
    """The op that makes the result not linear in a mean or a sum, with a sentence about it; empty if it stands at the
    same line as `op`.
    """
    if user is None or user.location is None or str(user.location) == str(op.location):
        return ()
    return ((user, f"this is not linear in the {what} at {_place(op)}"),)


def _of_batch(program: Program) -> set[str]:
    """The variables that forward ops compute from the feed, and the feed itself."""
    block = program.main_block
    reached = {name for name, var in block.vars.items() if var.need_check_feed}
    for op in block.ops:
        if _role_forward(op) and reached.intersection(op.input_names):
            reached.update(op.output_names)
    return reached


def _of_parameters(name: str, program: Program) -> bool:
    """Whether a value depends on a parameter otherwise than by flags and whole numbers, which have no gradients."""
    variables = program.main_block.vars
    return any(var.parameter is not None for one in _made_of(name, program) if (var := variables.get(one)) is not None)


def _of_one_operator(op: Op, program: Program) -> list[Op]:
    """The forward ops to which a framework's operator was translated, if this op is one of them.

    They share a location, and their outputs have names derived from the operator's output.
    """
    stems = {name.partition("@")[0].partition(".part")[0] for name in (*op.output_names, *_forward_names(op))}
    return [
        other
        for other in program.main_block.ops
        if _role_forward(other)
        and other.location == op.location
        and any(name.partition(".part")[0] in stems and ".part" in name for name in other.output_names)
    ]


def _forward_names(op: Op) -> list[str]:
    return [name.partition("@")[0] for name in op.input_names if "@GRAD" in name]


def _forward_of(op: Op, program: Program) -> Op:
    """The forward op that an op is the gradient of; the op itself if it is none."""
    names = set(_forward_names(op))
    if not op.type.endswith("_grad"):
        return op
    made = (one for one in program.main_block.ops if _role_forward(one) and not names.isdisjoint(one.output_names))
    return next(made, op)


def _normalises(op: Op) -> bool:
    return op.type == "batch_norm"


def _states_alone(op: Op, program: Program) -> list[str]:
    """The states that a forward op writes, itself or by what is computed of its results, if the loss is not computed of
    them.
    """
    if not _role_forward(op):
        return []
    variables, reached = program.main_block.vars, {*op.output_names}
    ops = [op]
    for later in _later_forward_ops(op, program):
        if not reached.isdisjoint(later.input_names):
            ops.append(later)
            reached.update(later.output_names)
    made = dict.fromkeys(name for one in ops for name in one.output_names)
    kept = [name for name in made if (var := variables.get(name)) is not None and var.persistable]
    return [] if any((one.role or OpRole.FORWARD) & OpRole.LOSS for one in ops) else kept


def _shape(name: str, program: Program) -> tuple[int, ...]:
    var = program.main_block.vars.get(name.partition("@")[0])
    return tuple(var.tensor.shape) if var is not None and var.tensor is not None else ()


def _without_rows(op: Op, program: Program) -> bool:
    """Whether an op reads values with a dim of rows and writes only values without one."""
    made, read = ([_shape(name, program) for name in names] for names in (op.output_names, op.input_names))
    return any(-1 in shape for shape in read) and not any(-1 in shape for shape in made)


def _of_rows_to_rows(op: Op, program: Program) -> bool:
    """Whether an op reads and writes values with a dim of rows."""
    made, read = ([_shape(name, program) for name in names] for names in (op.output_names, op.input_names))
    return any(-1 in shape for shape in read) and any(-1 in shape for shape in made)


def _adds_up_rows(op: Op, program: Program) -> bool:
    """Whether an op sums products over the rows, or adds rows to places of a value without rows."""
    return op.type in _PRODUCTS | _SCATTERS and _without_rows(op, program)


def _of_rows_and_whole(op: Op, program: Program) -> bool:
    """Whether an op combines rows with a value of the whole batch that has no dim of rows, or repeats it for each."""
    batch = _of_batch(program)
    read, made = (
        [_shape(name, program) for name in names if name.partition("@")[0] in batch]
        for names in (op.input_names, op.output_names)
    )
    return any(-1 in shape for shape in (*read, *made)) and any(-1 not in shape for shape in read)


def _of_whole_batch(op: Op, program: Program) -> bool:
    """Whether neither an input nor an output of an op has a dim of rows."""
    names = [name for name in (*op.input_names, *op.output_names) if name in program.main_block.vars]
    held = [program.main_block.vars[name].tensor for name in names]
    return bool(held) and all(tensor is not None and -1 not in tensor.shape for tensor in held)


def _rows_by_rows(op: Op, pairs: Collection[str]) -> bool:
    """Whether an output of an op, or the value that it is the gradient of, is one of `pairs`."""
    return any(name.partition("@")[0] in pairs for name in op.output_names)


def _arrays(values: Mapping[int, Any]) -> dict[int, Any]:
    plains = {index: plain(value) for index, value in values.items()}
    return {index: value for index, value in plains.items() if value is not None}


def machines_of(mode: str) -> Machines:
    """The words for the machines of a mode."""
    return RANKS if mode == "ddp" else TRAINERS
