"""What the processes of a job agree on, and why one of them is not let in."""

from __future__ import annotations

import secrets
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from pstranspile.ir.visible import visible
from pstranspile.net.telling import MOST
from pstranspile.net.values import WireError


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
            raise Objection("the token is another")
        if fields.get("job") != self.job:
            raise Objection(f"{role} takes part in another job: {self.job[:12]}, not {str(fields.get('job'))[:12]}")
        if str(fields.get("role")) not in others or not fields.get("incarnation"):
            raise Objection(f"the job has no {fields.get('role')} beside {role}")


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


class Refused(Exception):
    """Another process does not let this one take part, for the reason in the message.

    The reason may be the other process's text: what a terminal would obey is shown as escapes.
    """

    def __init__(self, reason: str):
        super().__init__(visible(reason, MOST))


class Objection(WireError):
    """Why a process is not let in, now and later."""


class Misconduct(WireError):
    """Why a process takes no part any more that was let in: something is wrong with what it says, though undamaged."""


def number_of(fields: Mapping[str, Any], name: str) -> int:
    """A field that counts something; 0 if it is not there. Raises WireError if it is no such number."""
    value = fields.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise WireError(f"{name} is no number")
    return value
