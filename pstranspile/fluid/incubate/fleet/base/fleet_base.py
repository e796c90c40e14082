"""What `fleet` is in every mode: questions about roles, and what scripts call in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from pstranspile.fluid.executor import Executor
from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.incubate.fleet.base.mode import Mode as Mode
from pstranspile.fluid.incubate.fleet.base.role_maker import RoleMakerBase
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.places import CPUPlace


class Fleet(ABC):
    """The base of the modes. Everything else comes after `init` (RuntimeError)."""

    def __init__(self, mode: int):
        self._mode = mode
        self._role_maker: RoleMakerBase | None = None
        self._optimizer: Any = None
        self._executor: Executor | None = None
        self.startup_program: Any = None
        self.main_program: Any = None
        self._origin_program: Any = None

    def init(self, role_maker: RoleMakerBase | None = None) -> None:
        """Takes the role of this process. Raises TypeError for what is no role maker."""
        if not isinstance(role_maker, RoleMakerBase):
            raise TypeError("fleet.init takes a role maker, such as PaddleCloudRoleMaker()")
        role_maker.generate_role()
        self._role_maker, self._executor = role_maker, Executor(CPUPlace())

    @property
    def role(self) -> RoleMakerBase:
        """The role of this process."""
        if self._role_maker is None:
            raise RuntimeError("call fleet.init with a role maker first")
        return self._role_maker

    @property
    def executor(self) -> Executor:
        """What runs the programs of this process."""
        assert self._executor is not None
        return self._executor

    def is_first_worker(self) -> bool:
        """Whether this is trainer 0."""
        return self.role.is_first_worker()

    def is_worker(self) -> bool:
        """Whether this is a trainer."""
        return self.role.is_worker()

    def is_server(self) -> bool:
        """Whether this is a parameter server."""
        return self.role.is_server()

    def worker_index(self) -> int:
        """The number of this trainer."""
        return self.role.worker_index()

    def server_index(self) -> int:
        """The number of this parameter server."""
        return self.role.server_index()

    def worker_num(self) -> int:
        """How many trainers there are."""
        return self.role.worker_num()

    def server_num(self) -> int:
        """How many parameter servers there are."""
        return self.role.server_num()

    def worker_endpoints(self, to_string: bool = False) -> Any:
        """Endpoints of the trainers, as a list or as comma-separated text."""
        listed = self.role.get_trainer_endpoints()
        return ",".join(listed) if to_string else listed

    def server_endpoints(self, to_string: bool = False) -> Any:
        """Endpoints of the parameter servers, as a list or as comma-separated text."""
        listed = self.role.get_pserver_endpoints()
        return ",".join(listed) if to_string else listed

    def split_files(self, files: list[str]) -> list[str]:
        """The files for this trainer: as many as for the others, in order, one more for the first ones.

        Raises TypeError for what is no list.
        """
        if not isinstance(files, list):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError("split_files takes a list of files")
        each, more = divmod(len(files), self.worker_num())
        index = self.worker_index()
        first = index * each + min(index, more)
        return files[first : first + each + (index < more)]

    @abstractmethod
    def init_worker(self) -> None:
        """Makes this trainer ready."""

    @abstractmethod
    def init_server(self, model_dir: str | None = None) -> None:
        """Makes this server ready."""

    @abstractmethod
    def run_server(self) -> None:
        """Serves until all trainers have left."""

    @abstractmethod
    def stop_worker(self) -> None:
        """This trainer leaves."""

    @abstractmethod
    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> Any:
        """An optimizer that makes the programs of this machine."""


class DistributedOptimizer:
    """The base of optimizers that make the programs of a machine of a cluster."""

    def __init__(self, optimizer: Any, strategy: Any = None):
        self._optimizer, self._strategy = optimizer, strategy

    def backward(self, *args: Any, **options: Any) -> Any:
        """Calls the wrapped optimizer's method of the same name."""
        return self._optimizer.backward(*args, **options)

    def apply_gradients(self, params_grads: Any) -> Any:
        """Calls the wrapped optimizer's method of the same name."""
        return self._optimizer.apply_gradients(params_grads)


def expect_executor(what: str, executor: object, program: object) -> None:
    """Raises TypeError unless a call of Fleet got an Executor and, if any, a Program."""
    if not isinstance(executor, Executor):
        raise TypeError(f"fleet.{what} takes an Executor, not a value of type {type(executor).__name__}")
    if program is not None and not isinstance(program, Program):
        raise TypeError(f"fleet.{what} takes a Program, not a value of type {type(program).__name__}")


__getattr__ = names_of_fluid(__name__, globals())
