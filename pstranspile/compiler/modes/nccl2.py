"""Mode nccl2: start-up programs exchange ids; Fluid's multi-process executor does the rest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pstranspile.compiler.emit.rules import EXCHANGE_IDS, made_of_program
from pstranspile.compiler.job import Job
from pstranspile.compiler.job.modes import COLLECTIVE, ModeSettings
from pstranspile.compiler.modes import PreparedJob
from pstranspile.compiler.modes.shared.without_servers import plan_without_servers
from pstranspile.compiler.plan.plan import Collective, DistributedVar, Plan
from pstranspile.ir.attributes import AttrValue, Strings
from pstranspile.ir.diagnostics import error, raise_errors
from pstranspile.ir.model import STARTUP, Block, FrozenMap, Module, Program, Role, Var
from pstranspile.ir.passes import Steps
from pstranspile.ir.types import VarKind
from pstranspile.ops.build import make_op

if TYPE_CHECKING:
    from pstranspile.compiler.plan.plan_file import PlanFile


@dataclass(frozen=True)
class Nccl2Job:
    """The emitter of mode nccl2. The main program is the source's; start-up programs differ by trainer."""

    module: Module
    plan: Plan
    steps: Steps

    @cached_property
    def _startup(self) -> Block:
        """The start-up block of every trainer without its last op."""
        block = self.module[STARTUP].main_block
        ids = {name: Var(name, VarKind.RAW, persistable=True) for name in id_names(self._collective)}
        return block._replace(vars=FrozenMap({**block.vars, **ids}))

    @property
    def _collective(self) -> Collective:
        return self.plan.collective or Collective()

    def trainer(self, index: int) -> Role:
        """The programs of trainer `index`."""
        startup = self.steps.run("emit-trainer-startups", self._emit_startup, index)
        return Role(f"trainer_{index}", self.module.main, startup)

    def _emit_startup(self, index: int) -> Program:
        """The source's start-up program, then the exchange of ids."""
        settings = self._collective
        attrs: dict[str, AttrValue] = {
            "trainers": Strings(self.plan.trainer_endpoints),
            "trainer_id": index,
            "nccl_comm_num": settings.nccl_comm_num,
            "use_hierarchical_allreduce": settings.use_hierarchical_allreduce,
            "hierarchical_allreduce_inter_nranks": settings.hierarchical_allreduce_inter_nranks,
        }
        block, source = self._startup, self.module[STARTUP]
        origin = made_of_program(source, EXCHANGE_IDS, STARTUP)
        exchange = make_op("gen_nccl_id", {}, {"NCCLID": [FIRST_ID]}, attrs, origin=origin)
        return source.with_main_block(block._replace(ops=(*block.ops, exchange)))

    def pserver(self, endpoint: str) -> Role:
        """Raises KeyError, as there are no servers."""
        raise KeyError(endpoint)

    def distributed_vars(self) -> tuple[DistributedVar, ...]:
        """Returns an empty tuple, as there are no servers."""
        return ()


FIRST_ID = "NCCLID"
"""The id of the first communicator; the others are numbered. Fluid's executor looks them up by these names."""


def id_names(settings: Collective) -> tuple[str, ...]:
    """The names of the variables with the ids of all communicators."""
    count = settings.nccl_comm_num
    names = [FIRST_ID, *(f"{FIRST_ID}_{i}" for i in range(1, count))]
    if settings.use_hierarchical_allreduce:
        for i in range(count):
            names += [f"Hierarchical_inter_{FIRST_ID}_{i}", f"Hierarchical_exter_{FIRST_ID}_{i}"]
    return tuple(names)


class Nccl2:
    """Trainers without servers, whose sums are left to Fluid's executor; their start-up programs exchange ids."""

    settings = ModeSettings(
        "no servers: the trainers' startup programs set up the communicator of a multi-process executor",
        "mode = nccl2",
        COLLECTIVE,
        options=("nccl_comm_num", "use_hierarchical_allreduce", "hierarchical_allreduce_inter_nranks"),
        servers=False,
    )

    def analyze(self, module: Module, job: Job, steps: Steps) -> Module:
        """Returns the module itself. Raises DiagnosticError if it uses a name that the ids need."""
        del steps
        declared = module[STARTUP].main_block.vars
        raise_errors(
            error(
                "collective-name",
                f"%{name} is the name under which Fluid's executor looks for the id of a communicator in mode nccl2; "
                "the program uses it for something else: rename it",
                declared[name].location,
                focus=f"%{name}",
            )
            for name in id_names(_settings(job))
            if name in declared
        )
        return module

    def prepare(self, facts: Module, job: Job, given: Plan | PlanFile | None, steps: Steps) -> PreparedJob:
        """The plan of the job, and its emitter. Raises DiagnosticError."""
        plan = plan_without_servers(facts, job, given, _settings(job))
        return PreparedJob(plan, Nccl2Job(facts, plan, steps))


def _settings(job: Job) -> Collective:
    return Collective(job.nccl_comm_num, job.use_hierarchical_allreduce, job.hierarchical_allreduce_inter_nranks)


MODE = Nccl2()
