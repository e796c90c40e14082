import math
import struct

import pytest
from hypothesis import given, settings

from pstranspile.frontends.program_desc import program_from_bytes, program_to_bytes, read_program
from pstranspile.ir.attributes import BlockRef, Ints, Long
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Block, FrozenMap, Location, Op, Origin, Program, TensorType, Var
from pstranspile.ir.types import DType, OpRole, VarKind
from tests.frontends.programs import programs
from tests.frontends.recorded import FOLDER, every_file, wire_view


def read(name: str) -> Program:
    return program_from_bytes((FOLDER / name).read_bytes(), name, "main")


def declaring(var: Var) -> Program:
    return Program((Block(vars=FrozenMap({var.name: var})),))


def kinds(program: Program) -> set[VarKind]:
    return {var.kind for block in program.blocks for var in block.vars.values()}


@every_file
def test_recorded_programs_come_back_field_for_field(path):
    data = path.read_bytes()
    program, left_out = read_program(data, path.name, "main")
    assert left_out == ()
    written = program_to_bytes(program)
    assert wire_view(written) == wire_view(data)
    again = program_from_bytes(written, path.name, "main")
    assert again == program
    assert program_to_bytes(again) == written


@settings(max_examples=150, deadline=None)
@given(programs())
def test_any_program_comes_back(program):
    data = program_to_bytes(program)
    again, left_out = read_program(data, "x.pb", "main")
    assert left_out == ()
    assert repr(without_origins(again)) == repr(without_origins(program))  # repr: NaN equals NaN, 1 is not 1.0
    assert program_to_bytes(again) == data


def without_origins(program: Program) -> Program:
    """Without what a ProgramDesc does not carry or takes no part in equality, slots and attributes in order."""
    program = program._replace(distribution=None)

    def ordered(mapping):
        return FrozenMap(sorted(mapping.items()))

    blocks = tuple(
        block._replace(
            ops=tuple(
                op._replace(
                    origin=None,
                    inputs=ordered(op.inputs),
                    outputs=ordered(op.outputs),
                    attrs=ordered(op.attrs),
                )
                for op in block.ops
            ),
            vars=FrozenMap({n: v._replace(written_defaults=None) for n, v in block.vars.items()}),
        )
        for block in program.blocks
    )
    return program._replace(blocks=blocks)


def test_what_a_recorded_program_says():
    program = read("fit_a_line.main.pb")
    assert program.version == 1008005
    assert program.random_seed == 0
    block = program.main_block
    assert block.vars["fc_0.w_0"] == Var("fc_0.w_0", tensor=TensorType(DType.FP32, (13, 1)), persistable=True)
    mul = block.ops[0]
    assert mul.type == "mul"
    assert mul.inputs == {"X": ("x",), "Y": ("fc_0.w_0",)}
    assert mul.role is OpRole.FORWARD
    assert mul.role_vars == ()
    assert "op_role" not in mul.attrs
    sgd = block.ops[-1]
    assert sgd.type == "sgd"
    assert sgd.role is OpRole.OPTIMIZE
    assert sgd.role_pairs == (("fc_0.w_0", "fc_0.w_0@GRAD"),)
    assert sgd.origin == Origin("main", 0, 12, Location("fit_a_line.main.pb"))


def test_kinds_of_variables_and_blocks():
    loop = read("while_loop.main.pb")
    assert {VarKind.STEP_SCOPES, VarKind.LOD_TENSOR_ARRAY} <= kinds(loop)
    refs = [(op.type, op.attrs["sub_block"]) for op in loop.main_block.ops if "sub_block" in op.attrs]
    assert [(op_type, type(value)) for op_type, value in refs] == [("while", BlockRef), ("while_grad", BlockRef)]
    assert [block.forward_block for block in loop.blocks] == [-1, -1, 1]
    assert [block.parent for block in loop.blocks] == [-1, 0, 0]

    reader = next(v for v in read("py_reader.main.pb").main_block.vars.values() if v.kind is VarKind.READER)
    assert reader.readers == (TensorType(DType.FP32, (-1, 60)), TensorType(DType.INT64, (-1, 1)))

    assert {VarKind.RAW, VarKind.SELECTED_ROWS} <= kinds(read("dist_table.pserver.pb"))


def test_equal_parts_are_shared():
    server = read("dist_table.pserver.pb")
    sums = [op.attrs for block in server.blocks for op in block.ops if op.type == "sum"]
    assert len(sums) > 1
    assert len({id(attrs) for attrs in sums}) == 1


def test_bytes_do_not_depend_on_the_order_of_slots_and_attributes():
    def program(names):
        op = Op(
            "mul",
            FrozenMap({name: (name.lower(),) for name in names}),
            FrozenMap({"Out": ("z",)}),
            FrozenMap({name.lower(): 1 for name in names}),
        )
        return Program((Block(ops=(op,)),))

    assert program_to_bytes(program("XYA")) == program_to_bytes(program("AYX"))


def test_attribute_kinds_are_told_apart():
    values = {"a": 1, "b": True, "c": 1.0, "d": Long(1), "e": BlockRef(1), "f": Ints(), "g": ""}
    program = Program((Block(ops=(Op("t", attrs=FrozenMap(values)), Op("t", attrs=FrozenMap(a=True)))),))
    first, second = program_from_bytes(program_to_bytes(program), "x", "main").main_block.ops
    assert {name: type(value) for name, value in first.attrs.items()} == {
        name: type(value) for name, value in values.items()
    }
    assert type(second.attrs["a"]) is bool


def test_absent_is_not_empty():
    ops = (
        Op("a", role=None, role_vars=None),
        Op("a", role=OpRole.FORWARD, role_vars=()),
        Op("a", FrozenMap({"X": ()})),
        Op("a", is_target=True),
    )
    for version in (None, 0, 7):
        program = Program((Block(ops=ops),), version=version)
        assert program_from_bytes(program_to_bytes(program), "x", "main") == program


def test_names_that_are_not_utf8_survive():
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    program = Program((Block(vars=FrozenMap({name: Var(name)})),))
    data = program_to_bytes(program)
    assert b"caf\xe9" in data
    assert list(program_from_bytes(data, "x", "main").main_block.vars) == [name]


def test_floats_keep_their_bits():
    values = [math.inf, -math.inf, -0.0, 2.0**-149, struct.unpack("<f", struct.pack("<f", 0.1))[0]]
    attrs = FrozenMap({f"f{i}": value for i, value in enumerate(values)})
    program = Program((Block(ops=(Op("t", attrs=attrs),)),))
    again = program_from_bytes(program_to_bytes(program), "x", "main").main_block.ops[0].attrs
    assert [repr(again[f"f{i}"]) for i in range(len(values))] == [repr(value) for value in values]


@pytest.mark.parametrize(
    ("program", "path"),
    [
        (Program((Block(ops=(Op("t", attrs=FrozenMap(n=1 << 31)),)),)), "blocks[0].ops[0].attrs[n]"),
        (Program((Block(ops=(Op("t", attrs=FrozenMap(n=Ints((1, -1 << 40)))),)),)), "blocks[0].ops[0].attrs[n]"),
        (Program((Block(ops=(Op("t", attrs=FrozenMap(n=Long(1 << 63))),)),)), "blocks[0].ops[0].attrs[n]"),
        (Program((Block(ops=(Op("\ud800"),)),)), "blocks[0].ops[0].type"),
        (Program((Block(parent=1 << 40),)), "blocks[0].parent_idx"),
        (Program(version=1 << 70), "version.version"),
        (declaring(Var("x", VarKind.RAW, TensorType(DType.FP32, ()))), "blocks[0].vars[0].type"),
        (declaring(Var("x", VarKind.READER, TensorType(DType.FP32, ()))), "blocks[0].vars[0].type"),
        (declaring(Var("x", readers=(TensorType(DType.FP32, ()),))), "blocks[0].vars[0].type"),
        (
            declaring(Var("x", VarKind.SELECTED_ROWS, TensorType(DType.FP32, (1,), 1))),
            "blocks[0].vars[0].type.selected_rows",
        ),
        (
            declaring(Var("x", tensor=TensorType(DType.FP32, (1 << 63,)))),
            "blocks[0].vars[0].type.lod_tensor.tensor.dims[0]",
        ),
    ],
)
def test_values_that_do_not_fit_are_refused(program, path):
    with pytest.raises(DiagnosticError) as raised:
        program_to_bytes(program)
    assert raised.value.diagnostics[0].code == "desc-unwritable"
    assert path in raised.value.diagnostics[0].message
