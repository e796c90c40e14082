"""Which ops give something else on shares of a batch than on the whole, so that a cluster trains otherwise.

One step is computed on the whole batch and, op by op in parallel, on each share, from the same values. An output of an
op fits if the whole is the concatenated shares, their mean, or equal to each of them, up to rounding. Gradients of rows
are larger on shares, by the number of these, because the cluster takes the mean of the shares. An op is a suspect if
its inputs fit and an output does not. The shares then go on with parts of the whole output, so that its difference is
taken away. The op is a cause if gradients, losses or states that differ otherwise do not differ then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pstranspile.ir.model import Op, Program
from pstranspile.ir.roles import OpRole
from pstranspile.ops import schema_of
from pstranspile.proof.halves import Evaluation, Halves
from pstranspile.proof.report import OWN_NORM, Cause
from pstranspile.proof.share_values import fits, forced_parts, same_rows, sum_of
from pstranspile.proof.workload import metrics_of
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.batch import Batch

NOISE = 1e-6
"""The part of the sum of what gradients an op is given by which what it makes may differ: it may cancel out."""

MOST = 3
"""The most causes in a report."""

TRIED = 12
"""Types of suspects that are tried, at most."""


class Suspicion:
    """A step of a training program, on the whole batch and on the trainers' shares of it.

    `half` says which ops the trainers do, `held` is what the scope starts with. Shares without rows are left out.
    """

    def __init__(
        self,
        half: Halves,
        held: Mapping[str, Any],
        feed: Mapping[str, Any],
        shares: Sequence[Mapping[str, Any]],
        seed: int,
    ):
        main = half.program
        shares = [share for share in shares if not (isinstance(share, Batch) and share.rows == 0)]
        self.half = half
        self.weights = [share.weight if isinstance(share, Batch) else 1.0 for share in shares]
        self.held = {name: value for name, value in held.items() if name in main.main_block.vars}
        self.feeds = [feed, *shares]
        self.seed = seed
        self.given = {*held, *feed}
        losses = {name for op in main.main_block.ops for name in op.output_names if _is_loss(op)}
        states = {name for name in held if _kept(main, name)} - metrics_of(main)
        self.ends = {*half.sent.values(), *losses, *states}
        """What the shares must come to: gradients, losses and states that trainers keep, but not what metrics count."""

    def misfits(self, left: Collection[int]) -> tuple[set[str], list[int]]:
        """The ends that do not fit when the differences of all suspects but those in `left` are taken away; and which
        ops were suspected.
        """
        runs = [
            Evaluation(self.half.program, self.held, feed, seed=self.seed, stream=max(place - 1, 0))
            for place, feed in enumerate(self.feeds)
        ]
        kept, suspects, wrong = set(self.given), list[int](), set[str]()
        ops = self.half.program.main_block.ops
        last = runs[0].last_uses(self.half.first, ())
        for index in self.half.first:
            names = [name for name in dict.fromkeys(ops[index].output_names) if name]
            for run in runs:
                run.go((index,))
            made, unfit = self._unfit(ops[index], names, runs)
            if unfit and all(name in kept for name in ops[index].input_names if name and name not in names):
                gradients = _is_backward(ops[index])
                forced = {name: forced_parts(*made[name], gradient=gradients) for name in names}
                if not any(same_rows(*made[name], gradient=gradients) for name in unfit) and all(
                    forced[name] for name in unfit
                ):
                    suspect = not self._only_enlarges(index, names, runs)
                    if suspect:
                        suspects.append(index)
                    if index not in left or not suspect:
                        for name, parts in forced.items():  # whoever changes them gets copies
                            for run, part in zip(runs, (runs[0][name], *(parts or ())), strict=False):
                                run.lend(name, part)
                        unfit = []
            kept.update(name for name in names if name not in unfit)
            kept.difference_update(unfit)
            wrong.difference_update(names)
            wrong.update(name for name in unfit if name in self.ends)
            for run in runs:
                run.forget(last.get(index, ()))
        return wrong, suspects

    def _unfit(
        self, op: Op, names: Sequence[str], runs: Sequence[Evaluation]
    ) -> tuple[dict[str, tuple[Value, list[Value]]], list[str]]:
        """What an op has made of these names on the whole batch and on the shares, and which of it does not fit."""
        made = {name: (runs[0][name], [run[name] for run in runs[1:]]) for name in names}
        gradients = _is_backward(op)
        floor = NOISE * max((sum_of(runs[0][name]) for name in op.input_names if "@GRAD" in name), default=0)
        unfit = [
            n
            for n, (whole, parts) in made.items()
            if not fits(whole, parts, self.weights, state=n in self.held, gradient=gradients, floor=floor)
        ]
        return made, unfit

    def _only_enlarges(self, index: int, names: Sequence[str], runs: Sequence[Evaluation]) -> bool:
        """Whether what an op makes fits once its inputs on the shares, which are alike, are the same as on the whole:
        then it has just made more of a difference that was taken for rounding. Not known of an op that changes inputs.
        """
        op = self.half.program.main_block.ops[index]
        inputs = [name for name in dict.fromkeys(op.input_names) if name]
        if not inputs or not set(inputs).isdisjoint(names):
            return False
        made: list[list[Value]] = []
        for name in inputs:
            parts = forced_parts(runs[0][name], [run[name] for run in runs[1:]], gradient="@GRAD" in name)
            if parts is None:
                return False
            made.append(parts)
        for place, run in enumerate(runs[1:]):
            run.go((index,), {index: {name: parts[place] for name, parts in zip(inputs, made, strict=True)}})
        return not self._unfit(op, names, runs)[1]

    def causes(self) -> list[Cause]:
        """The ops by which ends differ, in the order of the program; of each type and its gradients the first one.

        Those of a type are tried together: a quotient of sums may be the same although neither sum is.
        """
        ops = self.half.program.main_block.ops
        if not self.misfits(range(len(ops)))[0]:
            return []
        remaining, suspects = self.misfits(())
        alike: dict[str, list[int]] = {}
        for index in suspects:
            alike.setdefault(ops[index].type.removesuffix("_grad"), []).append(index)
        result: list[Cause] = []
        for group in list(alike.values())[:TRIED]:
            by_all = self.misfits(group)[0] - remaining
            for index in group if by_all else ():
                differing = by_all if len(group) == 1 else self.misfits((index,))[0] - remaining
                if differing:
                    op = ops[index]
                    variable = self._first_unfit(op, differing)
                    result.append(Cause(op.type, variable, _location(op), _why(op, self.half.program)))
                    break
        return result[:MOST]

    def _first_unfit(self, op: Op, differing: set[str]) -> str:
        """What is reported to differ: an output of the op, else a value that depends on one."""
        own = [name for name in op.output_names if name]
        return next((name for name in own if name in differing), own[0] if own else min(differing))


def _is_loss(op: Op) -> bool:
    return op.role == OpRole.FORWARD | OpRole.LOSS


def _kept(main: Program, name: str) -> bool:
    var = main.main_block.vars.get(name)
    return var is not None and var.persistable


def _is_backward(op: Op) -> bool:
    return bool((op.role or OpRole.FORWARD) & OpRole.BACKWARD)


def _location(op: Op) -> str:
    where = op.location
    return str(where) if where is not None else ""


def _why(op: Op, main: Program) -> str:
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
    kind = op.type.removesuffix("_grad")
    if kind in ("mean", "reduce_mean", "sequence_pool"):
        return "it is a mean over rows that are not the same number on every trainer"
    if kind == "reduce_sum":
        made = {name.partition("@GRAD")[0] for name in (*op.output_names, *op.input_names)}
        dividing = [other for other in main.main_block.ops if other.type == "elementwise_div"]
        if any(not made.isdisjoint(other.input_names) for other in dividing):
            return "with a division it is a mean over tokens or weights that are not as many on every trainer"
        return "it adds up the rows of a share, and of what trainers make of their sums the mean is taken"
    return "it works on the batch as a whole, and each trainer has a share of it"


def server_causes(main: Program, shown: Mapping[str, str], different: Iterable[str]) -> list[Cause]:
    """Updates that differ from the single machine's by their place on servers, where a difference was `shown` (by name
    of the parameter or counter).

    Each is listed with the first of the `different` variables that it writes, and left out if it writes none of them.
    """
    result: list[Cause] = []
    names = list(different)
    for op in main.main_block.ops:
        schema = schema_of(op.type)
        about = op.input("Param") if schema is not None and schema.is_optimizer else op.output("Out")
        variable = next((name for name in names if name in op.output_names), None)
        if variable is not None and about in shown and (op.type == "increment" or op.input("Param")):
            why = shown[about or ""]
            made_by = _norm_of(main, about or "", op) if why == OWN_NORM else op
            result.append(Cause(made_by.type, variable, _location(made_by), why))
    return result


def _norm_of(main: Program, parameter: str, update: Op) -> Op:
    """The op that takes the norm for the update of a parameter: the update itself, or one that clips its gradient."""
    ops = [op for op in main.main_block.ops if any(name == parameter for name, _ in op.role_pairs)]
    norms = [op for op in (update, *ops) if (schema := schema_of(op.type)) is not None and schema.whole_norm]
    return next(iter(norms), update)
