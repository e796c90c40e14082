"""When data moves between trainers and servers, and under which names: what the modes with servers differ in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pstranspile.compiler.plan.plan import Plan, PlannedParameter, Slice
from pstranspile.ir.attributes import AttrValue
from pstranspile.ir.model import Op, Origin


class Timing(Protocol):
    """What emitters ask a mode with servers; they decide nothing about time themselves.

    `origin` is the source op (or program) that the ops are made for; the mode adds its rule.
    """

    orders_table_send: bool
    """Whether the send of the distributed lookup table's gradient has a control variable."""

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
