"""What the processes of a job agree on, and why one of them is not let in."""

from __future__ import annotations

import secrets
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from pstranspile.cluster.net.telling import MOST as MOST_TOLD
from pstranspile.cluster.net.values import WireError
from pstranspile.ir.visible import visible

MOST_STEPS = 1 << 40
"""More steps than any trainer takes."""

MOST_HELD, MORE_HELD = 1 << 30, 8
"""Bytes of answers that a trainer may leave unconfirmed, and how often those of the server's variables besides: more
than it asks for before it waits for them.
"""

MOST_NAME = 64
"""Characters of the name that a process gives itself."""


class Terms(NamedTuple):
    """What the processes of a job agree on, and how patient they are (in seconds).

    `job` is the hash of all programs. Whoever was not heard for `lease` is given up. Signs of life are sent every
    `lease / 10`, but at least every second; after half a lease without any, another connection is tried.
    """

    job: str
    token: str = ""
    lease: float = 30.0

    def require(self, fields: Mapping[str, Any], role: str, others: Container[str]) -> None:
        """Raises Objection if a greeting, that has come to `role`, is not of one of the others of this job."""
        if not secrets.compare_digest(_bytes(str(fields.get("token", ""))), _bytes(self.token)):
            raise WrongToken("the token is another")
        if fields.get("job") != self.job:
            raise Objection(f"{role} takes part in another job: {self.job[:12]}, not {str(fields.get('job'))[:12]}")
        if str(fields.get("role")) not in others or not fields.get("incarnation"):
            raise Objection(f"the job has no {fields.get('role')} beside {role}")
        if len(str(fields["incarnation"])) > MOST_NAME:
            raise Objection("the name of the process is too long")
        step_of(fields, "joins")


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


class Refused(Exception):
    """Another process does not let this one take part, for the reason in the message.

    The reason may be the other process's text: what a terminal would obey is shown as escapes.
    """

    def __init__(self, reason: str):
        super().__init__(visible(reason, MOST_TOLD))


class Objection(WireError):
    """Why a process is not let in, now and later."""


class WrongToken(Objection):
    """A process is not let in that may have guessed: it is answered late."""


class Misconduct(WireError):
    """Why a process takes no part any more that was let in: something is wrong with what it says, though undamaged."""


MOST = 1 << 62
"""More than anything that is counted."""


def number_of(fields: Mapping[str, Any], name: str) -> int:
    """A field that counts something; 0 if it is not there. Raises WireError if it is no such number."""
    value = fields.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MOST:
        raise WireError(f"{name} is no number")
    return value


def step_of(fields: Mapping[str, Any], name: str) -> int | None:
    """A field with a trainer's step; None if there is none. Raises WireError if it is no such number."""
    if fields.get(name) is None:
        return None
    step = number_of(fields, name)
    if step >= MOST_STEPS:
        raise WireError(f"{name} is no number of a step")
    return step
