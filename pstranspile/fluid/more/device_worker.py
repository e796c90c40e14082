"""Fluid's `device_worker`: what a thread does that trains on a data set, as a message."""

from __future__ import annotations

import sys
from typing import Any

from pstranspile.fluid.missing import names_of_fluid


class DeviceWorker:
    """The base of workers: keeps the program and what is set for it."""

    def __init__(self) -> None:
        self._program: Any = None
        self._infer: bool | None = None
        self._fleet_desc: Any = None

    def _set_infer(self, infer: bool = False) -> None:
        self._infer = infer

    def _set_fleet_desc(self, fleet_desc: Any) -> None:
        self._fleet_desc = fleet_desc

    def _set_program(self, program: Any) -> None:
        self._program = program

    def _gen_worker_desc(self, trainer_desc: Any) -> None:
        """Raises NotImplementedError, as in Fluid: each class of workers completes the message itself."""
        raise NotImplementedError(f"{type(self).__name__} must define _gen_worker_desc(trainer_desc), as Hogwild does")


class Hogwild(DeviceWorker):
    """Every thread runs the program, and they share the parameters."""

    def _gen_worker_desc(self, trainer_desc: Any) -> None:
        """Names the worker, and the ops that it leaves out."""
        trainer_desc.device_worker_name = "HogwildWorker"
        if self._infer:
            trainer_desc.hogwild_param.skip_ops.append("feed")


class DeviceWorkerFactory:
    """Makes workers."""

    def _create_device_worker(self, worker_type: str) -> Any:
        """The worker of a class. Raises NotHere for those of pslib and of pipelines, AttributeError for no class."""
        return getattr(sys.modules[__name__], worker_type.capitalize())()


__getattr__ = names_of_fluid("pstranspile.fluid.device_worker", vars(sys.modules[__name__]))
