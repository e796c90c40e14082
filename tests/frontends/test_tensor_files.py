"""Files of variables: Fluid's, and safetensors."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.files import variables
from pstranspile.runtime.files.variables import read_metadata, read_safetensors, write_safetensors
from pstranspile.runtime.values import LoDTensor, SelectedRows
from pstranspile.runtime.values.encoding import (
    read_combined,
    read_selected_rows,
    read_tensor,
    selected_rows_from_bytes,
    tensor_from_bytes,
    to_bytes,
    write_combined,
    write_values,
)

RECORDED = Path(__file__).parent.parent / "data" / "tensor_files"
DTYPES = [
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "float16",
    "uint32",
    "int32",
    "float32",
    "uint64",
    "int64",
    "float64",
]


def test_files_written_by_fluid():
    lod = read_tensor(RECORDED / "load__lod2.bin")
    assert isinstance(lod, LoDTensor)
    assert lod.lod == [[0, 2, 3], [0, 1, 4, 6]]
    rows = read_selected_rows(RECORDED / "load__selected_rows.bin")
    assert (rows.rows.tolist(), rows.height) == ([5, 0, 7], 9)
    combined = read_combined(RECORDED / "load_combine__two.bin", ["a", "b"])
    assert combined["b"].tolist() == [5, 0, 6, 1]


def test_files_are_written_as_fluid_writes_them(tmp_path):
    for name in ("load__lod2", "load__f64_3d"):
        write_values(tmp_path / name, read_tensor(RECORDED / f"{name}.bin"))
        assert (tmp_path / name).read_bytes() == (RECORDED / f"{name}.bin").read_bytes()
    rows = read_selected_rows(RECORDED / "load__selected_rows.bin")
    assert to_bytes(rows) == (RECORDED / "load__selected_rows.bin").read_bytes()
    assert selected_rows_from_bytes(to_bytes(rows)).rows.tolist() == [5, 0, 7]
    combined = read_combined(RECORDED / "load_combine__two.bin", ["a", "b"])
    write_combined(tmp_path / "all", combined)
    assert (tmp_path / "all").read_bytes() == (RECORDED / "load_combine__two.bin").read_bytes()
    half = tensor_from_bytes(to_bytes(np.array([1.5, 2.25]), as_fp16=True))
    assert (half.dtype, half.tolist()) == (np.float16, [1.5, 2.25])


def test_a_value_that_servers_held_whole_is_read_once(tmp_path):
    """Fluid's `recv_save` writes the value of each server, one after the other, under one description."""
    value = np.float32([0.9])
    (tmp_path / "power").write_bytes(to_bytes(value) + np.float32([0.8, 0.7]).tobytes())
    assert read_tensor(tmp_path / "power").tolist() == value.tolist()
    (tmp_path / "power").write_bytes(to_bytes(value) + b"rest of 5"[:5])
    with pytest.raises(DiagnosticError, match="5 bytes follow after all"):
        read_tensor(tmp_path / "power")


def test_what_has_no_bytes_is_refused(tmp_path):
    for value in (np.array(["a"]), np.array([1j]), [1, 2], None):
        with pytest.raises(DiagnosticError) as problem:
            write_values(tmp_path / "w", value)
        assert problem.value.diagnostics[0].code == "values-kind"
    rows = SelectedRows(np.array([1]), np.ones((1, 2)), 3)
    with pytest.raises(DiagnosticError, match="w holds sparse rows"):
        write_combined(tmp_path / "all", {"w": rows})
    assert list(tmp_path.iterdir()) == []


ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    tensors=st.dictionaries(NAMES, ARRAYS, max_size=4), metadata=st.dictionaries(NAMES, st.text(max_size=5), max_size=2)
)
def test_safetensors_come_back_bit_for_bit(tmp_path, tensors, metadata):
    metadata = {k.encode("utf-8", "ignore").decode(): v.encode("utf-8", "ignore").decode() for k, v in metadata.items()}
    write_safetensors(tmp_path / "w", tensors, metadata)
    back = read_safetensors(tmp_path / "w")
    assert sorted(back) == sorted(tensors)
    for name, value in tensors.items():
        assert (back[name].dtype, back[name].shape) == (value.dtype, value.shape)
        assert back[name].tobytes() == value.tobytes()
    assert read_metadata(tmp_path / "w") == metadata
    first = (tmp_path / "w").read_bytes()
    write_safetensors(tmp_path / "w", dict(reversed(tensors.items())), metadata)
    assert (tmp_path / "w").read_bytes() == first
    assert struct.unpack("<Q", first[:8])[0] % 8 == 0


def test_safetensors_as_its_library_writes_them(tmp_path):
    """The header that the library safetensors 0.8.0 wrote for these tensors."""
    w = np.array([[1.5, -2], [0, 4]], "float32")
    write_safetensors(tmp_path / "w", {"a": np.array([1.0]), "w": w, "b": np.arange(3, dtype="int64")}, {"k": "v"})
    header = (
        b'{"__metadata__":{"k":"v"},"b":{"dtype":"I64","shape":[3],"data_offsets":[0,24]},'
        b'"a":{"dtype":"F64","shape":[1],"data_offsets":[24,32]},"w":{"dtype":"F32","shape":[2,2],"data_offsets":[32,48]}}'
    )
    elements = struct.pack("<qqqdffff", 0, 1, 2, 1.0, 1.5, -2.0, 0.0, 4.0)
    assert (tmp_path / "w").read_bytes() == struct.pack("<Q", 0xC0) + header.ljust(0xC0) + elements


def test_some_tensors_of_many(tmp_path):
    write_safetensors(tmp_path / "w", {"a": np.zeros(2), "b": np.ones(3, "int8")})
    assert list(read_safetensors(tmp_path / "w", ["b"])) == ["b"]
    with pytest.raises(DiagnosticError, match="the file has no tensor c"):
        read_safetensors(tmp_path / "w", ["b", "c"])


def test_bfloat16_becomes_float32(tmp_path):
    header = json.dumps({"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "w").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<HH", 0x3FC0, 0xC000))
    assert read_safetensors(tmp_path / "w")["w"].tolist() == [1.5, -2.0]


def test_what_safetensors_cannot_carry_is_refused(tmp_path):
    for name, value in (("w", np.array(["a"])), ("w", [1]), ("__metadata__", np.ones(2))):
        with pytest.raises(DiagnosticError) as problem:
            write_safetensors(tmp_path / "w", {name: value})
        assert problem.value.diagnostics[0].code == "values-kind"


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "data", "code", "message"),
    [
        (b"{", 0, "values-damaged", "header, byte 8: it is not the JSON"),
        (b"\xff\xff", 0, "values-damaged", "header, byte 8: it is not the JSON"),
        (b"[1]", 0, "values-damaged", "header, byte 8: it is not a JSON object"),
        (b"[" * 20000, 0, "values-damaged", "header, byte 8"),
        (b'{"a":1,"a":2}', 0, "values-damaged", "a name occurs twice"),
        ({"__metadata__": {"a": 1}}, 0, "values-damaged", "__metadata__, byte 8"),
        ({"w": 1}, 0, "values-damaged", "its entry in the header is not an object"),
        ({"w": entry(dtype="F7")}, 8, "values-type", "'F7' is not a known element type"),
        ({"w": entry(dtype=["F32"])}, 8, "values-type", "is not a known element type"),
        ({"w": entry(shape=[-2])}, 8, "values-damaged", "shape of w, byte 8"),
        ({"w": entry(shape="2")}, 8, "values-damaged", "shape of w, byte 8"),
        ({"w": entry(shape=[True, 2])}, 8, "values-damaged", "shape of w, byte 8"),
        ({"w": entry(offsets=[8, 0])}, 8, "values-damaged", "data_offsets of w, byte 8"),
        ({"w": entry(offsets=[0])}, 8, "values-damaged", "data_offsets of w, byte 8"),
        ({"w": entry(offsets=[0, 4])}, 8, "values-damaged", "takes 8 bytes"),
        ({"w": entry(offsets=[4, 12])}, 12, "values-damaged", "start at 4, not at 0"),
        ({"a": entry(), "b": entry()}, 16, "values-damaged", "start at 0, not at 8"),
        ({"w": entry()}, 9, "values-damaged", "8 bytes are described, 9 are there"),
        ({"w": entry()}, 7, "values-damaged", "8 bytes are described, 7 are there"),
        ({"w": entry(shape=[0, 2**63], offsets=[0, 0])}, 0, "values-damaged", "there can't be a tensor of dims"),
    ],
)
def test_damaged_safetensors(tmp_path, header, data, code, message):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (tmp_path / "w").write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))
    with pytest.raises(DiagnosticError) as problem:
        read_safetensors(tmp_path / "w")
    (finding,) = problem.value.diagnostics
    assert finding.code == code
    assert message in finding.message
    assert finding.location is not None
    assert finding.location.file == str(tmp_path / "w")


def test_a_boolean_that_is_neither_0_nor_1_is_refused(tmp_path):
    """numpy gives such an element its byte in sums and conversions, so it would be more than True."""
    write_safetensors(tmp_path / "w", {"b": np.array([True, False])})
    (tmp_path / "w").write_bytes((tmp_path / "w").read_bytes()[:-2] + b"\x01\x07")
    with pytest.raises(DiagnosticError, match=r"elements of b, byte .*: a boolean is neither 0 nor 1"):
        read_safetensors(tmp_path / "w")
    with pytest.raises(DiagnosticError, match="a boolean is neither 0 nor 1"):
        tensor_from_bytes(to_bytes(np.array([True, False]))[:-1] + b"\x02")


def test_every_truncation_of_safetensors_is_found(tmp_path):
    write_safetensors(tmp_path / "w", {"a": np.arange(3.0), "b": np.ones((2, 2), "int8")}, {"k": "v"})
    data = (tmp_path / "w").read_bytes()
    for size in range(len(data)):
        (tmp_path / "w").write_bytes(data[:size])
        with pytest.raises(DiagnosticError) as problem:
            read_safetensors(tmp_path / "w")
        assert problem.value.diagnostics[0].code == "values-damaged"


def test_a_message_is_not_as_long_as_the_file(tmp_path):
    header = {"a\x1b[31m": {"dtype": "F32", "shape": [1] * 1_000_000, "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    (tmp_path / "a").write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    with pytest.raises(DiagnosticError) as caught:
        read_safetensors(tmp_path / "a")
    assert "shape of a\\u001b[31m" in str(caught.value)
    assert str(caught.value).endswith("...")
    assert len(str(caught.value)) < 10_000


class _Counted(str):
    """A name that counts how often it is hashed."""

    hashed = 0

    def __hash__(self) -> int:
        _Counted.hashed += 1
        return str.__hash__(self)


@pytest.mark.parametrize("size", [50, 100, 200])
def test_tensors_are_found_in_linear_time(size, tmp_path, monkeypatch):
    write_safetensors(tmp_path / "a", {f"n{number}": np.zeros(1, "float32") for number in range(size)})
    entry = variables._entry
    monkeypatch.setattr(variables, "_entry", lambda reader, name, held: entry(reader, _Counted(name), held))
    _Counted.hashed = 0
    assert len(read_safetensors(tmp_path / "a", [f"n{number}" for number in range(size)])) == size
    assert _Counted.hashed <= 4 * size
