"""Asynchronous training: a server applies each gradient as it comes, and no trainer waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pstranspile.compiler.job import Job
from pstranspile.compiler.job.modes import UPDATING, ModeSettings, Promise, off
from pstranspile.compiler.modes.shared.servers import (
    CommunicatorTiming,
    ServerMode,
    clip_on_trainers,
    share_step_counters,
)
from pstranspile.compiler.plan.plan import Plan, SharedCounter, Slice
from pstranspile.ir.attributes import AttrValue
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Module, Op, Origin


class Async(CommunicatorTiming, ServerMode):
    """Each gradient has one name for all trainers, and gradients are applied one by one."""

    settings = ModeSettings(
        "servers update at every gradient that arrives; trainers do not wait for each other",
        "sync_mode = false",
        {"sync_mode": False, **off("half_async", "completely_not_async", "geo_sgd_mode")},
        off("runtime_split_send_recv"),
        options=("enable_dc_asgd", *UPDATING),
        promise=Promise.SINGLE_TRAINER,
    )

    compensates = True
    orders_table_send = False

    def rewrite(self, module: Module, job: Job) -> tuple[Module, tuple[SharedCounter, ...]]:
        """The source with learning-rate schedules on counters that the trainers send, and with clipping by the norm of
        all gradients on trainers.
        """
        return share_step_counters(clip_on_trainers(module), job.trainers)

    def per_trainer(self, job: Job) -> bool:
        """Returns False: servers don't distinguish the trainers."""
        del job
        return False

    def check(self, plan: Plan) -> None:
        """Raises DiagnosticError if parameters must be updated together, as their gradients come one by one."""
        for group in plan.groups:
            names = ", ".join(f"%{name}" for name in group.parameters)
            message = (
                f"{names} must be updated together, but in mode {plan.mode} each gradient is applied as it arrives"
            )
            raise DiagnosticError([error("mode-unsupported", message, focus="mode")])

    def server_inputs(self, plan: Plan, slice_: Slice) -> Sequence[str]:
        """The one name of the gradient."""
        del plan
        return [slice_.gradient]

    def merge(self, plan: Plan, slice_: Slice, origin: Origin | None) -> Sequence[Op]:
        """Returns an empty list: the gradient is applied as it is."""
        del plan, slice_, origin
        return []

    def server_attrs(self, plan: Plan) -> Mapping[str, AttrValue]:
        """The asynchronous server loop, for trainers with a communicator (`distributed_mode` 1) or without (2)."""
        return {"distributed_mode": 1 if plan.runtime_split else 2, "Fanin": plan.trainers}


MODE = Async()
