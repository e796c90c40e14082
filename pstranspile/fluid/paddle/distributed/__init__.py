"""`paddle.distributed`: launchers and, as in the first 2.x versions, Fleet, data sets and the number of
this trainer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pstranspile.fluid.communicator import warn_unused
from pstranspile.fluid.dataset import InMemoryDataset as _InMemory
from pstranspile.fluid.dataset import QueueDataset as _Queue
from pstranspile.fluid.missing import unsupported_error
from pstranspile.fluid.running.flags import whole
from pstranspile.fluid.running.large_tables import CountFilterEntry as CountFilterEntry
from pstranspile.fluid.running.large_tables import ProbabilityEntry as ProbabilityEntry
from pstranspile.fluid.running.large_tables import ShowClickEntry as ShowClickEntry
from pstranspile.runtime.values import fetched_line


def get_rank() -> int:
    """The number of this trainer, as launchers set it in the environment."""
    return whole("PADDLE_TRAINER_ID", 0)


def get_world_size() -> int:
    """The number of trainers, as launchers set it in the environment."""
    return whole("PADDLE_TRAINERS_NUM", 1)


class ParallelEnv:
    """The variables of the environment that launchers set for a trainer."""

    rank = property(lambda self: get_rank())
    world_size = property(lambda self: get_world_size())
    local_rank, nranks = rank, world_size

    @property
    def current_endpoint(self) -> str:
        """The address of this trainer."""
        return os.environ.get("PADDLE_CURRENT_ENDPOINT", "")

    @property
    def trainer_endpoints(self) -> list[str]:
        """The addresses of the trainers."""
        return [text for text in os.environ.get("PADDLE_TRAINER_ENDPOINTS", "").split(",") if text]


_SETTERS = {
    "batch_size": "set_batch_size",
    "thread_num": "set_thread",
    "use_var": "set_use_var",
    "pipe_command": "set_pipe_command",
    "download_cmd": "set_download_cmd",
    "parse_ins_id": "set_parse_ins_id",
    "parse_content": "set_parse_content",
    "fleet_send_batch_size": "set_fleet_send_batch_size",
    "fleet_send_sleep_seconds": "set_fleet_send_sleep_seconds",
}
_MOST_CANDIDATES = 10000
"""The default number of samples from which `slots_shuffle` draws."""


class _DatasetWithInit:
    """A data set whose settings are passed in one call."""

    def init(
        self,
        *,
        batch_size: int = 1,
        thread_num: int = 1,
        use_var: Any = (),
        pipe_command: str = "cat",
        input_type: int = 0,
        fs_name: str = "",
        fs_ugi: str = "",
        download_cmd: str = "cat",
        **others: Any,
    ) -> None:
        """Sets the size of a batch, the variables, and the command that converts a file to lines."""
        made: Any = self
        made.set_batch_size(batch_size)
        made.set_thread(thread_num)
        made.set_use_var(use_var)
        made.set_pipe_command(pipe_command)
        if fs_name or fs_ugi:
            made.set_hdfs_config(fs_name, fs_ugi)
        self._refuse("init", {"input_type": input_type, **others})

    def fetched_texts(self, batch: int, infos: Sequence[str], names: Sequence[str], values: Sequence[Any]) -> list[str]:
        """The line that 2.x prints about the fetched variables after a batch."""
        return [fetched_line(time.time(), batch, zip(infos, values, strict=True))]

    def update_settings(self, **settings: Any) -> None:
        """Changes some of the settings that `init` sets. Raises NotHere for other settings."""
        dataset: Any = self
        for name in [key for key in settings if key in _SETTERS and hasattr(dataset, _SETTERS[key])]:
            getattr(dataset, _SETTERS[name])(settings.pop(name))
        if "fs_name" in settings or "fs_ugi" in settings:
            name, user = dataset.get_hdfs_config()
            dataset.set_hdfs_config(settings.pop("fs_name", name), settings.pop("fs_ugi", user))
        if isinstance(self, _InMemory):
            size = settings.pop("merge_size", 0)
            if size > 0:
                dataset.set_merge_by_lineid(size)
            if settings.pop("fea_eval", False):
                dataset.set_fea_eval(settings.pop("candidate_size", _MOST_CANDIDATES), True)
        self._refuse("update_settings", settings)

    def _init_distributed_settings(self, **settings: Any) -> None:
        """Sets how samples are read, merged, and sent in a shuffle over trainers. Raises NotHere for other settings."""
        self.update_settings(**settings)

    def _refuse(self, method: str, settings: Mapping[str, Any]) -> None:
        """Raises NotHere for settings that are not empty."""
        names = ", ".join(sorted(name for name, value in settings.items() if value))
        if names:
            message = "leave it out: samples are lines with numbers of values"
            raise unsupported_error(f"{type(self).__name__}.{method}({names})", message)


class QueueDataset(_DatasetWithInit, _Queue):
    """Samples that are read from files during training."""


class InMemoryDataset(_DatasetWithInit, _InMemory):
    """Samples that are read from files before training, and can be shuffled."""

    def _set_use_ps_gpu(self, use_ps_gpu: bool) -> None:
        if use_ps_gpu:
            warn_unused("InMemoryDataset._set_use_ps_gpu", use_ps_gpu, "all is computed on the CPU")


def __getattr__(name: str) -> Any:
    if name in ("io", "transpiler"):
        from importlib import import_module

        return import_module(f"pstranspile.fluid.{name}")
    if name in ("fleet", "launch", "launch_ps", "fs_wrapper"):
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    from pstranspile.fluid.paddle.later import not_there

    raise not_there(f"paddle.distributed.{name}", globals())
