"""The interface between gRPC calls and the service that answers them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from pstranspile.cluster.net.wire import Bytes

STATUSES = {
    "INVALID_ARGUMENT": 3, "NOT_FOUND": 5, "ALREADY_EXISTS": 6, "RESOURCE_EXHAUSTED": 8, "FAILED_PRECONDITION": 9,
    "UNIMPLEMENTED": 12, "INTERNAL": 13, "UNAVAILABLE": 14,
}  # fmt: skip
"""The numbers of the statuses with which calls are refused."""


class CallRefused(Exception):
    """A call that is refused; `status` is the name of a gRPC status."""

    def __init__(self, status: str, reason: str):
        super().__init__(reason)
        self.status = status


class Caller(Protocol):
    """The client that has made a call and waits for its answer."""

    @property
    def known(self) -> bool:
        """Whether it is one of the job's machines."""
        ...

    def let_in(self) -> None:
        """Records that the client is one of the job's machines."""
        ...

    @property
    def address(self) -> str:
        """The other end of the connection."""
        ...

    @property
    def closed(self) -> bool:
        """Whether no more answers can be sent."""
        ...

    def answer(self, call: int, pieces: list[Bytes]) -> None:
        """Answers a call with a message, in pieces; does nothing if the call is over."""
        ...

    def refuse(self, call: int, problem: CallRefused) -> None:
        """Ends a call with a status; does nothing if the call is over."""
        ...


SMALL_CALL = 1 << 18
"""The most bytes that a message of any call may have before its method is known."""

LARGE_CALL = (1 << 31) - 1
"""The most bytes that a message of a call may have at all: gRPC's own limit."""


class CallService(NamedTuple):
    """A service: for each method a function of the caller, the call's number and the bytes of the request.

    The function answers the call, now or later; `lost` is called when a caller gives up waiting. `most` calls may be
    open at once. For a call of more than `SMALL_CALL` bytes, `room` returns how many bytes it may have; its arguments
    are the method, the first bytes of the message and whether the caller is known. `callers` is how many unknown
    callers may bring large calls at the same time. `more_unread` returns how many bytes of answers a caller may leave
    unread beyond those that any caller may.
    """

    name: str
    methods: Mapping[str, Callable[[Caller, int, Bytes], None]]
    most: int
    lost: Callable[[Caller, int], None] = lambda caller, call: None
    room: Callable[[str, Bytes, bool], int] = lambda method, begin, known: LARGE_CALL if known else 0
    callers: int = 1
    more_unread: Callable[[], int] = lambda: 0
