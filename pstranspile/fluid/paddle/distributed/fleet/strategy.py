"""The settings of Fleet in the first 2.x versions."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from pstranspile.fluid.compiler import BuildStrategy, ExecutionStrategy
from pstranspile.fluid.incubate.fleet import collective
from pstranspile.fluid.incubate.fleet.parameter_server.distribute_transpiler import distributed_strategy as servers
from pstranspile.fluid.missing import refused
from pstranspile.fluid.optimizer import RecomputeOptimizer
from pstranspile.fluid.running.communicating import warn_unused

_A_SYNC = {
    "k_steps": -1,
    "max_merge_var_num": 1,
    "send_queue_size": 16,
    "independent_recv_thread": False,
    "min_send_grad_num_before_recv": 1,
    "thread_pool_size": 1,
    "send_wait_times": 1,
    "runtime_split_send_recv": False,
    "launch_barrier": True,
}
_REFUSED = {
    "amp": "all is computed in the element types of the program",
    "dgc": "gradients are exchanged whole",
    "lars": "take LarsMomentum",
    "lamb": "take Lamb",
    "pipeline": "a program runs on one device",
    "gradient_merge": "feed larger batches",
    "adaptive_localsgd": "take localsgd",
    "auto": "say which mode is wanted",
    "sharding": "every trainer keeps all parameters; have servers keep them",
    "fp16_allreduce": "gradients are exchanged in their own element type",
}
_ACCEPTED = {
    "sync_nccl_allreduce": "all is computed on the CPU",
    "use_hierarchical_allreduce": "gradients are added in one ring",
    "hierarchical_allreduce_inter_nranks": "gradients are added in one ring",
    "sync_batch_norm": "every trainer has its own batch",
    "fuse_all_reduce_ops": "the result is the same",
    "fuse_grad_size_in_MB": "the result is the same",
    "last_comm_group_size_MB": "the result is the same",
    "find_unused_parameters": "there are static graphs only",
    "cudnn_exhaustive_search": "all is computed on the CPU",
    "conv_workspace_size_limit": "all is computed on the CPU",
    "cudnn_batchnorm_spatial_persistent": "all is computed on the CPU",
    "elastic": "the launcher starts all trainers",
}


class DistributedStrategy:
    """How trainers and servers work together.

    `a_sync` has trainers wait for nobody, with `a_sync_configs["k_steps"]` above 0 as geo-SGD that exchanges every so
    many steps; `localsgd` has trainers without servers average parameters; `recompute` has values between
    `recompute_configs["checkpoints"]` computed again for the gradients. Raises AttributeError for unknown names,
    ValueError for unknown keys of configurations, NotHere for what is refused when it is set.
    """

    def __init__(self) -> None:
        known: dict[str, Any] = {
            "a_sync": False,
            "localsgd": False,
            "nccl_comm_num": 1,
            "execution_strategy": ExecutionStrategy(),
            "build_strategy": BuildStrategy(),
            "a_sync_configs": {**_A_SYNC},
        }
        known |= dict.fromkeys([*_REFUSED, *_ACCEPTED, "recompute"], False)
        known |= {f"{name}_configs": {} for name in (*_REFUSED, "recompute", "localsgd")}
        vars(self).update(known)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in vars(self):
            near = get_close_matches(name, vars(self), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise AttributeError(f"DistributedStrategy has no {name!r}{hint}", name=name, obj=self)
        if name in _REFUSED and value:
            raise refused(f"DistributedStrategy.{name}", _REFUSED[name])
        if name in _ACCEPTED and value:
            warn_unused(f"DistributedStrategy.{name}", value, _ACCEPTED[name])
        if name == "a_sync":
            if not isinstance(value, bool):
                raise ValueError(f"a_sync is True or False, not {value!r}")
            vars(self)["a_sync_configs"] = {**self.a_sync_configs, "k_steps": 0}
        if name == "a_sync_configs":
            value = self._changed(value)
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"DistributedStrategy has no {name!r}", name=name, obj=self)

    def _changed(self, given: Any) -> dict[str, Any]:
        for key in given:
            if key not in _A_SYNC:
                near = get_close_matches(str(key), _A_SYNC, 1)
                raise ValueError(f"a_sync_configs has no {key!r}{f'; did you mean {near[0]}?' if near else ''}")
        return {**vars(self)["a_sync_configs"], **given}

    def optimizer(self, given: Any) -> Any:
        """The optimizer that computes gradients as the strategy says. Raises ValueError for `recompute` alone."""
        if not self.recompute:
            return given
        checkpoints = self.recompute_configs.get("checkpoints")
        if not checkpoints:
            raise ValueError('DistributedStrategy.recompute needs recompute_configs["checkpoints"]')
        made = RecomputeOptimizer(given)
        made._set_checkpoints(list(checkpoints))  # pyright: ignore[reportPrivateUsage]
        return made

    def with_servers(self) -> servers.DistributedStrategy:
        """The strategy of Fluid 1.8 for parameter servers."""
        configs = self.a_sync_configs
        if not self.a_sync:
            return servers.SyncStrategy()
        if configs["k_steps"] > 0:
            return servers.GeoStrategy(configs["k_steps"])
        made = servers.AsyncStrategy()
        names = ("max_merge_var_num", "send_queue_size")
        changed = {name: configs[name] for name in names if configs[name] != _A_SYNC[name]}
        made.set_trainer_runtime_config({f"communicator_{name}": value for name, value in changed.items()})
        return made

    def without_servers(self) -> collective.DistributedStrategy:
        """The strategy of Fluid 1.8 for trainers alone."""
        made = collective.DistributedStrategy()
        vars(made).update(use_local_sgd=bool(self.localsgd), nccl_comm_num=self.nccl_comm_num)
        return made
