"""Fluid's collective transpilers, which use this package's compiler.

startup, main = GradAllReduce(nrings=2).transpile(startup, main, rank, endpoints, endpoints[rank], wait_port=False)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pstranspile.compiler.compile import Compiled, compile
from pstranspile.compiler.job import Job
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import MAIN, STARTUP, Module, Program


class Transpiled(NamedTuple):
    """The programs of one trainer, in the order in which `transpile` takes them."""

    startup_program: Program
    main_program: Program


class Collective:
    """The base class of the collective transpilers; `nrings` is the number of communicators.

    Programs are values: `transpile` returns new ones, where Fluid edits the given ones.
    """

    mode: str = ""
    """Fluid's name of the mode (`collective_mode`); empty in this base class."""

    def __init__(self, nrings: int):
        self.nrings = nrings
        self._compiled: Compiled | None = None

    def transpile(
        self,
        startup_program: Program,
        main_program: Program,
        rank: int,
        endpoints: str | Sequence[str],
        current_endpoint: str,
        wait_port: bool,
    ) -> Transpiled:
        """The programs of trainer `rank` of those at `endpoints` (a list, or comma-separated).

        `wait_port` is part of Fluid's signature and has no effect: programs are made without contacting anyone. Raises
        ValueError when `rank` and `current_endpoint` do not name the same endpoint (Fluid makes trainers of them that
        never meet), DiagnosticError when the program or the job can't be compiled, NotImplementedError in the base
        class.
        """
        if not self.mode:
            raise NotImplementedError("Collective is the base of GradAllReduce, LocalSGD and SingleProcessMultiThread")
        listed = endpoints if isinstance(endpoints, str) else [*endpoints]
        job = Job(trainers=listed, mode="collective", collective_mode=self.mode, nccl_comm_num=self.nrings)
        check_rank(job, rank, current_endpoint)
        self._compiled = compile(Module(FrozenMap({MAIN: main_program, STARTUP: startup_program})), job)
        role = self._compiled.trainer(rank)
        return Transpiled(role.startup, role.main)

    @property
    def result(self) -> Compiled:
        """The result of the last compile: plan, warnings, every trainer. Raises RuntimeError before `transpile` was
        called.
        """
        if self._compiled is None:
            raise RuntimeError("call transpile first")
        return self._compiled


class GradAllReduce(Collective):
    """Averages gradients over all trainers before they are applied."""

    mode = "grad_allreduce"

    def __init__(self, nrings: int = 2):
        super().__init__(nrings)


class LocalSGD(Collective):
    """Lets each trainer update by itself, then averages the parameters over all trainers, in every step."""

    mode = "local_sgd"

    def __init__(self, nrings: int = 2):
        super().__init__(nrings)


class SingleProcessMultiThread(Collective):
    """`GradAllReduce` for the devices of one process, with one communicator."""

    mode = "single_process_multi_thread"

    def __init__(self) -> None:
        super().__init__(1)


def check_rank(job: Job, rank: int, current_endpoint: str) -> None:
    """Raises ValueError unless `current_endpoint` is the endpoint of trainer `rank`."""
    endpoints = job.trainer_endpoints
    if not 0 <= rank < len(endpoints):
        raise ValueError(f"rank is {rank}; there are {len(endpoints)} trainers, numbered from 0")
    if current_endpoint != endpoints[rank]:
        raise ValueError(f"current_endpoint is {current_endpoint!r}, but trainer {rank} is at {endpoints[rank]!r}")


__getattr__ = names_of_fluid(__name__, globals())
