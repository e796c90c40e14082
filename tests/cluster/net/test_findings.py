"""Findings of machines are told at places of the user's files."""

from pathlib import Path

import pytest

import pstranspile as ps
from pstranspile.cluster.net.findings import to_sources
from pstranspile.ir.model import MAIN, STARTUP, FrozenMap, Location, Program, Role
from pstranspile.ops.textual import print_module

SOURCE = str(Path(__file__).parents[3] / "golden" / "linear_regression.ir")


def unplaced(program: Program) -> Program:
    """The program with variables that stand in no file, as those of a traced model."""
    main, *others = program.blocks
    held = FrozenMap({name: var._replace(location=None) for name, var in main.vars.items()})
    return program._replace(blocks=(main._replace(vars=held), *others))


def test_what_stands_in_the_text_of_a_machine_alone_is_in_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    compiled = ps.compile(ps.load(SOURCE), ps.Job(["a:1", "b:1"], 2))
    role = compiled.roles()["trainer_0"]
    text = str(tmp_path / "trainer_0.ir")
    Path(text).write_text(print_module(role.module))
    module = ps.load(text)
    read = Role(role.name, module[MAIN], module[STARTUP])
    x, op = read.main.main_block.vars["x"], next(op for op in read.main.main_block.ops if op.type == "mul")
    assert x.location is not None
    assert op.origin is not None
    assert op.origin.location is not None

    moved = to_sources(read, role)
    assert moved(x.location).line == Path(SOURCE).read_text()[: Path(SOURCE).read_text().index("%x ")].count("\n") + 1
    moved = to_sources(read, role._replace(main=unplaced(role.main)))
    assert moved(x.location) == Location(SOURCE)
    assert moved(op.origin.location).line > 0
    elsewhere = Location("batches.py", 3, 1)
    assert moved(elsewhere) == elsewhere
    assert to_sources(read, None)(x.location) == x.location._replace(file="trainer_0.ir")
