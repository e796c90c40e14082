"""Files of variables in Fluid's layout: recorded ones, round trips, damage, and the ops that read and write them."""

import json
import struct
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pstranspile.ir.attributes import Long, Longs
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.values import LoDTensor, SelectedRows
from pstranspile.runtime.values.encoding import (
    FieldReader,
    as_float16,
    decode_part,
    decode_selected_rows,
    decode_tensor,
    encode,
    end,
    to_float16,
    write_files,
)
from tests.ops.computing import compute

RECORDED = Path(__file__).parents[2] / "data" / "tensor_files"
"""Files that Fluid 1.8.5 wrote, and what they hold."""
EXPECTED = json.loads((RECORDED / "expected.json").read_text())
DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64"]


def reader(data: bytes) -> FieldReader:
    return FieldReader(BytesIO(data), "w.bin")


def read_all(data: bytes, *sparse: bool) -> list:
    """All values of a file; `sparse` tells of each whether it is sparse rows."""
    source = reader(data)
    values = [(decode_selected_rows if rows else decode_tensor)(source) for rows in sparse]
    end(source)
    return values


def code_of(problem: pytest.ExceptionInfo[DiagnosticError]) -> str:
    (finding,) = problem.value.diagnostics
    assert finding.location is not None
    assert finding.location.file == "w.bin"
    return finding.code


def same(a, b) -> bool:
    if isinstance(a, tuple):
        return type(a) is type(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a == b


def expected_value(held):
    value = np.array(held["value"], held["dtype"])
    if "rows" in held:
        return SelectedRows(np.array(held["rows"], "int64"), value, held["height"])
    return LoDTensor(value, held["lod"]) if "lod" in held else value


@pytest.mark.parametrize("name", EXPECTED)
def test_recorded_files(name):
    data = (RECORDED / f"{name}.bin").read_bytes()
    values = read_all(data, *("rows" in held for held in EXPECTED[name]))
    for value, held in zip(values, EXPECTED[name], strict=True):
        assert same(value, expected_value(held))
    assert b"".join(piece for value in values for piece in encode(value)) == data


ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4))
)


@st.composite
def ragged(draw):
    inner = draw(st.lists(st.integers(0, 3), max_size=5))
    outer = draw(st.lists(st.integers(0, 2), max_size=3))
    offsets = np.cumsum([0, *inner]).tolist()
    levels = [offsets]
    if draw(st.booleans()):
        outer.append(max(len(inner) - sum(outer), 0))
        while sum(outer) > len(inner):
            outer.pop()
        outer.append(len(inner) - sum(outer))
        levels.insert(0, np.cumsum([0, *outer]).tolist())
    return LoDTensor(np.arange(offsets[-1] * 2, dtype="float32").reshape(-1, 2), levels)


@given(ARRAYS | ragged())
def test_tensors_come_back_bit_for_bit(value):
    source = reader(b"".join(encode(value)))
    assert same(decode_tensor(source), value)
    end(source)


@given(st.lists(st.integers(0, 2**40), max_size=4), st.integers(0, 2), st.integers(0, 2**62))
def test_sparse_rows_come_back_bit_for_bit(rows, room, height):
    value = np.random.default_rng(1).standard_normal((len(rows) + room, 3))
    held = SelectedRows(np.array(rows, "int64"), value, height)
    assert same(decode_selected_rows(reader(b"".join(encode(held)))), held)


def test_the_order_of_memory_does_not_matter():
    x = np.arange(6.0).reshape(2, 3)
    written = b"".join(encode(x))
    assert b"".join(encode(np.asfortranarray(x))) == written
    assert b"".join(encode(x.astype(">f8"))) == written


@pytest.mark.parametrize("name", EXPECTED)
def test_every_truncation_is_reported(name):
    data = (RECORDED / f"{name}.bin").read_bytes()
    sparse = ["rows" in held for held in EXPECTED[name]]
    for size in range(len(data)):
        with pytest.raises(DiagnosticError) as problem:
            read_all(data[:size], *sparse)
        assert code_of(problem) == "values-damaged"
        assert "byte" in problem.value.diagnostics[0].message


@settings(max_examples=300)
@given(name=st.sampled_from(sorted(EXPECTED)), data=st.data())
def test_damage_gives_a_value_or_a_finding(name, data):
    held = bytearray((RECORDED / f"{name}.bin").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        held[data.draw(st.integers(0, len(held) - 1))] = data.draw(st.integers(0, 255))
    for sparse in (False, True):
        findings = ()
        try:
            read_all(bytes(held), sparse)
        except DiagnosticError as problem:
            findings = problem.diagnostics
        assert all(finding.code.startswith("values-") for finding in findings)


PLAIN = b"".join(encode(np.arange(6, dtype="float32").reshape(2, 3)))
"""uint32 version, uint64 levels, uint32 version, int32 size 6, 08 05 10 02 10 03, 24 bytes."""


@pytest.mark.parametrize(
    ("at", "put", "code", "message"),
    [
        (0, b"\x01", "values-version", "version, byte 0: version 1 is not known"),
        (4, b"\x09", "values-damaged", "number of LoD levels, byte 4: 9 levels do not fit"),
        (12, b"\x02", "values-version", "tensor version, byte 12: version 2"),
        (16, b"\xff\xff\xff\xff", "values-damaged", "size of the tensor descriptor, byte 16: -1 bytes"),
        (20, b"\x10\x05", "values-damaged", "element type, byte 20: the descriptor has none"),
        (21, b"\x07", "values-type", "element type, byte 20: 7 stands for none"),
        (22, b"\x18", "values-damaged", "tensor descriptor, byte 22: field 3 is not known"),
        (22, b"\x15", "values-damaged", "tensor descriptor, byte 22: 21 does not start a field"),
        (25, b"\x80", "values-damaged", "tensor descriptor, byte 25: a number does not end"),
        (25, b"\x7f", "values-damaged", "elements, byte 26: 1016 bytes are needed, 24 are left"),
        (25, b"\x02", "values-rest", "byte 42: 8 bytes follow"),
    ],
)
def test_findings_name_field_and_byte(at, put, code, message):
    with pytest.raises(DiagnosticError) as problem:
        read_all(PLAIN[:at] + put + PLAIN[at + len(put) :], False)
    assert code_of(problem) == code
    assert problem.value.diagnostics[0].message.startswith(message)


def lod_file(*levels: list[int], rows: int = 3) -> bytes:
    head = struct.pack("<IQ", 0, len(levels))
    for level in levels:
        head += struct.pack(f"<Q{len(level)}Q", 8 * len(level), *level)
    return head + b"".join(encode(np.zeros((rows, 1), "float32")))[12:]


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ([[0, 2, 1, 3]], "LoD level 0, byte 20: the offsets do not ascend from 0"),
        ([[1, 3]], "LoD level 0, byte 20: the offsets do not ascend from 0"),
        ([[]], "LoD level 0, byte 20: the offsets do not ascend from 0"),
        ([[0, 2]], r"LoD, byte 4: the last level ends at 2, but the dims are \[3, 1\]"),
        ([[0, 1], [0, 1, 3]], "LoD level 1, byte 44: 2 sequences, but the level above ends at 1"),
    ],
)
def test_offsets_that_describe_no_sequences(levels, message):
    with pytest.raises(DiagnosticError, match=message):
        decode_tensor(reader(lod_file(*levels)))


def test_rows_that_cannot_be():
    def file(rows, height, value):
        return struct.pack(f"<IQ{len(rows)}qq", 0, len(rows), *rows, height) + b"".join(encode(value))[12:]

    value = np.zeros((2, 1), "float32")
    for data, message in (
        (file([1, 2], -1, value), "height, byte 28: -1 is negative"),
        (file([1, -2], 9, value), "rows, byte 12: row -2 is negative"),
        (file([1, 2, 3], 9, value), r"dims, byte 44: \[2, 1\] do not hold the values of 3 rows"),
    ):
        with pytest.raises(DiagnosticError, match=message):
            decode_selected_rows(reader(data))


def test_dims_that_numpy_cannot_represent_are_reported():
    huge = b"\x10" + b"\xff" * 8 + b"\x7f"
    descriptor = b"\x08\x05\x10\x00" + huge
    data = struct.pack("<IQIi", 0, 0, 0, len(descriptor)) + descriptor
    with pytest.raises(DiagnosticError, match="there can't be a tensor of dims"):
        decode_tensor(reader(data))


@given(st.lists(st.floats(width=32, allow_nan=True), max_size=20))
def test_float16_is_rounded_toward_zero(numbers):
    x = np.array(numbers, "float32")
    half = to_float16(x)
    back = half.astype("float32")
    finite = np.isfinite(x) & (np.abs(x) <= 65504)
    assert (np.abs(back[finite]) <= np.abs(x[finite])).all()
    with np.errstate(over="ignore"):
        above = np.nextafter(np.abs(half[finite]), np.float16(np.inf)).astype("float32")
    assert (above > np.abs(x[finite])).all()
    assert np.isinf(back[np.isfinite(x) & (np.abs(x) > 65504)]).all()
    assert (np.isnan(back) == np.isnan(x)).all()
    assert (np.signbit(back) == np.signbit(x)).all()


def test_float16_as_fluid_rounds_it():
    numbers = [65504, 65505, 65520, 1e6, -65510, 6e-8, 5.9e-8, 6.1e-5, 6.2e-5, -1.00097, 1.0009765, 2049, 2051, 1e-40]
    bits = [0x7BFF, 0x7C00, 0x7C00, 0x7C00, 0xFC00, 1, 0, 0x3FF, 0x410, 0xBC00, 0x3C00, 0x6800, 0x6801, 0]
    assert to_float16(np.array(numbers, "float32")).view("uint16").tolist() == bits


def test_a_part_is_read_without_the_rest():
    assert decode_part(reader(PLAIN), 2, (2, 2)).tolist() == [[2, 3], [4, 5]]
    with pytest.raises(DiagnosticError) as problem:
        decode_part(reader(PLAIN), 3, (2, 2))
    assert code_of(problem) == "values-range"


# The ops


def test_save_and_load(tmp_path):
    value = LoDTensor(np.arange(6.0).reshape(3, 2), [[0, 1, 3]])
    compute("save", {"X": value}, {}, {"file_path": "sub/w"}, folder=tmp_path)
    assert same(compute("load", {}, {"Out": "w"}, {"file_path": "sub/w"}, folder=tmp_path).find("w"), value)
    half = compute("load", {}, {"Out": "w"}, {"file_path": "sub/w", "load_as_fp16": True}, folder=tmp_path).find("w")
    assert same(half, as_float16(value))
    attrs = {"file_path": "sub/w", "seek": Long(1), "shape": Longs((2, 2))}
    assert compute("load", {}, {"Out": "w"}, attrs, folder=tmp_path).find("w").tolist() == [[1, 2], [3, 4]]
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["w"]


def test_save_and_load_sparse_rows(tmp_path):
    value = SelectedRows(np.array([5, 2]), np.ones((2, 3), "float32"), 9)
    compute("save", {"X": value}, {}, {"file_path": "w"}, folder=tmp_path)
    assert same(compute("load", {}, {"Out": "w"}, {"file_path": "w"}, folder=tmp_path, sparse=("w",)).find("w"), value)


def test_save_overwrites_only_if_asked(tmp_path):
    for _ in range(2):
        compute("save", {"X": np.ones(2)}, {}, {"file_path": "w"}, folder=tmp_path)
    with pytest.raises(DiagnosticError, match="the file is there already"):
        compute("save", {"X": np.zeros(2)}, {}, {"file_path": "w", "overwrite": False}, folder=tmp_path)
    assert compute("load", {}, {"Out": "w"}, {"file_path": "w"}, folder=tmp_path).find("w").tolist() == [1, 1]


def test_save_combine_and_load_combine(tmp_path):
    values = [np.arange(3.0), LoDTensor(np.ones((3, 1), "int64"), [[0, 3]])]
    compute("save_combine", {"X": values}, {"Y": "y"}, {"file_path": "all"}, folder=tmp_path)
    frame = compute("load_combine", {}, {"Out": ["a", "b"]}, {"file_path": "all"}, folder=tmp_path)
    assert all(same(frame.find(name), value) for name, value in zip("ab", values, strict=True))
    with pytest.raises(DiagnosticError, match="c: version, byte 122: 4 bytes are needed, 0 are left"):
        compute("load_combine", {}, {"Out": ["a", "b", "c"]}, {"file_path": "all"}, folder=tmp_path)
    with pytest.raises(DiagnosticError, match="bytes follow"):
        compute("load_combine", {}, {"Out": ["a"]}, {"file_path": "all"}, folder=tmp_path)


def test_save_combine_to_memory(tmp_path):
    frame = compute(
        "save_combine", {"X": [np.arange(3.0)]}, {"Y": "y"}, {"file_path": "", "save_to_memory": True}, folder=tmp_path
    )
    assert frame.find("y") == b"".join(encode(np.arange(3.0)))


def test_missing_files_and_unwritable_places(tmp_path):
    with pytest.raises(DiagnosticError, match="can't be read: No such file"):
        compute("load", {}, {"Out": "w"}, {"file_path": "none"}, folder=tmp_path)
    with pytest.raises(DiagnosticError, match="can't be read: Is a directory"):
        compute("load", {}, {"Out": "w"}, {"file_path": "."}, folder=tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DiagnosticError, match="can't be written"):
        compute("save", {"X": np.ones(2)}, {}, {"file_path": "file/w"}, folder=tmp_path)
    with pytest.raises(DiagnosticError, match=r"file: .*version, byte 0: 4 bytes are needed, 0 are left"):
        compute("load", {}, {"Out": "w"}, {"file_path": "file"}, folder=tmp_path)


def test_no_file_is_replaced_before_all_are_written(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "b").mkdir()
    with pytest.raises(DiagnosticError, match="can't be written"):
        write_files({tmp_path / "a": [b"new"], tmp_path / "b": [b"new"]})
    assert (tmp_path / "a").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
