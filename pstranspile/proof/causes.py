"""Which op gives something else on shares of a batch than on the whole batch.

The program is run once on the whole batch and once on each share, from the same values. What an op makes fits if the
whole is the shares one after the other, their mean, or each of them, up to rounding and to the factor by which the
gradient of a mean over fewer rows is larger. The first op that makes something that does not fit of inputs that do is a
cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pstranspile.analysis.roles import find_roles
from pstranspile.ir.model import Op, Program
from pstranspile.lazy import lazy_import
from pstranspile.ops import schema_of
from pstranspile.ops.context import Value
from pstranspile.ops.values import SelectedRows
from pstranspile.plan.plan import Plan
from pstranspile.proof.compare import plain
from pstranspile.proof.report import Cause
from pstranspile.run.api import run
from pstranspile.run.bound import BoundOp
from pstranspile.run.cluster.feeding import share_of
from pstranspile.run.scope import Scope, own_copy
from pstranspile.run.terms import without_unmade_terms

np = lazy_import("numpy")

CLOSE = 1e-3
"""Relative difference below which rounding is taken for the reason."""

MOST = 3
"""Causes that are looked for; what follows from one is not another."""


class _Kept:
    """A watcher that keeps what every op of the main block makes."""

    def __init__(self) -> None:
        self.made: list[tuple[Op, dict[str, Any]]] = []

    def __call__(self, bound: BoundOp, made: list[tuple[str, Value]], seconds: float) -> None:
        del seconds
        self.made.append((bound.op, {name: own_copy(value) for name, value in made}))


def find_causes(
    main: Program, held: Mapping[str, Any], feed: Mapping[str, Any], trainers: int, seed: int
) -> list[Cause]:
    """The ops of a training program that see the batch as a whole; `held` is what the scope starts with."""
    feeds = [share_of(feed, main, i, trainers) for i in range(trainers)]
    main = without_unmade_terms(main)  # here, so that all runs are of the same ops
    whole = _values(main, held, feed, seed, 0)
    shares = [_values(main, held, part, seed, i) for i, part in enumerate(feeds)]
    moved = {id(main.main_block.ops[i]) for i in find_roles(main.main_block).moved}
    kept = set(held) | set(feed)
    causes: list[Cause] = []
    for index, (op, made) in enumerate(whole):
        if any(index >= len(share) or share[index][0] is not op for share in shares):
            break  # control flow that depends on the data
        if id(op) in moved:
            continue
        wrong = [
            name
            for name, value in made.items()
            if not fits(value, [share[index][1].get(name) for share in shares], state=name in held)
        ]
        if wrong and all(name in kept for name in op.input_names if name not in wrong or name in kept):
            causes.append(Cause(op.type, wrong[0], _location(op), _why(op)))
            if len(causes) == MOST:
                break
        kept.update(name for name in made if name not in wrong)
        kept.difference_update(wrong)
    return causes


def _values(
    main: Program, held: Mapping[str, Any], feed: Mapping[str, Any], seed: int, stream: int
) -> list[tuple[Op, dict[str, Any]]]:
    scope = Scope()
    for name, value in held.items():
        scope[name] = value
    watcher = _Kept()
    run(main, feed=feed, scope=scope, seed=seed, stream=stream, watchers=[watcher])
    tops = {id(op) for op in main.main_block.ops}
    return [(op, made) for op, made in watcher.made if id(op) in tops]


def fits(whole: Any, shares: Sequence[Any], *, state: bool = False) -> bool:
    """Whether a value on the whole batch is what its values on the shares come to.

    Integers are positions, masks and the like, which nothing is said of, unless they are `state` that is kept.
    """
    if isinstance(whole, SelectedRows) and all(isinstance(share, SelectedRows) for share in shares):
        parts = [plain(share) for share in shares]
        return _close(plain(whole), sum(parts[1:], parts[0]) / len(parts))
    value, parts = plain(whole), [plain(share) for share in shares]
    if value is None or any(part is None for part in parts) or not value.size:
        return True  # lists and shapes are judged by what is made of them
    if value.dtype.kind != "f" and not state:
        return True
    if any(part.ndim != value.ndim for part in parts):
        return False
    if all(part.shape == value.shape for part in parts):
        mean = sum(part.astype("float64") for part in parts) / len(parts)
        return _close(value, mean) or all(_close(value, part) for part in parts)
    if value.ndim == 0 or any(part.shape[1:] != value.shape[1:] for part in parts):
        return False
    joined = np.concatenate(parts)
    return joined.shape == value.shape and (_close(value, joined) or _close(value, joined / len(parts)))


def _close(a: Any, b: Any) -> bool:
    if a.shape != b.shape:
        return False
    size = float(np.abs(a).max(initial=0.0))
    return float(np.abs(a.astype("float64") - b).max(initial=0.0)) <= CLOSE * max(size, 1e-12)


def _location(op: Op) -> str:
    where = op.origin.location if op.origin else None
    return str(where) if where is not None else ""


def _why(op: Op) -> str:
    scope = op.attrs.get("op_namescope", "")
    if isinstance(scope, str) and ("@CLIP" in scope or "gradient_clip" in scope):
        return "each trainer clips the gradient of its own share of the batch"
    if any(seed in op.attrs for seed in ("seed", "fix_seed")) and op.type in (
        "dropout",
        "nce",
        "nce_grad",
        "sampling_id",
    ):
        return "each trainer draws numbers of its own"
    if op.type in ("mean", "reduce_mean", "sequence_pool"):
        return "it is a mean over rows that are not the same number on every trainer"
    return "it works on the batch as a whole, and each trainer has a share of it"


ROWS_ONLY = frozenset({"sgd", "adagrad"})
"""Optimizers whose update of a table by some rows leaves all else as it is; others have state that every step moves."""


def server_causes(main: Program, plan: Plan, different: Sequence[str]) -> list[Cause]:
    """Updates that by their place on servers are others than on a single machine (A2.24, A2.76, A2.101).

    Each is told of the first of the `different` variables that it writes, and left out if it writes none of them.
    """
    found: list[Cause] = []
    cut = {parameter.name: parameter.sparse for parameter in plan.parameters if parameter.is_cut}
    counters = {counter.name for counter in plan.counters}
    for op in main.main_block.ops:
        written = set(op.output_names)
        variable = next((name for name in different if name in written), None)
        schema, name = schema_of(op.type), op.input("Param") or ""
        if variable is None:
            continue
        why = ""
        if op.type == "increment" and op.output("Out") in counters:
            why = "the servers count the steps of all trainers, and are ahead of a single machine"
        elif schema is None or not schema.is_optimizer:
            continue
        elif name in cut and schema.whole_norm:
            why = "each server uses the norm of its own slice"
        elif cut.get(name) and op.type not in ROWS_ONLY:
            why = "a server leaves its slice alone in a step that brings no rows of it; one machine updates the table"
        elif plan.table is not None and name == plan.table.name:
            why = "the servers update a distributed lookup table by sgd with the sum of the trainers' gradients"
        if why:
            found.append(Cause(op.type, variable, _location(op), why))
    return found
