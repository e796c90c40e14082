"""The shape rules on whole recorded programs: their declarations agree, except where Fluid's own are wrong."""

import gzip
from pathlib import Path

import pytest

from pstranspile.compiler.verify.walk import reliable
from pstranspile.frontends.program_desc import program_from_bytes
from pstranspile.ir.model import Program, TensorType
from pstranspile.ops.shapes import infer_types
from tests.ops.typed import check_types

DATA = Path(__file__).parent.parent / "data"
FILES = [*sorted((DATA / "programs").glob("*.pb.gz")), *sorted((DATA / "program_desc").glob("*.pb"))]

FAULTS = {
    "opt_rmsprop.pserver.pb.gz": {"MeanGrad is f32[100, 170], Param is f32[50, 170]"},
}
"""MeanGrad of a sliced parameter is left whole by Fluid's transpiler."""


def read(path: Path) -> Program:
    data = path.read_bytes()
    return program_from_bytes(gzip.decompress(data) if path.suffix == ".gz" else data, path.name, "main")


def declared(program: Program, name: str, block: int) -> TensorType | None:
    var = program.find_var(name, block)
    return None if var is None else reliable(var) if var.persistable else var.tensor


def ops_of(program: Program):
    for number, block in enumerate(program.blocks):
        for op in block.ops:
            yield op, lambda name, number=number: declared(program, name, number)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_declarations_agree(path: Path):
    program = read(path)
    problems = {problem.message for op, type_of in ops_of(program) for problem in check_types(op, type_of)}
    assert problems == FAULTS.get(path.name, set())


WRONG_TYPES = ("mnist_mlp_adam.local_sgd.pb.gz",)
"""Fluid declares the parameters BOOL here: see `reliable`."""


@pytest.mark.parametrize(
    "path", [f for f in FILES if f.name not in (*FAULTS, *WRONG_TYPES)], ids=lambda path: path.name
)
def test_inferred_types_equal_those_that_fluid_declares(path: Path):
    """Down to unknown dims and LoD levels, for all variables that do not live longer than a step."""
    program = read(path)
    for number, block in enumerate(program.blocks):
        for op in block.ops:
            inferred = infer_types(op, lambda name, at=number: declared(program, name, at))
            for slot, types in inferred.items():
                for name, expected in zip(op.outputs.get(slot, ()), types, strict=False):
                    var = program.find_var(name, number)
                    if expected and expected.shape and var and var.tensor and var.shape and not var.persistable:
                        assert expected == var.tensor, (op.type, slot, name)
