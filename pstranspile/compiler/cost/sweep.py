"""The cost of a step for several numbers of machines, and the number beyond which more servers hardly help."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from pstranspile.compiler.compile import prepare
from pstranspile.compiler.cost.predicted import columns, cost
from pstranspile.compiler.job import Job
from pstranspile.ir.diagnostics import counted
from pstranspile.ir.expect import checked, expect, expect_module, expect_number
from pstranspile.ir.model import Module

HELPS = 0.05
"""The least share by which one more server has to lower the bytes of the busiest server to be worth it."""

MOST = 10_000
"""The most combinations of numbers of machines in a sweep."""


class SweepRow(NamedTuple):
    """The cost of a step with some numbers of machines.

    `server_moved` are the bytes that the busiest server moves, `of_mean` their ratio to those of the mean;
    `server_held` is the most that a server holds between steps, `server_peak` the most of its other values at one time.
    `trainer_moved`, `trainer_held` and `trainer_peak` are those of a trainer, `messages` those that it sends and gets.
    `is_knee`: the fewest servers, for this number of trainers, beyond which the next number of servers lowers the bytes
    of the busiest one by less than 5 %.
    """

    trainers: int
    pservers: int
    server_moved: float
    of_mean: float
    server_held: int
    server_peak: int
    trainer_moved: float
    trainer_held: int
    trainer_peak: int
    messages: float
    is_knee: bool = False


@checked
@dataclass(frozen=True)
class Sweep:
    """The rows of a sweep, by trainers and then by servers, as `str` shows them.

    A batch of a trainer has `batch_rows` rows.
    """

    mode: str
    batch_rows: int
    rows: tuple[SweepRow, ...]

    def __repr__(self) -> str:
        """`<Sweep sync: 8 combinations>`."""
        return f"<Sweep {self.mode}: {counted(len(self.rows), 'combination')}>"

    def __str__(self) -> str:
        """The table that `pstranspile plan --sweep` prints."""
        return sweep_text(self).rstrip("\n")


@checked
def sweep(
    module: Module, job: Job, *, pservers: Iterable[int] | None = None, trainers: Iterable[int] | None = None
) -> Sweep:
    """The cost of a step for these numbers of machines; numbers that are not given are those of the job.

    Raises DiagnosticError as `compile` and `cost` do, JobError for a mode that can't have such numbers, and ValueError
    for numbers below 1 and for more than 10,000 combinations.
    """
    expect_module(module, "sweep")
    expect(job, Job, "sweep", "job")
    served = [*dict.fromkeys(pservers if pservers is not None else [len(job.pservers)])]
    trained = [*dict.fromkeys(trainers if trainers is not None else [job.trainers])]
    for number in (*served, *trained):
        expect_number(number, "sweep", "a number of machines", least=1 if job.pservers else 0)
    if len(served) * len(trained) > MOST:
        raise ValueError(f"sweep: {len(served) * len(trained):,} combinations; at most {MOST:,} are compared")
    rows: list[SweepRow] = []
    for number in trained:
        rows += _with_knee([_row(module, job, servers, number) for servers in served])
    return Sweep(job.mode, job.batch_rows, tuple(rows))


def _row(module: Module, job: Job, pservers: int, trainers: int) -> SweepRow:
    names = tuple(f"127.0.0.1:{6174 + number}" for number in range(pservers))
    endpoints = tuple(f"127.0.0.1:{6174 + number}" for number in range(trainers)) if not job.pservers else ()
    given = replace(job, pservers=names, trainers=trainers, trainer_endpoints=endpoints or None)
    found = cost(prepare(module, given))
    trainer, *servers = found.machines
    return SweepRow(
        trainers,
        pservers,
        max((server.moved for server in servers), default=0.0),
        found.of_mean(found.busiest) if servers else 1.0,
        max((server.held for server in servers), default=0),
        max((server.peak for server in servers), default=0),
        trainer.moved,
        trainer.held,
        trainer.peak,
        trainer.messages,
    )


def _with_knee(rows: Sequence[SweepRow]) -> Iterator[SweepRow]:
    """Yields the rows of one number of trainers, the fewest servers beyond which more hardly help marked."""
    by_servers = sorted(rows, key=lambda row: row.pservers)
    knee = next(
        (one.pservers for one, more in pairwise(by_servers) if more.server_moved > one.server_moved * (1 - HELPS)),
        None,
    )
    for row in rows:
        yield row._replace(is_knee=row.pservers == knee)


def sweep_text(found: Sweep) -> str:
    """The rows as a table; a knee is marked with `*`."""
    has_servers = any(row.pservers for row in found.rows)
    head = ("servers", "busiest moves", "of the mean", "server holds", "server peak") if has_servers else ()
    table = [("trainers", *head, "trainer moves", "messages", "trainer holds", "trainer peak", "")]
    for row in found.rows:
        of_servers = (
            f"{row.pservers:,}",
            f"{row.server_moved:,.0f}",
            f"{row.of_mean:.2f}",
            f"{row.server_held:,}",
            f"{row.server_peak:,}",
        )
        table.append(
            (
                f"{row.trainers:,}",
                *(of_servers if has_servers else ()),
                f"{row.trainer_moved:,.0f}",
                f"{row.messages:,.0f}",
                f"{row.trainer_held:,}",
                f"{row.trainer_peak:,}",
                "*" if row.is_knee else "",
            )
        )
    lines = [f"mode {found.mode}, {counted(found.batch_rows, 'row')} a batch of a trainer; bytes in a step", ""]
    lines += [line.rstrip() for line in columns(table)]
    if any(row.is_knee for row in found.rows):
        lines += ["", f"* more servers lower the bytes of the busiest one by less than {HELPS:.0%}"]
    return "\n".join(lines) + "\n"


def sweep_json(found: Sweep) -> dict[str, Any]:
    """The sweep as JSON."""
    rows = [row._asdict() for row in found.rows]
    return {"version": 1, "mode": found.mode, "batch_rows": found.batch_rows, "rows": rows}
