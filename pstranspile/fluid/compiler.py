"""Fluid's `compiler` and `parallel_executor`: programs for several devices, which run on a single one.

A pass that a script adds to a BuildStrategy is either followed or refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pstranspile.fluid.communicator import warn_unused
from pstranspile.fluid.executor import Executor, global_scope, plain_program
from pstranspile.fluid.framework import cpu_places
from pstranspile.fluid.graph.nodes import Graph
from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.graph.values import Numbers, several
from pstranspile.fluid.missing import names_of_fluid, unsupported_error
from pstranspile.fluid.scope import Scope
from pstranspile.frontends.autodiff.backward import LOSS_GRADIENT
from pstranspile.ir.diagnostics import did_you_mean
from pstranspile.ir.model import FrozenMap, Op
from pstranspile.ir.user_warnings import warn
from pstranspile.ops.attributes import real

_REPEATS = "multi_batch_merge_pass"
_DIFFERENT = ("batch_norm", "sync_batch_norm", "data_norm", "dropout", "seed", "sampling_id", "shuffle_batch", "nce")
"""Ops beside `*random*` whose results differ when they are computed again from the same values."""


_DRAWS = "graph_viz_pass"
_SETTINGS = {_REPEATS: "num_repeats", _DRAWS: "graph_viz_path"}
"""For each pass that can be added, the name of its setting."""
_FUSING = {
    "fuse_bn_act_ops": "fuse_bn_act_pass",
    "fuse_elewise_add_act_ops": "fuse_elewise_add_act_pass",
    "fuse_relu_depthwise_conv": "fuse_relu_depthwise_conv_pass",
}
"""The passes that settings of a BuildStrategy add. They do not change values, so they are listed, but do nothing."""


class Pass:
    """A pass with a name and settings."""

    def __init__(self, name: str):
        self._name = name
        self.settings: dict[str, Any] = {}

    def type(self) -> str:
        """The name of the pass."""
        return self._name

    def set(self, name: str, value: Any) -> None:
        """Sets a setting. Raises NotHere for one that the pass does not have."""
        known = _SETTINGS.get(self._name, "no settings")
        if name != known:
            raise unsupported_error(f"{self._name}.{name}", f"it has {known}")
        self.settings[name] = value


class PassBuilder:
    """The passes of a BuildStrategy. Only `multi_batch_merge_pass` and `graph_viz_pass` can be added."""

    def __init__(self) -> None:
        self._passes: list[Pass] = []

    def ask(self, settings: Mapping[str, Any]) -> PassBuilder:
        """Inserts, in front, the passes that settings of a BuildStrategy add; returns the builder."""
        known = [each.type() for each in self._passes]
        self._passes[:0] = [Pass(n) for key, n in _FUSING.items() if settings.get(key) and n not in known]
        return self

    def all_passes(self) -> list[Pass]:
        """The passes, in order."""
        return list(self._passes)

    def insert_pass(self, index: int, name: str) -> Pass:
        """Inserts a pass at an index. Raises NotHere for an unknown pass."""
        if name not in _SETTINGS:
            raise unsupported_error(f"the pass {name}", "ops are run as the program has them")
        self._passes.insert(index, Pass(name))
        return self._passes[index]

    def append_pass(self, name: str) -> Pass:
        """Appends a pass. Raises NotHere for an unknown pass."""
        return self.insert_pass(len(self._passes), name)

    def remove_pass(self, index: int) -> None:
        """Removes the pass at an index."""
        del self._passes[index]

    def draw(self, program: Program) -> None:
        """Writes the program as a graph for Graphviz, if a pass is set to do so."""
        from pstranspile.frontends.texts import dot_text

        for each in self._passes:
            if path := each.settings.get(_SETTINGS[_DRAWS]):
                Path(path).write_bytes(dot_text(program.freeze(), "main").encode("utf-8", "backslashreplace"))

    def require_same(self, program: Program) -> None:
        """Raises NotHere where the passes would change the results of a step of this program.

        Merged batches average the gradients of several runs on the same fed rows, which equal those of one run, unless
        a reader supplies other rows each time or the results of an op differ from run to run.
        """
        if all(each.settings.get("num_repeats", 1) <= 1 for each in self._passes):
            return
        if program.readers:
            raise unsupported_error(f"{_REPEATS} with a reader", "have the reader give larger batches")
        for block in program.drafts:
            for op in block.all_ops():
                if op.type in _DIFFERENT or "random" in op.type:
                    raise unsupported_error(f"{_REPEATS} with {op.type}", "feed larger batches")


class _Settings:
    """Settings under Fluid's names; those that control Fluid's runtime change no value."""

    known: dict[str, Any] = {}

    def __init__(self) -> None:
        vars(self).update(self.known)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.known:
            raise AttributeError(
                f"{type(self).__name__} has no {name!r}{did_you_mean(name, self.known)}", name=name, obj=self
            )
        if name == "debug_graphviz_path" and value:
            warn_unused(f"{type(self).__name__}.{name}", value, "`--ir DIR` writes what is run")
        super().__setattr__(name, value)


class ExecutionStrategy(_Settings):
    """Settings of Fluid's executor for several devices; with one device they change nothing."""

    known = {
        "num_threads": 0,
        "use_cuda": False,
        "allow_op_delay": False,
        "num_iteration_per_drop_scope": 100,
        "num_iteration_per_run": 1,
        "use_thread_barrier": False,
        "use_experimental_executor": False,
        "_dry_run": False,
    }

    class ExecutorType(Numbers):
        """The kinds of Fluid's executors for several devices."""

        Default = 0
        Experimental = 1


class BuildStrategy(_Settings):
    """Settings by which Fluid prepares a program for several devices; with one device most of them change nothing."""

    class ReduceStrategy(Numbers):
        """How the gradients of devices are combined."""

        AllReduce = 0
        Reduce = 1

    class GradientScaleStrategy(Numbers):
        """How the gradients of devices are weighted."""

        CoeffNumDevice = 0
        One = 1
        Customized = 2

    known = {
        "reduce_strategy": ReduceStrategy.AllReduce,
        "gradient_scale_strategy": GradientScaleStrategy.CoeffNumDevice,
        "debug_graphviz_path": "",
        "enable_sequential_execution": False,
        "remove_unnecessary_lock": True,
        "num_trainers": 1,
        "trainers_endpoints": [],
        "trainer_id": 0,
        "nccl_comm_num": 1,
        "use_hierarchical_allreduce": False,
        "hierarchical_allreduce_inter_nranks": 0,
        "fuse_elewise_add_act_ops": False,
        "fuse_bn_act_ops": False,
        "enable_auto_fusion": False,
        "fuse_relu_depthwise_conv": False,
        "fuse_broadcast_ops": False,
        "fuse_all_optimizer_ops": False,
        "sync_batch_norm": False,
        "memory_optimize": None,
        "is_distribution": False,
        "async_mode": False,
        "enable_inplace": True,
        "fuse_all_reduce_ops": False,
        "enable_backward_optimizer_op_deps": False,
        "cache_runtime_context": False,
        "mkldnn_enabled_op_types": set[str](),
    }

    @property
    def is_fed_first_gradient(self) -> bool:
        """Whether the script feeds the gradient of the loss."""
        return vars(self)["gradient_scale_strategy"] == self.GradientScaleStrategy.Customized

    @property
    def passes(self) -> PassBuilder:
        """The passes that the script has added."""
        return vars(self).setdefault("_passes", PassBuilder())

    def _finalize_strategy_and_create_passes(self) -> PassBuilder:
        """The passes, to which a script may add others."""
        return self.passes.ask(vars(self))


def _scale_loss_gradient(program: Program, factor: int) -> Program:
    """A copy in which the op that begins the gradients writes `factor` times the gradient of the loss; with 0 the op is
    left out.
    """
    frozen, copy = program.freeze(), program.clone()
    main = frozen.main_block
    ops: list[Op] = []
    for op in main.ops:
        is_first = op.role == LOSS_GRADIENT and not any(op.inputs.values())
        if is_first and factor:
            op = op._replace(attrs=FrozenMap({**op.attrs, "value": real(op, "value") * factor}))
        if factor or not is_first:
            ops.append(op)
    return copy.take(frozen._replace(blocks=(main._replace(ops=tuple(ops)), *frozen.blocks[1:])))


class CompiledProgram:
    """A program to be run by an Executor as if on several devices, each of which returns a value of its own rows."""

    def __init__(self, program_or_graph: Any, build_strategy: BuildStrategy | None = None):
        inner = getattr(program_or_graph, "inner_program", program_or_graph)
        self._is_of_graph = isinstance(program_or_graph, Graph)
        if not isinstance(inner, Program):
            raise TypeError(f"CompiledProgram takes a Program, not a value of type {type(program_or_graph).__name__}")
        self.inner_program = inner
        self.device_count = 1
        self._places: list[Any] | None = None
        """The devices; None until they are given or the program is compiled."""
        self._local_scopes: list[Any] = []
        """The scopes of devices: always empty, because these scopes exist during runs only."""
        self.is_dry = False
        """Whether runs compute nothing (`ExecutionStrategy._dry_run`)."""
        self._build_strategy = build_strategy
        self._share_vars_from: CompiledProgram | None = None
        self._is_data_parallel = False
        self._compiled: tuple[Any, Any] | None = None
        self.predictor: Any = None
        """The predictor that runs the program's model, if it was compiled for inference."""

    @property
    def _is_inference(self) -> bool:
        """Whether the program was compiled for inference."""
        return self.predictor is not None

    def _with_inference_optimize(self, config: Any) -> CompiledProgram:
        """Makes runs take and return the tensors of a predictor, which runs the model that a configuration names."""
        from pstranspile.fluid.inference import create_paddle_predictor

        self.predictor = create_paddle_predictor(config)
        return self

    @property
    def _program(self) -> Program | None:
        """The program; None if it was given as a graph."""
        return None if self._is_of_graph else self.inner_program

    def with_data_parallel(
        self,
        loss_name: str | None = None,
        build_strategy: BuildStrategy | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        share_vars_from: CompiledProgram | None = None,
        places: Any = None,
    ) -> CompiledProgram:
        """Makes runs data-parallel over `places` (default: CPU_NUM devices), all computed by one device; returns
        itself.

        With `GradientScaleStrategy.One` gradients are the sums of the devices' gradients, not their means; in a cluster
        this raises NotHere. With `Customized` the script feeds the gradient of the loss.
        """
        if self._is_data_parallel:
            raise AssertionError("with_data_parallel was called before")
        self._is_data_parallel, self._share_vars_from = True, share_vars_from
        self.is_dry = bool(getattr(exec_strategy, "_dry_run", False))
        self._build_strategy = build_strategy or self._build_strategy
        if self._build_strategy is not None and self._build_strategy.is_fed_first_gradient:
            self.inner_program = _scale_loss_gradient(self.inner_program, 0)
        self._places = None if places is None else [*places] if several(places) else [places]
        self.device_count = len(cpu_places() if self._places is None else self._places)
        if self.device_count > 1 and getattr(self._build_strategy, "gradient_scale_strategy", 0) == 1:
            if self.inner_program.machine is not None:
                raise unsupported_error(
                    "GradientScaleStrategy.One in a cluster", "multiply the loss by the number of devices"
                )
            self.inner_program = _scale_loss_gradient(self.inner_program, self.device_count)
        return self

    def _compile(self, scope: Any, place: Any) -> CompiledProgram:
        """Binds the program to a scope and a place.

        Raises ValueError where it is bound to another scope or place, or can't share variables, NotHere for passes that
        can't be followed.
        """
        if self._build_strategy is not None:
            self._build_strategy.passes.require_same(self.inner_program)
        if self._compiled is not None and self._compiled != (scope, place):
            raise ValueError("the program was compiled for another scope or place")
        source = self._share_vars_from
        if source is not None and not (source._is_data_parallel and source._compiled):
            raise ValueError("share_vars_from takes a program that runs data-parallel, and was compiled")
        if self._compiled is None and self._build_strategy is not None:
            self._build_strategy.passes.draw(self.inner_program)
        self._compiled = scope, place
        if self._is_data_parallel and self._places is None:
            self._places = cpu_places(self.device_count)
        return self


class ParallelExecutor:
    """Runs a program as if on several devices: each gets a share of the feed, and returns its part of the fetched
    values.

    Their number is CPU_NUM; one device computes for all. The program is bound to a scope (default: the one in use).
    Warns if several trainers are set and the program was not transpiled for them.
    """

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
        program = plain_program(main_program)
        if num_trainers > 1 and program.machine is None:
            warn(
                f"trainer {trainer_id} of {num_trainers} trains alone: only transpiled programs join trainers "
                "(DistributeTranspiler with mode nccl2, fleet)",
            )
        self._scope, self._executor = scope or global_scope(), Executor()
        self._compiled = CompiledProgram(program).with_data_parallel(
            loss_name, build_strategy, exec_strategy, share_vars_from and share_vars_from._compiled
        )
        self._compiled._compile(self._scope, self._executor.place)  # pyright: ignore[reportPrivateUsage]
        self._scopes_of_runs = False

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return self._compiled.device_count

    def run(self, fetch_list: Any, feed: Any = None, feed_dict: Any = None, return_numpy: bool = True) -> Any:
        """Runs the program once and returns the fetched values, joined over all devices."""
        given = feed if feed is not None else feed_dict
        self._scopes_of_runs = True
        return self._executor.run(self._compiled, given, fetch_list, scope=self._scope, return_numpy=return_numpy)

    def drop_local_exe_scopes(self) -> None:
        """Does nothing but reset a flag, because the variables of a run are released when it ends."""
        self._scopes_of_runs = False

    def _need_create_local_exe_scopes(self) -> bool:
        """Whether there was no run since the start, or since `drop_local_exe_scopes`."""
        return not self._scopes_of_runs


__getattr__ = names_of_fluid(__name__, globals())
