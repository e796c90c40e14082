"""Fluid's `GeoSgdTranspiler` over this compiler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pstranspile.compiler.plan.plan import vars_info
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.transpiler.config import DistributeTranspilerConfig
from pstranspile.fluid.transpiler.distribute_transpiler import DistributeTranspiler


class GeoSgdTranspiler(DistributeTranspiler):
    """Transpiles one program for geo-SGD: trainers update locally and exchange what changed every few steps.

    The config given is not changed; `geo_sgd_mode` need not be set in it.
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
        """What Fluid's communicator is told of every parameter."""
        return vars_info(self.result.plan.parameters)


__getattr__ = names_of_fluid(__name__, globals())
