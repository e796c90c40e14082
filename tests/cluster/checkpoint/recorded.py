"""What Fluid makes to save and load."""

from __future__ import annotations

import tarfile
import warnings
from functools import cache
from pathlib import Path

import pstranspile as ps
from pstranspile.frontends.meta import apply_meta, parse_meta
from pstranspile.frontends.program_desc import program_from_bytes
from pstranspile.ir.model import MAIN, STARTUP, FrozenMap, Module, Op, Program

ARCHIVE = Path(__file__).parents[2] / "data" / "fluid" / "saving.tar.xz"


@cache
def files() -> dict[str, bytes]:
    with tarfile.open(ARCHIVE) as archive:
        return {m.name: f.read() for m in archive.getmembers() if (f := archive.extractfile(m)) is not None}


def program(name: str) -> Program:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a map of versions that is left out
        return program_from_bytes(files()[name], name, MAIN)


def job() -> ps.Compiled:
    programs = {MAIN: program("persistables/main.pb"), STARTUP: program("persistables/startup.pb")}
    meta = parse_meta(files()["persistables/meta.json"].decode(), "meta.json")
    module = apply_meta(Module(FrozenMap(programs)), meta)[0]
    return ps.compile(module, ps.Job(["a:6174", "b:6174"], 2))


def ops_by_variable(given: Program, kind: str) -> dict[str, Op]:
    """Ops of one type by the variable whose file they name."""
    return {str(op.attrs["file_path"]): op for op in given.main_block.ops if op.type == kind}
