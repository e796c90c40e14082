"""Fleet of the first 2.x versions, which uses Fluid's Fleet with servers or the one without.

Its role makers are Fluid's, which also recognise a process without a cluster.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

import numpy as np

from pstranspile.fluid import io
from pstranspile.fluid.executor import global_scope
from pstranspile.fluid.framework import default_main_program, default_startup_program
from pstranspile.fluid.incubate.fleet import base as fluid
from pstranspile.fluid.incubate.fleet.base import Fleet as FluidFleet
from pstranspile.fluid.incubate.fleet.base import RoleMakerBase as RoleMakerBase
from pstranspile.fluid.incubate.fleet.collective import fleet as collective
from pstranspile.fluid.incubate.fleet.parameter_server import fleet as with_servers
from pstranspile.fluid.missing import hold_parts, unsupported_error
from pstranspile.fluid.paddle.distributed.fleet.strategy import DistributedStrategy
from pstranspile.fluid.running.flags import MEETING
from pstranspile.fluid.running.gathering import Rendezvous
from pstranspile.fluid.running.large_tables import make_looked_up_large, shrink_program, shrink_tables
from pstranspile.fluid.running.watchers import assume
from pstranspile.ir.diagnostics import shell_word


class Role(fluid.Role):
    """The roles of machines."""

    ALL = 4


class _UnderscoredNames:
    """Adds the names that methods of role makers have in 2.x, which begin with an underscore."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and not name.startswith("__") and hasattr(type(self), name[1:]):
            return getattr(self, name[1:])
        raise AttributeError(f"{type(self).__name__} has no {name!r}", name=name, obj=self)


class PaddleCloudRoleMaker(_UnderscoredNames, fluid.PaddleCloudRoleMaker):
    """The role in the environment, as launchers set it; without it, the role of the only trainer."""

    def __init__(self, is_collective: bool = False, **kwargs: Any):
        super().__init__(is_collective)
        self.alone = False
        """Whether there is no other machine."""

    @property
    def is_collective(self) -> bool:
        """Whether there are no servers."""
        return self._is_collective

    def generate_role(self) -> None:
        """Reads the role from the environment. Raises ValueError, which names the variable that is wrong."""
        told = "PADDLE_TRAINER_ENDPOINTS" if self._is_collective else "PADDLE_PSERVERS_IP_PORT_LIST"
        if assume(told):
            super().generate_role()
            return
        self.alone, self._role_is_generated = True, True
        self._worker_endpoints, self._worker_count = ["127.0.0.1:6170"], 1


class UserDefinedRoleMaker(_UnderscoredNames, fluid.RoleMakerBase):
    """The role that the script gives, with trainers by `worker_num` or `worker_endpoints`, and with the servers, if
    there are any.
    """

    def __init__(
        self,
        is_collective: bool = False,
        init_gloo: bool = False,
        *,
        current_id: int = 0,
        role: int = Role.WORKER,
        worker_num: int = 0,
        worker_endpoints: Any = None,
        server_endpoints: Any = None,
        **kwargs: Any,
    ):
        super().__init__()
        if kwargs.get("heter_worker_endpoints"):
            raise unsupported_error("UserDefinedRoleMaker(heter_worker_endpoints=...)", "all trainers are alike")
        self.is_collective = is_collective
        self.alone = False
        workers: list[str] = [*(worker_endpoints or ())]
        made: fluid.RoleMakerBase
        if is_collective:
            made = fluid.UserDefinedCollectiveRoleMaker(current_id, worker_endpoints)
        else:
            made = fluid.UserDefinedRoleMaker(current_id, role, worker_num or len(workers), server_endpoints)
        vars(self).update(vars(made), _worker_endpoints=workers)


MODEL_FOLDER = "dnn_plugin"
"""The folder in which a trainer with servers writes a model, within the folder that the script names, as in Paddle
2.6.2.
"""


def require_whole(what: str, mode: object) -> None:
    """Raises NotHere for a mode that writes only some rows of tables, ValueError for an unknown mode."""
    if mode in (1, 2):
        why = "rows are not chosen by their shows and clicks; 0 and 3 write all"
        raise unsupported_error(f"{what}(mode={mode})", why)
    if type(mode) is not int or mode not in (0, 3):
        raise ValueError(f"{what} takes 0 or 3 as mode, not {mode!r}")


class UtilBase:
    """Functions for trainers beside training."""

    def __init__(self, fleet: Fleet):
        self._fleet = fleet
        self._meeting: Rendezvous | None = None

    def get_file_shard(self, files: list[str]) -> list[str]:
        """The files for this trainer: an equal share in order, of which the first trainers get one more if they can't
        be divided evenly.
        """
        return self._fleet.inner.split_files(files)

    def print_on_rank(self, message: str, rank_id: int) -> None:
        """Prints a message on one trainer."""
        if self._fleet.worker_index() == rank_id:
            print(message)

    def _of_all(self, name: str, given: Any, comm_world: str) -> list[Any]:
        """The values that all trainers contribute. Raises NotHere if servers shall contribute too, or if the address of
        the meeting is unknown.
        """
        fleet = self._fleet
        if comm_world != "worker" and fleet.inner.role.get_pserver_endpoints():
            raise unsupported_error(
                f"fleet.util.{name}(comm_world={comm_world!r})", "servers give nothing; take worker"
            )
        if fleet.worker_num() == 1:
            return [np.asarray(given)]
        if self._meeting is None:
            workers: list[str] = [] if fleet.inner is collective else fleet.worker_endpoints()
            endpoint = os.environ.get(MEETING) or next(iter(workers), "")
            if not endpoint:
                raise unsupported_error(
                    f"fleet.util.{name}", f"{MEETING} does not say where trainers meet, as HOST:PORT"
                )
            self._meeting = Rendezvous(fleet.worker_index(), fleet.worker_num(), endpoint)
        return self._meeting.all_of(given)

    def barrier(self, comm_world: str = "worker") -> None:
        """Returns when all trainers have called it."""
        self._of_all("barrier", 0, comm_world)

    def all_reduce(self, input: Any, mode: str = "sum", comm_world: str = "worker") -> Any:
        """The sum, maximum or minimum over all trainers. Raises ValueError for another `mode`."""
        if mode not in ("sum", "max", "min"):
            raise ValueError(f"all_reduce takes sum, max or min, not {mode!r}")
        return getattr(np, mode)(self._of_all("all_reduce", input, comm_world), axis=0)

    def all_gather(self, input: Any, comm_world: str = "worker") -> list[Any]:
        """The values of all trainers, in their order; arrays without dims as numbers."""
        held = self._of_all("all_gather", input, comm_world)
        return [each if each.ndim else each.item() for each in held]


_OF_SERVERS = ("PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINERS_NUM", "TRAINING_ROLE", "PADDLE_TRAINER_ID")
_OF_TRAINERS = ("PADDLE_TRAINER_ENDPOINTS", "PADDLE_TRAINER_ID")


@cache
def _tell_alone(*, collectively: bool) -> None:
    """Says once on stderr that this process trains without others because no launcher has told its role, as Paddle's
    role maker then takes it for the only trainer.
    """
    unset = [name for name in (_OF_TRAINERS if collectively else _OF_SERVERS) if not os.environ.get(name)]
    number = "--nproc_per_node 2" if collectively else "--server_num 2 --trainer_num 2"
    script = shell_word(sys.argv[0]) if sys.argv[0].endswith(".py") else "SCRIPT"
    print(
        f"fleet: this process trains alone, as the environment does not set {', '.join(unset)}; "
        f"`pstranspile fluid -m paddle.distributed.launch {number} {script}` starts a cluster on this host",
        file=sys.stderr,
    )


class Fleet:
    """Sets a job up: call `init` first; `distributed_optimizer` returns the fleet itself, whose `minimize` makes the
    programs.
    """

    def __init__(self) -> None:
        self._inner: FluidFleet | None = None
        self._role: Any = None
        self._strategy = DistributedStrategy()
        self._optimizer: Any = None
        self._opens_tables = False
        """Whether servers have a row for every id in tables that only sparse lookups read."""
        self.util = UtilBase(self)

    def init(self, role_maker: Any = None, is_collective: bool = False, strategy: Any = None) -> None:
        """Sets the role of this process (default: the one in the environment). Raises TypeError if `role_maker` is not
        a role maker.
        """
        if not isinstance(is_collective, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"is_collective is True or False, not {is_collective!r}")
        role = PaddleCloudRoleMaker(is_collective) if role_maker is None else role_maker
        if not isinstance(role, RoleMakerBase):
            raise TypeError("fleet.init takes a role maker, such as PaddleCloudRoleMaker()")
        self._role, self._strategy = role, strategy or self._strategy
        self._inner = collective if getattr(role, "is_collective", False) else with_servers
        self._inner.init(role)

    @property
    def inner(self) -> FluidFleet:
        """The Fluid fleet behind this one. Raises RuntimeError before `init`."""
        if self._inner is None:
            raise RuntimeError("call fleet.init first")
        return self._inner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def is_first_worker(self) -> bool:
        """Whether this is trainer 0."""
        return self.inner.is_first_worker()

    def is_worker(self) -> bool:
        """Whether this is a trainer."""
        return self.inner.is_worker()

    def is_server(self) -> bool:
        """Whether this is a parameter server."""
        return self.inner.is_server()

    def worker_index(self) -> int:
        """The number of this trainer."""
        return self.inner.worker_index()

    def worker_num(self) -> int:
        """How many trainers there are."""
        return self.inner.worker_num()

    def worker_endpoints(self, to_string: bool = False) -> Any:
        """The addresses of the trainers, as a list or as text."""
        return self.inner.worker_endpoints(to_string)

    def server_index(self) -> int:
        """The number of this parameter server."""
        return self.inner.server_index()

    def server_num(self) -> int:
        """How many parameter servers there are."""
        return self.inner.server_num()

    def server_endpoints(self, to_string: bool = False) -> Any:
        """The addresses of the parameter servers, as a list or as text."""
        return self.inner.server_endpoints(to_string)

    def barrier_worker(self) -> None:
        """Returns when all trainers have called it."""
        self.util.barrier()

    @property
    def _is_alone(self) -> bool:
        return getattr(self._role, "alone", False)

    def init_worker(self) -> None:
        """Prepares this trainer to train."""
        if not self._is_alone:
            self.inner.init_worker()

    def init_server(self, dirname: str | None = None, var_names: Any = None, **kwargs: Any) -> None:
        """Prepares this server to serve, with variables loaded from a folder if one is given.

        All variables are loaded, or those in `var_names` with the optimizers' states for them. From a folder with
        nothing but folders, as `save_inference_model` writes, the parameters of the model are loaded. Raises ValueError
        for names that the servers don't have.
        """
        inner: Any = self.inner
        chosen = {} if var_names is None else {"var_names": var_names}
        if dirname is not None and os.path.isdir(model := os.path.join(dirname, MODEL_FOLDER)):
            alone = not any(entry.is_file() for entry in os.scandir(dirname))
            dirname = model if alone else dirname
        inner.init_server(*([] if dirname is None else [dirname]), **chosen, **kwargs)

    def run_server(self) -> None:
        """Serves until all trainers have left."""
        self.inner.run_server()

    def stop_worker(self) -> None:
        """Ends this trainer, after everything that it has sent has arrived."""
        if not self._is_alone:
            self.inner.stop_worker()

    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> Fleet:
        """Sets the optimizer that `minimize` uses, and how trainers and servers work together."""
        self._strategy = strategy or self._strategy
        if not isinstance(self._strategy, DistributedStrategy):
            raise TypeError("a strategy is a fleet.DistributedStrategy")
        collectively = self.inner is collective
        given = optimizer
        optimizer = self._strategy.optimizer(given, not (collectively or self._is_alone))
        self._opens_tables = not collectively and not self._is_alone and self._strategy.opens_tables(given)
        made = self._strategy.without_servers(given) if collectively else self._strategy.with_servers()
        self._optimizer = optimizer if self._is_alone else self.inner.distributed_optimizer(optimizer, made)
        return self

    def _final_strategy(self) -> DistributedStrategy:
        """The strategy in use."""
        return self._strategy

    def minimize(
        self,
        loss: Any,
        startup_program: Any = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
        auto_run: bool = True,
    ) -> Any:
        """Minimises the loss, and makes the programs of this machine. Raises RuntimeError without an optimizer."""
        if self._optimizer is None:
            raise RuntimeError("fleet.minimize comes after fleet.distributed_optimizer")
        if self._is_alone:
            _tell_alone(collectively=self.inner is collective)
        if self._opens_tables:
            make_looked_up_large(loss.block.program)
        result = self._optimizer.minimize(
            loss, startup_program=startup_program, parameter_list=parameter_list, no_grad_set=no_grad_set
        )
        main = loss.block.program
        main._fleet_opt = {**(main._fleet_opt or {}), **self._fleet_options()}
        if not self._is_alone and self.inner.is_server():  # in 2.x the default programs are those of the server
            own = self.inner.main_program, self.inner.startup_program
            for program, part in zip((default_main_program(), default_startup_program()), own, strict=True):
                program.take(part.freeze())
                program.machine, program.part = part.machine, part.part
        return result

    def _fleet_options(self) -> dict[str, Any]:
        """The entries of a program's `_fleet_opt`: the trainer's number, the number of trainers, and the strategy's
        settings.
        """
        return {
            "mpi_size": self.worker_num(),
            "mpi_rank": self.worker_index(),
            **self._strategy.trainer_desc_configs,
        }

    def save_inference_model(
        self,
        executor: Any,
        dirname: str,
        feeded_var_names: Any,
        target_vars: Any,
        main_program: Any = None,
        export_for_deployment: bool = True,
        mode: int = 0,
    ) -> None:
        """Writes the program that computes the targets, and its parameters, including those of servers.

        With servers the files go to a folder `dnn_plugin` in the named folder. `mode` is the same as for
        `save_persistables`.
        """
        require_whole("save_inference_model", mode)
        if self._is_alone:
            io.save_inference_model(dirname, feeded_var_names, target_vars, executor, main_program)
            return
        inner: Any = self.inner
        own = main_program is None or main_program is inner.main_program
        if not getattr(self._role, "is_collective", False):
            dirname = os.path.join(dirname, MODEL_FOLDER)
        inner.save_inference_model(executor, dirname, feeded_var_names, target_vars, None if own else main_program)

    def load_model(self, path: str, mode: int = 0) -> None:
        """Raises NotHere, which names the alternative, because running servers do not load files."""
        raise unsupported_error(
            "fleet.load_model", f"servers read files before they serve: fleet.init_server({path!r})"
        )

    def load_inference_model(self, path: str, mode: int = 0) -> None:
        """Raises NotHere, which names the alternatives, because running servers do not load files."""
        why = f"servers read files before they serve: fleet.init_server({path!r})"
        raise unsupported_error("fleet.load_inference_model", f"{why}; static.load_inference_model reads a model alone")

    def shrink(self, threshold: int) -> None:
        """Removes rows from the tables of `sparse_embedding` that had no gradient since the call of this method
        `threshold` - 1 calls before this one: with 1 all rows, with 2 those without a gradient since the last call. All
        trainers call it.

        Raises ValueError unless the threshold is a whole number of at least 1.
        """
        if not isinstance(threshold, int) or threshold < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"threshold is a whole number from 1 on, not {threshold!r}")
        if self._is_alone:
            shrink_tables(global_scope().core, threshold)
            return
        self.util.barrier()
        if self.is_first_worker():
            machine = self.inner.main_program.machine
            machine.run_besides(shrink_program(machine, threshold))
        self.util.barrier()

    def save_persistables(self, executor: Any, dirname: str, main_program: Any = None, mode: int = 0) -> None:
        """Writes all variables that are kept from run to run; trainer 0 also writes those of servers.

        Both modes 0 and 3 write all rows of tables. Raises NotHere for modes 1 and 2, which choose rows by their shows
        and clicks, ValueError for others.
        """
        require_whole("save_persistables", mode)
        if self._is_alone:
            io.save_persistables(executor, dirname, main_program or default_main_program())
            return
        inner: Any = self.inner
        inner.save_persistables(executor, dirname, main_program)


fleet = Fleet()
"""The only fleet of this process, whose methods are functions of `paddle.distributed.fleet`."""
hold_parts(__name__, globals())
