"""Saves and loads the variables of a program that belongs to a machine of a cluster."""

from __future__ import annotations

import os
import posixpath
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pstranspile.cluster.checkpoint.layout import layout_of
from pstranspile.cluster.checkpoint.persistables import load_program, save_program
from pstranspile.fluid.communicator import warn_unused
from pstranspile.fluid.graph.program import TEST
from pstranspile.fluid.graph.values import dtype_of
from pstranspile.fluid.machines import TrainerMachine
from pstranspile.fluid.running.large_tables import load_tables, open_tables, rows_of, say_beyond
from pstranspile.ir.attributes import Ints, Longs, Strings
from pstranspile.ir.diagnostics import did_you_mean
from pstranspile.ir.model import Block, FrozenMap, Op, Program, TensorType, Var
from pstranspile.ir.types import DType, OpRole
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.build import make_op
from pstranspile.runtime.large.table import LargeTable
from pstranspile.runtime.run import run
from pstranspile.runtime.run.scope import Scope
from pstranspile.runtime.values import Array
from pstranspile.runtime.values.encoding import read_tensor


def saves_with_servers(program: Any) -> bool:
    """Whether a program belongs to a trainer whose servers are running, so that their variables can be saved too."""
    machine = machine_of(program)
    return isinstance(machine, TrainerMachine) and machine.trains and bool(_servers(machine))


def machine_of(program: Any) -> Any:
    """The machine of a cluster that runs the program; None for a program outside of a cluster or a copy for tests."""
    return None if program.part == TEST else program.machine


def loads_slices(program: Any) -> bool:
    """Whether a program belongs to a machine of a cluster with servers, so that it loads from files of
    whole variables.
    """
    machine = machine_of(program)
    return machine is not None and bool(_servers(machine))


def _servers(machine: Any) -> Any:
    return machine.compiled.plan.pservers


def save_with_servers(program: Any, folder: str, names: Collection[str] | None = None) -> set[str]:
    """Writes the variables of a trainer, and those of the servers if it is trainer 0; returns the names in `names` that
    the cluster does not have.

    It writes the variables in `names`, or all that are kept from run to run. The parts of tables that are looked up on
    the servers are written under `__lookup_table__`.
    """
    machine = program.machine
    folder = os.path.abspath(folder)
    os.makedirs(folder, exist_ok=True)
    machine.run_besides(save_program(machine.compiled, folder, machine.index, names))
    return set(names or ()) - set(layout_of(machine.compiled).variables)


def values_with_servers(program: Any, names: Collection[str], scope: Mapping[str, Any]) -> dict[str, Any]:
    """The whole values of variables that a trainer or its servers have.

    A table with a row for every id is given with as many rows as the script has declared. Raises ValueError for a
    distributed table, whose rows each server writes itself, and for a variable without a value.
    """
    machine = program.machine
    layout = layout_of(machine.compiled).variables
    tables = _open_tables(program, names)
    rows = sorted(name for name in names if name not in tables and name in layout and layout[name].table)
    if rows:
        raise ValueError(
            f"servers hold the rows of {', '.join(rows)}, which do not go into one file with other parameters; "
            "fleet.save_persistables writes them"
        )
    others = [name for name in names if name not in tables]
    with TemporaryDirectory() as folder:
        machine.run_besides(save_program(machine.compiled, folder, machine.index, others, served=True))
        files = {name: Path(folder, name) for name in others}
        values = {name: read_tensor(file) if file.exists() else scope.get(name) for name, file in files.items()}
    missing = sorted(name for name, value in values.items() if value is None)
    if missing:
        raise ValueError(f"{', '.join(missing)} has no value yet")
    return values


_MOST_WHOLE = 1 << 31
"""The greatest number of elements of a table with a row for every id that is written as a whole table."""

_LOOKED_UP = 1 << 16
"""The number of rows that a trainer looks up at once to write a table."""


def whole_heights(program: Any, names: Collection[str], *, one_file: bool) -> dict[str, tuple[int, int]]:
    """The dims that tables with a row for every id have in a saved model: the declared height, and the width.

    A table that can't be written whole is left out; the rows that exist are then written to a file of their own. In
    `one_file` with other parameters they can't be, so this raises ValueError.
    """
    machine = machine_of(program)
    away = machine is not None and not (isinstance(machine, TrainerMachine) and machine.trains)
    result: dict[str, tuple[int, int]] = {}
    for name, (rows, width) in _open_tables(program, names).items():
        if 0 < rows * width <= _MOST_WHOLE and not away:
            result[name] = rows, width
        elif one_file and away:
            raise ValueError(f"servers hold the rows of {name}: a trainer writes them before stop_worker")
        elif one_file:
            raise ValueError(
                f"{name} has a row for every id, and one file of parameters the rows that the script has declared: "
                f"{rows}, of which from 1 to {_MOST_WHOLE // width} can be written; save_persistables writes the rows "
                "that exist"
            )
    return result


def whole_tables(program: Any, heights: Mapping[str, tuple[int, int]], scope: Mapping[str, Any]) -> dict[str, Any]:
    """The values of tables with a row for every id, with as many rows as `whole_heights` gives.

    Rows that do not exist get the values that a lookup returns for them. Rows of higher ids are left out, which is
    reported on stderr.
    """
    values: dict[str, Any] = {}
    for name, (rows, width) in heights.items():
        held = scope.get(name)
        if isinstance(held, LargeTable):
            values[name], ids = held.look_up(np.arange(rows)), held.index.ids_by_place
        else:
            values[name], ids = _looked_up(program.machine, name, rows, width), _ids_on_servers(program.machine, name)
        say_beyond(name, ids, rows)
    return values


def _open_tables(program: Any, names: Collection[str]) -> dict[str, tuple[int, int]]:
    """The tables with a row for every id among the variables, by name, with the dims that `open_tables` gives."""
    machine = machine_of(program)
    startup = machine.compiled.source.startup if machine is not None else program.live().startup_program.freeze()
    return {name: dims for name, dims in open_tables(startup).items() if name in names}


def with_heights(model: Program, tables: Mapping[str, tuple[int, int]]) -> Program:
    """A program with other dims for its tables, as `tables` gives them."""
    blocks: list[Block] = []
    for block in model.blocks:
        vars = {
            name: var._replace(tensor=var.tensor._replace(shape=tables[name]))
            if name in tables and var.tensor is not None
            else var
            for name, var in block.vars.items()
        }
        blocks.append(block._replace(vars=FrozenMap(vars)))
    return model._replace(blocks=tuple(blocks))


def _looked_up(machine: TrainerMachine, table: str, rows: int, width: int) -> Array:
    """The first rows of a table, looked up on a trainer's servers."""
    lookups = (op for block in machine.role.main.blocks for op in block.ops)
    lookup = next(op for op in lookups if op.type == "distributed_lookup_table" and op.inputs["W"] == (table,))
    whole = machine.role.main.main_block.vars[table]
    assert whole.tensor is not None
    ids, out = f"{table}@IDS", f"{table}@WHOLE"
    parts: list[Array] = []
    for start in range(0, rows, _LOOKED_UP):
        count = min(_LOOKED_UP, rows - start)
        numbers = {
            "shape": Ints((count, 1)),
            "dtype": DType.INT64.value,
            "int64_values": Longs(range(start, start + count)),
        }
        variables = {
            table: whole,
            ids: Var(ids, tensor=TensorType(DType.INT64, (count, 1))),
            out: Var(out, tensor=TensorType(whole.tensor.dtype, (count, width)), persistable=True),
        }
        attrs = {**lookup.attrs, "padding_idx": -1, "lookup_table_version": "lookup_table"}
        ops = (
            make_op("assign_value", {}, {"Out": (ids,)}, numbers),
            make_op(lookup.type, {"Ids": (ids,), "W": (table,)}, {"Outputs": (out,)}, attrs),
        )
        parts.append(machine.run_for(Program((Block(FrozenMap(variables), ops),)), out))
    return np.concatenate(parts)


def _ids_on_servers(machine: TrainerMachine, table: str) -> Array:
    """The ids of the rows of a table that a trainer's servers have."""
    with TemporaryDirectory() as folder:
        machine.run_besides(save_program(machine.compiled, folder, machine.index, [table], served=True))
        return rows_of(Path(folder, table)).rows


def with_own_lookups(program: Program) -> Program:
    """A copy of the program that looks rows up in its own tables instead of asking servers for them."""
    return program._replace(
        blocks=tuple(block._replace(ops=tuple(_own_lookups(block.ops))) for block in program.blocks)
    )


_REMOTE = ("remote_prefetch", "epmap", "table_names", "height_sections", "trainer_id")
"""Attributes that make a lookup ask servers for rows."""


def _own_lookups(ops: Iterable[Op]) -> Iterator[Op]:
    for op in ops:
        if op.type != "distributed_lookup_table":
            here = {name: value for name, value in op.attrs.items() if name not in _REMOTE}
            yield op._replace(attrs=FrozenMap(here)) if op.attrs.get("remote_prefetch") else op
            continue
        kind = str(op.attrs.get("lookup_table_version", "lookup_table"))
        padding = {"padding_idx": op.attrs["padding_idx"]} if "padding_idx" in op.attrs else {}
        for ids, out in zip(op.inputs["Ids"], op.outputs["Outputs"], strict=True):
            yield make_op(kind, {"W": op.inputs["W"], "Ids": [ids]}, {"Out": [out]}, padding)


def held_by_servers(program: Any) -> dict[str, list[Any]]:
    """The variables that servers have, each with its slices in order, according to the overview that a script has
    attached to a trainer's program; empty for other programs.
    """
    overview = program._parameters_on_pservers if program.machine is None and program._is_distributed else None
    if overview is None:
        return {}
    held: dict[str, list[Any]] = overview.get_distributed_vars_by_vtypes(("Optimizer", "RemotePrefetch"), groupby=True)
    return {name: sorted(rows, key=lambda row: row.block_id if row.is_slice else 0) for name, rows in held.items()}


def save_from_servers(executor: Any, program: Any, folder: str, held: Mapping[str, list[Any]]) -> None:
    """Runs a program of trainer 0 that fetches the variables of the servers and writes them to files."""
    ops: list[Op] = []
    for name, rows in held.items():
        attrs = {
            "shape": Longs(rows[0].origin.shape),
            "dtype": dtype_of(rows[0].origin.dtype).value,
            "slice_shapes": Strings(",".join(map(str, row.slice.shape)) for row in rows),
            "slice_varnames": Strings(f"{row.slice.name}.slice.{place}" for place, row in enumerate(rows)),
            "remote_varnames": Strings(row.slice.name for row in rows),
            "endpoints": Strings(row.endpoint for row in rows),
            "file_path": posixpath.join(folder, name),
        }
        ops.append(make_op("recv_save", {}, {}, attrs))
    if program._is_chief:
        os.makedirs(folder, exist_ok=True)
        executor.run(Program((Block(ops=tuple(ops)),)))


def added_variables(program: Any) -> list[Any]:
    """The variables that a machine's program declares only because the script has edited it."""
    compiled = program.machine.role.main.main_block.vars
    return [var for var in program.list_vars() if var.name not in compiled]


def load_slices(program: Any, folder: str, scope: Scope, names: Collection[str] | None = None) -> None:
    """Loads the variables of a machine of a cluster, all or those in `names`; a server loads its slices from files of
    whole variables.

    Learning rates and counters that have no file keep their values, because trainers of Fluid do not save them.
    """
    machine = program.machine
    loading_program = load_program(machine.compiled, machine.role.name, posixpath.abspath(folder), names)
    block = loading_program.main_block
    files = {op.outputs["Out"][0]: (Path(str(op.attrs["file_path"])), int_attr(op, "seek")) for op in block.ops}
    tables = load_tables(scope, files)
    others = tuple(op for op in block.ops if op.outputs["Out"][0] not in tables)
    loading_program = loading_program._replace(blocks=(block._replace(ops=others), *loading_program.blocks[1:]))
    if machine.role.name.startswith("pserver"):
        loading_program = _with_files(loading_program, _updated_variables(machine.role.main))
    run(loading_program, {}, (), scope)


def with_states(program: Any, names: Collection[str]) -> set[str]:
    """The variables in `names` and the optimizers' states for them. Raises ValueError for a variable that the cluster
    does not have.
    """
    known = layout_of(program.machine.compiled).variables
    for name in names:
        if name not in known:
            hint = did_you_mean(name, sorted(known), str)
            raise ValueError(f"var_names has {name!r}, which the servers do not keep{hint}")
    kept = set(names)
    for op in program.machine.compiled.source.main.main_block.ops:
        if not kept.isdisjoint(op.inputs.get("Param", ())):
            given = {*op.inputs.get("Grad", ()), *op.inputs.get("LearningRate", ())}
            kept.update(name for name in op.input_names if name in known and name not in given)
    return kept


def _updated_variables(program: Program) -> set[str]:
    """The names of the variables that ops which update parameters write."""
    ops = (op for block in program.blocks for op in block.ops)
    return {name for op in ops if (op.role or OpRole.FORWARD) & OpRole.OPTIMIZE for name in op.output_names}


def _with_files(held: Program, needed: Collection[str]) -> Program:
    """A program that loads, without the variables that have no file, except those in `needed`."""
    block = held.main_block
    kept = [op for op in block.ops if op.output("Out") in needed or os.path.exists(str(op.attrs["file_path"]))]
    left = [op.output("Out") for op in block.ops if op not in kept]
    if left:
        print(f"{', '.join(map(str, left))}: no files, start-up values are kept", file=sys.stderr)
    return held._replace(blocks=(block._replace(ops=tuple(kept)), *held.blocks[1:]))


def warn_of_filename(filename: str | None) -> None:
    """Warns on stderr, if `filename` is given, that variables of a cluster are in a file each and not in one file."""
    if filename is not None:
        warn_unused("filename", filename, "variables of a cluster lie in a file each, as Fluid writes them")
