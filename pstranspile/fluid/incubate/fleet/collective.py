"""Fleet without servers: trainers average their gradients. `fleet` is the only instance of this process."""

from __future__ import annotations

import json
import os
from typing import Any

from pstranspile.fluid import io
from pstranspile.fluid.compiler import BuildStrategy, ExecutionStrategy
from pstranspile.fluid.contrib.mixed_precision import OptimizerWithMixedPrecision
from pstranspile.fluid.framework import default_main_program, default_startup_program
from pstranspile.fluid.incubate.fleet.base import DistributedOptimizer, Fleet, Mode
from pstranspile.fluid.missing import names_of_fluid, unsupported_error
from pstranspile.fluid.optimizer import DGCMomentumOptimizer, RecomputeOptimizer
from pstranspile.fluid.paddle.distributed.fs_wrapper import FS, LocalFS
from pstranspile.fluid.running.pacing import without_averages
from pstranspile.fluid.transpiler.distribute_transpiler import DistributeTranspiler, DistributeTranspilerConfig
from pstranspile.ir.user_warnings import warn

PREFIX = "__paddle_fleet_checkpoint__"
PARAMS = "_paddle_fleet_param__"
STATUS = "fleet_train_status"


class TrainStatus:
    """The progress of training: the last epoch that is complete, -1 for none."""

    def __init__(self, epoch_no: int = -1):
        self._epoch_no = epoch_no

    def next(self) -> int:
        """The next epoch."""
        return self._epoch_no + 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainStatus) and self._epoch_no == other._epoch_no

    __hash__ = None  # type: ignore[assignment]


class Checkpoints:
    """The methods of `fleet` for checkpoints; the class that inherits them knows the program."""

    _transpiled_program: Any = None

    def _get_last_checkpoint_no(self, root_path: str, fs: FS) -> int:
        """The number of the newest checkpoint in a folder, -1 if there is none."""
        return max(_numbers(root_path, fs), default=-1)

    def clean_redundant_check_points(self, root_path: str, fs: FS | None = None, checkpoint_num: int = 1) -> None:
        """Removes all checkpoints in a folder except the newest ones."""
        fs = fs or LocalFS()
        for number in sorted(_numbers(root_path, fs))[: -max(checkpoint_num, 1)]:
            fs.rmr(f"{root_path}/{PREFIX}.{number}")

    def save_check_point(
        self,
        executor: Any,
        path: str,
        train_status: TrainStatus,
        main_program: Any = None,
        fs: FS | None = None,
        local_cache_path: str = ".cache",
        remain_all_checkpoint: bool = True,
    ) -> None:
        """Writes the next checkpoint, which gets its final name when it is complete; removes the others unless they are
        to remain.
        """
        fs = fs or LocalFS()
        if not fs.stat(path):
            fs.mkdir(path)
        checkpoint_path = f"{path}/{PREFIX}.{self._get_last_checkpoint_no(path, fs) + 1}"
        written = f"{checkpoint_path}.tmp"
        here = os.path.join(local_cache_path, os.path.basename(written)) if fs.need_upload_download() else written
        os.makedirs(here, exist_ok=True)
        io.save_persistables(executor, here, main_program or self._transpiled_program, PARAMS)
        with open(os.path.join(here, STATUS), "w") as file:
            json.dump({"epoch_no": train_status.next() - 1}, file)
        if fs.need_upload_download():
            fs.delete(written)
            fs.upload(here, written)
        fs.mv(written, checkpoint_path)
        if not remain_all_checkpoint:
            self.clean_redundant_check_points(path, fs)

    def load_check_point(
        self,
        executor: Any,
        path: str,
        trainer_id: int,
        main_program: Any = None,
        fs: FS | None = None,
        local_cache_path: str = ".cache",
        ignore_empty: bool = True,
    ) -> TrainStatus | None:
        """Reads the newest checkpoint; returns its progress, or None for a folder without a checkpoint.

        Raises FileNotFoundError instead of returning None unless `ignore_empty`.
        """
        fs = fs or LocalFS()
        number = self._get_last_checkpoint_no(path, fs)
        if number < 0:
            if not ignore_empty:
                raise FileNotFoundError(f"{path} holds no checkpoint")
            return None
        here = f"{path}/{PREFIX}.{number}"
        if fs.need_upload_download():
            source, here = here, os.path.join(local_cache_path, f"{PREFIX}.{number}.{trainer_id}")
            LocalFS().delete(here)
            fs.download(source, here)
        io.load_persistables(executor, here, main_program or self._transpiled_program, PARAMS)
        with open(os.path.join(here, STATUS)) as file:
            return TrainStatus(int(json.load(file)["epoch_no"]))


def _numbers(root_path: str, fs: FS) -> list[int]:
    parts = (name.partition(".") for name in fs.list_dirs(root_path))
    return [int(number) for prefix, _, number in parts if prefix == PREFIX and number.isdecimal()]


class LambConfig:
    """Settings of Lamb; Fluid defines none."""


class DistFCConfig:
    """Settings of layers that are spread over trainers; Fluid defines none."""


class DistributedStrategy(BuildStrategy):
    """How the trainers work together: with `use_local_sgd` they average parameters instead of gradients."""

    known = {
        **BuildStrategy.known,
        "use_local_sgd": False,
        "use_dgc": False,
        "use_dist_fc": False,
        "dist_fc_config": None,
        "mode": "nccl2",
        "collective_mode": "grad_allreduce",
        "nccl_comm_num": 1,
        "forward_recompute": False,
        "recompute_checkpoints": [],
        "use_amp": False,
        "amp_loss_scaling": 2**15,
        "exec_strategy": None,
        "_ut4grad_allreduce": False,
    }

    def __init__(self) -> None:
        super().__init__()
        self.exec_strategy = ExecutionStrategy()


class Collective(Checkpoints, Fleet):
    """Fleet without servers."""

    def __init__(self) -> None:
        super().__init__(Mode.COLLECTIVE)

    def init_worker(self) -> None:
        """Does nothing, because a trainer in collective mode needs no preparation."""

    def init_server(self, model_dir: str | None = None) -> None:
        """Warns that there are no servers, as in Fluid, and does nothing."""
        warn("init_server does nothing: Fleet in collective mode has no servers")

    def run_server(self) -> None:
        """Warns that there are no servers, as in Fluid, and does nothing."""
        warn("run_server does nothing: Fleet in collective mode has no servers")

    def stop_worker(self) -> None:
        """Ends this trainer."""
        if self.main_program is not None and self.main_program.machine is not None:
            self.main_program.machine.leave()

    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> CollectiveOptimizer:
        """The optimizer with a `minimize` that also makes the programs of this trainer."""
        self._optimizer = CollectiveOptimizer(optimizer, strategy or DistributedStrategy())
        return self._optimizer

    def transpile(self, strategy: DistributedStrategy) -> None:
        """Turns the default programs into those of this trainer."""
        main, startup = default_main_program(), default_startup_program()
        self._origin_program = main.clone()
        self.main_program, self.startup_program, self._transpiled_program = main, startup, main
        settings = vars(strategy)
        for name in ("use_dgc", "use_amp", "use_dist_fc"):
            if settings[name]:
                raise unsupported_error(
                    f"DistributedStrategy.{name}", "gradients are exchanged whole, as the program has them"
                )
        if self.worker_num() == 1:
            return
        mode = "local_sgd" if settings["use_local_sgd"] else settings["collective_mode"] or "grad_allreduce"
        config = DistributeTranspilerConfig(mode="collective", collective_mode=mode)
        config.nccl_comm_num = settings["nccl_comm_num"]
        endpoint = self.worker_endpoints()[self.worker_index()]
        transpiler = DistributeTranspiler(config)
        transpiler.transpile(
            self.worker_index(),
            main,
            trainers=self.worker_endpoints(True),
            startup_program=startup,
            current_endpoint=endpoint,
        )
        if settings["use_local_sgd"] and "local_sgd_pace" in settings:
            main.machine.set_pace(settings["local_sgd_pace"], without_averages)

    def save_inference_model(
        self,
        executor: Any,
        dirname: str,
        feeded_var_names: Any = None,
        target_vars: Any = None,
        main_program: Any = None,
        export_for_deployment: bool = True,
    ) -> None:
        """Writes the program that computes the targets, and its parameters."""
        program = main_program or self._origin_program
        io.save_inference_model(dirname, feeded_var_names, target_vars, executor, program)

    def save_persistables(
        self, executor: Any, dirname: str, main_program: Any = None, filename: str | None = None
    ) -> None:
        """Writes all variables that are kept from run to run."""
        io.save_persistables(executor, dirname, main_program or self._origin_program, filename)


class CollectiveOptimizer(DistributedOptimizer):
    """An optimizer whose `minimize` also makes the programs of this trainer.

    The constructor and `minimize` raise ValueError for a strategy that contradicts itself or the optimizer.
    """

    def __init__(self, optimizer: Any, strategy: Any = None):
        strategy = strategy or DistributedStrategy()
        super().__init__(optimizer, strategy)
        if not isinstance(strategy.recompute_checkpoints, list):
            raise ValueError("DistributedStrategy.recompute_checkpoints is a list")

    def _check(self) -> None:
        """Raises ValueError where the strategy asks for a feature that the optimizer already has, or can't be combined
        with.
        """
        optimizer: object = self._optimizer
        kind = type(optimizer)
        if self._strategy.forward_recompute:
            if not self._strategy.recompute_checkpoints:
                raise ValueError("DistributedStrategy.forward_recompute needs recompute_checkpoints")
            if kind in (RecomputeOptimizer, OptimizerWithMixedPrecision):
                raise ValueError(f"DistributedStrategy.forward_recompute does not go together with {kind.__name__}")
        if self._strategy.use_amp and kind in (OptimizerWithMixedPrecision, DGCMomentumOptimizer):
            raise ValueError(f"DistributedStrategy.use_amp does not go together with {kind.__name__}")

    def minimize(
        self, loss: Any, startup_program: Any = None, parameter_list: Any = None, no_grad_set: Any = None
    ) -> Any:
        """Appends the ops that train on the loss, and makes the programs of this trainer."""
        self._check()
        optimizer: Any = self._optimizer
        if self._strategy.forward_recompute:
            optimizer = RecomputeOptimizer(optimizer)
            optimizer._set_checkpoints(self._strategy.recompute_checkpoints)
        made = optimizer.minimize(loss, startup_program, parameter_list, no_grad_set)
        fleet.transpile(self._strategy)
        return made


fleet = Collective()


__getattr__ = names_of_fluid(__name__, globals())
