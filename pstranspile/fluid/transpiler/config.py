"""Fluid's `DistributeTranspilerConfig`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from pstranspile.compiler.plan.make import BUILT_IN
from pstranspile.fluid.running.communicating import warn_unused
from pstranspile.fluid.running.flags import whole
from pstranspile.ir.diagnostics import did_you_mean

_EXCLUSIVE = {"sync_mode": "runtime_split_send_recv", "runtime_split_send_recv": "sync_mode"}


@dataclass
class DistributeTranspilerConfig:
    """The settings of a `DistributeTranspiler`, under Fluid's names and with its defaults.

    `split_method` is a dispatcher class, or `"RoundRobin"`, `"HashName"` or `"module:Class"`; a transpiler sets it to
    RoundRobin where it is None. `sync_mode` that is never set leaves the choice to the argument of `transpile`; with
    True there is no `runtime_split_send_recv`, and neither is None (ValueError). `print_log` is accepted, and has no
    effect. Other attributes can't be set (AttributeError), so that a misspelt one does not pass unnoticed.
    """

    slice_var_up: bool = True
    split_method: str | type[Any] | None = None
    min_block_size: int = 8192
    enable_dc_asgd: bool = False
    mode: str = "pserver"
    wait_port: bool = True
    sync_mode: bool = True
    runtime_split_send_recv: bool = False
    half_async: bool = False
    completely_not_async: bool = False
    geo_sgd_mode: bool = False
    geo_sgd_need_push_nums: int = 100
    nccl_comm_num: int = 1
    use_hierarchical_allreduce: bool = False
    hierarchical_allreduce_inter_nranks: int = 0
    collective_mode: str | None = None
    print_log: bool = False
    says_sync_mode: bool = field(default=False, repr=False)
    """Whether `sync_mode` was set after the config was made, be it to what it was."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self.__dataclass_fields__:
            raise AttributeError(
                f"DistributeTranspilerConfig has no {name!r}{did_you_mean(name, self.__dataclass_fields__)}",
                name=name,
                obj=self,
            )
        if name in _EXCLUSIVE:
            if value is None:
                raise ValueError(f"{name} is True or False, not None")
            other = _EXCLUSIVE[name]
            if value and getattr(self, other):
                raise ValueError(f"{name} and {other} exclude each other: set {other} to False first")
        object.__setattr__(self, name, value)
        if name == "sync_mode" and "says_sync_mode" in vars(self):
            object.__setattr__(self, "says_sync_mode", True)

    def job_settings(self) -> dict[str, Any]:
        """What differs from the defaults, as keyword arguments of `pstranspile.Job`."""
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        changed.pop("print_log", None)
        if changed.pop("says_sync_mode", False):
            changed["sync_mode"] = self.sync_mode
        method = changed.get("split_method")
        if isinstance(method, type):
            built_in = BUILT_IN.get(method.__name__) is method
            changed["split_method"] = method.__name__ if built_in else f"{method.__module__}:{method.__qualname__}"
        return changed


class ServerRuntimeConfig:
    """How many threads Fluid's servers have; here they take one message after the other."""

    def __init__(self) -> None:
        for name, default in self.defaults().items():
            setattr(self, name, default)

    @staticmethod
    def defaults() -> dict[str, int]:
        """The numbers of threads, which the environment may give."""
        kinds = ("send", "get", "prefetch")
        return {f"_rpc_{kind}_thread_num": whole(f"FLAGS_rpc_{kind}_thread_num", 12) for kind in kinds}

    def warn_unused(self) -> None:
        """Names on stderr what differs from the defaults, which changes nothing."""
        for name, default in self.defaults().items():
            if getattr(self, name) != default:
                warn_unused(f"ServerRuntimeConfig.{name}", getattr(self, name), "a server works in one thread")
