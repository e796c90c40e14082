"""Averages of parameters under Fluid's names."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from pstranspile.fluid.framework import default_main_program
from pstranspile.fluid.graph.program import Program
from pstranspile.frontends import autodiff


class _Average:
    """What takes the parameters' places for a while: programs that put averages there, and that take them back."""

    def __init__(self, core: autodiff.ModelAverage | autodiff.ExponentialMovingAverage):
        self._core = core
        self.apply_program = Program.of(core.apply_program)
        self.restore_program = Program.of(core.restore_program)

    @contextmanager
    def apply(self, executor: Any, need_restore: bool = True) -> Generator[None]:
        """In the block parameters are their averages; afterwards, with `need_restore`, what they were."""
        executor.run(self.apply_program)
        try:
            yield
        finally:
            if need_restore:
                self.restore(executor)

    def restore(self, executor: Any) -> None:
        """Makes the parameters again what they were before `apply`."""
        executor.run(self.restore_program)


class ModelAverage(_Average):
    """Averages of parameters over windows of updates; made after `minimize`."""

    def __init__(
        self,
        average_window_rate: float,
        min_average_window: int = 10000,
        max_average_window: int = 10000,
        regularization: Any = None,
        name: str | None = None,
    ):
        draft = default_main_program().live()
        super().__init__(
            autodiff.ModelAverage(draft, average_window_rate, min_average_window, max_average_window, name or "")
        )


class ExponentialMovingAverage(_Average):
    """Averages in which older values count less and less; made after `minimize`, `update` appends its ops.

    `thres_steps`, a variable that counts the steps, has the decay rise to `decay`.
    """

    def __init__(self, decay: float = 0.999, thres_steps: Any = None, name: str | None = None):
        draft = default_main_program().live()
        steps = None if thres_steps is None else thres_steps.value
        self._moving = autodiff.ExponentialMovingAverage(draft, decay, name or "", steps=steps)
        super().__init__(self._moving)

    def update(self) -> None:
        """Appends the ops that bring the averages up to date."""
        self._moving.update()
