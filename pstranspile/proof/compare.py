"""Comparing the variables of a cluster with those of a single machine, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pstranspile.ir.model import Program
from pstranspile.lazy import lazy_import
from pstranspile.ops import schema_of
from pstranspile.ops.values import LoDTensor, SelectedRows
from pstranspile.proof.report import BITWISE, DIFFERENT, ROUNDING, Verdict

np = lazy_import("numpy")

LOSS_TOLERANCE = 1e-6
"""The relative difference of losses that rounding explains."""

LINEAR_TOLERANCE = 1e-6
"""The same of parameters whose update is linear in the gradient."""

AMPLIFIED_TOLERANCE = 1e-4
"""The same of other parameters and of the state of optimizers, where nearly zero gradients amplify rounding."""

SMALL = 1e-2
"""Elements of parameters smaller than this are held against this instead of against themselves."""

Snapshot = Mapping[str, Any]
"""Values of variables after a step, by name."""


def plain(value: Any) -> Any:
    """A value as an array: data of a ragged one, sparse rows in place."""
    if isinstance(value, LoDTensor):
        return value.data
    if isinstance(value, SelectedRows):
        whole = np.zeros((value.height, *value.value.shape[1:]), value.value.dtype)
        np.add.at(whole, value.rows, value.value[: len(value.rows)])
        return whole
    return value if isinstance(value, np.ndarray) else None


def differ(ours: Any, theirs: Any, *, by_element: bool) -> tuple[bool, float]:
    """Whether two arrays are bitwise equal, and their largest relative difference (infinite for other dims or NaN).

    `by_element`: relative to each element (but to no less than `SMALL`); otherwise to the largest of the array.
    """
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return False, float("inf")
    if ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes():
        return True, 0.0
    a, b = ours.astype("float64"), theirs.astype("float64")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False, float("inf")
    scale = np.maximum(np.abs(b), SMALL) if by_element else max(float(np.abs(b).max(initial=0.0)), 1e-12)
    return False, float((np.abs(a - b) / scale).max(initial=0.0))


def verdict(name: str, kind: str, tolerance: float, ours: Sequence[Any], theirs: Sequence[Any]) -> Verdict:
    """The verdict on one variable from its values after each step on the cluster and on the single machine."""
    bitwise, worst, worst_step, first = True, 0.0, 0, -1
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True), start=1):
        same, difference = differ(plain(a), plain(b), by_element=kind == "parameter")
        bitwise &= same
        if difference > worst:
            worst, worst_step = difference, step
        if first < 0 and difference > tolerance:
            first = step
    equality = BITWISE if bitwise else ROUNDING if first < 0 else DIFFERENT
    return Verdict(name, kind, equality, worst, worst_step, first, tolerance)


def verdicts(main: Program, ours: Sequence[Snapshot], theirs: Sequence[Snapshot]) -> list[Verdict]:
    """Verdicts on every variable that both sides have, parameters first, each group by name."""
    parameters = {var.name for var in main.parameters()}
    linear = linear_parameters(main)
    names = sorted(set(ours[0]) & set(theirs[0]), key=lambda name: (name not in parameters, name)) if ours else []
    found: list[Verdict] = []
    for name in names:
        kind = "parameter" if name in parameters else "state"
        tolerance = LINEAR_TOLERANCE if name in linear else AMPLIFIED_TOLERANCE
        found.append(verdict(name, kind, tolerance, [s.get(name) for s in ours], [s.get(name) for s in theirs]))
    return found


def linear_parameters(main: Program) -> set[str]:
    """The parameters whose every update is linear in their gradient."""
    found: dict[str, bool] = {}
    for op in main.main_block.ops:
        schema = schema_of(op.type)
        name = op.input("Param")
        if schema is not None and schema.is_optimizer and name is not None:
            found[name] = found.get(name, True) and schema.linear
    return {name for name, linear in found.items() if linear}
