"""Whether a cluster trains a PyTorch model as one process does, told in the words of PyTorch's users.

The check is that of any program (`proof.check`); here its causes are put at the lines of the user's code, with what to
write instead, and with the numbers that every rank counts.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from pstranspile.cluster.machines.feeding import WEIGHTED_INSTEAD
from pstranspile.compiler.job import Job
from pstranspile.frontends.torch.capture import batches_of, tensors_of
from pstranspile.frontends.torch.optimizers import Clipping
from pstranspile.frontends.torch.training import Training, trace
from pstranspile.ir.argument_checks import expect, suggesting
from pstranspile.ir.diagnostics import DiagnosticError, Note, error, quantity
from pstranspile.ir.model import Location
from pstranspile.proof.check import check as check_programs
from pstranspile.proof.report import Cause, Report
from pstranspile.proof.training import batches_like
from pstranspile.runtime.values import Array

STEPS = 4
"""How many batches are made where none are given."""


_NO_BATCHES = error("torch-batch", "there are no batches to check with")
"""The finding for an empty list of batches."""


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
        steps = quantity(report.steps, "step")
        alone = report.trainers == 1
        if report.holds:
            verdict = f"equal: {ranks} {'trains' if alone else 'train'} as one process does ({steps})"
            return "\n".join([verdict, *(f"  {told}" for told in report.one_sided)])
        if not report.different:
            return f"not shown: {report}"
        first = report.different[0]
        lines = [f"DIFFERENT: {ranks} {'does' if alone else 'do'} not train as one process does ({steps})"]
        lines.append(f"  first {first.kind} {first.name}, after step {first.first}")
        lines += [str(cause) for cause in self.causes]
        if 0 < report.uneven <= first.first:
            lines.append(f"  {report.shares.removesuffix(WEIGHTED_INSTEAD)}")
            lines.append("  instead: give batches of which every rank has as many rows as the others")
        elif not self.causes:
            lines.append("  no line was found that computes something else on a share of the batch")
        return "\n".join(lines)


def _ranks(report: Report) -> str:
    if report.servers:
        return f"{quantity(report.trainers, 'trainer')} with {quantity(report.servers, 'server')}"
    return f"{quantity(report.trainers, 'rank')} of DDP"


@suggesting
def check(
    model: Any,
    batch: Any,
    *,
    loss: Any = None,
    optimizer: Any,
    trainers: int = 2,
    pservers: int = 0,
    batches: Any = None,
    clip: Clipping | None = None,
    schedule: Any = None,
    accumulate: int = 1,
    step: Literal["program", "torch"] = "program",
) -> ModelReport:
    """Whether `trainers` ranks of DistributedDataParallel, or trainers with parameter servers, train as one process.

    The arguments are those of `trace`; `batches` are whole batches, whose rows are divided among the ranks in order.
    Without them batches like `batch` are made, in which masks and lengths differ from row to row. Raises
    DiagnosticError for a model that is not translated, for batches that it was not traced for, and for numbers of
    machines that are none.
    """
    job = _job(trainers, pservers)
    given = None if batches is None else [*batches_of(batches, len(tensors_of(batch)))]
    if given == []:
        raise DiagnosticError([_NO_BATCHES])
    steps = STEPS if given is None else len(given)
    options: dict[str, Any] = {"clip": clip, "schedule": schedule, "steps": steps, "accumulate": accumulate}
    options["step"] = step
    training = trace(model, batch, loss=loss, optimizer=optimizer, **options)
    return _check_training(training, given, job, accumulate)


@suggesting
def check_training(training: Training, batches: Any = None, *, trainers: int = 2, pservers: int = 0) -> ModelReport:
    """The check of `check` for a model that was traced before, from the state of `training` on.

    Raises DiagnosticError (`torch-batch`) for batches that the model was not traced for, or if there are none.
    """
    expect(training, Training, "check_training", "what trace gives")
    return _check_training(training, batches, _job(trainers, pservers))


def _job(trainers: Any, pservers: Any) -> Job:
    """The job of this many ranks of DDP, or with servers. Raises DiagnosticError."""
    if pservers is None or str(pservers) == "0":
        return Job(trainers=trainers, mode="ddp")
    return Job(pservers=pservers, trainers=trainers)


def _check_training(training: Training, batches: Iterable[Any] | None, job: Job, accumulate: int = 1) -> ModelReport:
    one_sided: tuple[str, ...] = ()
    if batches is None:
        fed, one_sided = _make_feeds(training, job.trainers)
    else:
        fed = [training.feeds(batch) for batch in batches_of(batches, len(training.inputs))]
    if not fed:
        raise DiagnosticError([_NO_BATCHES])
    for number, feed in enumerate(fed, 1):
        for rank, share in enumerate(_shares(feed, job.trainers)):
            _require_share(training, share, f"rank {rank} has of batch {number}", accumulate)
    report = check_programs(training.module, job, feeds=fed, steps=len(fed))._replace(one_sided=one_sided)
    causes = [_of_model(cause, training) for cause in report.causes]
    return ModelReport(report, tuple(_by_line(causes)))


def _require_share(training: Training, share: Mapping[str, Array], whose: str, accumulate: int) -> None:
    """Raises DiagnosticError (`torch-batch`) for a rank's share of a size that the model was not traced for."""
    uneven = [name for name, array in share.items() if array.ndim and len(array) % accumulate]
    if uneven:
        rows = quantity(len(share[uneven[0]]), "row")
        message = f"the {rows} of {uneven[0]} that {whose} can't be dealt to {accumulate} micro-batches of one size"
        notes = [Note("leave out a last batch of fewer rows, as drop_last=True of a DataLoader does")]
        raise DiagnosticError([error("torch-batch", message, notes=notes)])
    try:
        training.require_sizes(share)
    except DiagnosticError as problem:
        (finding,) = problem.diagnostics
        raise DiagnosticError([finding._replace(notes=(Note(f"it is what {whose}"),))]) from None


def _by_line(causes: Iterable[ModelCause]) -> list[ModelCause]:
    """The first of the causes at each line, or the first that says what to write instead."""
    lines: dict[str, ModelCause] = {}
    for cause in causes:
        held = lines.setdefault(str(cause.location), cause)
        if cause.instead and not held.instead:
            lines[str(cause.location)] = cause
    return list(lines.values())


def assert_equal(model: Any, batch: Any, **options: Any) -> None:
    """Raises AssertionError with the report unless `check` finds that the cluster trains as one process does."""
    report = check(model, batch, **options)
    if not report.equal:
        raise AssertionError(str(report))


def _of_model(cause: Cause, training: Training) -> ModelCause:
    """A cause of the check, with its place in the user's code."""
    ops = training.module.main.main_block.ops
    found = (op.location for op in ops if op.type == cause.op_type and str(op.location) == cause.location)
    return ModelCause(next(found, None), cause.why, cause.instead, cause.op_type, cause.variable)


def _make_feeds(training: Training, trainers: int) -> tuple[list[dict[str, Array]], tuple[str, ...]]:
    """The feeds made of batches like the traced one, and what they do not show (`batches_like`)."""
    module = training.module
    rows = max((len(array) for array in module.example.values() if array.ndim), default=1)
    made = batches_like(module, module.main, STEPS, max(rows, 2 * trainers), 0, trainers)
    return [{name: arrays[step] for name, arrays in made.feeds.items()} for step in range(STEPS)], made.one_sided


def _shares(feed: Mapping[str, Array], trainers: int) -> list[dict[str, Array]]:
    """What each rank is fed of a batch: its rows, in order."""
    parts = {name: np.array_split(array, trainers) for name, array in feed.items()}
    return [{name: part[rank] for name, part in parts.items()} for rank in range(trainers)]
