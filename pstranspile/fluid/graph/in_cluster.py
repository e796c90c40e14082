"""The attributes by which Fluid's programs know their role in a cluster."""

from __future__ import annotations

from typing import Any

from pstranspile.ir.distribution import Distribution

TEST = "test"
"""The value of `PartInCluster.part` for copies for tests."""


class PartInCluster:
    """The base class of programs: the `distribution` that a compile writes into a program, under the names of Fluid's
    attributes.
    """

    def __init__(self) -> None:
        self.distribution: Distribution | None = None
        self.machine: Any = None
        """The machine of a cluster that runs the program, None outside of a cluster."""
        self.part = ""
        """The program of that machine that this is: `main`, `startup`, or `test` for test copies of the
        main program.
        """
        self._overview: Any = None
        self._fleet_opt: Any = None
        self._pipeline_opt: Any = None

    def _known(self) -> Distribution:
        return self.distribution or Distribution()

    def _say(self, **values: Any) -> None:
        self.distribution = self._known()._replace(**values)

    @property
    def _is_distributed(self) -> bool:
        """Whether the program belongs to a cluster with servers."""
        return self._known().is_distributed

    @_is_distributed.setter
    def _is_distributed(self, value: bool) -> None:
        self._say(is_distributed=bool(value))

    @property
    def _is_chief(self) -> bool:
        """Whether the program belongs to trainer 0."""
        return self._known().is_chief

    @_is_chief.setter
    def _is_chief(self, value: bool) -> None:
        self._say(is_chief=bool(value))

    @property
    def _endpoints(self) -> list[str]:
        """The endpoints of the parameter servers."""
        return list(self._known().endpoints)

    @_endpoints.setter
    def _endpoints(self, value: Any) -> None:
        self._say(endpoints=tuple(value))

    @property
    def _ps_endpoint(self) -> str | None:
        """The endpoint of the parameter server that runs the program, or that it loads from; None if there is none."""
        return self._known().ps_endpoint

    @_ps_endpoint.setter
    def _ps_endpoint(self, value: str | None) -> None:
        self._say(ps_endpoint=value)

    @property
    def _trainers_endpoints(self) -> list[str]:
        """The endpoints of the trainers, in a cluster without servers."""
        return list(self._known().trainers_endpoints)

    @_trainers_endpoints.setter
    def _trainers_endpoints(self, value: Any) -> None:
        self._say(trainers_endpoints=tuple(value))

    @property
    def _distributed_lookup_table(self) -> str | None:
        """The name of the table that only the servers have, None if there is none."""
        return self._known().distributed_lookup_table

    @_distributed_lookup_table.setter
    def _distributed_lookup_table(self, value: str | None) -> None:
        self._say(distributed_lookup_table=value)

    @property
    def _parameters_on_pservers(self) -> Any:
        """The overview of variables on servers, None for a program outside of a cluster."""
        if self._overview is None and self.machine is not None:
            from pstranspile.fluid.transpiler.details import overview_of

            compiled = self.machine.compiled
            self._overview = overview_of(compiled.source, compiled.distributed_vars)
        return self._overview

    @_parameters_on_pservers.setter
    def _parameters_on_pservers(self, value: Any) -> None:
        self._overview = value

    def _copy_dist_param_info_from(self, other: Any) -> None:
        """Copies what another program knows of its cluster. Raises TypeError if `other` is no program."""
        if not isinstance(other, PartInCluster):
            raise TypeError(f"it takes a Program, not a value of type {type(other).__name__}")
        self.distribution, self._overview = other.distribution, other._parameters_on_pservers
