"""Fluid's `parallel_executor`: a program for several devices, bound to an executor and a scope."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.compiler import BuildStrategy as BuildStrategy
from pstranspile.fluid.compiler import CompiledProgram
from pstranspile.fluid.compiler import ExecutionStrategy as ExecutionStrategy
from pstranspile.fluid.executor import Executor, global_scope, plain_program
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.scope import Scope
from pstranspile.ir.warned import warn


class ParallelExecutor:
    """Runs a program as if by several devices: each takes a share of what is fed, and gives a part of what is fetched.

    There are as many as CPU_NUM says; one computes for all. The program is bound to a scope (default: that in use).
    Warns where several trainers are asked for and the program was not transpiled for them.
    """

    def __init__(
        self,
        use_cuda: bool,
        loss_name: str | None = None,
        main_program: Any = None,
        share_vars_from: ParallelExecutor | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        build_strategy: BuildStrategy | None = None,
        num_trainers: int = 1,
        trainer_id: int = 0,
        scope: Scope | None = None,
    ):
        program = plain_program(main_program)
        if num_trainers > 1 and program.machine is None:
            warn(
                f"trainer {trainer_id} of {num_trainers} trains alone: only transpiled programs join trainers "
                "(DistributeTranspiler with mode nccl2, fleet)",
            )
        self._scope, self._executor = scope or global_scope(), Executor()
        self._compiled = CompiledProgram(program).with_data_parallel(
            loss_name, build_strategy, exec_strategy, share_vars_from and share_vars_from._compiled
        )
        self._compiled._compile(self._scope, self._executor.place)  # pyright: ignore[reportPrivateUsage]
        self._scopes_of_runs = False

    @property
    def device_count(self) -> int:
        """How many devices there are."""
        return self._compiled.device_count

    def run(self, fetch_list: Any, feed: Any = None, feed_dict: Any = None, return_numpy: bool = True) -> Any:
        """Runs the program once and gives what is fetched, that of all devices together."""
        given = feed if feed is not None else feed_dict
        self._scopes_of_runs = True
        return self._executor.run(self._compiled, given, fetch_list, scope=self._scope, return_numpy=return_numpy)

    def drop_local_exe_scopes(self) -> None:
        """Lets go what a run has kept for the next one: nothing here, where variables of runs end with them."""
        self._scopes_of_runs = False

    def _need_create_local_exe_scopes(self) -> bool:
        """Whether no run was since the start, or since `drop_local_exe_scopes`."""
        return not self._scopes_of_runs


__getattr__ = names_of_fluid(__name__, globals())
