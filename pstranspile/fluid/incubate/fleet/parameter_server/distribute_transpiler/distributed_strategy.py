"""Fluid's strategies: when trainers and servers exchange what they know."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pstranspile.fluid.communicating import check_names, default_flags, warn_unused
from pstranspile.fluid.compiler import BuildStrategy, ExecutionStrategy
from pstranspile.fluid.transpiler.config import DistributeTranspilerConfig


class TrainerRuntimeConfig:
    """How communicators work: `runtime_configs` by Fluid's names, with what the environment gives."""

    def __init__(self) -> None:
        self.mode: int | None = None
        self.runtime_configs: dict[str, Any] = {**default_flags()}

    def get_communicator_flags(self) -> dict[str, str]:
        """The settings, as text."""
        return {name: str(value) for name, value in self.runtime_configs.items()}


class ServerRuntimeConfig:
    """How many threads Fluid's servers have; here they take one message after the other."""

    def __init__(self) -> None:
        for name, default in self.defaults().items():
            setattr(self, name, default)

    @staticmethod
    def defaults() -> dict[str, int]:
        """The numbers of threads, which the environment may give."""
        kinds = ("send", "get", "prefetch")
        return {f"_rpc_{kind}_thread_num": int(os.environ.get(f"FLAGS_rpc_{kind}_thread_num", "12")) for kind in kinds}

    def warn_unused(self) -> None:
        """Names on stderr what differs from the defaults, which changes nothing."""
        for name, default in self.defaults().items():
            if getattr(self, name) != default:
                warn_unused(f"ServerRuntimeConfig.{name}", getattr(self, name), "a server works in one thread")


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

    def __init__(self) -> None:
        self._program_config = DistributeTranspilerConfig()
        self._trainer_runtime_config = TrainerRuntimeConfig()
        self._server_runtime_config = ServerRuntimeConfig()
        self._execute_strategy = ExecutionStrategy()
        self._build_strategy = BuildStrategy()
        self.check_program_config()

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

    def get_build_strategy(self) -> BuildStrategy:
        """The settings of Fluid's graphs."""
        return self._build_strategy

    def set_build_strategy(self, config: Any) -> None:
        """Sets those of Fluid's graphs."""
        self._build_strategy = _set(self._build_strategy, config, BuildStrategy)


class SyncStrategy(DistributedStrategy):
    """All trainers take a step together."""

    flags = {"sync_mode": False, "runtime_split_send_recv": True, "half_async": True, "completely_not_async": True}


class AsyncStrategy(DistributedStrategy):
    """Trainers wait for nobody."""

    flags = {"sync_mode": False, "runtime_split_send_recv": True}


class HalfAsyncStrategy(DistributedStrategy):
    """Trainers wait for their own gradients only."""

    flags = {"sync_mode": False, "runtime_split_send_recv": True, "half_async": True}


class GeoStrategy(DistributedStrategy):
    """Trainers update by themselves, and exchange what changed every `update_frequency` steps."""

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
