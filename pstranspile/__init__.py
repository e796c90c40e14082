"""Turns a single-machine training program into the programs of a cluster, and checks that they agree.

Everything for embedders is here, imported at its first use:

    import pstranspile as ps
    module = ps.load("net.ir")
    result = ps.compile(module, ps.Job(pservers=["a:6174", "b:6174"], trainers=2))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pstranspile.cluster.checkpoint.api import load_checkpoint, save_checkpoint
    from pstranspile.cluster.data.source import Data, Rows
    from pstranspile.cluster.machines.cluster import Cluster
    from pstranspile.cluster.machines.scenario import Scenario, parse_scenario
    from pstranspile.cluster.machines.simulate import simulate
    from pstranspile.cluster.net.calibrate import calibrate
    from pstranspile.cluster.net.launch import launch
    from pstranspile.compiler.analysis import Facts, analyze
    from pstranspile.compiler.analysis.uses import op_graph
    from pstranspile.compiler.compile import Compiled, compile, prepare
    from pstranspile.compiler.cost.jobs import PlanCost, Suggestions, Sweep, cost, suggest, sweep
    from pstranspile.compiler.cost.profile import Profile
    from pstranspile.compiler.diff import diff
    from pstranspile.compiler.explain.placement import Placement, why
    from pstranspile.compiler.job import Job, JobError
    from pstranspile.compiler.job.file import load_job
    from pstranspile.compiler.plan.make import Dispatcher, make_plan
    from pstranspile.compiler.plan.plan import Plan
    from pstranspile.compiler.plan.plan_file import PlanFile, load_plan, parse_plan
    from pstranspile.compiler.verify import verify
    from pstranspile.frontends.loading import export, load, loads
    from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error
    from pstranspile.ir.model import Block, FrozenMap, Module, Op, Program, Role, Var
    from pstranspile.ir.types import OpRole
    from pstranspile.ops.build import make_op
    from pstranspile.ops.textual import print_module as dumps
    from pstranspile.proof.check import check
    from pstranspile.proof.report import Report
    from pstranspile.runtime.files.variables import load_variables, save_variables
    from pstranspile.runtime.run.batch import Batch, Part
    from pstranspile.runtime.run.prepared import run
    from pstranspile.runtime.run.scope import Scope
    from pstranspile.runtime.run.step_feeds import save_feeds
    from pstranspile.runtime.values import LoDTensor, SelectedRows

__version__ = "0.1.0"

_API = {
    "Block": "ir.model:Block",
    "Batch": "runtime.run.batch:Batch",
    "Cluster": "cluster.machines.cluster:Cluster",
    "Compiled": "compiler.compile:Compiled",
    "Data": "cluster.data.source:Data",
    "Diagnostic": "ir.diagnostics:Diagnostic",
    "DiagnosticError": "ir.diagnostics:DiagnosticError",
    "Dispatcher": "compiler.plan.make:Dispatcher",
    "Facts": "compiler.analysis:Facts",
    "FrozenMap": "ir.model:FrozenMap",
    "Job": "compiler.job:Job",
    "JobError": "compiler.job:JobError",
    "LoDTensor": "runtime.values:LoDTensor",
    "Module": "ir.model:Module",
    "Part": "runtime.run.batch:Part",
    "Op": "ir.model:Op",
    "OpRole": "ir.types:OpRole",
    "PlanCost": "compiler.cost.jobs:PlanCost",
    "PlanFile": "compiler.plan.plan_file:PlanFile",
    "Plan": "compiler.plan.plan:Plan",
    "Profile": "compiler.cost.profile:Profile",
    "Placement": "compiler.explain.placement:Placement",
    "Program": "ir.model:Program",
    "Report": "proof.report:Report",
    "Role": "ir.model:Role",
    "Rows": "cluster.data.source:Rows",
    "Scenario": "cluster.machines.scenario:Scenario",
    "Scope": "runtime.run.scope:Scope",
    "SelectedRows": "runtime.values:SelectedRows",
    "Suggestions": "compiler.cost.jobs:Suggestions",
    "Sweep": "compiler.cost.jobs:Sweep",
    "Var": "ir.model:Var",
    "analyze": "compiler.analysis:analyze",
    "calibrate": "cluster.net.calibrate:calibrate",
    "check": "proof.check:check",
    "compile": "compiler.compile:compile",
    "cost": "compiler.cost.jobs:cost",
    "diff": "compiler.diff:diff",
    "dumps": "ops.textual:print_module",
    "error": "ir.diagnostics:error",
    "export": "frontends.loading:export",
    "make_op": "ops.build:make_op",
    "op_graph": "compiler.analysis.uses:op_graph",
    "launch": "cluster.net.launch:launch",
    "load": "frontends.loading:load",
    "load_checkpoint": "cluster.checkpoint.api:load_checkpoint",
    "load_job": "compiler.job.file:load_job",
    "load_plan": "compiler.plan.plan_file:load_plan",
    "load_variables": "runtime.files.variables:load_variables",
    "loads": "frontends.loading:loads",
    "save_checkpoint": "cluster.checkpoint.api:save_checkpoint",
    "save_feeds": "runtime.run.step_feeds:save_feeds",
    "save_variables": "runtime.files.variables:save_variables",
    "make_plan": "compiler.plan.make:make_plan",
    "parse_plan": "compiler.plan.plan_file:parse_plan",
    "parse_scenario": "cluster.machines.scenario:parse_scenario",
    "prepare": "compiler.compile:prepare",
    "run": "runtime.run.prepared:run",
    "simulate": "cluster.machines.simulate:simulate",
    "suggest": "compiler.cost.jobs:suggest",
    "sweep": "compiler.cost.jobs:sweep",
    "verify": "compiler.verify:verify",
    "why": "compiler.explain.placement:why",
}
"""Public name -> where it is defined; the imports above say the same to type checkers."""

_PARTS = ("autodiff", "fluid", "layers", "ray", "torch")
"""Modules with public names of their own."""

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
    "Placement",
    "Plan",
    "PlanCost",
    "PlanFile",
    "Profile",
    "Program",
    "Report",
    "Role",
    "Rows",
    "Scenario",
    "Scope",
    "SelectedRows",
    "Suggestions",
    "Sweep",
    "Var",
    "analyze",
    "calibrate",
    "check",
    "compile",
    "cost",
    "diff",
    "dumps",
    "error",
    "export",
    "launch",
    "load",
    "load_checkpoint",
    "load_job",
    "load_plan",
    "load_variables",
    "loads",
    "make_op",
    "make_plan",
    "op_graph",
    "parse_plan",
    "parse_scenario",
    "prepare",
    "run",
    "save_checkpoint",
    "save_feeds",
    "save_variables",
    "simulate",
    "suggest",
    "sweep",
    "verify",
    "why",
]


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{name}")
    place = _API.get(name)
    if place is None:
        from pstranspile.ir.argument_checks import no_attribute

        raise no_attribute(__name__, name, [*__all__, *_PARTS])
    module, _, attribute = place.partition(":")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
