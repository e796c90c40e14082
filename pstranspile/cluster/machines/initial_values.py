"""Whole variables that a cluster begins with, instead of what its start-up programs make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.cluster.machines.placement import Placement
from pstranspile.cluster.machines.served_tables import Table
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Program
from pstranspile.runtime.run.feeds import near


class InitialValues(NamedTuple):
    """Values by name of the whole variable, with where these lie on servers, and the tables that servers share."""

    values: Mapping[str, Any]
    placement: Placement
    tables: Sequence[Table]

    def require_known(self, programs: Iterable[Program], servers: Iterable[Server]) -> None:
        """Raises DiagnosticError for a variable that no machine keeps: trainers run `programs`."""
        declared = {name for program in programs for name, v in program.main_block.vars.items() if v.persistable}
        known = {*declared, *self.placement.by_origin, *(n for s in servers for n in s.main.main_block.vars)}
        for name in self.values:
            if name not in known:
                message = f"no machine of the cluster has a persistable variable {name}{near(name, known)}"
                raise DiagnosticError([error("cluster-placement", message)])

    def set_on_servers(self, servers: Sequence[Server]) -> None:
        """Gives servers, whose start-up programs have run, their parts."""
        scopes = {server.endpoint: server.scope for server in servers}
        tables = {table.name: table for table in self.tables}
        for name, value in self.values.items():
            if name in tables:
                tables[name].fill(value, servers)
            elif not self.placement.set_whole(name, value, scopes):
                for scope in scopes.values():
                    if name in scope:
                        scope[name] = value

    def set_on_trainer(self, trainer: Trainer) -> None:
        """Gives a trainer the variables that it keeps itself, or holds whole."""
        moved = {*self.placement.by_origin, *(table.name for table in self.tables)}
        for name, value in self.values.items():
            var, held = trainer.role.variable(name), trainer.scope.get(name)
            if var is None or not var.persistable:
                continue
            if name not in moved or (isinstance(held, np.ndarray) and held.shape == np.shape(value)):
                trainer.scope[name] = value
