"""What emitted main programs carry of their part in the cluster, as Fluid keeps it on its programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from pstranspile.compiler.plan.make import placed_parameters
from pstranspile.compiler.plan.plan import Plan
from pstranspile.ir.distribution import DistributedVar, Distribution
from pstranspile.ir.model import Role


class Distributions:
    """The distributions of one job's programs; `variables` gives all variables on its servers.

    Fluid gives every program the whole list. Here a trainer's has what trainers fetch, a server's what that server
    holds; the plan has all.
    """

    def __init__(self, plan: Plan, variables: Callable[[], Iterable[DistributedVar]]):
        self.plan = plan
        self._variables = variables

    @cached_property
    def fetched(self) -> tuple[DistributedVar, ...]:
        """What trainers fetch: the parameters."""
        return tuple(placed_parameters(self.plan))

    @cached_property
    def held(self) -> dict[str, list[DistributedVar]]:
        """What each server holds: parameters, and the state of their optimizers."""
        result: dict[str, list[DistributedVar]] = {endpoint: [] for endpoint in self.plan.pservers}
        for variable in self._variables():
            result[variable.endpoint].append(variable)
        return result

    def of_trainer(self, index: int) -> Distribution | None:
        """What the main program of a trainer carries; None in the collective modes, where Fluid writes nothing."""
        plan = self.plan
        if plan.pservers:
            return self._of(plan.pservers[0], index == 0, self.fetched)
        if plan.mode != "nccl2" or plan.collective is None:
            return None
        settings = plan.collective
        return Distribution(
            trainers_endpoints=plan.trainer_endpoints,
            nccl_comm_num=settings.nccl_comm_num,
            use_hierarchical_allreduce=settings.use_hierarchical_allreduce,
            hierarchical_allreduce_inter_nranks=(
                settings.hierarchical_allreduce_inter_nranks if settings.use_hierarchical_allreduce else 0
            ),
        )

    def of_server(self, endpoint: str) -> Distribution:
        """What the main program of a server carries. As in Fluid, `is_chief` is true: it is made for trainer 0."""
        return self._of(endpoint, True, self.held[endpoint])

    def _of(self, endpoint: str, is_chief: bool, variables: Sequence[DistributedVar]) -> Distribution:
        return Distribution(
            is_distributed=True,
            is_chief=is_chief,
            endpoints=self.plan.pservers,
            ps_endpoint=endpoint,
            distributed_lookup_table=self.plan.distributed_lookup_table,
            variables=tuple(variables),
        )


def with_distribution(role: Role, distribution: Distribution | None) -> Role:
    """The programs of a machine with what is known of its part on the main program."""
    if distribution is None:
        return role
    return role._replace(main=role.main._replace(distribution=distribution))
