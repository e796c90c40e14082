"""What the modes with asynchronous trainer programs share: step counters, and the communicator's barrier."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.compiler.emit.rules import COMMUNICATOR_BARRIER, SEND_COUNTER, made
from pstranspile.compiler.plan.plan import Plan, PlannedParameter
from pstranspile.ir.attributes import Strings
from pstranspile.ir.model import Op, Origin
from pstranspile.ir.roles import OpRole
from pstranspile.ops.build import make_op


class WithCommunicator:
    """What a mode does whose trainers leave the waiting to their communicators."""

    def after_sends(self, plan: Plan, trainer: int, origin: Origin | None) -> Sequence[Op]:
        """The trainer's step counters, and the barrier of the communicator if it has one."""
        return [*_send_counters(plan, trainer, origin), *_communicator_barrier(plan, trainer, origin)]

    def recv_after(self, plan: Plan, parameter: PlannedParameter) -> str:
        """A recv waits for the parameter's own send only."""
        del plan
        return parameter.send_control

    def after_recvs(self, plan: Plan, trainer: int, received: Sequence[str], origin: Origin | None) -> Sequence[Op]:
        """Nothing: the communicator waits."""
        del plan, trainer, received, origin
        return []


def _communicator_barrier(plan: Plan, trainer: int, origin: Origin | None) -> Sequence[Op]:
    """Waits until the trainer's communicator has sent what it was given, if the job has such a barrier."""
    if not plan.communicator_barrier:
        return []
    controls = [*plan.send_controls, *(counter.control for counter in plan.counters)]
    attrs = {"endpoints": Strings(plan.pservers), "trainer_id": trainer, "half_async": True}
    barrier = make_op(
        "send_barrier",
        {"X": controls},
        {"Out": [plan.barrier_control]},
        attrs,
        role=OpRole.RPC,
        origin=made(origin, COMMUNICATOR_BARRIER),
    )
    return [barrier]


def _send_counters(plan: Plan, trainer: int, origin: Origin | None) -> Sequence[Op]:
    """Sends the trainer's own step counters to every server."""
    sends: list[Op] = []
    for counter in plan.counters:
        own = counter.own[trainer]
        attrs = {"epmap": Strings(plan.pservers), "merge_add": True, "use_send_handler": False}
        if plan.runtime_split:
            attrs["send_varnames"] = Strings([own])
        sends.append(
            make_op(
                "send",
                {"X": [own]},
                {"Out": [counter.control]},
                attrs,
                role=OpRole.RPC,
                role_vars=(own, own),
                origin=made(counter.origin or origin, SEND_COUNTER),
            )
        )
    return sends
