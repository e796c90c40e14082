"""What it means that an op gives something else on shares of a batch, with numbers, and what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pstranspile.ir.model import Op, Program
from pstranspile.ir.types import OpRole
from pstranspile.ops import facts_of
from pstranspile.proof.compare import plain


class Machines(NamedTuple):
    """What the machines that share a batch are called: `kind` is one of them, `first` what stands before its number."""

    kind: str
    first: str
    of_torch: bool
    """Whether the reader knows PyTorch: what to write instead is said in its functions."""

    def counted(self, numbers: Mapping[int, float], step: int) -> str:
        """`12 on rank 0, 31 on rank 1 in step 3`; the first ones of many."""
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
    """Why the results of an op on shares of a batch do not come to its result on the whole, and what to write instead
    ("": nothing is known that always helps).
    """

    why: str
    instead: str = ""


OnShares = Callable[[str], Mapping[int, Any]]
"""The values of a variable on the shares of a batch, by the number of the machine."""

_OVER_ROWS = frozenset(
    {"top_k", "top_k_v2", "arg_max", "arg_min", "argsort", "reduce_max", "reduce_min", "cumsum", "softmax"}
)
"""Ops that compare rows with each other, where they work along the first dim."""


def meaning_of(op: Op, program: Program, machines: Machines, on_shares: OnShares, step: int) -> Meaning:
    """What it means that this op of a training program is a cause. `step` counts from 0."""
    kind, one = op.type.removesuffix("_grad"), machines.kind
    scope = op.attrs.get("op_namescope", "")
    if isinstance(scope, str) and ("@CLIP" in scope or "gradient_clip" in scope):
        return Meaning(f"each {one} clips the gradient of its own share of the batch")
    facts = facts_of(kind)
    if facts.draws and any(seed in op.attrs for seed in ("seed", "fix_seed")):
        return Meaning(f"each {one} draws numbers of its own")
    if kind == "batch_norm":
        instead = "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model), or a norm that is computed row by row"
        return Meaning(
            f"it works on the batch as a whole: each {one} has the mean and the variance of its own share of the batch",
            instead if machines.of_torch else "",
        )
    if kind in ("matmul", "matmul_v2", "mul") and _rows_by_rows(op, program):
        instead = "gather the rows of all ranks before, as torch.distributed.nn.functional.all_gather does"
        return Meaning(
            f"it compares rows with all rows of the batch, and each {one} has only its own share of them",
            instead if machines.of_torch else "",
        )
    if facts.opaque:
        why = (
            f"{facts.opaque}; of the shares of a batch it makes, in the mean of all {one}s, something else than of all"
        )
        instead = 'where torch can export the model, the check of it without step="torch" names the line'
        return Meaning(why, instead if machines.of_torch else "")
    if facts.mean_of_rows or kind == "reduce_sum":
        return _of_reduction(op, kind, program, machines, on_shares, step)
    if not op.type.endswith("_grad") and _of_whole_batch(op, program):
        return Meaning(
            f"it is not linear in numbers that are computed over the rows of the batch, and each {one} computes them "
            "over its own",
            "compute it row by row, or all-reduce those numbers before" if machines.of_torch else "",
        )
    if kind in _OVER_ROWS:
        return Meaning(f"it compares rows of the batch with each other, and each {one} has only its own share of them")
    return Meaning(f"it works on the batch as a whole, and each {one} has a share of it")


def _of_reduction(op: Op, kind: str, program: Program, machines: Machines, on_shares: OnShares, step: int) -> Meaning:
    """The meaning of a sum or a mean over rows."""
    one, ofall = machines.kind, f"{machines.kind}s"
    divisor = _divisor(op, program)
    if divisor is not None:
        counts = _numbers(on_shares(divisor))
        differ = len(set(counts.values())) > 1
        if differ:
            numbers = machines.counted(counts, step)
            why = f"this mean counts {numbers}, tokens or weights that are not as many on every {one}"
        else:
            why = f"with a division it is a mean over tokens or weights that are not as many on every {one}"
        instead = (
            "divide the sum by the all-reduced count, and multiply it by the number of ranks"
            if machines.of_torch
            else f"divide by a number that all {ofall} have in common, such as the rows of a batch"
        )
        return Meaning(f"{why}, and the mean of the {ofall}' means weighs them alike", instead)
    rows = {index: float(len(value)) for index, value in _arrays(on_shares(op.input("X") or "")).items() if value.ndim}
    if facts_of(kind).mean_of_rows:
        if len(set(rows.values())) > 1:
            return Meaning(
                f"it is a mean over rows that are not the same number on every {one} ({machines.counted(rows, step)})"
            )
        return Meaning(
            f"what is computed of this mean over the batch is not linear, and each {one} has a mean of its own",
            "compute it row by row, or all-reduce the mean before" if machines.of_torch else "",
        )
    return Meaning(
        f"it adds up the rows of a share, and of what {ofall} make of their sums the mean is taken",
        "take the mean over the rows, or multiply the sum by the number of ranks" if machines.of_torch else "",
    )


def _divisor(op: Op, program: Program) -> str | None:
    """The variable of the batch in a division that makes a mean of this sum, or of which this sum is the count."""
    reached, ops = {*op.output_names}, program.main_block.ops
    at = next((place for place, other in enumerate(ops) if other is op), len(ops))
    for later in ops[at + 1 :]:
        if (later.role or OpRole.FORWARD) not in (OpRole.FORWARD, OpRole.FORWARD | OpRole.LOSS):
            break
        if later.type == "elementwise_div":
            above, below = later.input("X") in reached, later.input("Y") in reached
            if above != below:
                return later.input("Y")
        passes_on = facts_of(later.type).numbers != "computed" or later.type in ("scale", "clip")
        if passes_on and not reached.isdisjoint(later.input_names):
            reached.update(later.output_names)
    return None


def _of_whole_batch(op: Op, program: Program) -> bool:
    """Whether an op computes with values that have no dim of rows."""
    names = [name for name in (*op.input_names, *op.output_names) if name in program.main_block.vars]
    held = [program.main_block.vars[name].tensor for name in names]
    return bool(held) and all(tensor is not None and -1 not in tensor.shape for tensor in held)


def _rows_by_rows(op: Op, program: Program) -> bool:
    """Whether an op makes a matrix of rows by rows."""
    name = op.output("Out") or (op.input("Out@GRAD") or "").removesuffix("@GRAD")
    var = program.main_block.vars.get(name)
    return var is not None and var.tensor is not None and tuple(var.tensor.shape) == (-1, -1)


def _arrays(values: Mapping[int, Any]) -> dict[int, Any]:
    plains = {index: plain(value) for index, value in values.items()}
    return {index: value for index, value in plains.items() if value is not None}


def _numbers(values: Mapping[int, Any]) -> dict[int, float]:
    """Values of one element as numbers; none if there is another."""
    arrays = _arrays(values)
    if any(array.size != 1 for array in arrays.values()):
        return {}
    return {index: float(array.reshape(-1)[0]) for index, array in arrays.items()}


def machines_of(mode: str) -> Machines:
    """What machines are called in a mode."""
    return RANKS if mode == "ddp" else TRAINERS
