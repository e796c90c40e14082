"""The cost of a plan in a step: the bytes that each server moves, and those that it stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pstranspile.compiler.compile import Compiled
from pstranspile.compiler.cost.balance import moved_by
from pstranspile.compiler.cost.counts import IdCounts, read_counts
from pstranspile.compiler.plan.plan import Plan, row_width
from pstranspile.ir.diagnostics import DiagnosticError, cluster_of, counted, error
from pstranspile.ir.expect import checked, expect
from pstranspile.ir.model import Program, TensorType


class ServerCost(NamedTuple):
    """The slices of a server, the bytes of parameters that it stores, and those that it moves in a step with all
    trainers together.
    """

    endpoint: str
    slices: int
    held: int
    moved: float


@checked
@dataclass(frozen=True)
class PlanCost:
    """The cost of a plan for trainers whose batch has `batch_rows` rows, as `str` shows it.

    `counted_ids`: the job names counts of its ids; otherwise all rows of a table are assumed to be equally frequent.
    """

    plan: Plan
    batch_rows: int
    counted_ids: bool
    servers: tuple[ServerCost, ...]

    def __repr__(self) -> str:
        """`<PlanCost of <Plan ...>: the busiest server moves 1.02 of the mean>`."""
        return f"<PlanCost of {self.plan!r}: the busiest server moves {self.of_mean(self.busiest):.2f} of the mean>"

    def __str__(self) -> str:
        """The table that `pstranspile plan --cost` prints."""
        return cost_text(self).rstrip("\n")

    @property
    def mean(self) -> float:
        """The bytes that a server moves in a step, on average."""
        return sum(server.moved for server in self.servers) / len(self.servers)

    @property
    def busiest(self) -> ServerCost:
        """The server that moves the most bytes."""
        return max(self.servers, key=lambda server: server.moved)

    @checked
    def of_mean(self, server: ServerCost) -> float:
        """The ratio of the bytes that a server moves to those of the mean; 1 if no bytes are moved."""
        return server.moved / self.mean if self.mean else 1.0


@checked
def cost(compiled: Compiled) -> PlanCost:
    """The cost of a compiled job's plan in a step; in mode geo, in an exchange.

    Raises DiagnosticError for a mode without parameter servers, and for a file of counts that can't be used.
    """
    expect(compiled, Compiled, "cost", "Compiled")
    plan, job = compiled.plan, compiled.job
    if not plan.pservers or job is None:
        message = f"mode {plan.mode} has no parameter servers, whose bytes could be told"
        raise DiagnosticError([error("job-missing", message)])
    counts = read_counts(job.id_counts) if job.id_counts else None
    return cost_of(plan, compiled.source.main, job.batch_rows, counts)


def cost_of(plan: Plan, program: Program, batch_rows: int, counts: IdCounts | None) -> PlanCost:
    """The cost of a plan with servers, for the training program that it was made for.

    In mode geo the bytes are those of an exchange.
    """
    slices, held = (dict.fromkeys(plan.pservers, 0) for _ in range(2))
    total = dict.fromkeys(plan.pservers, 0.0)
    for parameter in plan.parameters:
        of_rows = moved_by(
            program,
            parameter.name,
            TensorType(parameter.dtype, parameter.shape),
            sparse=parameter.sparse,
            prefetched=parameter.prefetched,
            batch_rows=batch_rows,
            counts=counts,
        )
        row = row_width(parameter.shape) * parameter.dtype.size
        for part in parameter.slices:
            slices[part.endpoint] += 1
            held[part.endpoint] += row * (part.stop - part.start)
            total[part.endpoint] += plan.trainers * (of_rows.below(part.stop) - of_rows.below(part.start))
    servers = tuple(ServerCost(each, slices[each], held[each], total[each]) for each in plan.pservers)
    return PlanCost(plan, batch_rows, counts is not None, servers)


def cost_text(cost: PlanCost) -> str:
    """The cost as a table, preceded by a sentence on the busiest server."""
    busiest, plan = cost.busiest, cost.plan
    unit = "an exchange" if plan.geo else "a step"
    ids = "ids as they were counted" if cost.counted_ids else "all ids as frequent"
    lines = [
        f"the busiest server, {busiest.endpoint}, moves {busiest.moved:,.0f} bytes {unit}: "
        f"{cost.of_mean(busiest):.2f} of the mean",
        f"{cluster_of(plan.trainers, len(plan.pservers))} ({plan.mode}), {counted(cost.batch_rows, 'row')} a batch of "
        f"a trainer, {ids}",
        "",
    ]
    table = [("server", "slices", "bytes held", f"bytes {unit}", "of the mean")]
    table += [
        (each.endpoint, f"{each.slices:,}", f"{each.held:,}", f"{each.moved:,.0f}", f"{cost.of_mean(each):.2f}")
        for each in cost.servers
    ]
    return "\n".join([*lines, *_columns(table)]) + "\n"


def _columns(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in table]


def cost_json(cost: PlanCost) -> dict[str, Any]:
    """The cost as JSON."""
    return {
        "version": 1,
        "mode": cost.plan.mode,
        "trainers": cost.plan.trainers,
        "batch_rows": cost.batch_rows,
        "counted_ids": cost.counted_ids,
        "busiest": {"endpoint": cost.busiest.endpoint, "of_mean": cost.of_mean(cost.busiest)},
        "servers": [{**server._asdict(), "of_mean": cost.of_mean(server)} for server in cost.servers],
    }
