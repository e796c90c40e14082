"""The parts of Fleet that all modes share: the roles of machines in a cluster, and the methods that scripts call."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any

from pstranspile.fluid.executor import Executor
from pstranspile.fluid.framework import CPUPlace
from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.missing import names_of_fluid, unsupported_error
from pstranspile.fluid.running.flags import whole
from pstranspile.fluid.running.watchers import assume


class Role:
    """The roles of machines."""

    WORKER = 1
    SERVER = 2


class RoleMakerBase:
    """The base class of role makers. `generate_role` determines the role, and is called by all other methods."""

    def __init__(self) -> None:
        self._worker_endpoints: list[str] = []
        self._server_endpoints: list[str] = []
        self._role = Role.WORKER
        self._current_id = 0
        self._worker_count = 0
        self._role_is_generated = False

    def generate_role(self) -> None:
        """Determines the role. Raises ValueError where a setting is missing."""
        self._role_is_generated = True

    def _ask(self) -> RoleMakerBase:
        if not self._role_is_generated:
            self.generate_role()
        return self

    def is_worker(self) -> bool:
        """Whether this is a trainer."""
        return self._ask()._role == Role.WORKER

    def is_server(self) -> bool:
        """Whether this is a parameter server."""
        return self._ask()._role == Role.SERVER

    def is_first_worker(self) -> bool:
        """Whether this is trainer 0."""
        return self.is_worker() and self._current_id == 0

    def worker_num(self) -> int:
        """The number of trainers."""
        return self._ask()._worker_count or len(self._worker_endpoints)

    def server_num(self) -> int:
        """The number of parameter servers."""
        return len(self._ask()._server_endpoints)

    def worker_index(self) -> int:
        """The number of this trainer."""
        return self._ask()._current_id

    def server_index(self) -> int:
        """The number of this parameter server."""
        return self._ask()._current_id

    def get_trainer_endpoints(self) -> list[str]:
        """The endpoints of the trainers, if they are known."""
        return self._ask()._worker_endpoints

    def get_pserver_endpoints(self) -> list[str]:
        """The endpoints of the parameter servers."""
        return self._ask()._server_endpoints

    def to_string(self) -> str:
        """The role as text."""
        role = "server" if self.is_server() else "worker"
        return f"role: {role}, id: {self._current_id}, {self.worker_num()} workers, servers: {self._server_endpoints}"


def _endpoints(given: Any, what: str) -> list[str]:
    """Endpoints, after checking them. Raises TypeError or ValueError."""
    if not isinstance(given, list):
        raise TypeError(f"{what} is a list of texts, not a value of type {type(given).__name__}")
    listed: list[Any] = [*given]  # pyright: ignore[reportUnknownArgumentType]
    if not listed or not all(isinstance(endpoint, str) for endpoint in listed):
        raise ValueError(f"{what} is a list of at least one text, such as ['127.0.0.1:6174']")
    if len(set(listed)) != len(listed):
        raise ValueError(f"{what} names an endpoint twice")
    return listed


def _whole(given: Any, what: str, least: int) -> int:
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"{what} is a whole number, not a value of type {type(given).__name__}")
    if given < least:
        raise ValueError(f"{what} must be at least {least}, and is {given}")
    return given


class UserDefinedRoleMaker(RoleMakerBase):
    """The role that the script gives. Raises TypeError or ValueError for settings that are not allowed."""

    def __init__(self, current_id: int = 0, role: int = Role.WORKER, worker_num: int = 0, server_endpoints: Any = None):
        super().__init__()
        self._server_endpoints = _endpoints(server_endpoints, "server_endpoints")
        if role not in (Role.WORKER, Role.SERVER):
            raise TypeError("role is Role.WORKER or Role.SERVER")
        self._role = role
        self._current_id = _whole(current_id, "current_id", 0)
        self._worker_count = _whole(worker_num, "worker_num", 1)
        most = len(self._server_endpoints) if role == Role.SERVER else self._worker_count
        if current_id >= most:
            raise ValueError(f"current_id is {current_id}, but there are {most} of that role, numbered from 0")


class UserDefinedCollectiveRoleMaker(RoleMakerBase):
    """The role of a trainer that the script gives, among those at `worker_endpoints`."""

    def __init__(self, current_id: int = 0, worker_endpoints: Any = None):
        super().__init__()
        self._worker_endpoints = _endpoints(worker_endpoints, "worker_endpoints")
        self._current_id = _whole(current_id, "current_id", 0)
        if current_id >= len(self._worker_endpoints):
            raise ValueError(f"current_id is {current_id}; there are {len(self._worker_endpoints)} workers")


def _variable(*names: str) -> str:
    """The value of the first of these variables of the environment that is set. Raises ValueError if none is."""
    for name in names:
        if os.environ.get(name):
            return os.environ[name]
    raise ValueError(f"the environment has no {' or '.join(names)}, which the launcher of a cluster sets")


def _split_at_commas(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


class PaddleCloudRoleMaker(RoleMakerBase):
    """The role in the environment, as launchers set it."""

    def __init__(self, is_collective: bool = False):
        super().__init__()
        self._is_collective = is_collective

    def generate_role(self) -> None:
        """Reads the role from the environment. Raises ValueError, which names the variable that is missing or wrong."""
        if self._is_collective:
            assume("PADDLE_TRAINER_ENDPOINTS")
            self._current_id = whole("PADDLE_TRAINER_ID", 0)
            self._worker_endpoints = _endpoints(
                _split_at_commas(_variable("PADDLE_TRAINER_ENDPOINTS")), "PADDLE_TRAINER_ENDPOINTS"
            )
        else:
            self._server()
        super().generate_role()

    def _server(self) -> None:
        name = "PADDLE_PSERVERS_IP_PORT_LIST"
        assume(name)
        self._server_endpoints = _endpoints(_split_at_commas(_variable(name)), name)
        self._worker_count = whole("PADDLE_TRAINERS_NUM")
        kind = _variable("TRAINING_ROLE").upper()
        self._worker_endpoints = _split_at_commas(os.environ.get("PADDLE_TRAINER_ENDPOINTS", ""))
        if kind == "TRAINER":
            self._role, self._current_id = Role.WORKER, whole("PADDLE_TRAINER_ID")
        elif kind == "PSERVER":
            own = f"{_variable('POD_IP')}:{_variable('PADDLE_PORT')}"
            if own not in self._server_endpoints:
                raise ValueError(f"{own} (POD_IP:PADDLE_PORT) is not in {name}: {','.join(self._server_endpoints)}")
            self._role, self._current_id = Role.SERVER, self._server_endpoints.index(own)
        else:
            raise ValueError(f"TRAINING_ROLE is TRAINER or PSERVER, not {kind!r}")


class GeneralRoleMaker(PaddleCloudRoleMaker):
    """The role in the environment; settings for gloo are ignored."""

    def __init__(self, **kwargs: Any):
        super().__init__()

    def generate_role(self) -> None:
        """Reads the role from the environment. Raises ValueError, which names the variable that is missing or wrong."""
        trainers = _split_at_commas(os.environ.get("PADDLE_TRAINER_ENDPOINTS", ""))
        if trainers:
            os.environ.setdefault("PADDLE_TRAINERS_NUM", str(len(trainers)))
        super().generate_role()


class MPISymetricRoleMaker:
    """Fluid's role maker for MPI; making one raises NotHere."""

    def __init__(self) -> None:
        raise unsupported_error("MPISymetricRoleMaker", "give roles with PaddleCloudRoleMaker or UserDefinedRoleMaker")


class Mode:
    """The modes of Fleet."""

    TRANSPILER = 1
    PSLIB = 2
    COLLECTIVE = 3


class Fleet(ABC):
    """The base class of the modes. Call `init` before any other method (RuntimeError)."""

    def __init__(self, mode: int):
        self._mode = mode
        self._role_maker: RoleMakerBase | None = None
        self._optimizer: Any = None
        self._executor: Executor | None = None
        self.startup_program: Any = None
        self.main_program: Any = None
        self._origin_program: Any = None

    def init(self, role_maker: RoleMakerBase | None = None) -> None:
        """Sets the role of this process. Raises TypeError if `role_maker` is not a role maker."""
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
        """The executor that runs the programs of this process."""
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
        """The number of trainers."""
        return self.role.worker_num()

    def server_num(self) -> int:
        """The number of parameter servers."""
        return self.role.server_num()

    def worker_endpoints(self, to_string: bool = False) -> Any:
        """The endpoints of the trainers, as a list or as comma-separated text."""
        listed = self.role.get_trainer_endpoints()
        return ",".join(listed) if to_string else listed

    def server_endpoints(self, to_string: bool = False) -> Any:
        """The endpoints of the parameter servers, as a list or as comma-separated text."""
        listed = self.role.get_pserver_endpoints()
        return ",".join(listed) if to_string else listed

    def split_files(self, files: list[str]) -> list[str]:
        """The files for this trainer: an equal share in order, of which the first trainers get one more if they can't
        be divided evenly.

        Raises TypeError if `files` is not a list.
        """
        if not isinstance(files, list):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError("split_files takes a list of files")
        each, more = divmod(len(files), self.worker_num())
        index = self.worker_index()
        first = index * each + min(index, more)
        return files[first : first + each + (index < more)]

    @abstractmethod
    def init_worker(self) -> None:
        """Prepares this trainer to train."""

    @abstractmethod
    def init_server(self, model_dir: str | None = None) -> None:
        """Prepares this server to serve."""

    @abstractmethod
    def run_server(self) -> None:
        """Serves until all trainers have left."""

    @abstractmethod
    def stop_worker(self) -> None:
        """Ends this trainer."""

    @abstractmethod
    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> Any:
        """An optimizer that makes the programs of this machine."""


class DistributedOptimizer:
    """The base class of optimizers that make the programs of a machine of a cluster."""

    def __init__(self, optimizer: Any, strategy: Any = None):
        self._optimizer, self._strategy = optimizer, strategy

    def backward(self, *args: Any, **options: Any) -> Any:
        """Calls the wrapped optimizer's method of the same name."""
        return self._optimizer.backward(*args, **options)

    def apply_gradients(self, params_grads: Any) -> Any:
        """Calls the wrapped optimizer's method of the same name."""
        return self._optimizer.apply_gradients(params_grads)


def expect_executor(what: str, executor: object, program: object) -> None:
    """Raises TypeError unless a method of Fleet got an Executor, and a Program or None."""
    if not isinstance(executor, Executor):
        raise TypeError(f"fleet.{what} takes an Executor, not a value of type {type(executor).__name__}")
    if program is not None and not isinstance(program, Program):
        raise TypeError(f"fleet.{what} takes a Program, not a value of type {type(program).__name__}")


__getattr__ = names_of_fluid(__name__, globals())
