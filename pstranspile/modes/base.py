"""What a mode of distribution decides: when data moves, and under which names it is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pstranspile.ir.attributes import AttrValue
from pstranspile.ir.model import Module, Op, Origin
from pstranspile.job import Job
from pstranspile.plan.plan import Plan, PlannedParameter, SharedCounter, Slice


class Mode(Protocol):
    """One file per mode implements this; emitters ask it and decide nothing about time themselves.

    `origin` is the source op (or program) that the ops are made for; the mode adds its rule.
    """

    name: str
    doc: str
    compensates: bool
    """Whether gradients are applied one by one, so that their delay can be compensated (DC-ASGD)."""

    orders_table_send: bool
    """Whether the send of the distributed lookup table's gradient has a control variable (A2.75)."""

    def rewrite(self, module: Module, job: Job) -> tuple[Module, tuple[SharedCounter, ...]]:
        """The source as this mode needs it, and the step counters that trainers send. Raises DiagnosticError."""
        ...

    def check(self, plan: Plan) -> None:
        """Raises DiagnosticError when the plan can't be carried out in this mode."""
        ...

    def per_trainer(self, job: Job) -> bool:
        """Whether every trainer sends its gradients under names of its own."""
        ...

    def after_sends(self, plan: Plan, trainer: int, origin: Origin | None) -> Sequence[Op]:
        """Ops of a trainer between the last send and the first recv."""
        ...

    def recv_after(self, plan: Plan, parameter: PlannedParameter) -> str:
        """The control variable that the recv of a parameter waits for."""
        ...

    def after_recvs(self, plan: Plan, trainer: int, received: Sequence[str], origin: Origin | None) -> Sequence[Op]:
        """Ops of a trainer after its recvs, before slices are joined."""
        ...

    def server_inputs(self, plan: Plan, slice_: Slice) -> Sequence[str]:
        """Names under which a server receives the gradient of a slice."""
        ...

    def merge(self, plan: Plan, slice_: Slice, origin: Origin | None) -> Sequence[Op]:
        """Ops of a server that make the merged gradient of a slice from what was received."""
        ...

    def server_attrs(self, plan: Plan) -> Mapping[str, AttrValue]:
        """Attributes of listen_and_serv that depend on the mode."""
        ...
