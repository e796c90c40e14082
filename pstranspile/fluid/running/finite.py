"""`FLAGS_check_nan_inf`: runs that stop at the first op which makes NaN or infinity."""

from __future__ import annotations

import os
import sys

from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.roles import OpRole
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.bound import BoundOp
from pstranspile.runtime.run.watchers import NotFinite

_ROLES = {
    "backward": OpRole.BACKWARD,
    "optimize": OpRole.OPTIMIZE,
    "rpc": OpRole.RPC,
    "dist": OpRole.DIST,
    "lrsched": OpRole.LR_SCHED,
    "loss": OpRole.LOSS,
}


def _listed(name: str) -> list[str]:
    return [part.strip() for part in os.environ.get(name, "").split(",") if part.strip()]


class Finite(NotFinite):
    """Stops the run, but for the ops, roles and variables that `PADDLE_INF_NAN_SKIP_...` of the environment name."""

    def __init__(self) -> None:
        self._types = frozenset(_listed("PADDLE_INF_NAN_SKIP_OP"))
        self._variables = frozenset(_listed("PADDLE_INF_NAN_SKIP_VAR"))
        roles = _listed("PADDLE_INF_NAN_SKIP_ROLE")
        self._forward = "forward" in roles
        self._roles = OpRole(sum(_ROLES.get(role, OpRole.FORWARD) for role in dict.fromkeys(roles)))

    def __call__(self, bound: BoundOp, made: list[tuple[str, Value]], seconds: float) -> None:
        """Looks at the outputs of one op. Raises DiagnosticError."""
        op = bound.op
        role = op.role or OpRole.FORWARD
        if op.type in self._types or role & self._roles or (self._forward and not role):
            return
        try:
            super().__call__(bound, [item for item in made if f"{op.type}:{item[0]}" not in self._variables], seconds)
        except DiagnosticError:
            print(f"{op.type}: find nan or inf", file=sys.stderr)  # scripts look for these words
            raise
