"""Fluid's strategies: when trainers and servers exchange what they know."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pstranspile.fluid.compiler import BuildStrategy, ExecutionStrategy
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.running.communicating import DistributedMode, check_names, default_flags
from pstranspile.fluid.running.flags import whole
from pstranspile.fluid.transpiler.config import DistributeTranspilerConfig, ServerRuntimeConfig

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
"""What Fluid's trainers can write to files, with its defaults."""


class TrainerRuntimeConfig:
    """How communicators work: `runtime_configs` by Fluid's names, with what the environment gives."""

    def __init__(self) -> None:
        self.mode: int | None = None
        self.runtime_configs: dict[str, Any] = {**default_flags()}

    def get_communicator_flags(self) -> dict[str, str]:
        """The settings that the mode has, as text: only asynchronous trainers choose how long their queues are."""
        flags = {name: str(value) for name, value in self.runtime_configs.items()}
        if self.mode in (None, DistributedMode.ASYNC):
            return flags
        if self.mode == DistributedMode.GEO:
            return {name: flags[name] for name in THREADS}
        return {**{name: flags[name] for name in THREADS}, **dict.fromkeys(QUEUES, os.environ.get("CPU_NUM", "1"))}

    def display(self, configs: Mapping[str, Any]) -> str:
        """Settings as text, a line each."""
        return "".join(f"\n{name} = {value}" for name, value in configs.items())

    def __repr__(self) -> str:
        return f"TrainerRuntimeConfig:{self.display(self.get_communicator_flags())}"


def _set(target: Any, config: Any, kind: type[Any]) -> Any:
    """A configuration, or one changed by a mapping. Raises TypeError or ValueError."""
    if isinstance(config, kind):
        return config
    if not isinstance(config, Mapping):
        raise TypeError(
            f"the configuration is a {kind.__name__} or a dict, not a value of type {type(config).__name__}"
        )
    given: Mapping[Any, Any] = config  # pyright: ignore[reportUnknownVariableType]
    for name, value in given.items():
        if not hasattr(target, str(name)):
            near = get_close_matches(str(name), dir(target), 1)
            raise ValueError(f"{kind.__name__} has no {name!r}{f'; did you mean {near[0]}?' if near else ''}")
        setattr(target, str(name), value)
    return target


class DistributedStrategy:
    """The base of strategies: the settings of the transpiler and of those that run its programs."""

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
        """Sets what the mode says in the settings of those that run programs."""
        self._trainer_runtime_config.mode = self.mode
        self._build_strategy.async_mode = True
        self._execute_strategy.use_thread_barrier = self.waits or self._execute_strategy.use_thread_barrier

    def set_debug_opt(self, opt_info: dict[str, Any] | None) -> None:
        """Remembers what Fluid's trainers write to files; `fetch_list` shows the same here, so nothing is written."""
        self.debug_opt = opt_info

    def get_debug_opt(self) -> dict[str, Any]:
        """What `set_debug_opt` was given, by Fluid's names and with its defaults; empty if it was not called."""
        if self.debug_opt is None:
            return {}
        given = self.debug_opt
        return {name: given.get(name, default) for name, default in DUMPS.items()}

    def check_program_config(self) -> None:
        """Sets what the mode says in the transpiler's settings."""
        for name, value in self.flags.items():
            setattr(self._program_config, name, value)

    def get_program_config(self) -> DistributeTranspilerConfig:
        """The settings of the transpiler."""
        return self._program_config

    def set_program_config(self, config: Any) -> None:
        """Sets those of the transpiler; the mode stays."""
        self._program_config = _set(self._program_config, config, DistributeTranspilerConfig)
        self.check_program_config()

    def get_trainer_runtime_config(self) -> TrainerRuntimeConfig:
        """The settings of communicators."""
        return self._trainer_runtime_config

    def set_trainer_runtime_config(self, config: Any) -> None:
        """Sets those of communicators."""
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
        """Sets those of servers."""
        self._server_runtime_config = _set(self._server_runtime_config, config, ServerRuntimeConfig)

    def get_execute_strategy(self) -> ExecutionStrategy:
        """The settings of executors."""
        return self._execute_strategy

    def set_execute_strategy(self, config: Any) -> None:
        """Sets those of executors."""
        self._execute_strategy = _set(self._execute_strategy, config, ExecutionStrategy)
        self._check_runtime()

    def get_build_strategy(self) -> BuildStrategy:
        """The settings of Fluid's graphs."""
        return self._build_strategy

    def set_build_strategy(self, config: Any) -> None:
        """Sets those of Fluid's graphs."""
        self._build_strategy = _set(self._build_strategy, config, BuildStrategy)
        self._check_runtime()


class SyncStrategy(DistributedStrategy):
    """All trainers take a step together."""

    mode = DistributedMode.SYNC
    waits = True
    flags = {"sync_mode": False, "runtime_split_send_recv": True, "half_async": True, "completely_not_async": True}


class AsyncStrategy(DistributedStrategy):
    """Trainers wait for nobody."""

    mode = DistributedMode.ASYNC
    flags = {"sync_mode": False, "runtime_split_send_recv": True}


class HalfAsyncStrategy(DistributedStrategy):
    """Trainers wait for their own gradients only."""

    mode = DistributedMode.HALF_ASYNC
    waits = True
    flags = {"sync_mode": False, "runtime_split_send_recv": True, "half_async": True}


class GeoStrategy(DistributedStrategy):
    """Trainers update by themselves, and exchange what changed every `update_frequency` steps."""

    mode = DistributedMode.GEO
    flags = {"sync_mode": False, "runtime_split_send_recv": True, "geo_sgd_mode": True}

    def __init__(self, update_frequency: int = 100):
        self._update_frequency = update_frequency
        super().__init__()

    def check_program_config(self) -> None:
        """Sets what the mode says in the transpiler's settings."""
        super().check_program_config()
        self._program_config.geo_sgd_need_push_nums = self._update_frequency


class StrategyFactory:
    """Makes strategies."""

    @staticmethod
    def create_sync_strategy() -> SyncStrategy:
        """All trainers take a step together."""
        return SyncStrategy()

    @staticmethod
    def create_async_strategy() -> AsyncStrategy:
        """Trainers wait for nobody."""
        return AsyncStrategy()

    @staticmethod
    def create_half_async_strategy() -> HalfAsyncStrategy:
        """Trainers wait for their own gradients only."""
        return HalfAsyncStrategy()

    @staticmethod
    def create_geo_strategy(update_frequency: int = 100) -> GeoStrategy:
        """Trainers exchange what changed every `update_frequency` steps."""
        return GeoStrategy(update_frequency)


__getattr__ = names_of_fluid(__name__, globals())
