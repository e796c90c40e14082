"""Whether the shares of a batch come to the whole of it, in a single step from the same values.

Over a run this can't be told where rounding decides what an optimizer does (with a gradient that is nearly zero), nor
where hardly anything is learnt. The gradients of one step tell it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pstranspile.ir.model import Program
from pstranspile.lazy import lazy_import
from pstranspile.ops import schema_of
from pstranspile.ops.context import Value
from pstranspile.proof.compare import Side, excused, plain
from pstranspile.proof.course import Course
from pstranspile.proof.halves import Evaluation, Halves, combined
from pstranspile.proof.report import DIFFERENT, ROUNDING, STEPWISE, Verdict
from pstranspile.run.batch import joined
from pstranspile.run.cluster.feeding import divided

np = lazy_import("numpy")

OF_ITSELF = 1e-5
"""By how much of itself a gradient on the whole batch may differ from the mean of those on the shares."""

OF_ALL = 1e-6
"""The same, as a part of the largest gradient of the step: what is smaller beside it is taken for rounding."""


def apart(half: Halves, runs: Sequence[Evaluation], values: Mapping[str, Value], losses: Sequence[str]) -> set[str]:
    """The parameters (and losses) whose gradients (values) on the shares do not come to that on the whole batch.

    `runs` are the first half on each share, `values` what the step began with.
    """
    shares = [run.execution.feed for run in runs]
    names = [name for name in shares[0] if divided(half.program, name)]
    first = runs[0].execution
    whole = Evaluation(half.program, values, joined(shares, names), seed=first.base_seed, step=first.step)
    whole.go(half.first)
    sizes: dict[str, float] = {}
    misfits: dict[str, float] = {}
    for owner, name in (*half.sent.items(), *((loss, loss) for loss in losses)):
        parts = [value for run in runs if (value := run[name]) is not None]
        mean, wanted = plain(combined(parts)) if len(parts) == len(runs) else None, plain(whole[name])
        if mean is None or wanted is None or mean.shape != wanted.shape:
            continue  # a value for each row is no loss that can be compared
        sizes[owner] = max(float(np.abs(plain(part)).max(initial=0.0)) for part in parts)
        misfits[owner] = float(np.abs(mean.astype("float64") - wanted).max(initial=0.0))
    largest = max((size for owner, size in sizes.items() if owner in half.sent), default=0.0)
    return {
        owner
        for owner, misfit in misfits.items()
        if not misfit <= OF_ITSELF * sizes[owner] + (OF_ALL * largest if owner in half.sent else 0.0)
    }


def owners_of(main: Program) -> dict[str, str]:
    """Parameters and states of optimizers -> the parameter whose gradient they are made of."""
    found: dict[str, str] = {}
    for op in main.main_block.ops:
        schema, name = schema_of(op.type), op.input("Param")
        if schema is not None and schema.is_optimizer and name is not None:
            found.update(dict.fromkeys(op.output_names, name))
    return found


def settled(
    found: Sequence[Verdict], course: Course, ours: Side, theirs: Side, unlike: set[str], *, steps_hold: bool
) -> list[Verdict]:
    """The verdicts, where single steps tell more than the run does.

    `unlike` are the parameters and losses that are `apart` in a step, `steps_hold` says whether every step is the
    source's. Then, if nothing is apart, what differs has been amplified from rounding; and a parameter that is apart is
    different, however little it was moved.
    """
    owners = owners_of(course.whole)
    result: list[Verdict] = []
    for item in found:
        owner = owners.get(item.name)
        if item.equality == DIFFERENT and steps_hold and not unlike and (owner is not None or item.kind == "loss"):
            item = item._replace(equality=STEPWISE)
        elif item.equality == ROUNDING and item.kind == "parameter" and item.name in unlike:
            start, name = plain(theirs.start.get(item.name)), item.name
            pairs = [(plain(a[name]), plain(b[name])) for a, b in zip(ours.snapshots, theirs.snapshots, strict=True)]
            bad = [step for step, (a, b) in enumerate(pairs, 1) if not excused(a, b, start)]
            item = item._replace(equality=DIFFERENT, first=bad[0]) if bad else item
        result.append(item)
    return result
