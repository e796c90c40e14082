"""Turns a single-machine training program into the programs of a cluster, and checks that they agree.

Everything for embedders is here, imported at its first use:

    import pstranspile as ps
    module = ps.load("net.ir")
    result = ps.compile(module, ps.Job(pservers=["a:6174", "b:6174"], trainers=2))
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pstranspile.analysis.facts import Facts, analyze
    from pstranspile.analysis.opgraph import op_graph
    from pstranspile.checkpoint.api import load_checkpoint, save_checkpoint
    from pstranspile.compile import Compiled, compile, prepare
    from pstranspile.data.iterables import Rows
    from pstranspile.data.source import Data
    from pstranspile.diff import diff
    from pstranspile.interop.exporting import export
    from pstranspile.interop.loading import load, loads
    from pstranspile.interop.variables import load_variables, save_variables
    from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error
    from pstranspile.ir.frozen import FrozenMap
    from pstranspile.ir.model import Block, Module, Op, Program, Role, Var
    from pstranspile.ir.roles import OpRole
    from pstranspile.job import Job, JobError
    from pstranspile.job.file import load_job
    from pstranspile.ops.build import make_op
    from pstranspile.ops.textual import print_module as dumps
    from pstranspile.plan.dispatch import Dispatcher
    from pstranspile.plan.make import make_plan
    from pstranspile.plan.plan import Plan
    from pstranspile.proof.check import check
    from pstranspile.proof.report import Report
    from pstranspile.run.api import run
    from pstranspile.run.batch import Batch, Part
    from pstranspile.run.cluster.cluster import Cluster
    from pstranspile.run.cluster.faults.scenario import Scenario
    from pstranspile.run.cluster.faults.scenario_text import parse_scenario
    from pstranspile.run.cluster.simulate import simulate
    from pstranspile.run.scope import Scope
    from pstranspile.run.step_arrays import save_feeds
    from pstranspile.values import LoDTensor, SelectedRows
    from pstranspile.verify import verify

__version__ = "0.1.0"

_API = {
    "Block": "ir.model:Block",
    "Batch": "run.batch:Batch",
    "Cluster": "run.cluster.cluster:Cluster",
    "Compiled": "compile:Compiled",
    "Data": "data.source:Data",
    "Diagnostic": "ir.diagnostics:Diagnostic",
    "DiagnosticError": "ir.diagnostics:DiagnosticError",
    "Dispatcher": "plan.dispatch:Dispatcher",
    "Facts": "analysis.facts:Facts",
    "FrozenMap": "ir.frozen:FrozenMap",
    "Job": "job:Job",
    "JobError": "job:JobError",
    "LoDTensor": "values:LoDTensor",
    "Module": "ir.model:Module",
    "Part": "run.batch:Part",
    "Op": "ir.model:Op",
    "OpRole": "ir.roles:OpRole",
    "Plan": "plan.plan:Plan",
    "Program": "ir.model:Program",
    "Report": "proof.report:Report",
    "Role": "ir.model:Role",
    "Rows": "data.iterables:Rows",
    "Scenario": "run.cluster.faults.scenario:Scenario",
    "Scope": "run.scope:Scope",
    "SelectedRows": "values:SelectedRows",
    "Var": "ir.model:Var",
    "analyze": "analysis.facts:analyze",
    "check": "proof.check:check",
    "compile": "compile:compile",
    "diff": "diff:diff",
    "dumps": "ops.textual:print_module",
    "error": "ir.diagnostics:error",
    "export": "interop.exporting:export",
    "make_op": "ops.build:make_op",
    "op_graph": "analysis.opgraph:op_graph",
    "load": "interop.loading:load",
    "load_checkpoint": "checkpoint.api:load_checkpoint",
    "load_job": "job.file:load_job",
    "load_variables": "interop.variables:load_variables",
    "loads": "interop.loading:loads",
    "save_checkpoint": "checkpoint.api:save_checkpoint",
    "save_feeds": "run.step_arrays:save_feeds",
    "save_variables": "interop.variables:save_variables",
    "make_plan": "plan.make:make_plan",
    "parse_scenario": "run.cluster.faults.scenario_text:parse_scenario",
    "prepare": "compile:prepare",
    "run": "run.api:run",
    "simulate": "run.cluster.simulate:simulate",
    "verify": "verify:verify",
}
"""Public name -> where it is defined; the imports above say the same to type checkers."""

__all__ = [
    "Batch",
    "Block",
    "Cluster",
    "Compiled",
    "Data",
    "Diagnostic",
    "DiagnosticError",
    "Dispatcher",
    "Facts",
    "FrozenMap",
    "Job",
    "JobError",
    "LoDTensor",
    "Module",
    "Op",
    "OpRole",
    "Part",
    "Plan",
    "Program",
    "Report",
    "Role",
    "Rows",
    "Scenario",
    "Scope",
    "SelectedRows",
    "Var",
    "analyze",
    "check",
    "compile",
    "diff",
    "dumps",
    "error",
    "export",
    "load",
    "load_checkpoint",
    "load_job",
    "load_variables",
    "loads",
    "make_op",
    "make_plan",
    "op_graph",
    "parse_scenario",
    "prepare",
    "run",
    "save_checkpoint",
    "save_feeds",
    "save_variables",
    "simulate",
    "verify",
]


def __getattr__(name: str) -> Any:
    place = _API.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = place.partition(":")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _Package(ModuleType):
    """This package; importing its submodule `compile` does not hide the function `compile`.

    The import system binds a submodule in its package under the submodule's name. Where a public function has
    that name, the function is bound instead; `from pstranspile.compile import ...` works as ever.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and name in _API and value.__name__ == f"{__name__}.{name}":
            value = getattr(value, _API[name].partition(":")[2])
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
