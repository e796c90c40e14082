"""The Plan of a job without parameter servers: the trainers, and the addresses at which they meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.plan import Plan
from pstranspile.compiler.plan.rings import Collective
from pstranspile.ir.model import Module

if TYPE_CHECKING:
    from pstranspile.compiler.plan.edited import PlanFile


def plan_without_servers(module: Module, job: Job, given: Plan | PlanFile | None, collective: Collective) -> Plan:
    """The plan of a job in a mode without servers; nothing is placed, so the program and the job say all of it.

    A plan file that places parameters is refused. Raises DiagnosticError (`plan-invalid`).
    """
    if given is not None and not isinstance(given, Plan):
        from pstranspile.compiler.plan.edited import require_nothing_placed

        require_nothing_placed(given, job)
    return Plan(
        mode=job.mode,
        pservers=(),
        trainers=job.trainers,
        parameters=(),
        send_order=(),
        groups=(),
        per_trainer=False,
        barrier_control="",
        startup_control="",
        trainer_endpoints=job.trainer_endpoints,
        collective=collective,
        made_for=module,
    )
