"""Fleet with parameter servers, which uses `DistributeTranspiler`: `fleet` is the only instance of this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pstranspile.fluid import io
from pstranspile.fluid.communicator import DistributedMode, check_names, default_flags
from pstranspile.fluid.compiler import BuildStrategy, ExecutionStrategy
from pstranspile.fluid.executor import global_scope
from pstranspile.fluid.framework import default_main_program, default_startup_program
from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.graph.values import several
from pstranspile.fluid.incubate.fleet.base import DistributedOptimizer, Fleet, Mode, expect_executor
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.optimizer import Optimizer
from pstranspile.fluid.running.distributed_io import load_slices, saves_with_servers, with_states
from pstranspile.fluid.running.flags import whole
from pstranspile.fluid.running.pacing import PacedJob
from pstranspile.fluid.transpiler.distribute_transpiler import (
    DistributeTranspiler,
    DistributeTranspilerConfig,
    ServerRuntimeConfig,
)
from pstranspile.ir.diagnostics import did_you_mean
from pstranspile.ir.model import Program as FrozenProgram


def is_transpiler() -> bool:
    """True, because programs of clusters are transpiled."""
    return True


THREADS = ("communicator_thread_pool_size", "communicator_send_wait_times")
QUEUES = ("communicator_max_merge_var_num", "communicator_send_queue_size")
DUMPS = {
    "dump_slot": False,
    "dump_converter": "",
    "dump_fields": (),
    "dump_file_num": 16,
    "dump_fields_path": "",
    "dump_param": (),
}
"""The data that Fluid's trainers can write to files, with the defaults of these settings."""


class TrainerRuntimeConfig:
    """The settings of communicators: `runtime_configs` by Fluid's names, with values from the environment."""

    def __init__(self) -> None:
        self.mode: int | None = None
        self.runtime_configs: dict[str, Any] = {**default_flags()}

    def get_communicator_flags(self) -> dict[str, str]:
        """The settings that apply in the mode, as texts: only asynchronous trainers choose the lengths
        of their queues.
        """
        flags = {name: str(value) for name, value in self.runtime_configs.items()}
        if self.mode in (None, DistributedMode.ASYNC):
            return flags
        if self.mode == DistributedMode.GEO:
            return {name: flags[name] for name in THREADS}
        return {**{name: flags[name] for name in THREADS}, **dict.fromkeys(QUEUES, os.environ.get("CPU_NUM", "1"))}

    def display(self, configs: Mapping[str, Any]) -> str:
        """Settings as text, one a line."""
        return "".join(f"\n{name} = {value}" for name, value in configs.items())

    def __repr__(self) -> str:
        return f"TrainerRuntimeConfig:{self.display(self.get_communicator_flags())}"


def _set(target: Any, config: Any, kind: type[Any]) -> Any:
    """A configuration, or `target` changed by a mapping. Raises TypeError or ValueError."""
    if isinstance(config, kind):
        return config
    if not isinstance(config, Mapping):
        raise TypeError(
            f"the configuration is a {kind.__name__} or a dict, not a value of type {type(config).__name__}"
        )
    given: Mapping[Any, Any] = config  # pyright: ignore[reportUnknownVariableType]
    for name, value in given.items():
        if not hasattr(target, str(name)):
            raise ValueError(f"{kind.__name__} has no {name!r}{did_you_mean(str(name), dir(target))}")
        setattr(target, str(name), value)
    return target


class DistributedStrategy:
    """The base class of strategies: the settings of the transpiler, and of the executors, communicators and servers
    that run its programs.
    """

    flags: Mapping[str, bool] = {}
    mode: int | None = None
    waits = False
    """Whether the threads of a trainer in Fluid wait for each other."""

    def __init__(self) -> None:
        self._program_config = DistributeTranspilerConfig()
        self._trainer_runtime_config = TrainerRuntimeConfig()
        self._server_runtime_config = ServerRuntimeConfig()
        self._execute_strategy: Any = ExecutionStrategy()
        self._execute_strategy.num_threads = whole("CPU_NUM", 1)
        self._build_strategy = BuildStrategy()
        if self._execute_strategy.num_threads > 1:
            self._build_strategy.reduce_strategy = BuildStrategy.ReduceStrategy.Reduce
        self.debug_opt: dict[str, Any] | None = None
        self.check_program_config()
        self._check_runtime()

    def _check_runtime(self) -> None:
        """Applies the mode to the settings of communicators and executors."""
        self._trainer_runtime_config.mode = self.mode
        self._build_strategy.async_mode = True
        self._execute_strategy.use_thread_barrier = self.waits or self._execute_strategy.use_thread_barrier

    def set_debug_opt(self, opt_info: dict[str, Any] | None) -> None:
        """Stores the settings for the files that Fluid's trainers write. No files are written, because `fetch_list`
        shows the same data.
        """
        self.debug_opt = opt_info

    def get_debug_opt(self) -> dict[str, Any]:
        """The settings of `set_debug_opt`, by Fluid's names and with its defaults; empty if it was not called."""
        if self.debug_opt is None:
            return {}
        given = self.debug_opt
        return {name: given.get(name, default) for name, default in DUMPS.items()}

    def check_program_config(self) -> None:
        """Applies the mode to the transpiler's settings."""
        for name, value in self.flags.items():
            setattr(self._program_config, name, value)

    def get_program_config(self) -> DistributeTranspilerConfig:
        """The settings of the transpiler."""
        return self._program_config

    def set_program_config(self, config: Any) -> None:
        """Sets the transpiler's settings, except the mode."""
        self._program_config = _set(self._program_config, config, DistributeTranspilerConfig)
        self.check_program_config()

    def get_trainer_runtime_config(self) -> TrainerRuntimeConfig:
        """The settings of communicators."""
        return self._trainer_runtime_config

    def set_trainer_runtime_config(self, config: Any) -> None:
        """Sets the settings of communicators."""
        if isinstance(config, Mapping):
            given: Mapping[Any, Any] = config  # pyright: ignore[reportUnknownVariableType]
            check_names(given)
            self._trainer_runtime_config.runtime_configs.update(given)
            return
        self._trainer_runtime_config = _set(self._trainer_runtime_config, config, TrainerRuntimeConfig)
        self._check_runtime()

    def get_server_runtime_config(self) -> ServerRuntimeConfig:
        """The settings of servers."""
        return self._server_runtime_config

    def set_server_runtime_config(self, config: Any) -> None:
        """Sets the settings of servers."""
        self._server_runtime_config = _set(self._server_runtime_config, config, ServerRuntimeConfig)

    def get_execute_strategy(self) -> ExecutionStrategy:
        """The settings of executors."""
        return self._execute_strategy

    def set_execute_strategy(self, config: Any) -> None:
        """Sets the settings of executors."""
        self._execute_strategy = _set(self._execute_strategy, config, ExecutionStrategy)
        self._check_runtime()

    def get_build_strategy(self) -> BuildStrategy:
        """The settings of Fluid's graphs."""
        return self._build_strategy

    def set_build_strategy(self, config: Any) -> None:
        """Sets the settings of Fluid's graphs."""
        self._build_strategy = _set(self._build_strategy, config, BuildStrategy)
        self._check_runtime()


class SyncStrategy(DistributedStrategy):
    """A strategy in which all trainers do a step together."""

    mode = DistributedMode.SYNC
    waits = True
    flags = {"sync_mode": False, "runtime_split_send_recv": True, "half_async": True, "completely_not_async": True}


class AsyncStrategy(DistributedStrategy):
    """A strategy in which trainers do not wait for each other."""

    mode = DistributedMode.ASYNC
    flags = {"sync_mode": False, "runtime_split_send_recv": True}


class HalfAsyncStrategy(DistributedStrategy):
    """A strategy in which trainers wait for their own gradients only."""

    mode = DistributedMode.HALF_ASYNC
    waits = True
    flags = {"sync_mode": False, "runtime_split_send_recv": True, "half_async": True}


class GeoStrategy(DistributedStrategy):
    """A strategy in which trainers update locally, and exchange their changes every `update_frequency` steps."""

    mode = DistributedMode.GEO
    flags = {"sync_mode": False, "runtime_split_send_recv": True, "geo_sgd_mode": True}

    def __init__(self, update_frequency: int = 100):
        self._update_frequency = update_frequency
        super().__init__()

    def check_program_config(self) -> None:
        """Applies the mode to the transpiler's settings."""
        super().check_program_config()
        self._program_config.geo_sgd_need_push_nums = self._update_frequency


class StrategyFactory:
    """Makes strategies."""

    @staticmethod
    def create_sync_strategy() -> SyncStrategy:
        """A strategy in which all trainers do a step together."""
        return SyncStrategy()

    @staticmethod
    def create_async_strategy() -> AsyncStrategy:
        """A strategy in which trainers do not wait for each other."""
        return AsyncStrategy()

    @staticmethod
    def create_half_async_strategy() -> HalfAsyncStrategy:
        """A strategy in which trainers wait for their own gradients only."""
        return HalfAsyncStrategy()

    @staticmethod
    def create_geo_strategy(update_frequency: int = 100) -> GeoStrategy:
        """A strategy in which trainers exchange their changes every `update_frequency` steps."""
        return GeoStrategy(update_frequency)


class DistributedTranspiler(Fleet):
    """Fleet with parameter servers."""

    def __init__(self) -> None:
        super().__init__(Mode.TRANSPILER)
        self._transpiler: DistributeTranspiler | None = None
        self._strategy: DistributedStrategy | None = None
        self._programs: tuple[Program, ...] = ()
        self._before: tuple[FrozenProgram, ...] = ()

    def init_worker(self) -> None:
        """Passes the communicator's settings to the trainer; the start-up program then connects to the servers, and
        waits for them.
        """
        self._require("init_worker", worker=True)
        if self.main_program.machine is not None and self._strategy is not None:
            self.main_program.machine.configure(self._strategy.get_trainer_runtime_config().runtime_configs)

    def init_server(self, model_dir: str | None = None, var_names: Any = None) -> None:
        """Runs the start-up program of this server, and loads variables from a folder if one is given.

        All variables are loaded, or those in `var_names` with the optimizers' states for them. Raises ValueError for
        unknown names, TypeError if `var_names` is not a list of names.
        """
        self._require("init_server", worker=False)
        if self._strategy is not None:
            self._strategy.get_server_runtime_config().warn_unused()
        if var_names is not None and not (several(var_names) and all(isinstance(name, str) for name in var_names)):
            raise TypeError(f"init_server takes var_names as a list of names, not {var_names!r}")
        chosen = None if var_names is None else with_states(self.main_program, var_names)
        self.executor.run(self.startup_program)
        if model_dir and chosen is not None:
            load_slices(self.main_program, model_dir, global_scope().core, chosen)
        elif model_dir:
            io.load_persistables(self.executor, model_dir, self.main_program)

    def run_server(self) -> None:
        """Serves until all trainers have left."""
        self._require("run_server", worker=False)
        self.executor.run(self.main_program)

    def stop_worker(self) -> None:
        """Ends this trainer, after everything that it has sent has arrived. Does nothing on a server, whose work has
        ended by then.
        """
        if self.is_server():
            return
        self._require("stop_worker", worker=True)
        if self.main_program.machine is not None:
            self.main_program.machine.leave()

    def _require(self, what: str, *, worker: bool) -> None:
        if self.is_worker() != worker:
            raise RuntimeError(f"fleet.{what} is for {'trainers' if worker else 'servers'}, which this process is not")
        if self.main_program is None:
            raise RuntimeError(f"fleet.{what} comes after minimize of a distributed optimizer")

    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> TranspilerOptimizer:
        """The optimizer with a `minimize` that also makes the programs of this machine.

        The strategy is one of `distributed_strategy`, or a DistributeTranspilerConfig (default: synchronous). Raises
        TypeError for others, RuntimeError before `init`.
        """
        assert self.role
        made = TranspilerOptimizer(optimizer, strategy)
        made.fleet, self._optimizer = self, made
        return made

    def _begin_again(self) -> None:
        """Stores the default programs; if they were already turned into those of a machine, it first restores the
        stored ones.
        """
        programs = default_main_program(), default_startup_program()
        if programs[0].machine is not None and programs == self._programs:
            for program, frozen in zip(programs, self._before, strict=True):
                program.take(frozen)
                program.machine, program.part = None, ""
        self._programs, self._before = programs, tuple(program.freeze() for program in programs)

    def _transpile(self, config: Any, turned: PacedJob | None = None) -> None:
        """Turns the default programs into those of this machine. Raises TypeError if `config` is not a strategy.

        `turned` has the programs that trainers run in some steps instead of the main one.
        """
        strategy = strategy_of(config)
        self._strategy, config = strategy, strategy.get_program_config()
        main, startup = default_main_program(), default_startup_program()
        self._origin_program = main.clone()
        t = self._transpiler = DistributeTranspiler(replace(config))
        if turned is not None:
            t.take_turns(turned)
        trainer = self.worker_index() if self.is_worker() else 0
        t.transpile(trainer, main, self.server_endpoints(True), self.worker_num(), startup_program=startup)
        if self.is_worker():
            self.main_program, self.startup_program = main, startup
            main.machine.flags = strategy.get_trainer_runtime_config().runtime_configs
        else:
            endpoint = self.server_endpoints()[self.server_index()]
            self.main_program, self.startup_program = t.get_pserver_programs(endpoint)

    def save_inference_model(
        self,
        executor: Any,
        dirname: str,
        feeded_var_names: Any,
        target_vars: Any,
        main_program: Any = None,
        export_for_deployment: bool = True,
    ) -> None:
        """Writes the program that computes the targets, and its parameters, including those of servers."""
        expect_executor("save_inference_model", executor, main_program)
        program = main_program or self._origin_program
        holder = program if main_program is not None or self.main_program is None else self.main_program
        io.write_model(dirname, feeded_var_names, target_vars, program, holder)

    def save_persistables(self, executor: Any, dirname: str, main_program: Any = None) -> None:
        """Writes all variables that are kept from run to run; trainer 0 also writes those of servers.

        After `stop_worker`, variables that only servers have are left out, and reported on stderr. Raises ValueError
        for a program outside of a cluster.
        """
        expect_executor("save_persistables", executor, main_program)
        program = main_program or self.main_program
        if program is None or not program._is_distributed:
            raise ValueError("fleet.save_persistables takes a program of a cluster; fluid.io.save_persistables others")
        if saves_with_servers(program):
            io.save_persistables(executor, dirname, program)
            return
        persistable = io.get_program_persistable_vars(self._origin_program)
        kept = [var for var in persistable if executor_holds(var.name)]
        left = sorted({var.name for var in persistable} - {var.name for var in kept})
        if left:
            print(f"save_persistables leaves out what only servers hold: {', '.join(left)}", file=sys.stderr)
        io.save_vars(executor, dirname, self._origin_program, kept)


def executor_holds(name: str) -> bool:
    """Whether the scope in use has a value for a variable; it has none for the state of optimizers, which is on the
    servers.
    """
    return global_scope().core.get(name) is not None


def strategy_of(given: Any) -> DistributedStrategy:
    """The strategy behind a value: itself, one for a config, or the default for None. Raises TypeError for other
    values.
    """
    if given is None:
        return SyncStrategy()
    if isinstance(given, DistributedStrategy):
        return given
    if not isinstance(given, DistributeTranspilerConfig):
        raise TypeError(
            f"a strategy is one of StrategyFactory, or a config, not a value of type {type(given).__name__}"
        )
    if given.sync_mode:
        strategy: DistributedStrategy = SyncStrategy()
    elif given.geo_sgd_mode:
        strategy = GeoStrategy(given.geo_sgd_need_push_nums)
    elif given.runtime_split_send_recv and not given.half_async:
        strategy = AsyncStrategy()
    else:
        strategy = HalfAsyncStrategy()
    strategy.set_program_config(replace(given))
    return strategy


class TranspilerOptimizer(DistributedOptimizer):
    """An optimizer whose `minimize` also makes the programs of this machine. Raises TypeError if `optimizer` is not an
    optimizer.
    """

    def __init__(self, optimizer: Any, strategy: Any = None):
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"it takes an optimizer of fluid.optimizer, not a value of type {type(optimizer).__name__}")
        super().__init__(optimizer, strategy_of(strategy))
        self.fleet: DistributedTranspiler = fleet

    def minimize(
        self,
        loss: Any,
        scopes: Any = None,
        startup_program: Any = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
    ) -> Any:
        """Appends the ops that train on the loss, and makes the programs of this machine.

        If this was done before, the programs are first restored to their state before it. Raises TypeError for several
        losses or start-up programs.
        """
        if isinstance(loss, list) or isinstance(startup_program, list):
            raise TypeError("Fleet with parameter servers minimises one loss")
        self.fleet._begin_again()  # pyright: ignore[reportPrivateUsage]
        made = self._optimizer.minimize(loss, startup_program, parameter_list, no_grad_set)
        turned = getattr(self._optimizer, "turns", None)
        self.fleet._transpile(self._strategy, turned)  # pyright: ignore[reportPrivateUsage]
        return made


fleet = DistributedTranspiler()


__getattr__ = names_of_fluid(__name__, globals())
