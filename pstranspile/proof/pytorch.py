"""Whether a cluster trains a PyTorch model as one process does, told in the words of PyTorch's users.

The check is that of any program (`proof.check`); here its causes are put at the lines of the user's code, with what to
write instead, and with the numbers that every rank counts.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from pstranspile.compiler.job import Job
from pstranspile.frontends.torch.capture import tensors_of
from pstranspile.frontends.torch.optimizers import Clipping
from pstranspile.frontends.torch.training import Training, trace
from pstranspile.ir.diagnostics import counted
from pstranspile.ir.model import Block, Location, Op
from pstranspile.proof.check import check
from pstranspile.proof.report import Cause, Report
from pstranspile.runtime.run.prepared import run
from pstranspile.runtime.run.scope import Scope
from pstranspile.runtime.values import Array

STEPS = 4
"""How many batches are made where none are given."""


class ModelCause(NamedTuple):
    """A line of the user's code that computes something else on a rank's share of a batch than on the whole."""

    location: Location | None
    what: str
    """What differs, with the numbers of each rank where there are such."""
    instead: str
    """What to write instead; "" where nothing general can be said."""
    op_type: str
    variable: str

    def __str__(self) -> str:
        """The place, its line, what differs there, and what to write instead."""
        lines: list[str] = []
        if self.location is not None:
            lines.append(f"{self.location.file}:{self.location.line}: {self.what}")
            code = linecache.getline(self.location.file, self.location.line).strip()
            lines += [f"    {code}"] if code else []
        else:
            lines.append(self.what)
        if self.instead:
            lines.append(f"  instead: {self.instead}")
        return "\n".join(lines)


class ModelReport(NamedTuple):
    """The result of a check of a PyTorch model."""

    report: Report
    """The check of the programs, variable by variable."""
    causes: tuple[ModelCause, ...]

    @property
    def equal(self) -> bool:
        """Whether the cluster trains as one process does, and whether that was shown."""
        return self.report.holds

    def __str__(self) -> str:
        """The verdict, what differs first, and every cause with the line of the user's code."""
        report, ranks = self.report, _ranks(self.report)
        steps = counted(report.steps, "step")
        if report.holds:
            return f"equal: {ranks} train as one process does ({steps})"
        if not report.different:
            return f"not shown: {report}"
        first = report.different[0]
        lines = [f"DIFFERENT: {ranks} do not train as one process does ({steps})"]
        lines.append(f"  first {first.kind} {first.name}, after step {first.first}")
        lines += [str(cause) for cause in self.causes]
        if not self.causes:
            lines.append("  no line was found that computes something else on a share of the batch")
        return "\n".join(lines)


def _ranks(report: Report) -> str:
    if report.servers:
        return f"{counted(report.trainers, 'trainer')} with {counted(report.servers, 'server')}"
    return f"{report.trainers} ranks of DDP"


def check_model(
    model: Any,
    batch: Any,
    *,
    loss: Any = None,
    optimizer: Any,
    trainers: int = 2,
    pservers: int = 0,
    batches: Iterable[Any] | None = None,
    clip: Clipping | None = None,
    schedule: Any = None,
    accumulate: int = 1,
) -> ModelReport:
    """Whether `trainers` ranks of DistributedDataParallel, or trainers with parameter servers, train as one process.

    The arguments are those of `trace`; `batches` are whole batches, whose rows are divided among the ranks in order.
    Without them batches like `batch` are made, in which masks and lengths differ from row to row. Raises
    DiagnosticError for a model that is not translated.
    """
    given = list(batches) if batches is not None else made_batches(batch, STEPS, trainers)
    options: dict[str, Any] = {"clip": clip, "schedule": schedule, "steps": len(given), "accumulate": accumulate}
    training = trace(model, batch, loss=loss, optimizer=optimizer, **options)
    return check_training(training, given, trainers=trainers, pservers=pservers)


def check_training(training: Training, batches: Sequence[Any], *, trainers: int, pservers: int = 0) -> ModelReport:
    """The check of `check_model` for a model that was traced before, from the state of `training` on."""
    fed = [training.feeds(batch) for batch in batches]
    for feed in fed:
        for share in _shares(feed, trainers):
            training.require_sizes(share)
    job = Job(pservers=pservers, trainers=trainers) if pservers else Job(trainers=trainers, mode="ddp")
    report = check(training.module, job, feeds=fed, steps=len(fed), init=training.state)
    causes = [_explained(cause, training, fed, trainers) for cause in report.causes]
    return ModelReport(report, tuple(_by_line(causes)))


def _by_line(causes: Iterable[ModelCause]) -> list[ModelCause]:
    """The first of the causes at each line, or the first that says what to write instead."""
    lines: dict[str, ModelCause] = {}
    for cause in causes:
        held = lines.setdefault(str(cause.location), cause)
        if cause.instead and not held.instead:
            lines[str(cause.location)] = cause
    return list(lines.values())


def assert_equal(model: Any, batch: Any, **options: Any) -> None:
    """Raises AssertionError with the report unless `check_model` finds that the cluster trains as one process does."""
    report = check_model(model, batch, **options)
    if not report.equal:
        raise AssertionError(str(report))


# What a cause means in a model.


def _explained(cause: Cause, training: Training, fed: Sequence[Mapping[str, Array]], trainers: int) -> ModelCause:
    block = training.module["main"].main_block
    op = next((op for op in block.ops if cause.variable in op.output_names), None)
    location = op.origin.location if op is not None and op.origin is not None else None
    what, instead = (cause.why, "") if op is None else _meaning(op, cause, block, training, fed, trainers)
    return ModelCause(location, what, instead, cause.op_type, cause.variable)


_OVER_ROWS = frozenset({"top_k", "arg_max", "arg_min", "argsort", "reduce_max", "reduce_min", "cumsum", "softmax"})
"""Ops that compare the rows of a batch where they work along its first dim."""


def _meaning(
    op: Op, cause: Cause, block: Block, training: Training, fed: Sequence[Mapping[str, Array]], trainers: int
) -> tuple[str, str]:
    """What an op computes of the rows of a batch, and what to write instead."""
    if op.type == "batch_norm":
        return (
            "batch norm: each rank uses the mean and the variance of its own rows",
            "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model), or a norm that is computed row by row",
        )
    if op.type == "dropout":
        return "each rank draws dropout of its own", ""
    if op.type in ("matmul", "mul") and _rows_by_rows(op, block):
        return (
            "rows are compared with the other rows of the batch, of which each rank has only its own",
            "gather the rows of all ranks before (torch.distributed.nn.functional.all_gather)",
        )
    if op.type.startswith("reduce_") or op.type == "mean":
        divisor = _divisor(op, block)
        if divisor is not None:
            return _unequal_counts(divisor, training, fed, trainers)
        if op.type == "reduce_sum":
            return (
                "this is a sum over the rows of the batch, and DDP takes the mean of what the ranks make of theirs",
                "a mean over the rows, or the sum times the number of ranks",
            )
        if op.type in ("reduce_mean", "mean"):
            return (
                "what is computed of this mean over the batch is not linear, and each rank computes it of its own mean",
                "compute it row by row, or all-reduce the mean before",
            )
    if not op.type.endswith("_grad") and _of_whole_batch(op, block):
        return (
            "this is computed of means over the batch and is not linear in them, and each rank has means of its own",
            "compute it row by row, or all-reduce the means before",
        )
    if op.type in _OVER_ROWS:
        return "this compares the rows of the batch with each other, and each rank has only its own", ""
    return cause.why, ""


def _of_whole_batch(op: Op, block: Block) -> bool:
    """Whether an op computes with values that have no dim of rows."""
    names = [*op.input_names, *op.output_names]
    held = [block.vars[name].tensor for name in names if name in block.vars]
    return all(tensor is not None and -1 not in tensor.shape for tensor in held)


def _rows_by_rows(op: Op, block: Block) -> bool:
    var = block.vars.get(op.output("Out") or "")
    return var is not None and var.tensor is not None and tuple(var.tensor.shape) == (-1, -1)


def _divisor(op: Op, block: Block) -> str | None:
    """The variable that a sum over the batch is divided by in the end; None if there is no such variable."""
    reached = set(op.output_names)
    for later in block.ops[block.ops.index(op) + 1 :]:
        if later.role is not None and later.role != 0 and later.role != 256:
            break
        if later.type == "elementwise_div" and later.input("X") in reached and later.input("Y") not in reached:
            return later.input("Y")
        passes_on = later.type in ("scale", "elementwise_add", "elementwise_mul", "reshape2", "assign", "cast")
        if passes_on and reached.intersection(later.input_names):
            reached.update(later.output_names)
    return None


def _unequal_counts(
    divisor: str, training: Training, fed: Sequence[Mapping[str, Array]], trainers: int
) -> tuple[str, str]:
    counts = _counts(divisor, training, fed, trainers)
    what = "this mean divides by what a rank counts of its own rows"
    if counts is not None:
        step, numbers = counts
        listed = " and ".join(f"{number:g} on rank {rank}" for rank, number in enumerate(numbers))
        what = f"this mean counts {listed} (step {step + 1}), and DDP weighs the means of all ranks alike"
    return what, "divide the sum by the all-reduced count, and multiply it by the number of ranks"


def _counts(
    divisor: str, training: Training, fed: Sequence[Mapping[str, Array]], trainers: int
) -> tuple[int, list[float]] | None:
    """The first step in which a number differs between the shares of the ranks, and the numbers."""
    main = training.module["main"]
    for step, feed in enumerate(fed):
        numbers: list[float] = []
        for rank in range(trainers):
            scope = Scope()
            run(training.module["startup"], scope=scope)
            for name, value in training.state.items():
                scope[name] = value.reshape(value.shape or (1,)).copy()
            share = _shares(feed, trainers)[rank]
            with np.errstate(all="ignore"):
                out = run(main, feed=share, fetch=[divisor], scope=scope)
            value = np.asarray(out[divisor])
            if value.size != 1:
                return None
            numbers.append(float(value.reshape(())))
        if len({*numbers}) > 1:
            return step, numbers
    return None


def _shares(feed: Mapping[str, Array], trainers: int) -> list[dict[str, Array]]:
    """What each rank is fed of a batch: its rows, in order."""
    parts = {name: np.array_split(array, trainers) for name, array in feed.items()}
    return [{name: part[rank] for name, part in parts.items()} for rank in range(trainers)]


# Batches like a given one.


def made_batches(batch: Any, count: int, trainers: int, seed: int = 0) -> list[Any]:
    """Batches of arrays like those of `batch`, with as many rows for each rank; rows differ in length and in masks.

    Whole numbers are drawn from those of the batch. From a place on that is drawn for each row, they are those that the
    batch has at the ends of rows, or the smallest: padding, for what looks at it. Flags are set more often in some rows
    than in others.
    """
    draw = np.random.default_rng(seed)
    named = dict(cast("Mapping[str, Any]", batch)) if isinstance(batch, Mapping) else None
    values: Sequence[Any] = list(named.values()) if named is not None else tensors_of(batch)
    result: list[Any] = []
    for _ in range(count):
        made = [_like(_array(value), trainers, draw) for value in values]
        result.append(tuple(made) if named is None else dict(zip(named, made, strict=True)))
    return result


def _array(value: Any) -> Array:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)


def _like(given: Array, trainers: int, draw: np.random.Generator) -> Array:
    if not given.ndim:
        return given
    rows = -(-max(len(given), 2 * trainers) // trainers) * trainers
    shape = (rows, *given.shape[1:])
    if given.dtype.kind == "f":
        spread = float(given.std()) or 1.0
        return (draw.normal(float(given.mean()), spread, shape)).astype(given.dtype)
    share = draw.uniform(0.2, 1.0, (rows, *[1] * (given.ndim - 1)))
    if given.dtype.kind == "b":
        made = draw.random(shape) < share
        return made if given.ndim > 1 else draw.random(shape) < 0.5
    pool = np.unique(given)
    made = draw.choice(pool, shape)
    if given.ndim > 1 and len(pool) > 1:
        end = pool[0]
        width = given.shape[1]
        kept = np.maximum((share.reshape(rows) * width).astype(int), 1)
        made[np.arange(width)[None, :] >= kept[:, None]] = end
    return made.astype(given.dtype)
