"""What the processes of a job agree on, and why one of them is not let in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pstranspile.net.values import WireError


class Terms(NamedTuple):
    """What the processes of a job agree on, and how patient they are (in seconds).

    `job` is the hash of all programs. Whoever was not heard for `lease` is given up; signs of life are sent every
    `lease / 10`, but at least every second.
    """

    job: str
    token: str = ""
    lease: float = 30.0


class Refused(Exception):
    """Another process does not let this one take part; the message says why."""


class Objection(WireError):
    """Why a process is not let in, now and later."""


def number_of(fields: Mapping[str, Any], name: str) -> int:
    """A field that counts something; 0 if it is not there. Raises WireError if it is no such number."""
    value = fields.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise WireError(f"{name} is no number")
    return value
