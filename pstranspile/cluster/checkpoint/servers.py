"""Checkpoints of a job's servers only: where trainers don't report what they keep, or make it anew.

They are like those of whole jobs, without the variables that only trainers hold.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace

from pstranspile.cluster.checkpoint.layout import Layout, Part, Placed
from pstranspile.cluster.checkpoint.manifest import Manifest
from pstranspile.cluster.checkpoint.runs import Source, require_program
from pstranspile.cluster.checkpoint.state import Assignment, Scopes, assign, gather
from pstranspile.cluster.checkpoint.store import Progress, read_checkpoint, write_checkpoint
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location, Role


def of_servers(layout: Layout) -> Layout:
    """The part of a layout that servers hold."""
    served = {name: _on_servers(placed) for name, placed in layout.variables.items()}
    machines = tuple(name for name in layout.machines if name.startswith("pserver"))
    return replace(layout, machines=machines, variables={n: placed for n, placed in served.items() if placed.holders})


def _on_servers(placed: Placed) -> Placed:
    parts, others = (tuple(filter(_is_on_server, held)) for held in (placed.parts, placed.others))
    if parts == placed.parts:
        return placed._replace(others=others)
    return placed._replace(parts=(), others=(*parts, *others), optional=True)


def _is_on_server(part: Part) -> bool:
    return part.machine.startswith("pserver")


def require_fits(layout: Layout, roles: Mapping[str, Role], folder: str) -> None:
    """Raises DiagnosticError if the programs of a folder are not those of the job that a layout is of."""
    for placed in layout.variables.values():
        for part in placed.holders:
            role = roles.get(part.machine)
            var = role.main.main_block.vars.get(part.name) if role is not None else None
            if role is None or var is None or var.shape != part.shape:
                what = f"no {part.machine}" if role is None else f"no {part.name} of dims {list(part.shape)} on it"
                message = f"the program and the job give a {part.machine} that is not here: there is {what}"
                raise DiagnosticError([error("checkpoint-model", message, Location(folder))])


def save_servers(layout: Layout, scopes: Scopes, folder: str | os.PathLike[str], at: Progress) -> Manifest:
    """Writes what the servers hold to a folder, which appears whole or not at all. Raises DiagnosticError.

    `layout` is that of the servers, `scopes` are the servers' scopes.
    """
    return write_checkpoint(folder, layout, gather(layout, scopes), "files", at)


def load_server(layout: Layout, scopes: Scopes, role: str, folder: str | os.PathLike[str]) -> Manifest:
    """Sets the variables of a server from a checkpoint (or the newest in a folder), saved from any number of servers.

    `scopes` are those of all servers; only the server's own is changed. Raises DiagnosticError.
    """
    with closing(Source(folder)) as source:
        manifest, state = read_checkpoint(source.place, None)
    require_program(manifest, layout.fingerprint, str(source.place))
    assigned = assign(layout, state, scopes)
    Assignment({role: assigned.values[role]}, ()).carry_out(scopes)
    return manifest
