"""Fluid's messages: the bytes are those of its schema, and nothing else is taken for one."""

from __future__ import annotations

import contextlib
import tracemalloc
from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.net.wire import WireError
from pstranspile.fluid.net import message
from pstranspile.fluid.net.message import (
    VariableMessage,
    read_request,
    read_variable,
    value_of,
    write_value,
    write_variable,
)
from pstranspile.runtime.values import LoDTensor, SelectedRows
from tests.cluster.machines.fuzz import NIGHTLY

MUTATIONS = 100_000 if NIGHTLY else 3000


def schema() -> Any:
    """The message as protobuf's own library knows it, by the numbers of Fluid's fields."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="send_recv_test.proto", package="t", syntax="proto3")
    level = file.message_type.add(name="LodData")
    level.field.add(name="lod_data", number=1, type=3, label=3)
    message = file.message_type.add(name="VariableMessage")
    for name, number, kind, label in (
        ("varname", 1, 9, 1), ("type", 2, 5, 1), ("data_type", 3, 5, 1), ("dims", 4, 3, 3), ("lod_level", 5, 3, 1),
        ("slr_height", 7, 3, 1), ("serialized", 8, 12, 1), ("rows", 9, 12, 1), ("out_varname", 10, 9, 1),
        ("profile", 11, 3, 1), ("trainer_id", 12, 3, 1), ("table_name", 13, 9, 1),
    ):  # fmt: skip
        message.field.add(name=name, number=number, type=kind, label=label)
    message.field.add(name="lod", number=6, type=11, label=3, type_name=".t.LodData")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.VariableMessage"))


ROWS = SelectedRows(np.array([3, 0, 3]), np.arange(6, dtype="float32").reshape(3, 2), 5)
VALUES = [
    np.arange(6, dtype="float32").reshape(2, 3),
    np.array([[-1], [1 << 40]]),
    np.array([True, False]),
    np.float64(2.5).reshape(1),
    np.zeros((0, 4), "float32"),
    np.array([7], "int32"),
    LoDTensor(np.ones((5, 1), "float32"), [[0, 1, 3], [0, 2, 4, 5]]),
    ROWS,
    SelectedRows(np.array([], "int64"), np.zeros((0, 2), "float32"), 5),
]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, LoDTensor):
        return one.lod == other.lod and same(one.data, other.data)
    return one.height == other.height and same(one.rows, other.rows) and same(one.value, other.value)


@pytest.mark.parametrize("value", VALUES)
def test_values_come_back(value: Any) -> None:
    data = write_value(VariableMessage("w@GRAD.block1", trainer_id=3, out_varname="w", table_name="t"), value)
    message = read_variable(data)
    assert (message.varname, message.trainer_id, message.out_varname, message.table_name) == (
        "w@GRAD.block1", 3, "w", "t",
    )  # fmt: skip
    assert same(value_of(message), value)


@pytest.mark.parametrize("value", VALUES)
def test_the_fields_are_those_of_the_schema(value: Any) -> None:
    """Written here and read by protobuf's library, and the other way round, in its order of fields."""
    made = schema().FromString(write_value(VariableMessage("x", trainer_id=1, out_varname="y"), value))
    array = value.value if isinstance(value, SelectedRows) else value.data if isinstance(value, LoDTensor) else value
    assert (made.varname, made.out_varname, made.trainer_id) == ("x", "y", 1)
    assert list(made.dims) == list(array.shape)
    assert made.serialized == array.tobytes()
    assert [list(level.lod_data) for level in made.lod] == (value.lod if isinstance(value, LoDTensor) else [])
    assert made.lod_level == len(made.lod)
    if isinstance(value, SelectedRows):
        assert (made.type, made.slr_height, made.rows) == (1, value.height, value.rows.tobytes())
    assert same(value_of(read_variable(made.SerializeToString())), value)


def test_a_small_message_byte_by_byte() -> None:
    data = write_value(VariableMessage("x", trainer_id=1), np.array([1.0], "float32"))
    assert data == b"\x0a\x01x\x18\x05\x22\x01\x01\x60\x01\x42\x04\x00\x00\x80\x3f"
    assert write_variable(VariableMessage("FETCH_BARRIER@RECV")) == b"\x0a\x12FETCH_BARRIER@RECV"


def test_numbers_are_not_copied_when_they_are_read() -> None:
    data = write_value(VariableMessage("x"), np.arange(1000.0))
    assert np.shares_memory(value_of(read_variable(data)), np.frombuffer(data, "uint8"))


def test_dims_that_are_not_packed() -> None:
    assert read_variable(b"\x20\x02\x20\x03").dims == (2, 3)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x72\x01x", "no field 14"),
        (b"\x82\x01\x01x", "no field 16"),
        (b"\x0a\x05x", "5 bytes are announced"),
        (b"\x0a\x01\xff", "no UTF-8"),
        (b"\x60" + b"\xff" * 11, "no number ends"),
        (b"\x08\x01", "no field 1 of wire type 0"),
        (b"\x32\x02\x10\x01", "no field 2 of wire type 0"),
    ],
)
def test_what_is_no_message(data: bytes, said: str) -> None:
    with pytest.raises(WireError, match=said):
        read_variable(data)


def field(**fields: Any) -> bytes:
    return schema()(**fields).SerializeToString()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"data_type": 4, "dims": [1], "serialized": b"12"}, "element type 4"),
        ({"data_type": 5, "dims": [2], "serialized": b"1234"}, r"4 bytes where dims \[2\] of float32 take 8"),
        ({"data_type": 5, "dims": [-1], "serialized": b""}, r"dims \[-1\]"),
        ({"data_type": 5, "dims": [1 << 40, 0], "serialized": b""}, "dims"),
        ({"data_type": 5, "dims": [1], "serialized": b"1234", "type": 2}, "kind 2"),
        ({"data_type": 5, "dims": [1, 1], "serialized": b"1234", "type": 1, "slr_height": 3}, "row numbers"),
        (
            {
                "data_type": 5, "dims": [1, 1], "serialized": b"1234", "type": 1, "slr_height": 3,
                "rows": (3).to_bytes(8, "little"),
            },
            "outside of 3 rows",
        ),
        ({"data_type": 5, "dims": [1], "serialized": b"1234", "lod": [{"lod_data": [0, 2]}]}, "offsets"),
        ({"data_type": 5, "dims": [1], "serialized": b"1234", "lod": [{}]}, "offsets"),
    ],
)  # fmt: skip
def test_what_is_no_value(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(WireError, match=said):
        value_of(read_variable(field(varname="x", **fields)))


def test_what_fluid_can_t_receive_is_not_written() -> None:
    with pytest.raises(WireError, match="can't receive x of float16"):
        write_value(VariableMessage("x"), np.zeros(1, "float16"))


def test_damaged_messages_are_refused_or_read() -> None:
    """Never anything else, whatever bytes change."""
    random = np.random.RandomState(0)
    whole = [write_value(VariableMessage("w", trainer_id=1, out_varname="w"), value) for value in VALUES]
    for number in range(MUTATIONS):
        data = bytearray(whole[number % len(whole)])
        for _ in range(random.randint(1, 4)):
            data[random.randint(len(data))] = random.randint(256)
        with contextlib.suppress(WireError):
            value_of(read_variable(bytes(data[: random.randint(len(data)) + 1])))


def piece(number: int, data: bytes) -> bytes:
    size, length = len(data), b""
    while size > 0x7F:
        size, length = size >> 7, length + bytes([size & 0x7F | 0x80])
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


MANY, MOST = 1 << 20, 1 << 16
BOMBS = {
    "dims": (piece(4, bytes(MANY)), "more than 16 numbers"),
    "dims one by one": (b"\x20\x01" * MANY, "more than 256 fields"),
    "fields": (b"\x28\x01" * MANY, "more than 256 fields"),
    "offsets": (piece(6, piece(1, bytes(MANY))), "more than 65536 numbers"),
    "offsets one by one": (piece(6, b"\x08\x01" * MANY), "more than 65536 offsets"),
    "offsets of many levels": (piece(6, piece(1, bytes(1 << 12))) * 64, "more than 65536 offsets"),
    "empty pieces of a level": (piece(6, b"\x0a\x00" * MANY), "more than 65536 offsets"),
    "levels": (b"\x32\x00" * MANY, "more than 256 fields"),
    "a name": (piece(1, "\U0001f600".encode() + b"x" * MANY), "a name in a Fluid message has"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_grows_as_it_is_read_is_refused_before_it_grows(bomb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, expected = BOMBS[bomb]
    reader: Any = message._MessageReader
    read, varint = 0, reader.varint

    def counted(self: Any) -> int:
        nonlocal read
        read += 1
        return varint(self)

    monkeypatch.setattr(reader, "varint", counted)
    monkeypatch.setattr(message, "MOST_OFFSETS", MOST)
    tracemalloc.start()
    with pytest.raises(WireError, match=expected):
        read_variable(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read < 3 * MOST
    assert peak < 40 * MOST


def test_what_is_remembered_is_what_would_be_read_and_written() -> None:
    """Requests, and the beginnings of answers, are remembered by all that they hold."""
    asked = [VariableMessage(name, out_varname=out) for name in ("w", "b") for out in ("w", "own/w", "x" * 300)]
    for one in [*asked, *reversed(asked)]:
        assert read_request(bytearray(write_variable(one))) == read_variable(write_variable(one)) == one
    for _ in range(2):
        with pytest.raises(WireError):
            read_request(write_variable(asked[0])[:-1])
    for value in [*VALUES, *reversed(VALUES), VALUES[0] + 1, VALUES[0].T, VALUES[0].astype("float64")]:
        for trainer in (0, 1):
            data = write_value(VariableMessage("w", trainer_id=trainer), value)
            assert read_variable(data).trainer_id == trainer
            assert repr(value_of(read_variable(data))) == repr(value)


def test_what_is_remembered_keeps_no_tensor() -> None:
    value: Any = np.zeros(1 << 20, "float32")
    tracemalloc.start()
    try:
        for number in range(20):
            message.pieces_of(message.with_value(VariableMessage(f"w{number}"), value.copy()))
        assert tracemalloc.get_traced_memory()[0] < value.nbytes
    finally:
        tracemalloc.stop()
