"""The roles of ops in training."""

from __future__ import annotations

from enum import IntFlag


class OpRole(IntFlag):
    """The role of an op (Fluid's attribute `op_role`). Roles can be combined, such as `LOSS | BACKWARD`.

    As in Fluid, the transpiler compares roles by equality: OPTIMIZE is an update of a parameter, OPTIMIZE | LR_SCHED
    computes a learning rate.
    """

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZE = 2
    RPC = 4
    DIST = 8
    LR_SCHED = 16
    LOSS = 256
    NOT_SPECIFIED = 4096


RUN_BY_FLUID = frozenset({*OpRole, OpRole.LOSS | OpRole.BACKWARD, OpRole.OPTIMIZE | OpRole.LR_SCHED, OpRole.FORWARD})
"""The roles of ops that Fluid runs; it refuses an op with any other number."""

LR_ROLES = frozenset({OpRole.LR_SCHED, OpRole.LR_SCHED | OpRole.OPTIMIZE})
"""Roles of the ops that compute learning rates."""
