"""Frames: what is written is read again, and nothing else is."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pstranspile.cluster.machines.message import KINDS, Message
from pstranspile.cluster.machines.rings import Piece, RingContribution, Statement, Total
from pstranspile.cluster.net import wire
from pstranspile.cluster.net.transport import LEAST_REUSED, MOST_LENT, MOST_REUSED, _Buffers
from pstranspile.cluster.net.wire import (
    HEADER_SIZE,
    MESSAGES,
    Header,
    WireError,
    frame,
    messages_body,
    read_header,
    read_messages,
)
from pstranspile.runtime.arithmetic import loops
from pstranspile.runtime.values import LoDTensor, SelectedRows

MACHINES = ["pserver_0", "trainer_0", "trainer_1"]
NUMBERS = {name: number for number, name in enumerate(MACHINES)}

TENSORS = arrays.arrays(
    st.sampled_from(["float32", "float64", "int64", "int32", "bool", "uint8"]),
    arrays.array_shapes(min_dims=0, min_side=0),
)


@st.composite
def ragged(draw: st.DrawFn) -> LoDTensor:
    lengths = draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    return LoDTensor(np.ones((sum(lengths), 2), "float32"), [[0, *np.cumsum(lengths).tolist()]])


@st.composite
def rows(draw: st.DrawFn) -> SelectedRows:
    numbers = draw(st.lists(st.integers(0, 9), max_size=6))
    return SelectedRows(np.array(numbers, "int64"), np.arange(len(numbers) * 3, dtype="float32").reshape(-1, 3), 10)


PARTS = st.builds(
    RingContribution,
    st.just("c_allreduce_sum"),
    st.integers(0, 3),
    st.booleans(),
    st.text(),
    st.none() | TENSORS | rows(),
)
KEYS = st.tuples(st.integers(-5, 1 << 62), st.integers(0, 1 << 20))
SEGMENTS = st.integers(0, 99)
TOTALS = st.builds(Total, SEGMENTS, KEYS, st.text(), KEYS, st.lists(SEGMENTS, max_size=3).map(tuple), TENSORS | rows())

PAYLOADS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(),
    TENSORS,
    ragged(),
    rows(),
    PARTS,
    st.builds(Piece, SEGMENTS, KEYS, st.text(), KEYS, PARTS),
    TOTALS,
    st.builds(Statement, SEGMENTS, KEYS, st.lists(TOTALS, max_size=2).map(tuple)),
)

SENT = st.lists(
    st.builds(
        Message,
        st.sampled_from(KINDS),
        st.sampled_from(MACHINES),
        st.sampled_from(MACHINES),
        st.integers(-1, 100),
        st.integers(-5, 1 << 62),
        st.integers(1, 1 << 60),
        st.text(),
        PAYLOADS,
        st.integers(-1, 1000),
    ),
    max_size=5,
)


def same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and one.dtype == other.dtype
            and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
        )
    if isinstance(one, tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@given(SENT)
def test_messages_come_as_they_were_sent(messages: list[Message]) -> None:
    data = whole(Header(MESSAGES, 7, 5, 3), messages_body(messages, NUMBERS))
    assert read_header(data) == Header(MESSAGES, 7, 5, 3)
    found = read_messages(data, MACHINES)
    assert len(found) == len(messages)
    assert all(same(tuple(a), tuple(b)) for a, b in zip(messages, found, strict=True))


@given(SENT)
def test_compiled_loops_and_python_make_the_same_bytes_and_read_the_same(messages: list[Message]) -> None:
    body = messages_body(messages, NUMBERS)
    data = whole(Header(MESSAGES, 7, 5, 3), body)
    found = read_messages(data, MACHINES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "COMPILED", False)
        assert messages_body(messages, NUMBERS) == body
        alone = read_messages(data, MACHINES)
    assert same(tuple(map(tuple, found)), tuple(map(tuple, alone)))


def test_frames_with_a_changed_or_cut_body_are_read_alike_by_compiled_loops_and_python() -> None:
    data, draw = example(), random.Random(3)

    def read(changed: bytes) -> object:
        try:
            return tuple(map(tuple, read_messages(changed, MACHINES)))
        except WireError as problem:
            return str(problem)

    changed: list[bytes] = []
    for _ in range(3000):
        at, other = draw.randrange(HEADER_SIZE, HEADER_SIZE + 400), bytearray(data)
        other[draw.choice([at, -1 - at, HEADER_SIZE + 4 + at % 110])] = draw.randrange(256)
        changed.append(bytes(other[: draw.choice([len(data), len(data), at])]))
    found = [read(each) for each in changed]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "COMPILED", False)
        assert all(same(one, read(each)) for one, each in zip(found, changed, strict=True))


def whole(header: Header, body: bytes) -> bytes:
    return b"".join(frame(header, body))


def example() -> bytes:
    payloads = [
        np.arange(3000, dtype="float32").reshape(3, 1000),
        SelectedRows(np.array([1, 4]), np.ones((2, 3), "f4"), 9),
        None,
    ]
    messages = [Message("send", "trainer_0", "pserver_0", 0, 2, n + 1, "w@GRAD", p, -1) for n, p in enumerate(payloads)]
    return whole(Header(MESSAGES, 1, 0, 0), messages_body(messages, NUMBERS))


def test_no_change_of_a_frame_goes_unseen() -> None:
    """Whatever is done to the bytes, they are refused before any message is taken."""
    data, random_ = example(), random.Random(1)
    for _ in range(2000):
        changed = bytearray(data)
        for _ in range(random_.randint(1, 4)):
            place = random_.randrange(len(changed))
            changed[place] ^= random_.randint(1, 255)
        if random_.random() < 0.3:
            del changed[random_.randrange(len(changed)) :]
        if bytes(changed) != data:
            with pytest.raises(WireError):
                read_header(bytes(changed))


def test_a_body_under_tls_has_no_check_sum() -> None:
    """TLS authenticates it; without TLS such a frame is refused, and under TLS one that has a check sum."""
    body = messages_body([Message("send", "trainer_0", "pserver_0", 0, 2, 1, "w@GRAD", np.ones(9), -1)], NUMBERS)
    header = Header(MESSAGES, 1, 0, 0)
    plain, guarded = (b"".join(frame(header, body, under_tls)) for under_tls in (False, True))
    assert read_header(plain) == read_header(guarded, guarded=True) == header
    for data, under_tls in ((plain, True), (guarded, False)):
        with pytest.raises(WireError, match="its check sum is another"):
            read_header(data, under_tls)


def test_a_body_that_is_not_well_formed_is_refused() -> None:
    """Also with a check sum that fits, as someone could make it who means harm."""
    data, random_ = example(), random.Random(2)
    body = data[HEADER_SIZE:]
    for _ in range(3000):
        changed = bytearray(body)
        place = random_.choice([random_.randrange(100), random_.randrange(len(body) - 100, len(body))])
        changed[place] = random_.randint(0, 255)
        if random_.random() < 0.3:
            del changed[random_.randrange(len(changed)) :]
        forged = data[: len(data) - len(body)] + bytes(changed)
        try:
            found = read_messages(forged, MACHINES)
        except WireError:
            continue
        assert all(message.kind in KINDS and message.target in MACHINES for message in found)


@pytest.mark.parametrize(
    "value",
    [
        LoDTensor(np.ones((3, 1)), [[0, 2]]),
        LoDTensor(np.ones((3, 1)), [[1, 3]]),
        LoDTensor(np.ones((3, 1)), [[0, 2, 1, 3]]),
        SelectedRows(np.array([3]), np.ones((1, 2)), 3),
        SelectedRows(np.array([-1]), np.ones((1, 2)), 3),
        SelectedRows(np.array([0, 1]), np.ones((1, 2)), 3),
    ],
)
def test_values_whose_parts_do_not_fit_are_refused(value: object) -> None:
    message = Message("send", "trainer_0", "pserver_0", 0, 2, 1, "w@GRAD", value, -1)
    with pytest.raises(WireError):
        read_messages(whole(Header(MESSAGES, 1, 0, 0), messages_body([message], NUMBERS)), MACHINES)


def test_what_has_no_form_is_not_sent() -> None:
    message = Message("send", "trainer_0", "pserver_0", 0, 2, 1, "w@GRAD", object(), -1)
    with pytest.raises(WireError, match="object can't be sent"):
        messages_body([message], NUMBERS)


def sent(payload: object, variable: str = "w") -> bytes:
    """The frame of a message, whose sender has no bounds."""
    message = Message("send", "trainer_0", "pserver_0", 0, 2, 1, variable, payload, -1)
    return whole(Header(MESSAGES, 1, 0, 0), messages_body([message], NUMBERS))


def body_of(kind: int, content: bytes) -> bytes:
    """A frame with a message that carries a value of a kind that is written by hand."""
    begun = sent(None)[HEADER_SIZE:-1]
    return whole(Header(MESSAGES, 1, 0, 0), begun + bytes([kind]) + content)


EMPTY_SUM = Total(0, (0, 0), "w", (-1, 0), (), None)


def without_bounds(monkeypatch: pytest.MonkeyPatch, make: Callable[[], bytes]) -> bytes:
    """What a sender makes that is not of this package."""
    with monkeypatch.context() as patch:
        patch.setattr(wire, "MOST_OFFSETS", 1 << 62)
        return make()


BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "values in a tuple": (lambda: body_of(9, struct.pack("<I", 1 << 22) + bytes(1 << 22)), "no value begins"),
    "tuples in tuples": (lambda: body_of(9, (b"\1\0\0\0\x09" * (1 << 20))[:-1] + b"\0"), "no value begins"),
    "messages": (
        lambda: whole(
            Header(MESSAGES, 1, 0, 0), struct.pack("<I", 80_000) + sent(None)[HEADER_SIZE + 4 :] * 80_000
        ),
        "80000 messages are announced",
    ),
    "sums of a statement": (lambda: sent(Statement(0, (0, 0), (EMPTY_SUM,) * 80_000)), "more than 65536 sums"),
    "a negative number of sums": (
        lambda: body_of(13, struct.pack("<Iqqqq", 0, 0, 0, 0, -1)), "more than 65536 sums",
    ),
    "trainers of a sum": (
        lambda: sent(EMPTY_SUM._replace(trainers=tuple(range(2 << 20)))), "name trainers more than 1048576 times",
    ),
    "trainers of many sums": (
        lambda: sent(
            Statement(0, (0, 0), tuple(EMPTY_SUM._replace(trainers=(*range(n, n + 999),)) for n in range(5000)))
        ),
        "name trainers more than 1048576 times",
    ),
    "offsets": (lambda: sent(LoDTensor(np.ones((1, 1), "float32"), [[0] * (2 << 20) + [1]])), "1048576 offsets"),
    "offsets of many levels": (
        lambda: sent(LoDTensor(np.ones((9000, 1), "float32"), [list(range(9001))] * 200)), "1048576 offsets",
    ),
    "a long text": (lambda: sent("\U0001f600" + "x" * (4 << 20)), "a text of 4194308 bytes"),
    "a long name": (lambda: sent(None, "\U0001f600" + "x" * (4 << 20)), "a text of 4194308 bytes"),
    "a sum in a sum": (
        lambda: body_of(12, struct.pack("<Iqqqq", *[0] * 5) + struct.pack("<II", 0, 0) + b"\x0d"), "no value begins",
    ),
}  # fmt: skip
"""Frames whose values would take many times the frame's bytes, or as many calls as it has bytes."""


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_grows_as_it_is_read_is_refused_before_it_grows(bomb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, expected = BOMBS[bomb]
    data = without_bounds(monkeypatch, make)
    taken = 0
    take = wire.FrameReader.take

    def counted(reader: wire.FrameReader, size: int) -> int:
        nonlocal taken
        taken += 1
        return take(reader, size)

    monkeypatch.setattr(wire.FrameReader, "take", counted)
    tracemalloc.start()
    with pytest.raises(WireError, match=expected):
        read_messages(data, MACHINES)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 10 * wire.MOST_SUMS
    assert peak < 4 * len(data) + (1 << 20)


def test_a_sender_does_not_make_what_is_refused() -> None:
    message = Message("send", "trainer_0", "pserver_0", 0, 2, 1, "w", LoDTensor(np.ones((1, 1)), [[0] * (2 << 20)]), -1)
    assert not wire.can_be_sent(message.payload)
    with pytest.raises(WireError, match="more than 1048576 offsets"):
        messages_body([message], NUMBERS)
    with pytest.raises(WireError, match="tuple can't be sent"):
        messages_body([message._replace(payload=(1, 2))], NUMBERS)


def of_sizes(*sizes: int) -> tuple[_Buffers, list[np.ndarray]]:
    """Buffers of a connection, and an array in each of those that were lent for frames of these sizes."""
    buffers = _Buffers()
    return buffers, [np.frombuffer(buffers.buffer_of(size), "uint8") for size in sizes]


def test_the_memory_of_a_frame_is_used_again_once_its_values_are_gone():
    buffers, held = of_sizes(1 << 20, 1 << 20)
    places = [each.ctypes.data for each in held]
    assert places[0] != places[1]
    part = held.pop(0)[100:200]
    assert np.frombuffer(buffers.buffer_of(1 << 20), "uint8").ctypes.data not in places  # `part` is still in use
    del part
    assert np.frombuffer(buffers.buffer_of(1_000_000), "uint8").ctypes.data not in places[1:]
    assert held[0].ctypes.data == places[1]


def test_frames_of_other_sizes_do_not_pile_up():
    buffers = _Buffers()
    for size in range(300_000, 1_200_000, 50_000):
        assert len(buffers.buffer_of(size)) == size
        assert len(buffers._lent) <= 3
    for size in (100, LEAST_REUSED - 1, MOST_REUSED):
        assert len(buffers.buffer_of(size)) == size
        assert len(buffers._lent) <= 3


def test_a_connection_keeps_few_buffers():
    buffers, held = of_sizes(*[1 << 19] * (2 * MOST_LENT))
    assert len({each.ctypes.data for each in held}) == len(held)
    assert len(buffers._lent) == MOST_LENT
