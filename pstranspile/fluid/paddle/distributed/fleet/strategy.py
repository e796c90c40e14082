"""The settings of Fleet in the first 2.x versions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from pstranspile.cluster.machines.server import part_of
from pstranspile.fluid import layers
from pstranspile.fluid import optimizer as fluid
from pstranspile.fluid.communicator import warn_not_followed, warn_unused
from pstranspile.fluid.compiler import BuildStrategy, ExecutionStrategy
from pstranspile.fluid.framework import default_startup_program, program_guard
from pstranspile.fluid.graph.values import VarType
from pstranspile.fluid.incubate.fleet import collective
from pstranspile.fluid.incubate.fleet import parameter_server as servers
from pstranspile.fluid.missing import unsupported_error
from pstranspile.fluid.optimizer import Optimizer, RecomputeOptimizer
from pstranspile.fluid.running.pacing import Pace, PacedJob, without_steps
from pstranspile.ir.diagnostics import did_you_mean
from pstranspile.ir.model import MAIN, Op, Program
from pstranspile.ir.types import OpRole
from pstranspile.ops import schema_of

# Merged gradients: one update for several steps.

L: Any = layers
ACCUMULATE = "accumulate"
"""The name of the program that adds gradients to the sums, if it is separate from the main program."""


class _MergingOptimizer(ABC):
    """The base class of optimizers that merge gradients: those of `k_steps` runs are added, or with `avg` averaged.

    Raises NotHere for parameters whose gradients are sparse.
    """

    def __init__(self, inner: Any, k_steps: int, avg: bool):
        self.inner, self.k_steps, self.avg = inner, k_steps, avg

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def minimize(
        self, loss: Any, startup_program: Any = None, parameter_list: Any = None, no_grad_set: Any = None
    ) -> Any:
        """Appends gradients, their sums and the updates; returns the ops that update, and pairs of a parameter and its
        gradient.
        """
        pairs = self.inner.backward(loss, startup_program, parameter_list, no_grad_set)
        with program_guard(loss.block.program, startup_program or default_startup_program()):
            return self.apply_gradients(pairs), pairs

    @abstractmethod
    def apply_gradients(self, params_grads: Any) -> list[Any]:
        """Appends the sums of these gradients, and the updates with the sums."""

    def _sums(self, params_grads: Any) -> list[tuple[Any, Any]]:
        """Appends the sums; returns pairs of a parameter and its sum."""
        sums: list[tuple[Any, Any]] = []
        for param, grad in params_grads:
            if grad.type == VarType.SELECTED_ROWS:
                raise unsupported_error(
                    f"gradient_merge of {param.name}", "its gradient is sparse; leave out is_sparse"
                )
            name = f"{param.name}@GRAD@GradientMerge"
            held = L.create_global_var(list(param.shape), 0.0, param.dtype, persistable=True, name=name)
            L.assign(L.elementwise_add(held, grad), held)
            sums.append((param, held))
        return sums

    def _merged_gradient(self, held: Any) -> Any:
        return L.scale(held, 1.0 / self.k_steps if self.avg else 1.0)

    @staticmethod
    def _clear(held: Any) -> None:
        L.fill_constant(list(held.shape), held.dtype, 0.0, out=held)


class GradientMerge(_MergingOptimizer):
    """Merges gradients in one program, which updates in every `k_steps`-th run."""

    def apply_gradients(self, params_grads: Any) -> list[Any]:
        """Appends the sums of these gradients, and the updates in every `k_steps`-th run."""
        sums = self._sums(params_grads)
        step = L.create_global_var([1], 0, "int32", persistable=True, name="gradient_merge_step")
        L.increment(step, 1.0)
        left = L.elementwise_mod(step, L.fill_constant([1], "int32", self.k_steps))
        made: list[Any] = []

        def update() -> None:
            made.extend(self.inner.apply_gradients([(param, self._merged_gradient(held)) for param, held in sums]))
            for _, held in sums:
                self._clear(held)

        L.cond(L.equal(left, L.fill_constant([1], "int32", 0)), update, None)
        return made


class MergeForServers(_MergingOptimizer, Optimizer):
    """Merges gradients in two programs: one adds gradients up, the main one also sends and updates.

    Schedules of the learning rate count the runs of the main program, and so the updates.
    """

    def __init__(self, inner: Any, k_steps: int, avg: bool):
        super().__init__(inner, k_steps, avg)
        self.turns = PacedJob({}, f"{ACCUMULATE}*{k_steps - 1},{MAIN}", Pace(k_steps), self._without_merging)
        self._sum_names: set[str] = set()

    def apply_gradients(self, params_grads: Any) -> list[Any]:
        """Appends the sums of these gradients, the ops that merge and clear them, and the updates."""
        program = params_grads[0][0].block.program
        block = program.global_block()
        with program._backward_role_guard():
            sums = self._sums(params_grads)
        whole = program.freeze()
        counted = [op for op in whole.main_block.ops if not (op.role or OpRole.FORWARD) & OpRole.LR_SCHED]
        merged: list[tuple[Any, Any]] = []
        for param, held in sums:
            made = block.create_var(name=f"{param.name}@GRAD@MERGED", shape=held.shape, dtype=held.dtype)
            with program._roles(OpRole.BACKWARD, [param.name, made.name]):
                attrs = {"scale": 1.0 / self.k_steps if self.avg else 1.0}
                block.append_op(type="scale", inputs={"X": [held]}, outputs={"Out": [made]}, attrs=attrs)
            merged.append((param, made))
        with program._backward_role_guard():
            for _, held in sums:
                self._clear(held)
        self._sum_names = {held.name for _, held in sums}
        self.turns = self.turns._replace(derived_programs={ACCUMULATE: part_of(whole, counted)})
        return self.inner.apply_gradients(merged)

    def apply_optimize(self, loss: Any, startup_program: Any, params_grads: Any) -> list[Any]:
        """Appends the ops of `apply_gradients`, with initialisers in `startup_program`."""
        with program_guard(loss.block.program, startup_program or default_startup_program()):
            return self.apply_gradients(params_grads)

    def _without_merging(self, program: Program) -> Program:
        """A trainer's program without the ops that merge and clear the sums, send, and receive."""
        gone, kept = set[str](), list[Op]()
        for op in program.main_block.ops:
            talks = (op.role or OpRole.FORWARD) & (OpRole.RPC | OpRole.DIST)
            if self._merges(op) or (not talks and not gone.isdisjoint(op.input_names)):
                gone.update(name for name in op.output_names if name not in self._sum_names)
            else:
                kept.append(op)
        return without_steps(part_of(program, kept), gone)

    def _merges(self, op: Op) -> bool:
        """Whether an op merges one of the sums, or clears it."""
        if op.type == "fill_constant":
            return not self._sum_names.isdisjoint(op.output_names)
        return op.type == "scale" and not self._sum_names.isdisjoint(op.input_names)


# `DistributedStrategy.sparse_table_configs`: settings of the tables on servers, by the names of Paddle 2.x.

_PREFIX = "table_parameters"
_RULES = ("naive", "adagrad", "adam")
_OF_RULES = {
    "naive": ("learning_rate", "initial_range", "weight_bounds"),
    "adagrad": ("learning_rate", "initial_g2sum", "initial_range", "weight_bounds"),
    "adam": (
        "learning_rate",
        "initial_range",
        "beta1_decay_rate",
        "beta2_decay_rate",
        "ada_epsilon",
        "weight_bounds",
    ),
}
_ALONE = "a server keeps the rows of a table in one place"
_SCORES = "rows leave with fleet.shrink, by when they had a gradient last"
_TABLE_SETTINGS_WITHOUT_EFFECT = {
    "table_name": "tables have the names of their parameters",
    "table_id": "tables have the names of their parameters",
    "type": "a table that is looked up is sparse",
    "table_class": "rows lie in memory",
    "shard_num": _ALONE,
    "enable_sparse_table_cache": _ALONE,
    "sparse_table_cache_rate": _ALONE,
    "sparse_table_cache_file_num": _ALONE,
    "compress_in_save": "files are written as they are",
    "enable_revert": "tables are kept by checkpoints",
    "shard_merge_rate": _ALONE,
    "accessor.fea_dim": "rows have the width of the parameter",
    "accessor.embedx_dim": "rows have the width of the parameter",
    **{
        f"accessor.ctr_accessor_param.{name}": _SCORES
        for name in (
            *("nonclk_coeff", "click_coeff", "base_threshold", "delta_threshold", "delta_keep_days", "show_scale"),
            *("show_click_decay_rate", "delete_threshold", "delete_after_unseen_days", "ssd_unseenday_threshold"),
        )
    },
    **{f"accessor.graph_sgd_param.{name}": "no table is a graph" for name in ("nodeid_slot", "feature_learning_rate")},
}
"""Settings that change no value of a row, and the reasons."""
_BY_SCRIPT = "rows are updated by the script's optimizer, and begin as its initializer says"
_FIXED = {
    "accessor.accessor_class": "rows have values alone; take SparseAccessor",
    "accessor.embedx_threshold": "a row has all its values from the first; leave it at 0, or take CountFilterEntry",
    "accessor.ctr_accessor_param.zero_init": _BY_SCRIPT,
    **{f"accessor.ctr_accessor_param.{name}_filter_slots": "rows have no slots" for name in ("load", "save")},
    **{
        f"accessor.table_accessor_save_param.{name}": "files are written as they are"
        for name in ("num", "param", "converter", "deconverter")
    },
    **{
        f"accessor.{part}_sgd_param.{name}": _BY_SCRIPT
        for part in ("embed", "embedx")
        for name in ("name", *(f"{rule}.{key}" for rule in _RULES for key in _OF_RULES[rule]))
    },
}
"""Settings that would change values, so that only the values in `_ALLOWED` are accepted, and the reasons."""
_ALLOWED = {"accessor.accessor_class": "SparseAccessor", "accessor.embedx_threshold": 0}
"""The values of the settings in `_FIXED` that describe tables as they are here."""


def checked_tables(given: Any) -> dict[str, dict[str, Any]]:
    """The settings of each table. Warns on stderr of settings that have no effect.

    Raises TypeError if `given` is not a dict of dicts, ValueError for unknown settings, and NotHere for settings that
    would change the tables' values.
    """
    kind: str = type(given).__name__
    if not isinstance(given, Mapping):
        raise TypeError(f"sparse_table_configs is a dict with a dict for each table, not a {kind}")
    tables: dict[Any, Any] = {**given}  # pyright: ignore[reportUnknownArgumentType]
    checked_settings: dict[str, dict[str, Any]] = {}
    for table, settings in tables.items():
        kind = type(settings).__name__
        if not isinstance(settings, Mapping):
            raise TypeError(f"sparse_table_configs[{table!r}] is a dict, not a {kind}")
        checked_settings[table] = {**settings}  # pyright: ignore[reportUnknownArgumentType]
        for name, value in checked_settings[table].items():
            _check(str(table), str(name), value)
    return checked_settings


def _check(table: str, name: str, value: Any) -> None:
    short = name.removeprefix(f"{_PREFIX}.{table}.")
    if short not in _TABLE_SETTINGS_WITHOUT_EFFECT and short not in _FIXED:
        raise ValueError(
            f"sparse_table_configs has no {short!r}{did_you_mean(short, [*_TABLE_SETTINGS_WITHOUT_EFFECT, *_FIXED])}"
        )
    full = f"sparse_table_configs[{table!r}][{short!r}]"
    if short in _TABLE_SETTINGS_WITHOUT_EFFECT:
        warn_unused(full, value, _TABLE_SETTINGS_WITHOUT_EFFECT[short])
    elif short not in _ALLOWED or value != _ALLOWED[short]:
        raise unsupported_error(f"{full} = {value!r}", _FIXED[short])


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
    "heter_worker_device_guard": "cpu",
    "lr_decay_steps": 10,
    "use_ps_gpu": 0,
    "use_gpu_graph": 0,
}
"""The settings of asynchronous trainers with their defaults. A `k_steps` below 0 means that neither `a_sync` nor
`k_steps` was set.
"""
_IN_FULL = {
    "amp": "all is computed in the element types of the program, float32 where Paddle takes float16 or bfloat16",
    "fp16_allreduce": "gradients are exchanged in their own element type",
}
"""Settings that would compute with shorter numbers. They are accepted with a warning, and numbers keep their length."""
_REFUSED = {
    "dgc": "gradients are exchanged whole",
    "pipeline": "a program runs on one device",
    "adaptive_localsgd": "take localsgd",
    "sharding": "every trainer keeps all parameters; have servers keep them",
    "tensor_parallel": "every trainer has whole parameters; have servers keep them",
    "semi_auto": "take a_sync, or no servers",
    "auto_search": "take a_sync, or no servers",
    "qat": "take QuantizeTranspiler",
    "asp": "every weight is trained",
    "is_fl_ps_mode": "trainers learn together; leave it out",
    "is_with_coordinator": "trainers learn without a coordinator; leave it out",
    "heter_ccl_mode": "all trainers are alike",
    "fleet_desc_configs": "it describes tables of pslib",
}
_CONFIGS: dict[str, dict[str, Any]] = {
    "a_sync": _A_SYNC,
    "recompute": {
        "checkpoints": [],
        "enable_offload": False,
        "checkpoint_shape": [],
        "enable_tuning": False,
        "refined_ops_patterns": [],
    },
    "localsgd": {"k_steps": 1, "begin_step": 1},
    "gradient_merge": {"k_steps": 1, "avg": True},
    "lars": {"lars_coeff": 0.001, "lars_weight_decay": 0.0005, "epsilon": 0.0, "exclude_from_weight_decay": []},
    "lamb": {"lamb_weight_decay": 0.01, "exclude_from_weight_decay": []},
}
"""The settings in each configuration that are followed, with their defaults."""
_KEPT: dict[str, dict[str, Any]] = {
    "amp": {
        "init_loss_scaling": 32768.0,
        "incr_every_n_steps": 1000,
        "decr_every_n_nan_or_inf": 2,
        "incr_ratio": 2.0,
        "decr_ratio": 0.8,
        "use_dynamic_loss_scaling": True,
        "custom_white_list": [],
        "custom_black_list": [],
        "custom_black_varnames": [],
        "use_pure_fp16": False,
        "use_fp16_guard": True,
        "use_optimizer_fp16": False,
        "use_pure_bf16": False,
    },
    "fp16_allreduce": {},
    "dgc": {"rampup_begin_step": 0, "rampup_step": 1, "sparsity": []},
    "pipeline": {
        "micro_batch_size": 1,
        "accumulate_steps": 1,
        "schedule_mode": "1F1B",
        "p2p_cache_shape": True,
        "enable_partial_send_recv": True,
    },
    "adaptive_localsgd": {"init_k_steps": 1, "begin_step": 1},
    "sharding": {
        "sharding_segment_strategy": "segment_broadcast_MB",
        "segment_broadcast_MB": 32.0,
        "segment_anchors": [],
        "sharding_degree": 8,
        "mp_degree": 1,
        "dp_degree": 1,
        "hybrid_dp": False,
        "gradient_merge_acc_step": 1,
        "optimize_offload": False,
        "pp_allreduce_in_optimize": False,
        "pp_degree": 1,
        "optimize_cast": False,
        "_dp_as_optimizer_sharding": False,
        "stage": 1,
        "enable_tuning": False,
        "use_calc_stream": False,
    },
    "tensor_parallel": {"tensor_parallel_degree": 1, "tensor_init_seed": -1},
    "qat": {
        "channel_wise_abs_max": True,
        "weight_bits": 8,
        "activation_bits": 8,
        "not_quant_pattern": [],
        "algo": "",
    },
    "hybrid": {"dp_degree": -1, "mp_degree": 1, "pp_degree": 1, "sharding_degree": 1, "sep_degree": 1},
    "gradient_scale": {"scale_strategy": "avg", "scale_gradient": False},
}
"""The settings that have no effect, because the feature that they configure is refused or not followed, with their
defaults. Other versions have more settings, which are stored as given.
"""
_OF_TRAINERS: dict[str, Any] = {
    "dump_fields_path": "",
    "dump_fields": [],
    "dump_param": [],
    "stat_var_names": [],
    "trainer": "",
    "device_worker": "",
    "local_sparse": [],
    "remote_sparse": [],
}
"""The settings in `trainer_desc_configs`, with their defaults."""
_KEYS: dict[str, dict[str, Any]] = {**_CONFIGS, "trainer_desc": _OF_TRAINERS}
_WITHOUT_EFFECT = {
    **dict.fromkeys(("a_sync.independent_recv_thread", "a_sync.thread_pool_size"), "a trainer has one thread to talk"),
    "a_sync.min_send_grad_num_before_recv": "parameters come with every exchange",
    "a_sync.send_wait_times": "gradients are sent as soon as they can be",
    "a_sync.runtime_split_send_recv": "the result is the same",
    "a_sync.launch_barrier": "trainers wait until servers answer",
    "a_sync.heter_worker_device_guard": "all trainers are alike",
    "a_sync.use_ps_gpu": "servers keep tables in memory",
    "a_sync.use_gpu_graph": "servers keep tables in memory",
    "trainer_desc.trainer": "a trainer has one thread that learns",
    "trainer_desc.device_worker": "a trainer has one thread that learns",
    "trainer_desc.local_sparse": "what is sparse is on the servers",
    "trainer_desc.remote_sparse": "what is sparse is on the servers",
    "recompute.enable_offload": "all is computed on the CPU",
    "recompute.checkpoint_shape": "all is computed on the CPU",
    "recompute.enable_tuning": "values between checkpoints are computed again",
    "recompute.refined_ops_patterns": "values between checkpoints are computed again",
}
_COUNTS = {
    "localsgd.k_steps": 1,
    "localsgd.begin_step": 0,
    "gradient_merge.k_steps": 1,
}
"""Settings that are numbers of steps, with their least values."""
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
    "fuse_grad_size_in_TFLOPS": "the result is the same",
    "_fuse_grad_size_in_TFLOPS": "the result is the same",
    "without_graph_optimization": "the result is the same",
    "_calc_comm_same_stream": "all is computed on the CPU",
    "fuse_grad_merge": "the result is the same",
    "fuse_grad_size_in_num": "the result is the same",
    "split_data": "trainers take the files that they are given",
    "gradient_scale_configs": "gradients are averaged over trainers",
    "hybrid_configs": "every trainer has whole parameters",
    "fs_client_param": "models are written to folders of this host",
}
_LOCAL = ("SGD", "Momentum")
"""The optimizers with which trainers can average parameters instead of gradients."""
_NOT_FOLLOWED = {
    "adam_d2sum": "servers update dense parameters with the script's Adam, those of Paddle by a rule of their own; "
    "trained values differ from Paddle's",
}
"""Settings that change results in 2.x and are not followed, with what happens instead."""
_AUTO_STEPS = 800
"""The number of steps after which trainers exchange what SGD has changed, if `auto` leaves it to Fleet; the same as in
2.x.
"""
_AT_FIRST: dict[str, Any] = {
    "a_sync": True,
    "sync_nccl_allreduce": True,
    "fuse_all_reduce_ops": True,
    "fuse_grad_size_in_MB": 32,
    "fuse_grad_size_in_TFLOPS": 50.0,
    "_fuse_grad_size_in_TFLOPS": 50.0,
    "last_comm_group_size_MB": 1.0,
    "hierarchical_allreduce_inter_nranks": 1,
    "conv_workspace_size_limit": 512,
    "fuse_grad_size_in_num": 8,
    "split_data": True,
    "fs_client_param": {},
}
"""Settings that are accepted, and whose defaults are not False."""


_STRICT = ("a_sync", "adam_d2sum")
"""Flags that raise an error for values other than True and False, as in Paddle."""
_KINDS: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
}


def _settings(name: str, given: object) -> dict[Any, Any]:
    """A copy of a dict. Raises TypeError for anything else."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} is a dict, not {given!r}")
    return {**given}  # pyright: ignore[reportUnknownArgumentType]


def _like(default: object, value: Any, name: str) -> Any:
    """A value converted to the type of the default. Raises TypeError for a value that can't be."""
    match default:
        case bool() if isinstance(value, Integral):
            return bool(value)
        case int() if isinstance(value, Integral):
            return int(value)
        case float() if isinstance(value, Real):
            return float(value)
        case str() if isinstance(value, str):
            return value
        case list() if isinstance(value, Iterable) and not isinstance(value, str | bytes):
            return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case _:
            raise TypeError(f"{name} is {_KINDS[type(default)]}, not {value!r}")


class DistributedStrategy:
    """How trainers and servers work together.

    With `a_sync` trainers do not wait for each other; with `a_sync_configs["k_steps"]` above 0 as well, they use
    geo-SGD, which exchanges every `k_steps` steps. `auto` makes Fleet choose `a_sync`, and geo-SGD for SGD. With
    `localsgd` trainers without servers average parameters: in each step up to `localsgd_configs["begin_step"]`, and
    then in every `k_steps`-th one. With `recompute` the values between `recompute_configs["checkpoints"]` are computed
    again for the gradients; with `gradient_merge` gradients of several steps are added up. `lars` replaces Momentum by
    LarsMomentum, `lamb` replaces Adam by Lamb. Without `a_sync` and `k_steps`, trainers and servers work in step.
    Raises AttributeError for unknown names, ValueError for unknown keys of configurations, TypeError for values in them
    whose type differs from the default's, NotHere for settings that are refused. As in Paddle, flags and numbers
    outside of configurations whose type is wrong are reported on stderr and ignored.
    """

    def __init__(self) -> None:
        known: dict[str, Any] = {
            "nccl_comm_num": 1,
            "execution_strategy": ExecutionStrategy(),
            "build_strategy": BuildStrategy(),
        }
        known |= dict.fromkeys([*_REFUSED, *_IN_FULL, *_ACCEPTED, *_NOT_FOLLOWED, *_CONFIGS, "auto"], False)
        known |= _AT_FIRST
        known |= {f"{name}_configs": {**keys} for name, keys in (_KEYS | _KEPT).items()}
        known |= {"sparse_table_configs": {}}
        vars(self).update(known)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in vars(self):
            raise AttributeError(
                f"DistributedStrategy has no {name!r}{did_you_mean(name, vars(self))}", name=name, obj=self
            )
        before = vars(self)[name]
        if isinstance(before, bool | int | float):
            full = f"DistributedStrategy.{name}"
            expected: Any = bool if isinstance(before, bool) else Integral if isinstance(before, int) else Real
            if not isinstance(value, expected):
                if name in _STRICT:
                    raise ValueError(f"{full} is {_KINDS[type(before)]}, not {value!r}")
                warn_unused(full, repr(value), f"it is {_KINDS[type(before)]}, and as in Paddle others are not taken")
                return
            value = _like(before, value, full)
        if name == "fs_client_param":
            value = _settings(name, value)
        if name in _REFUSED and value:
            raise unsupported_error(f"DistributedStrategy.{name}", _REFUSED[name])
        if name in _IN_FULL and value:
            warn_unused(f"DistributedStrategy.{name}", value, _IN_FULL[name])
        if name in _ACCEPTED and value != vars(self)[name]:
            warn_unused(f"DistributedStrategy.{name}", value, _ACCEPTED[name])
        if name in _NOT_FOLLOWED and value:
            warn_not_followed(f"DistributedStrategy.{name}", value, _NOT_FOLLOWED[name])
        if name == "a_sync":
            vars(self)["a_sync_configs"] = {**self.a_sync_configs, "k_steps": 0}
        if name == "sparse_table_configs":
            value = checked_tables(value)
        of = name.removesuffix("_configs")
        if of != name and of in _KEYS | _KEPT:
            value = self._validated_configs(of, value)
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"DistributedStrategy has no {name!r}", name=name, obj=self)

    def _validated_configs(self, name: str, given: Any) -> dict[str, Any]:
        given = _settings(f"{name}_configs", given)
        for key in given:
            if name in _KEYS and key not in _KEYS[name]:
                raise ValueError(f"{name}_configs has no {key!r}{did_you_mean(str(key), _KEYS[name])}")
        old_configs, new_configs = vars(self)[f"{name}_configs"], dict[str, Any]()
        if name == "a_sync" and given.get("k_steps") == -1 < old_configs["k_steps"]:
            raise ValueError("a_sync_configs['k_steps'] is 0, or for geo-SGD more, once a_sync has been set; not -1")
        defaults = (_KEYS | _KEPT)[name]
        for key, value in given.items():
            full, said = f"{name}.{key}", f"{name}_configs[{key!r}]"
            if full in _COUNTS and (type(value) is not int or value < _COUNTS[full]):
                raise ValueError(f"{said} is a whole number from {_COUNTS[full]} on, not {value!r}")
            new_configs[key] = _like(defaults[key], value, said) if key in defaults else value
            if full in _WITHOUT_EFFECT and new_configs[key] != old_configs[key]:
                warn_unused(said, new_configs[key], _WITHOUT_EFFECT[full])
        return {**old_configs, **new_configs}

    def __repr__(self) -> str:
        lines = [f"{name} = {value!r}" for name, value in sorted(vars(self).items()) if not name.startswith("_")]
        return "DistributedStrategy:\n" + "\n".join(f"    {line}" for line in lines)

    def save_to_prototxt(self, output: str) -> None:
        """Raises NotHere, because strategies are set in scripts."""
        raise unsupported_error(f"DistributedStrategy.save_to_prototxt({output!r})", "set the strategy in the script")

    def optimizer(self, given: Any, with_servers: bool = False) -> Any:
        """The optimizer with the strategy's changes to updates and gradients.

        Raises ValueError for `recompute` without checkpoints.
        """
        if with_servers and self.auto:
            self.a_sync = True
            self.a_sync_configs = {"k_steps": _AUTO_STEPS if given.type == "SGD" else 0}
        if with_servers and hasattr(given, "decay_on_servers"):
            given.decay_on_servers(self.a_sync_configs["lr_decay_steps"])
        result: Any = self._replace_optimizer(given)
        if self.recompute:
            checkpoints = self.recompute_configs["checkpoints"]
            if not checkpoints:
                raise ValueError('DistributedStrategy.recompute needs recompute_configs["checkpoints"]')
            result = RecomputeOptimizer(result)
            result._set_checkpoints(list(checkpoints))  # pyright: ignore[reportPrivateUsage]
        configs = self.gradient_merge_configs
        if self.gradient_merge and configs["k_steps"] > 1:
            if with_servers and self.a_sync and self.a_sync_configs["k_steps"] > 0:
                raise unsupported_error(
                    "DistributedStrategy.gradient_merge with geo-SGD", "set a_sync_configs['k_steps'] to 0"
                )
            kind = MergeForServers if with_servers else GradientMerge
            result = kind(result, configs["k_steps"], configs["avg"])
        return result

    def _replace_optimizer(self, given: Any) -> Any:
        """Lars in place of Momentum and Lamb in place of Adam, where the strategy says so; other
        optimizers unchanged.
        """
        kept_settings = {
            "parameter_list": given._parameters,
            "grad_clip": given._grad_clip,
            "name": given._name or None,
        }
        if self.lars and isinstance(given, fluid.Momentum):
            configs = self.lars_configs
            if configs["epsilon"]:
                raise unsupported_error("lars_configs with epsilon", "leave it at 0")
            numbers = configs["lars_coeff"], configs["lars_weight_decay"]
            kept_settings["regularization"] = given.regularization
            lars = fluid.LarsMomentum(given._learning_rate, given.settings["momentum"], *numbers, **kept_settings)
            lars.settings["exclude"] = _naming(configs["exclude_from_weight_decay"])
            return lars
        if self.lamb and isinstance(given, fluid.Adam):
            configs, settings = self.lamb_configs, given.settings
            numbers = configs["lamb_weight_decay"], settings["beta1"], settings["beta2"], settings["epsilon"]
            left = _naming(configs["exclude_from_weight_decay"])
            kept_settings["exclude_from_weight_decay_fn"] = _by_name(left)
            kept_settings["regularization"] = given.regularization
            lamb = fluid.Lamb(given._learning_rate, *numbers, **kept_settings)
            lamb.settings["later"] = settings.get("later", False)
            return lamb
        return given

    def opens_tables(self, given: Any) -> bool:
        """Whether tables of sparse lookups can have a row for every id, with the optimizer that replaces `given`.

        They can't with geo-SGD, where trainers have tables of a fixed height, nor where an update takes the norm of the
        whole table, or weight decay applies to all its rows.
        """
        if (self.a_sync and self.a_sync_configs["k_steps"] > 0) or given.regularization is not None:
            return False
        made = self._replace_optimizer(given)
        while hasattr(made, "inner"):
            made = made.inner
        schema = schema_of(made.kind().update("").op_type) if hasattr(made, "kind") else None
        return schema is not None and bool(schema.slicing) and not schema.whole_norm

    def with_servers(self) -> servers.DistributedStrategy:
        """The corresponding strategy of Fluid 1.8 for parameter servers."""
        configs = self.a_sync_configs
        if not self.a_sync or configs["k_steps"] < 0:
            return servers.SyncStrategy()
        if configs["k_steps"] > 0:
            return servers.GeoStrategy(configs["k_steps"])
        made = servers.AsyncStrategy()
        names = ("max_merge_var_num", "send_queue_size")
        changed = {name: configs[name] for name in names if configs[name] != _A_SYNC[name]}
        made.set_trainer_runtime_config({f"communicator_{name}": value for name, value in changed.items()})
        return made

    def without_servers(self, optimizer: Any) -> collective.DistributedStrategy:
        """The corresponding strategy of Fluid 1.8 for trainers without servers that use this optimizer."""
        made = collective.DistributedStrategy()
        local = self.localsgd and optimizer.type in _LOCAL
        if self.localsgd and not local:
            told = f"as in Paddle it is for {' and '.join(_LOCAL)}; gradients of {optimizer.type} are averaged"
            warn_unused("DistributedStrategy.localsgd", self.localsgd, told)
        pace = Pace(self.localsgd_configs["k_steps"], self.localsgd_configs["begin_step"])
        vars(made).update(use_local_sgd=bool(local), local_sgd_pace=pace, nccl_comm_num=self.nccl_comm_num)
        return made


def _naming(texts: Iterable[str]) -> Callable[[str], bool]:
    """A function that returns whether a name contains one of these texts."""
    kept = tuple(texts)
    return lambda name: any(text in name for text in kept)


def _by_name(chosen: Callable[[str], bool]) -> Callable[[Any], bool]:
    return lambda param: chosen(param.name)
