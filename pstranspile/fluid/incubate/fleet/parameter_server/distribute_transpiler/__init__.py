"""Fleet over `DistributeTranspiler`: `fleet` is the one of this process."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from pstranspile.fluid import io
from pstranspile.fluid.executor import global_scope
from pstranspile.fluid.framework import default_main_program, default_startup_program
from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.incubate.fleet.base.fleet_base import (
    DistributedOptimizer,
    Fleet,
    Mode,
    expect_executor,
)
from pstranspile.fluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy import (
    AsyncStrategy,
    DistributedStrategy,
    GeoStrategy,
    HalfAsyncStrategy,
    SyncStrategy,
)
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.optimizer import Optimizer
from pstranspile.fluid.running.distributed_io import load_slices, saves_with_servers, with_states
from pstranspile.fluid.running.pacing import Turned
from pstranspile.fluid.transpiler.config import DistributeTranspilerConfig
from pstranspile.fluid.transpiler.distribute_transpiler import DistributeTranspiler
from pstranspile.ir.model import Program as FrozenProgram


class DistributedTranspiler(Fleet):
    """Fleet with parameter servers."""

    def __init__(self) -> None:
        super().__init__(Mode.TRANSPILER)
        self._transpiler: DistributeTranspiler | None = None
        self._strategy: DistributedStrategy | None = None
        self._programs: tuple[Program, ...] = ()
        self._before: tuple[FrozenProgram, ...] = ()

    def init_worker(self) -> None:
        """Tells the communicator its settings; the start-up program goes to the servers, and waits for them."""
        self._require("init_worker", worker=True)
        if self.main_program.machine is not None and self._strategy is not None:
            self.main_program.machine.configure(self._strategy.get_trainer_runtime_config().runtime_configs)

    def init_server(self, model_dir: str | None = None, var_names: Any = None) -> None:
        """Runs the start-up program of this server, and loads variables from a folder if one is given.

        All of them, or those of `var_names` with what optimizers keep of these. Raises ValueError for unknown ones,
        TypeError for what is no list of names.
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
        """This trainer leaves, when all that it has sent has come. Nothing on a server, whose work has ended then."""
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
        """The optimizer, whose `minimize` then makes the programs of this machine.

        The strategy is one of `distributed_strategy`, or a DistributeTranspilerConfig (default: synchronous). Raises
        TypeError for others, RuntimeError before `init`.
        """
        assert self.role
        made = TranspilerOptimizer(optimizer, strategy)
        made.fleet, self._optimizer = self, made
        return made

    def _begin_again(self) -> None:
        """Keeps the default programs for the next time; gives them back what they were if they are a machine's."""
        programs = default_main_program(), default_startup_program()
        if programs[0].machine is not None and programs == self._programs:
            for program, frozen in zip(programs, self._before, strict=True):
                program.take(frozen)
                program.machine, program.part = None, ""
        self._programs, self._before = programs, tuple(program.freeze() for program in programs)

    def _transpile(self, config: Any, turned: Turned | None = None) -> None:
        """Makes the default programs those of this machine. Raises TypeError for what is no strategy.

        `turned` are the programs that trainers run beside the main one, and when they do so.
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
        """Writes the program that computes the targets, and its parameters, also those that servers hold."""
        expect_executor("save_inference_model", executor, main_program)
        program = main_program or self._origin_program
        holder = program if main_program is not None or self.main_program is None else self.main_program
        io.write_model(dirname, feeded_var_names, target_vars, program, holder)

    def save_persistables(self, executor: Any, dirname: str, main_program: Any = None) -> None:
        """Writes all variables that are kept from run to run: trainer 0 also those that servers hold.

        After `stop_worker`, what only servers hold is left out, and named on stderr. Raises ValueError for a program
        of no cluster.
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
    """Whether the scope in use has a value for a variable: the state of optimizers is on the servers."""
    return global_scope().core.get(name) is not None


def strategy_of(given: Any) -> DistributedStrategy:
    """The strategy that is meant. Raises TypeError."""
    if given is None:
        return SyncStrategy()
    if isinstance(given, DistributedStrategy):
        return given
    if not isinstance(given, DistributeTranspilerConfig):
        raise TypeError(
            f"a strategy is one of StrategyFactory, or a config, not a value of type {type(given).__name__}"
        )
    if given.sync_mode:
        made: DistributedStrategy = SyncStrategy()
    elif given.geo_sgd_mode:
        made = GeoStrategy(given.geo_sgd_need_push_nums)
    elif given.runtime_split_send_recv and not given.half_async:
        made = AsyncStrategy()
    else:
        made = HalfAsyncStrategy()
    made.set_program_config(replace(given))
    return made


class TranspilerOptimizer(DistributedOptimizer):
    """An optimizer whose `minimize` makes the programs of this machine. Raises TypeError for what is none."""

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
        """Minimises the loss, and makes the programs of this machine.

        Where that was done before, the programs begin again as they were then. Raises TypeError for several losses or
        start-up programs.
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
