"""Fluid's `parallel_executor`: an executor of one device here."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.compiler import BuildStrategy as BuildStrategy
from pstranspile.fluid.compiler import ExecutionStrategy as ExecutionStrategy
from pstranspile.fluid.executor import Executor, plain_program
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.scope import Scope


class ParallelExecutor:
    """Runs a program; there is one device, which gets the whole batch."""

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
        self._program, self._scope = plain_program(main_program), scope
        self._executor = Executor()

    @property
    def device_count(self) -> int:
        """1."""
        return 1

    def run(self, fetch_list: Any, feed: Any = None, feed_dict: Any = None, return_numpy: bool = True) -> Any:
        """Runs the program once and gives what is fetched."""
        given = feed if feed is not None else feed_dict
        return self._executor.run(self._program, given, fetch_list, scope=self._scope, return_numpy=return_numpy)

    def drop_local_exe_scopes(self) -> None:
        """Nothing: the scopes of runs end with them."""


__getattr__ = names_of_fluid(__name__, globals())
