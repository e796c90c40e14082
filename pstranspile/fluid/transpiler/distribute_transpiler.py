"""Fluid's transpilers, which use this package's compiler: `DistributeTranspiler` with its configuration and
dispatchers, `GeoSgdTranspiler`, and the collective ones.

startup, main = GradAllReduce(nrings=2).transpile(startup, main, rank, endpoints, endpoints[rank], wait_port=False)
"""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import prod
from typing import Any, NamedTuple, cast

from pstranspile.compiler.compile import Compiled, compile
from pstranspile.compiler.job import Job, JobError
from pstranspile.compiler.plan.make import BUILT_IN
from pstranspile.compiler.plan.make import Dispatcher as PSDispatcher
from pstranspile.compiler.plan.make import HashName as HashName
from pstranspile.compiler.plan.make import RoundRobin as RoundRobin
from pstranspile.compiler.plan.plan import Plan, cut_rows, vars_info
from pstranspile.fluid.communicator import DistributedMode as DistributedMode
from pstranspile.fluid.communicator import warn_unused
from pstranspile.fluid.graph.program import DEFAULTS
from pstranspile.fluid.graph.program import Program as LiveProgram
from pstranspile.fluid.machines import Machine, NoTrainer, ServerMachine, TrainerMachine, require_trainer
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.running.flags import whole
from pstranspile.fluid.running.pacing import PacedJob
from pstranspile.fluid.running.watchers import tell_transpiled
from pstranspile.ir.diagnostics import did_you_mean, error
from pstranspile.ir.model import MAIN, STARTUP, FrozenMap, Module, Op, Program, Role
from pstranspile.ir.types import OpRole
from pstranspile.ops import schema_of

# The collective transpilers.


class TrainerPrograms(NamedTuple):
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
    ) -> TrainerPrograms:
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
        return TrainerPrograms(role.startup, role.main)

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


# `DistributeTranspiler` with its configuration and dispatchers, and `GeoSgdTranspiler`.


_EXCLUSIVE = {"sync_mode": "runtime_split_send_recv", "runtime_split_send_recv": "sync_mode"}


@dataclass
class DistributeTranspilerConfig:
    """The settings of a `DistributeTranspiler`, under Fluid's names and with Fluid's defaults.

    `split_method` is a dispatcher class, or `"RoundRobin"`, `"HashName"` or `"module:Class"`; a transpiler sets it to
    RoundRobin where it is None. If `sync_mode` is never set, the argument of `transpile` decides; `sync_mode` True
    excludes `runtime_split_send_recv`, and neither can be None (ValueError). `print_log` is accepted, and has no
    effect. Other attributes can't be set (AttributeError), so that a misspelt name is noticed.
    """

    slice_var_up: bool = True
    split_method: str | type[Any] | None = None
    min_block_size: int = 8192
    enable_dc_asgd: bool = False
    mode: str = "pserver"
    wait_port: bool = True
    sync_mode: bool = True
    runtime_split_send_recv: bool = False
    half_async: bool = False
    completely_not_async: bool = False
    geo_sgd_mode: bool = False
    geo_sgd_need_push_nums: int = 100
    nccl_comm_num: int = 1
    use_hierarchical_allreduce: bool = False
    hierarchical_allreduce_inter_nranks: int = 0
    collective_mode: str | None = None
    print_log: bool = False
    says_sync_mode: bool = field(default=False, repr=False)
    """Whether `sync_mode` was set after the config was made, even to the same value."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self.__dataclass_fields__:
            raise AttributeError(
                f"DistributeTranspilerConfig has no {name!r}{did_you_mean(name, self.__dataclass_fields__)}",
                name=name,
                obj=self,
            )
        if name in _EXCLUSIVE:
            if value is None:
                raise ValueError(f"{name} is True or False, not None")
            other = _EXCLUSIVE[name]
            if value and getattr(self, other):
                raise ValueError(f"{name} and {other} exclude each other: set {other} to False first")
        object.__setattr__(self, name, value)
        if name == "sync_mode" and "says_sync_mode" in vars(self):
            object.__setattr__(self, "says_sync_mode", True)

    def job_settings(self) -> dict[str, Any]:
        """The settings that differ from the defaults, as keyword arguments of `pstranspile.Job`."""
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        changed.pop("print_log", None)
        if changed.pop("says_sync_mode", False):
            changed["sync_mode"] = self.sync_mode
        method = changed.get("split_method")
        if isinstance(method, type):
            built_in = BUILT_IN.get(method.__name__) is method
            changed["split_method"] = method.__name__ if built_in else f"{method.__module__}:{method.__qualname__}"
        return changed


class ServerRuntimeConfig:
    """The numbers of threads of Fluid's servers. They have no effect, because servers of this package process one
    message after the other.
    """

    def __init__(self) -> None:
        for name, default in self.defaults().items():
            setattr(self, name, default)

    @staticmethod
    def defaults() -> dict[str, int]:
        """The default numbers of threads, which the environment may set."""
        kinds = ("send", "get", "prefetch")
        return {f"_rpc_{kind}_thread_num": whole(f"FLAGS_rpc_{kind}_thread_num", 12) for kind in kinds}

    def warn_unused(self) -> None:
        """Warns on stderr of each setting that differs from the default, because it has no effect."""
        for name, default in self.defaults().items():
            if getattr(self, name) != default:
                warn_unused(f"ServerRuntimeConfig.{name}", getattr(self, name), "a server works in one thread")


_ = PSDispatcher


LOOKUP_TABLE_TYPE = ["lookup_table", "lookup_table_v2"]
LOOKUP_TABLE_GRAD_TYPE = ["lookup_table_grad", "lookup_table_v2_grad"]
OP_NAME_SCOPE, CLIP_OP_NAME_SCOPE = "op_namescope", "@CLIP"
OP_ROLE_VAR_ATTR_NAME = "op_role_var"
RPC_OP_ROLE_ATTR_NAME = op_role_attr_name = "op_role"
OPT_OP_ROLE_ATTR_VALUE, RPC_OP_ROLE_ATTR_VALUE = OpRole.OPTIMIZE, OpRole.RPC
DIST_OP_ROLE_ATTR_VALUE, LR_SCHED_OP_ROLE_ATTR_VALUE = OpRole.DIST, OpRole.LR_SCHED
PRINT_LOG = False

DEFAULT_SERVER = "127.0.0.1:6174"
"""The server that Fluid's `transpile` assumes by default."""


def _type(value: object) -> str:
    return type(value).__name__


def frozen(program: Program | LiveProgram) -> Program:
    """The program as a frozen value."""
    return program.freeze() if isinstance(program, LiveProgram) else program


def begun_from(program: Program | LiveProgram, part: str) -> Program:
    """The program as a frozen value; for a transpiled program that was not changed since, the program before that
    transpile.
    """
    value = frozen(program)
    if isinstance(program, LiveProgram) and program.machine is not None and program.part == part:
        role: Role = program.machine.role
        if value == (role.main if part == MAIN else role.startup):
            return program.machine.compiled.source[part]
    return value


def take_role(main: LiveProgram, startup: LiveProgram, machine: Machine) -> None:
    """Turns two programs into those of a machine of a cluster, which an Executor then runs as this machine."""
    for program, part, made in ((main, MAIN, machine.role.main), (startup, STARTUP, machine.role.startup)):
        program.take(made)
        program.machine, program.part = machine, part


def slice_variable(var_list: Sequence[Any], slice_count: int, min_block_size: int) -> list[str]:
    """The slices of variables over `slice_count` servers, each as `name:number:elements`."""
    return [
        f"{var.name}:{number}:{(cut.stop - cut.start) * prod(var.shape[1:])}"
        for var in var_list
        for number, cut in enumerate(cut_rows(tuple(var.shape), slice_count, min_block_size))
    ]


def free_ports(endpoints: str) -> dict[str, str]:
    """For every endpoint with port 0, the same host with a free port."""
    result: dict[str, str] = {}
    for endpoint in endpoints.split(","):
        host, _, port = endpoint.strip().rpartition(":")
        if port == "0":
            with socket.create_server((host, 0)) as tried:
                result[endpoint.strip()] = f"{host}:{tried.getsockname()[1]}"
    return result


def replace_endpoints(endpoints: str, others: Mapping[str, str]) -> str:
    """A comma-separated list of endpoints, some replaced by the ones in `others`."""
    return (
        ",".join(others.get(endpoint.strip(), endpoint) for endpoint in endpoints.split(",")) if others else endpoints
    )


class DistributeTranspiler:
    """Transpiles one program for a cluster; then returns every role's programs, in any order and as often as asked.

    The methods have Fluid's names and arguments. Programs of `pstranspile.fluid` become the trainer's in place, as in
    Fluid, and an Executor runs them as this machine of the cluster. Frozen programs stay unchanged: the trainer's are
    `get_trainer_program()` and `get_trainer_startup_program()`.
    """

    def __init__(self, config: DistributeTranspilerConfig | None = None):
        if not isinstance(cast(object, config), DistributeTranspilerConfig | None):
            raise TypeError(f"the config is a DistributeTranspilerConfig, not a value of type {_type(config)}")
        self.config = config or DistributeTranspilerConfig()
        self.config.split_method = self.config.split_method or RoundRobin
        self._compiled: Compiled | None = None
        self._trainer_id = 0
        self._live: tuple[LiveProgram, LiveProgram] | None = None
        self._servers: dict[str, ServerMachine] = {}
        self._ports: dict[str, str] = {}
        """The endpoints that replace those with port 0."""
        self._turned: PacedJob | None = None

    def take_turns(self, turned: PacedJob) -> None:
        """Makes the trainers that `transpile` creates run other programs than the main one in some steps."""
        self._turned = turned

    def transpile(
        self,
        trainer_id: int,
        program: Program | LiveProgram | None = None,
        pservers: str = DEFAULT_SERVER,
        trainers: int | str = 1,
        sync_mode: bool | None = None,
        startup_program: Program | LiveProgram | None = None,
        current_endpoint: str | None = None,
    ) -> None:
        """Compiles the main `program` and its `startup_program` for the servers in the comma-separated `pservers`.

        Without programs it compiles the default ones of `pstranspile.fluid`; for programs that were transpiled before,
        it compiles their originals. Port 0 stands for a free port; a server writes its number to a file as Fluid's
        servers do (`/tmp/paddle.PID.port`).

        In the modes `nccl2` and `collective` there are no servers: `trainers` are comma-separated endpoints, and
        `current_endpoint`, if given, must be that of trainer `trainer_id` (ValueError). With servers, a server may pass
        its own number, which no trainer has, and with live programs any number, as in Fluid; then only the trainer's
        programs are refused. `sync_mode` defaults to the config's, which defaults to True; if both are given they must
        agree (Fluid would build trainers by the one and servers by the other).
        Raises DiagnosticError when the program can't be distributed or the job contradicts
        itself, TypeError for a frozen program without a start-up program.
        """
        if startup_program is None and isinstance(program, Program):
            raise TypeError("transpile needs the startup_program of a frozen program")
        main = DEFAULTS[0] if program is None else program
        startup = DEFAULTS[1] if startup_program is None else startup_program
        for given in cast("tuple[object, ...]", (main, startup)):
            if not isinstance(given, Program | LiveProgram):
                raise TypeError(f"transpile takes Programs, such as module.main, not a value of type {_type(given)}")
        settings = self.config.job_settings()
        if sync_mode is not None:
            settings.setdefault("sync_mode", sync_mode)
            if settings["sync_mode"] != sync_mode:
                raise ValueError(f"sync_mode is {sync_mode} here and {settings['sync_mode']} in the config")
        without_servers = self.config.mode in ("nccl2", "collective")
        if current_endpoint is not None and without_servers:
            settings["current_endpoint"] = current_endpoint
        self._ports = {} if without_servers else free_ports(pservers)
        servers = None if without_servers and pservers == DEFAULT_SERVER else replace_endpoints(pservers, self._ports)
        if without_servers and not isinstance(trainers, str):  # Fluid makes no endpoints up
            message = f"trainers: mode {self.config.mode} needs the trainers' endpoints, not only their number"
            raise JobError([error("job-missing", message, focus="trainers")])
        beyond = not without_servers and isinstance(trainers, int) and 0 < trainers <= trainer_id
        beyond = beyond and (isinstance(main, LiveProgram) or trainer_id < len(pservers.split(",")))
        job = Job(servers, trainers, trainer_id=0 if beyond else trainer_id, **settings)
        if without_servers and job.current_endpoint:
            check_rank(job, trainer_id, job.current_endpoint)
        besides: Mapping[str, Program] = self._turned.derived_programs if self._turned else {}
        module = Module(FrozenMap({MAIN: begun_from(main, MAIN), STARTUP: begun_from(startup, STARTUP), **besides}))
        self._compiled = compile(module, job)
        _draw_names(self._compiled.plan)
        self._trainer_id = trainer_id
        tell_transpiled(self._compiled, self._turned.text if self._turned else None)
        self._live, self._servers = None, {}
        if isinstance(main, LiveProgram) and isinstance(startup, LiveProgram):
            self._live = main, startup
            machine = self._trainer(self._compiled, trainer_id)
            take_role(main, startup, machine)
            if self._turned and isinstance(machine, TrainerMachine):
                machine.set_pace(self._turned.pace, self._turned.between)

    @staticmethod
    def _trainer(compiled: Compiled, trainer_id: int) -> Machine:
        """The machine of the trainer. A number that no trainer has is a server's own, for which the machine only raises
        errors.
        """
        if trainer_id < compiled.plan.trainers:
            return TrainerMachine(compiled, compiled.trainer(trainer_id))
        return NoTrainer(compiled, compiled.trainer(0), trainer_id)

    @property
    def result(self) -> Compiled:
        """The result of the last compile: plan, warnings and all roles. Raises RuntimeError before `transpile` was
        called.
        """
        if self._compiled is None:
            raise RuntimeError("call transpile first")
        return self._compiled

    def get_trainer_program(self, wait_port: bool = True) -> Any:
        """The main program of trainer `trainer_id` of `transpile`.

        `wait_port` is part of Fluid's signature and has no effect: the start-up program waits for the servers.
        """
        require_trainer(self._trainer_id, self.result.plan.trainers)
        return self._live[0] if self._live else self.result.trainer(self._trainer_id).main

    def get_trainer_startup_program(self) -> Any:
        """The start-up program of trainer `trainer_id` of `transpile`."""
        require_trainer(self._trainer_id, self.result.plan.trainers)
        return self._live[1] if self._live else self.result.trainer(self._trainer_id).startup

    def get_pserver_program(self, endpoint: str) -> Any:
        """The main program of the server at `endpoint`. Raises KeyError if no server has this endpoint."""
        return self.get_pserver_programs(endpoint)[0]

    def get_pserver_programs(self, endpoint: str) -> tuple[Any, Any]:
        """The main and start-up programs of the server at `endpoint`, new ones in every call. Raises KeyError."""
        endpoint = self._ports.get(endpoint, endpoint)
        role = self.result.pserver(endpoint)
        if self._live is None:
            return role.main, role.startup
        if endpoint not in self._servers:
            made_anew = role._replace(main=_made_anew(role.main), startup=_made_anew(role.startup))
            self._servers[endpoint] = ServerMachine(self.result, made_anew)
        made = LiveProgram(), LiveProgram()
        take_role(*made, self._servers[endpoint])
        return made

    def get_startup_program(self, endpoint: str, pserver_program: Any = None, startup_program: Any = None) -> Any:
        """The start-up program of the server at `endpoint`. Raises KeyError, or ValueError if `pserver_program` belongs
        to another server.

        `pserver_program` may have been edited since `get_pserver_program` returned it.
        """
        main, startup = self.get_pserver_programs(endpoint)
        if isinstance(pserver_program, LiveProgram):
            other = pserver_program.machine is not main.machine
        else:
            other = pserver_program is not None and pserver_program != frozen(main)
        if other:
            raise ValueError(f"the program given is not that of the server at {endpoint}")
        return startup


class VarBlock:
    """A piece of a variable that is split: `name:number:elements`."""

    def __init__(self, varname: str, offset: int, size: int):
        self.varname, self.offset, self.size = varname, offset, size

    def __str__(self) -> str:
        return f"{self.varname}:{self.offset}:{self.size}"


def same_or_split_var(p_name: str, var_name: str) -> bool:
    """Whether `p_name` is the name of the variable `var_name` or of one of its pieces."""
    return p_name == var_name or p_name.startswith(f"{var_name}.block")


def _draw_names(plan: Plan) -> None:
    """Draws from Python's random numbers as often as Fluid, which draws the name of each control variable.

    So a seeded shuffle after a transpile gives the same order as with Fluid.
    """
    if plan.pservers:
        for _ in range(3 if plan.geo else len(plan.send_controls) + 2):
            random.random()


def _made_anew(program: Program) -> Program:
    """A server's program with every op as Fluid makes it, including its empty slots."""
    return program._replace(blocks=tuple(block._replace(ops=tuple(map(_whole, block.ops))) for block in program.blocks))


def _whole(op: Op) -> Op:
    schema = schema_of(op.type)
    if schema is None or schema.empty_inputs.keys() <= op.inputs.keys():
        return op
    return op._replace(inputs=FrozenMap({**schema.empty_inputs, **op.inputs}))


class GeoSgdTranspiler(DistributeTranspiler):
    """Transpiles one program for geo-SGD: trainers update locally and exchange their changes every few steps.

    The given config is not changed; `geo_sgd_mode` need not be set in it.
    """

    def __init__(self, config: DistributeTranspilerConfig | None = None):
        super().__init__(replace(config or DistributeTranspilerConfig(), geo_sgd_mode=True))

    def transpile(
        self,
        trainer_id: int,
        program: Any = None,
        pservers: str = "127.0.0.1:6174",
        trainers: int | str = 1,
        sync_mode: bool | None = False,
        startup_program: Any = None,
        current_endpoint: str | None = "127.0.0.1:6174",
    ) -> None:
        """Compiles the main `program` and its `startup_program`, as `DistributeTranspiler.transpile` does.

        Geo-SGD is always asynchronous: `sync_mode` True, which Fluid ignores, raises DiagnosticError.
        """
        super().transpile(trainer_id, program, pservers, trainers, sync_mode, startup_program, current_endpoint)

    @property
    def trainer_startup_program(self) -> Any:
        """The start-up program of the trainer given to `transpile`, under the name of Fluid's attribute."""
        return self.get_trainer_startup_program()

    def _get_vars_info(self) -> dict[str, dict[str, list[str]]]:
        """The information about every parameter that Fluid's communicator gets."""
        return vars_info(self.result.plan.parameters)


__getattr__ = names_of_fluid(__name__, globals())
