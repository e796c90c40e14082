"""Frames: the units in which two processes of a job communicate.

A frame is a header and a body, each with a check sum: for the header a CRC, for the body, which may be large, the CRC
of the sums of its blocks. A body that travels under TLS has none (0), because TLS authenticates every byte. The first
frames of a connection are greetings; later ones carry messages between machines, numbered from 1 in each direction, or
are mere signs of life.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from pstranspile.cluster.machines.message import KINDS, Message
from pstranspile.cluster.net.values import Bytes, Reader, WireError, Writer

PROTOCOL = 5
"""The version of this protocol; machines of different versions don't talk."""

HELLO = 1
"""The kind of a frame with the greeting of a process that connects (JSON)."""

WELCOME = 2
"""The kind of a frame with the answer to a greeting that was accepted (JSON)."""

REFUSED = 3
"""The kind of a frame with the answer to a greeting that was refused (JSON)."""

MESSAGES = 4
"""The kind of a frame with messages of machines."""

ALIVE = 5
"""The kind of a frame that is a sign of life."""

ASK = 6
"""The kind of a frame with a question (JSON)."""

ANSWER = 7
"""The kind of a frame with the answer to a question, or with news (JSON)."""

BYE = 8
"""The kind of the last frame of a connection."""

MAGIC = b"PSTW"
"""The first bytes of a frame."""
_HEADER = struct.Struct("<4sBBHQQQQII")
"""Magic, protocol, kind, 0, number, received, durable, size of the body, check sum of the body, of the header."""
HEADER_SIZE = _HEADER.size
_BLOCK = 256
"""The number of 64-bit words that are added for the check sum of a body."""

_MESSAGE = struct.Struct("<BxxxIIiiqQ")
"""Kind, source, target, trainer, slot, step, sequence."""

_KIND_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}

MOST_GREETING = 1 << 20
"""The most bytes of a frame with JSON."""

MOST_BODY = 1 << 36
"""The most bytes of a frame's body."""

MOST_MESSAGES = 1 << 10
"""The most messages of a frame. More messages of one turn are sent in several frames, so that others have their turn
between them.
"""


class Header(NamedTuple):
    """The header of a frame.

    `number` counts the frames with messages in one direction; other frames have 0. `received` is the last such frame
    that the sender has taken from the other side; `durable` is the last one that would survive the end of the sender's
    process.
    """

    kind: int
    number: int
    received: int
    durable: int


def check_sum(data: Bytes) -> int:
    """A check sum of data: the CRC of the sums of the words of each block, followed by the bytes that fill no block.

    A CRC of all bytes would take longer than everything else that is done with a frame.
    """
    whole = len(data) - len(data) % (8 * _BLOCK)
    words: Any = np.frombuffer(data, "<u8", whole // 8).reshape(-1, _BLOCK)
    sums: Any = np.add.reduce(words, axis=1).astype("<u8") if whole else b""
    return zlib.crc32(memoryview(data)[whole:], zlib.crc32(sums))


def frame(
    header: Header, body: bytes, guarded: bool = False, body_sum: Callable[[], int] | None = None
) -> tuple[bytes, bytes]:
    """The bytes of a frame: those of the header, and the body's. `guarded`: it travels under TLS. `body_sum` returns
    the check sum of the body, if it is stored.
    """
    own = 0 if guarded else check_sum(body) if body_sum is None else body_sum()
    fields = _HEADER.pack(
        MAGIC, PROTOCOL, header.kind, 0, header.number, header.received, header.durable, len(body), own, 0,
    )[:-4]  # fmt: skip
    return fields + struct.pack("<I", zlib.crc32(fields)), body


def read_size(head: Bytes) -> int:
    """The size of a frame, from its undamaged header. Raises WireError."""
    magic, protocol, _, zero, _, _, _, size, _, own = _HEADER.unpack_from(head)
    if magic != MAGIC or zero:
        raise WireError("the bytes are no frame of this protocol")
    if protocol != PROTOCOL:
        raise WireError(f"the frame is of version {protocol} of the protocol, this is version {PROTOCOL}")
    if zlib.crc32(memoryview(head)[: HEADER_SIZE - 4]) != own:
        raise WireError("the header of a frame is damaged: its check sum is another")
    if size > MOST_BODY:
        raise WireError(f"a frame of {size} bytes is too long")
    return HEADER_SIZE + size


def kind_of(head: Bytes) -> int:
    """The kind of a frame, from its header."""
    return head[5]


def read_header(data: Bytes, guarded: bool = False) -> Header:
    """The header of a frame whose bytes are whole and undamaged. `guarded`: it came under TLS, where the body
    has no check sum. Raises WireError.
    """
    if len(data) < HEADER_SIZE:
        raise WireError(f"a frame of {len(data)} bytes is shorter than a header")
    size = read_size(data) - HEADER_SIZE
    _, _, kind, _, number, received, durable, _, sent, _ = _HEADER.unpack_from(data)
    if size != len(data) - HEADER_SIZE:
        raise WireError(f"a frame has {len(data) - HEADER_SIZE} bytes where {size} are announced")
    if sent != (0 if guarded else check_sum(memoryview(data)[HEADER_SIZE:])):
        raise WireError("a frame is damaged: its check sum is another")
    if kind not in range(HELLO, BYE + 1):
        raise WireError(f"there is no kind {kind} of frames")
    return Header(kind, number, received, durable)


def json_body(fields: Mapping[str, Any]) -> bytes:
    """A body of JSON, for a greeting, a question or an answer."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def read_json(data: Bytes) -> dict[str, Any]:
    """The fields of a frame whose body is JSON. Raises WireError."""
    if len(data) > MOST_GREETING:
        raise WireError(f"a greeting of {len(data)} bytes is too long")
    try:
        fields = json.loads(bytes(data[HEADER_SIZE:]))
    except (ValueError, RecursionError):
        raise WireError("a greeting is no JSON") from None
    if not isinstance(fields, dict):
        raise WireError("a greeting is no mapping")
    return cast("dict[str, Any]", fields)


def messages_body(messages: Sequence[Message], machines: Mapping[str, int]) -> bytes:
    """A body of messages, in order. `machines` numbers the job's machines. Raises WireError for what can't be sent."""
    writer = Writer()
    writer.size = HEADER_SIZE  # arrays are aligned relative to the whole frame
    writer.add(struct.pack("<I", len(messages)))
    for kind, source, target, trainer, step, sequence, variable, payload, slot in messages:
        numbers = _KIND_NUMBERS[kind], machines[source], machines[target], trainer, slot, step, sequence
        writer.add(_MESSAGE.pack(*numbers))
        writer.text(variable)
        writer.value(payload)
    return b"".join(writer.buffers)


def read_messages(data: Bytes, machines: Sequence[str]) -> list[Message]:
    """The messages of a frame. Raises WireError if one is not well-formed; then no message is taken."""
    reader = Reader(data, HEADER_SIZE)
    (count,) = reader.unpack(struct.Struct("<I"))
    if count > MOST_MESSAGES:
        raise WireError(f"{count} messages are announced in a frame, which has {MOST_MESSAGES} at most")
    if count * _MESSAGE.size > len(data):
        raise WireError(f"{count} messages are announced in a frame of {len(data)} bytes")
    messages: list[Message] = []
    for _ in range(count):
        numbers: tuple[int, ...] = reader.unpack(_MESSAGE)
        kind, source, target, trainer, slot, step, sequence = numbers
        if kind >= len(KINDS) or source >= len(machines) or target >= len(machines) or not sequence:
            raise WireError("a message is of no known kind, or of machines that the job does not have")
        variable = reader.text()
        payload = reader.value()
        kind_name, source_name, target_name = KINDS[kind], machines[source], machines[target]
        messages.append(Message(kind_name, source_name, target_name, trainer, step, sequence, variable, payload, slot))
    if reader.at != len(data):
        raise WireError(f"{len(data) - reader.at} bytes are left behind the messages of a frame")
    return messages
