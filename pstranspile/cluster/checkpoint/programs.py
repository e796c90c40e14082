"""Programs that save and load the variables of a cluster, of the ops that Fluid's own have.

A trainer runs the one that saves: `save` for what it holds, `recv_save` for what it fetches from the servers, slice by
slice into one file, `checkpoint_notify` for tables, which each server writes itself. A server runs the one that
loads, before it serves.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Container, Iterator

from pstranspile.cluster.checkpoint.layout import Layout, Part, Placed, layout_of, trainer_variables
from pstranspile.cluster.checkpoint.manifest import TABLES, table_file
from pstranspile.compiler.compile import Compiled
from pstranspile.compiler.job.modes import settings_of
from pstranspile.ir.attributes import AttrValue, Long, Longs, Strings
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Block, Op, Program, TensorType, Var
from pstranspile.ir.types import VarKind
from pstranspile.ops.build import make_op


def save_program(
    job: Compiled, folder: str, trainer: int = 0, names: Container[str] | None = None, *, served: bool | None = None
) -> Program:
    """What a trainer runs to save the variables of the source program into `folder`, all or those of some names.

    Every trainer may save what it holds itself; trainer 0, or one that is to save what is `served`, also what the
    servers hold. A variable of which several
    servers have a copy is fetched from the first (Fluid's file repeats it), and learning rates and counters that
    only servers have are saved too (Fluid loses them). Parameters come from the trainer in sync modes, as in Fluid,
    and from the servers in others, where the trainer's own may be old.
    """
    layout = layout_of(job)
    role = job.trainer(trainer)
    own = trainer_variables(role)
    sync = settings_of(job.plan.mode).flags["sync_mode"]
    parameters = {p.name for p in job.plan.parameters} if sync else frozenset[str]()
    variables: dict[str, Var] = {}
    saves: list[Op] = []
    remote: list[Op] = []
    wanted = [placed for placed in _saved(layout) if names is None or placed.name in names]
    for placed in wanted:
        on_servers = not placed.table and placed.parts[0].machine.startswith("pserver")
        held = (role.name, placed.name) in {part[:2] for part in placed.holders}
        if on_servers and not (held and placed.name in parameters):
            remote.append(_recv_save(job, placed, folder))
        elif not placed.table:
            variables[placed.name] = own[placed.name]._replace(parameter=None, location=None)
            path = posixpath.join(folder, placed.name)
            saves.append(make_op("save", {"X": [placed.name]}, {}, {"file_path": path}))
    if served or (served is None and trainer == 0):
        saves += remote
        saves += (_notify(job, placed, folder) for placed in wanted if placed.table)
    return _program(variables, saves)


def _saved(layout: Layout) -> Iterator[Placed]:
    return (placed for placed in layout.variables.values() if not placed.optional)


def _recv_save(job: Compiled, placed: Placed, folder: str) -> Op:
    attrs = {
        "trainer_id": 0,
        "dtype": placed.dtype.value,
        "shape": Longs(placed.shape),
        "slice_shapes": Strings(",".join(map(str, part.shape)) for part in placed.parts),
        "slice_varnames": Strings(f"{part.name}.slice.{k}" for k, part in enumerate(placed.parts)),
        "remote_varnames": Strings(part.name for part in placed.parts),
        "endpoints": Strings(_endpoint(job, part) for part in placed.parts),
        "file_path": posixpath.join(folder, placed.name),
    }
    return make_op("recv_save", {}, {}, attrs)


def _endpoint(job: Compiled, part: Part) -> str:
    servers = {f"pserver_{number}": endpoint for number, endpoint in enumerate(job.plan.pservers)}
    return servers[part.machine]


def _notify(job: Compiled, table: Placed, folder: str) -> Op:
    attrs = {
        "epmap": Strings(_endpoint(job, part) for part in table.parts),
        "dir": posixpath.join(folder, TABLES),
        "lookup_table": table.name,
    }
    return make_op("checkpoint_notify", {}, {}, attrs)


def load_program(job: Compiled, machine: str, folder: str, names: Collection[str] | None = None) -> Program:
    """What the server at an endpoint runs to load its variables from `folder`, or those of `names`.

    `seek` and `shape` of a `load` are the slice's place in the whole variable, in elements. Parts of tables are
    loaded too (Fluid leaves them out), by as many servers as saved them. `machine` may also be a role's name: a
    trainer loads what it keeps for itself, which in Fluid nobody does. Raises KeyError for an unknown machine.
    """
    layout = layout_of(job)
    role = job.pserver(machine) if machine in job.plan.pservers else job.roles()[machine]
    declared = trainer_variables(role)
    variables: dict[str, Var] = {}
    ops: list[Op] = []
    for placed in _saved(layout):
        if names is not None and placed.name not in names:
            continue
        for part in placed.holders:
            if part.machine != role.name:
                continue
            var = declared[part.name]
            attrs: dict[str, AttrValue] = {"file_path": posixpath.join(folder, placed.name)}
            if placed.table:
                number = [p.machine for p in placed.parts].index(part.machine)
                attrs = {"file_path": posixpath.join(folder, table_file(placed.name, number))}
                var = var._replace(kind=VarKind.SELECTED_ROWS)
            elif part.shape != placed.shape:
                attrs |= {"seek": Long(part.offset), "shape": Longs(part.shape)}
                var = var._replace(tensor=TensorType(placed.dtype, part.shape))
            variables[part.name] = var._replace(persistable=True, parameter=None, location=None)
            ops.append(make_op("load", {}, {"Out": [part.name]}, attrs))
    return _program(variables, ops)


def _program(variables: dict[str, Var], ops: list[Op]) -> Program:
    return Program((Block(FrozenMap(variables), tuple(ops)),))
