import random
import re
import warnings

import pytest

from pstranspile.frontends.program_desc import program_desc_class, program_from_bytes, program_to_bytes, read_program
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError
from pstranspile.ir.types import DType
from tests.frontends.recorded import FOLDER, every_file, varint


def refusal(data: bytes) -> Diagnostic:
    with pytest.raises(DiagnosticError) as raised:
        program_from_bytes(data, "x.pb", "main")
    assert str(raised.value).startswith("x.pb")
    return raised.value.diagnostics[0]


def message_of(name: str):
    message = program_desc_class()()
    message.ParseFromString((FOLDER / name).read_bytes())
    return message


def test_cut_at_every_byte():
    data = (FOLDER / "fit_a_line.startup.pb").read_bytes()
    size, at = varint(data, 1)
    whole_without_version = at + size  # the one cut that falls between two fields
    for length in range(len(data)):
        if length == whole_without_version:
            assert program_from_bytes(data[:length], "x.pb", "main").version is None
        else:
            found = refusal(data[:length])
            assert found.code == ("desc-damaged" if length else "desc-missing")
            assert "byte " in found.message or not length


@every_file
def test_cut_in_the_middle(path):
    data = path.read_bytes()
    found = refusal(data[: len(data) // 2])
    assert found.code == "desc-damaged"
    assert re.match(r"blocks\[\d+\], byte \d+: \d+ bytes are announced, \d+ are left", found.message)


@pytest.mark.parametrize("name", ["fit_a_line.startup.pb", "while_loop.main.pb", "py_reader.main.pb"])
def test_changed_bytes_give_a_program_or_a_diagnostic(name):
    data = (FOLDER / name).read_bytes()
    draw = random.Random(name)
    refused = 0
    for _ in range(700):
        changed = bytearray(data)
        for _ in range(draw.choice((1, 1, 1, 2, 5, 20))):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        try:
            program, _ = read_program(bytes(changed), "x.pb", "main")
        except DiagnosticError:
            refused += 1
        else:
            again, _ = read_program(program_to_bytes(program), "x.pb", "main")
            assert repr(again).count("Op(") == repr(program).count("Op(")
    assert 100 < refused < 700


def test_junk():
    draw = random.Random(1)
    for size in (1, 2, 3, 10, 100, 10_000):
        for _ in range(20):
            refusal(draw.randbytes(size))
    assert refusal(b"").code == "desc-missing"


def test_a_claim_of_a_gigabyte():
    data = bytearray((FOLDER / "fit_a_line.startup.pb").read_bytes())
    at = data.index(b"\x0a\x09force_cpu")  # the name of an attribute
    data[at + 1 : at + 2] = b"\x80\x80\x80\x80\x04"  # its length: 2**30
    found = refusal(bytes(data))
    assert found.code == "desc-damaged"
    assert "1073741824 bytes are announced" in found.message
    assert f"byte {at + 1}" in found.message
    assert "ops[" in found.message
    assert "attrs[" in found.message


WIRE_CASES = {
    "wrong wire type of a number": (b"\x0a\x06\x0a\x00\x08\x00\x10\x00", "desc-wire-type", "blocks[0].idx, byte 2"),
    "wrong wire type of a message": (b"\x08\x01", "desc-wire-type", "blocks[0], byte 0"),
    "field number 0": (b"\x0a\x02\x02\x00", "desc-damaged", "blocks[0], byte 2"),
    "end of a group": (b"\x0a\x01\x0c", "desc-damaged", "blocks[0], byte 2"),
    "wire type 7": (b"\x0f", "desc-damaged", "byte 0"),
    "endless number": (b"\x0a\x0c\x08" + b"\xff" * 11, "desc-damaged", "blocks[0].idx, byte 3"),
    "group that does not end": (b"\x33" * 5, "desc-damaged", "field 6"),
    "groups in groups": (b"\x33" * 20_000, "desc-damaged", "nested more than"),
    "half a float": (
        b"\x0a\x09\x22\x07\x22\x05\x0a\x00\x25\x00\x00",
        "desc-damaged",
        "blocks[0].ops[0].attrs[0].f, byte 9",
    ),
    "half a packed float": (
        b"\x0a\x09\x22\x07\x22\x05\x3a\x03\x00\x00\x00",
        "desc-damaged",
        "blocks[0].ops[0].attrs[0].floats[0], byte 8",
    ),
    "half a packed number": (
        b"\x0a\x07\x22\x05\x22\x03\x32\x01\xff",
        "desc-damaged",
        "blocks[0].ops[0].attrs[0].ints[0], byte 8",
    ),
}


@pytest.mark.parametrize(("data", "code", "place"), WIRE_CASES.values(), ids=WIRE_CASES)
def test_bytes_that_are_no_protobuf(data, code, place):
    found = refusal(data)
    assert found.code == code
    assert place in found.message


FIELD_CASES = {
    "no blocks": (lambda m: m.ClearField("blocks"), "desc-missing", "blocks"),
    "no idx": (lambda m: m.blocks[1].ClearField("idx"), "desc-missing", "blocks[1].idx"),
    "no parent": (lambda m: m.blocks[1].ClearField("parent_idx"), "desc-missing", "blocks[1].parent_idx"),
    "idx out of order": (lambda m: setattr(m.blocks[1], "idx", 2), "desc-block-index", "blocks[1].idx"),
    "var without name": (lambda m: m.blocks[0].vars[2].ClearField("name"), "desc-missing", "blocks[0].vars[2].name"),
    "var without type": (lambda m: m.blocks[0].vars[2].ClearField("type"), "desc-missing", "blocks[0].vars[2].type"),
    "var type without type": (
        lambda m: m.blocks[0].vars[2].type.ClearField("type"),
        "desc-missing",
        "blocks[0].vars[2].type.type",
    ),
    "unknown kind of var": (
        lambda m: setattr(m.blocks[0].vars[2].type, "type", 16),
        "desc-enum",
        "blocks[0].vars[2].type.type",
    ),
    "var with an element type for kind": (
        lambda m: setattr(m.blocks[0].vars[2].type, "type", 5),
        "desc-enum",
        "blocks[0].vars[2].type.type",
    ),
    "number that is neither element type nor kind": (
        lambda m: setattr(m.blocks[0].vars[0].type.lod_tensor.tensor, "data_type", 77),
        "desc-enum",
        "blocks[0].vars[0].type.lod_tensor.tensor.data_type",
    ),
    "tensor without element type": (
        lambda m: m.blocks[0].vars[0].type.lod_tensor.tensor.ClearField("data_type"),
        "desc-missing",
        "blocks[0].vars[0].type.lod_tensor.tensor.data_type",
    ),
    "description without tensor": (
        lambda m: m.blocks[0].vars[0].type.lod_tensor.ClearField("tensor"),
        "desc-missing",
        "blocks[0].vars[0].type.lod_tensor.tensor",
    ),
    "variable twice": (
        lambda m: m.blocks[0].vars.add().CopyFrom(m.blocks[0].vars[0]),
        "desc-duplicate",
        "].name: variable",
    ),
    "op without type": (lambda m: m.blocks[1].ops[0].ClearField("type"), "desc-missing", "blocks[1].ops[0].type"),
    "slot without name": (
        lambda m: m.blocks[0].ops[3].outputs[0].ClearField("parameter"),
        "desc-missing",
        "blocks[0].ops[3].outputs[0].parameter",
    ),
    "slot twice": (
        lambda m: m.blocks[0].ops[3].outputs.add().CopyFrom(m.blocks[0].ops[3].outputs[0]),
        "desc-duplicate",
        "blocks[0].ops[3].outputs[1].parameter",
    ),
    "attribute without name": (
        lambda m: m.blocks[0].ops[3].attrs[2].ClearField("name"),
        "desc-missing",
        "blocks[0].ops[3].attrs[2].name",
    ),
    "attribute without type": (
        lambda m: m.blocks[0].ops[3].attrs[2].ClearField("type"),
        "desc-missing",
        "blocks[0].ops[3].attrs[2].type",
    ),
    "unknown kind of attribute": (
        lambda m: setattr(m.blocks[0].ops[3].attrs[2], "type", 12),
        "desc-enum",
        "blocks[0].ops[3].attrs[2].type",
    ),
    "attribute without value": (
        lambda m: m.blocks[0].ops[3].attrs.add(name=b"n", type=9),
        "desc-no-value",
        "blocks[0].ops[3].attrs[",
    ),
    "attribute twice": (
        lambda m: [m.blocks[0].ops[3].attrs.add(name=b"n", type=0, i=i) for i in (1, 2)],
        "desc-duplicate",
        "blocks[0].ops[3].attrs[",
    ),
    "role twice": (
        lambda m: m.blocks[0].ops[3].attrs.add(name=b"op_role", type=0, i=1),
        "desc-duplicate",
        "blocks[0].ops[3].attrs[",
    ),
    "role of another kind": (
        lambda m: m.blocks[0].ops[3].attrs.add(name=b"op_role", type=9, l=1),
        "desc-role",
        "blocks[0].ops[3].attrs[",
    ),
    "negative role": (
        lambda m: m.blocks[0].ops[3].attrs.add(name=b"op_role", type=0, i=-1),
        "desc-role",
        "blocks[0].ops[3].attrs[",
    ),
    "role variables of another kind": (
        lambda m: m.blocks[0].ops[3].attrs.add(name=b"op_role_var", type=2, s=b"w"),
        "desc-role",
        "blocks[0].ops[3].attrs[",
    ),
}


@pytest.mark.parametrize(("change", "code", "place"), FIELD_CASES.values(), ids=FIELD_CASES)
def test_fields_that_make_no_program(change, code, place):
    message = message_of("while_loop.main.pb")
    change(message)
    found = refusal(message.SerializeToString())
    assert (found.code, place in found.message) == (code, True), found.message


def test_what_has_no_place_is_named():
    message = message_of("fit_a_line.startup.pb")
    message.op_compatible_map.pair.add(op_name=b"mul")
    message.blocks[0].vars[0].type.selected_rows.data_type = 5
    message.blocks[0].ops[0].attrs[0].longs.append(3)
    data = message.SerializeToString() + b"\x2a\x03abc"  # field 5 of a ProgramDesc: later versions of Paddle
    program, left_out = read_program(data, "x.pb", "main")
    assert program == program_from_bytes((FOLDER / "fit_a_line.startup.pb").read_bytes(), "x.pb", "main")
    assert {found.code for found in left_out} == {"desc-not-kept"}
    places = [found.message.split(":")[0] for found in left_out]
    assert places == [
        f"field 5, byte {len(data) - 5}",
        "op_compatible_map",
        "blocks[0].vars[0].type.selected_rows",
        "blocks[0].ops[0].attrs[0].longs",
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program_from_bytes(data, "x.pb", "main")
    assert len(caught) == len(left_out)
    assert "desc-not-kept" in str(caught[0].message)


def test_a_kind_for_an_element_type_counts_as_not_set():
    """Fluid's sampled_softmax_with_cross_entropy makes a variable whose element type is 7, the kind LOD_TENSOR."""
    message = message_of("fit_a_line.startup.pb")
    message.blocks[0].vars[0].type.lod_tensor.tensor.data_type = 7
    program, (found,) = read_program(message.SerializeToString(), "x.pb", "main")
    assert program.main_block.vars[message.blocks[0].vars[0].name.decode()].dtype is DType.BOOL
    assert (found.code, "7 is the kind LOD_TENSOR, not an element type" in found.message) == ("desc-not-kept", True)


def test_many_unknown_fields_are_counted():
    data = (FOLDER / "fit_a_line.startup.pb").read_bytes()
    _, left_out = read_program(data + b"\x2a\x00" * 30, "x.pb", "main")
    assert len(left_out) == 21
    assert "10 more" in left_out[-1].message


def test_an_unknown_group_is_skipped():
    data = (FOLDER / "fit_a_line.startup.pb").read_bytes()
    group = b"\x33\x3b\x08\x01\x12\x01a\x3c\x2d0000\x2900000000\x34"  # field 6, with a group and numbers inside
    program, left_out = read_program(data + group, "x.pb", "main")
    assert len(program.main_block.ops) == 3
    assert [found.message.split(",")[0] for found in left_out] == ["field 6"]
