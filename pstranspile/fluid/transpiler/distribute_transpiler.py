"""Fluid's `DistributeTranspiler` over this compiler."""

from __future__ import annotations

from typing import cast

from pstranspile.compile import Compiled, compile
from pstranspile.fluid.transpiler.collective import check_rank
from pstranspile.fluid.transpiler.config import DistributeTranspilerConfig
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import MAIN, STARTUP, Module, Program
from pstranspile.job import Job

DEFAULT_SERVER = "127.0.0.1:6174"
"""The server that Fluid's `transpile` assumes when it is given none."""


def _type(value: object) -> str:
    return type(value).__name__


class DistributeTranspiler:
    """Transpiles one program for a cluster; then gives every role's programs, in any order and as often as asked.

    The methods have Fluid's names and arguments. Programs are values, so nothing is edited in place: the trainer's
    start-up program, which Fluid leaves in the one passed in, is `get_trainer_startup_program()`.
    """

    def __init__(self, config: DistributeTranspilerConfig | None = None):
        if not isinstance(cast(object, config), DistributeTranspilerConfig | None):
            raise TypeError(f"the config is a DistributeTranspilerConfig, not a value of type {_type(config)}")
        self.config = config or DistributeTranspilerConfig()
        self._compiled: Compiled | None = None
        self._trainer_id = 0

    def transpile(
        self,
        trainer_id: int,
        program: Program,
        pservers: str = DEFAULT_SERVER,
        trainers: int | str = 1,
        sync_mode: bool | None = None,
        startup_program: Program | None = None,
        current_endpoint: str | None = None,
    ) -> None:
        """Compiles the main `program` and its `startup_program` for the servers in the comma-separated `pservers`.

        In the modes `nccl2` and `collective` there are no servers: `trainers` are endpoints, comma-separated, and
        `current_endpoint`, where it is given, must be that of trainer `trainer_id` (ValueError).
        `sync_mode` defaults to the config's, and that to True; where both are given they must agree (Fluid builds
        trainers after the one and servers after the other). Raises DiagnosticError when the program can't be
        distributed or the job contradicts itself, TypeError without a start-up program.
        """
        if startup_program is None:
            raise TypeError("transpile needs the startup_program: there is no global default program here")
        for given in cast("tuple[object, ...]", (program, startup_program)):
            if not isinstance(given, Program):
                raise TypeError(f"transpile takes Programs, such as module.main, not a value of type {_type(given)}")
        settings = self.config.job_settings()
        if sync_mode is not None:
            settings.setdefault("sync_mode", sync_mode)
            if settings["sync_mode"] != sync_mode:
                raise ValueError(f"sync_mode is {sync_mode} here and {settings['sync_mode']} in the config")
        if current_endpoint is not None:
            settings["current_endpoint"] = current_endpoint
        without_servers = self.config.mode in ("nccl2", "collective")
        servers = None if without_servers and pservers == DEFAULT_SERVER else pservers
        job = Job(servers, trainers, trainer_id=trainer_id, **settings)
        if without_servers and job.current_endpoint:
            check_rank(job, trainer_id, job.current_endpoint)
        module = Module(FrozenMap({MAIN: program, STARTUP: startup_program}))
        self._compiled = compile(module, job)
        self._trainer_id = trainer_id

    @property
    def result(self) -> Compiled:
        """The compile behind the last `transpile`: plan, warnings and all roles. Raises RuntimeError before it."""
        if self._compiled is None:
            raise RuntimeError("call transpile first")
        return self._compiled

    def get_trainer_program(self, wait_port: bool = False) -> Program:
        """The main program of the trainer given to `transpile`.

        `wait_port` is part of Fluid's signature; True is refused with ValueError, since no server is contacted here.
        """
        if wait_port:
            raise ValueError("wait_port=True: programs are made without contacting any server")
        return self.result.trainer(self._trainer_id).main

    def get_trainer_startup_program(self) -> Program:
        """The start-up program of the trainer given to `transpile`."""
        return self.result.trainer(self._trainer_id).startup

    def get_pserver_program(self, endpoint: str) -> Program:
        """The main program of the server at `endpoint`. Raises KeyError for an endpoint that is no server."""
        return self.result.pserver(endpoint).main

    def get_pserver_programs(self, endpoint: str) -> tuple[Program, Program]:
        """Main and start-up program of the server at `endpoint`. Raises KeyError."""
        role = self.result.pserver(endpoint)
        return role.main, role.startup

    def get_startup_program(self, endpoint: str, pserver_program: Program | None = None) -> Program:
        """The start-up program of the server at `endpoint`. Raises KeyError, or ValueError for another's program."""
        role = self.result.pserver(endpoint)
        if pserver_program is not None and pserver_program != role.main:
            raise ValueError(f"the program given is not that of the server at {endpoint}")
        return role.startup
