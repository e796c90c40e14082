"""The programs of a job as hosts are sent them, and a job for other numbers of machines."""

from __future__ import annotations

from dataclasses import replace

from pstranspile.compiler.compile import Compiled
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.plan import plan_json
from pstranspile.frontends.meta import json_text
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ops.textual import print_module


def programs_of(job: Compiled) -> dict[str, bytes]:
    """The files of a compiled job by name, as `compile -o` writes them."""
    files = {f"{name}.ir": print_module(role.module).encode("utf-8") for name, role in job.roles().items()}
    plan = plan_json(job.plan, job.fingerprint, job.distributed_vars)
    return {**files, "plan.json": json_text(plan).encode("utf-8")}


def resized(job: Compiled, trainers: int, servers: int) -> Job:
    """The job for other numbers of machines. Raises DiagnosticError where it names each trainer's endpoint."""
    known = job.job
    if known is None or known.trainer_endpoints:
        raise DiagnosticError(
            [error("ray-resources", f"a job of mode {job.plan.mode} can't have other numbers of machines")]
        )
    endpoints = list(known.pservers[:servers])
    port = 6174
    while len(endpoints) < servers:
        if (name := f"127.0.0.1:{port}") not in endpoints:
            endpoints.append(name)
        port += 1
    return replace(known, pservers=tuple(endpoints), trainers=trainers)
