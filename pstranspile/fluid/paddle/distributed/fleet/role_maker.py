"""Role makers of the first 2.x versions: Fluid's, which also recognise a process without a cluster."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.incubate.fleet import base as fluid
from pstranspile.fluid.missing import hold_parts, refused
from pstranspile.fluid.running.watching import assume

RoleMakerBase = fluid.RoleMakerBase


class Role(fluid.Role):
    """The roles of machines."""

    ALL = 4


class _Underscored:
    """Adds the names that methods of role makers have in 2.x, which begin with an underscore."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and not name.startswith("__") and hasattr(type(self), name[1:]):
            return getattr(self, name[1:])
        raise AttributeError(f"{type(self).__name__} has no {name!r}", name=name, obj=self)


class PaddleCloudRoleMaker(_Underscored, fluid.PaddleCloudRoleMaker):
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
        self.alone, self._known = True, True
        self._worker_endpoints, self._worker_count = ["127.0.0.1:6170"], 1


class UserDefinedRoleMaker(_Underscored, fluid.RoleMakerBase):
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
            raise refused("UserDefinedRoleMaker(heter_worker_endpoints=...)", "all trainers are alike")
        self.is_collective = is_collective
        self.alone = False
        workers: list[str] = [*(worker_endpoints or ())]
        made: fluid.RoleMakerBase
        if is_collective:
            made = fluid.UserDefinedCollectiveRoleMaker(current_id, worker_endpoints)
        else:
            made = fluid.UserDefinedRoleMaker(current_id, role, worker_num or len(workers), server_endpoints)
        vars(self).update(vars(made), _worker_endpoints=workers)


hold_parts(__name__, globals())
