"""What a check makes where nothing is given: batches, and the start of counters that nothing starts."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, subject_of
from pstranspile.ir.model import STARTUP, Module, Op, Program
from pstranspile.ir.types import VarKind
from pstranspile.proof.data import inputs_of, make_feeds
from pstranspile.proof.workload import Workload
from pstranspile.runtime.values import NUMPY_TYPES


def made_feeds(workload: Workload, batch: int, seed: int, shares: int) -> dict[str, Any]:
    """Data for as many runs of each program as there are; every program gets others."""
    result = {
        name: make_feeds(program, len(workload.steps_of(name)), batch, seed + place, shares)
        for place, (name, program) in enumerate(workload.programs.items())
    }
    return workload.joined(result)


def unstarted(module: Module, workload: Workload, init: Mapping[str, Any]) -> dict[str, Any]:
    """Zeros for variables for metrics only that have no initial value: scripts reset these themselves."""
    started = {name for op in module[STARTUP].main_block.ops for name in op.output_names}
    result: dict[str, Any] = {}
    for name in sorted(workload.metrics - started - init.keys()):
        var = workload.whole.main_block.vars.get(name)
        whole = var is not None and var.persistable and var.kind is VarKind.LOD_TENSOR and var.tensor is not None
        if var is not None and var.tensor is not None and whole and min(var.shape, default=0) > 0:
            result[name] = np.zeros(var.shape, NUMPY_TYPES[var.tensor.dtype])
    return result


@contextmanager
def naming_inputs(workload: Workload, *, made: bool) -> Generator[None, None, None]:
    """Where an op fails on made data, names the inputs that it depends on, so that they can be given."""
    try:
        yield
    except DiagnosticError as problem:
        if not made:
            raise
        raise DiagnosticError(_with_inputs(workload, item) for item in problem.diagnostics) from None


def _with_inputs(workload: Workload, problem: Diagnostic) -> Diagnostic:
    for program in workload.programs.values():
        for index, op in enumerate(program.main_block.ops):
            if problem.subject == subject_of(op):
                names = _reached(program, index, op)
                named = ", ".join(f"%{name}" for name in names[:8]) + (", ..." if len(names) > 8 else "")
                note = Note(f"the data were made and do not suit it; give those of its inputs with --feed: {named}")
                return problem._replace(notes=(*problem.notes, note)) if names else problem
    return problem


def _reached(program: Program, index: int, op: Op) -> list[str]:
    """The inputs of a program that an op's are made of."""
    wanted = set(op.input_names)
    for before in reversed(program.main_block.ops[:index]):
        if not wanted.isdisjoint(before.output_names):
            wanted.update(before.input_names)
    return [var.name for var in inputs_of(program) if var.name in wanted]
