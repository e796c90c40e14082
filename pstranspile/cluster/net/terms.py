"""The terms on which the processes of a job agree, and the reasons for refusing one of them."""

from __future__ import annotations

import secrets
from collections.abc import Container, Mapping, Sequence
from hashlib import pbkdf2_hmac
from typing import Any, NamedTuple

from pstranspile.cluster.net.status import MOST as MOST_TOLD
from pstranspile.cluster.net.wire import WireError
from pstranspile.ir.diagnostics import DiagnosticError, error, visible

MOST_STEPS = 1 << 40
"""The bound of the steps of a trainer."""

MOST_HELD = 1 << 30
"""The bytes of answers that a trainer may always leave unconfirmed."""

MORE_HELD = 8
"""The multiple of the bytes of the server's variables that a trainer may leave unconfirmed in addition: more than it
requests before it waits.
"""

MOST_NAME = 64
"""The most characters in the random name of a process."""


TOKEN = "PSTRANSPILE_TOKEN"
"""The environment variable with the token of a job, which its processes inherit."""


def token_of_environment(variables: Mapping[str, str]) -> str:
    """The token of the job that this process takes part in; "" if the environment has none.

    Raises DiagnosticError for a token that is set but blank: it would let in anybody, where a token is wanted.
    """
    token = variables.get(TOKEN, "")
    if TOKEN in variables and not token.strip():
        message = f"{TOKEN} is set, but {'blank' if token else 'empty'}, which is no token"
        raise DiagnosticError([error("start-token", f"{message}; give it a secret text, or unset it")])
    return token


class Terms(NamedTuple):
    """The terms on which the processes of a job agree, and the time after which one gives up another.

    `job` is the hash of all programs. A process that was not heard for `lease` seconds is given up. Signs of life are
    sent every `lease / 10` seconds, but at least every second; after half a lease without any, another connection is
    tried.
    """

    job: str
    token: str = ""
    lease: float = 30.0

    def require(self, fields: Mapping[str, Any], role: str, others: Container[str]) -> None:
        """Raises Objection unless a greeting that has come to `role` is from one of the other processes of this job."""
        if not secrets.compare_digest(_bytes(str(fields.get("token", ""))), _bytes(self.token)):
            raise WrongToken("the token is another")
        if fields.get("job") != self.job:
            raise Objection(f"{role} takes part in another job: {self.job[:12]}, not {str(fields.get('job'))[:12]}")
        if str(fields.get("role")) not in others or not fields.get("incarnation"):
            raise Objection(f"the job has no {fields.get('role')} beside {role}")
        if len(str(fields["incarnation"])) > MOST_NAME:
            raise Objection("the name of the process is too long")
        step_of(fields, "joins")

    def run_hash(self) -> str:
        """A text that tells the run from others of the same job, from which nobody learns the token; "" without a
        token.
        """
        return pbkdf2_hmac("sha256", _bytes(self.token), _bytes(self.job), _ROUNDS).hex() if self.token else ""


_ROUNDS = 200_000
"""The rounds of hashing that a guess of a token costs whoever reads a kept state."""


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


class PeerRefused(Exception):
    """Another process refuses this one, for the reason in the message.

    The reason may be the other process's text, so control characters are shown as escapes.
    """

    def __init__(self, reason: str):
        super().__init__(visible(reason, MOST_TOLD))


class Objection(WireError):
    """The reason why a process is refused, now and later."""


class WrongToken(Objection):
    """A process with a wrong token is refused. As it may have guessed, it is answered late."""


class Misconduct(WireError):
    """The reason why a process that was admitted is removed from the job: its frames are undamaged, but their content
    is wrong.
    """


MOST = 1 << 62
"""The bound of all counts."""


def number_of(fields: Mapping[str, Any], name: str) -> int:
    """The count in a field; 0 if the field is missing. Raises WireError if it is no such number."""
    value = fields.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MOST:
        raise WireError(f"{name} is no number")
    return value


def step_of(fields: Mapping[str, Any], name: str) -> int | None:
    """The step of a trainer in a field; None if there is none. Raises WireError if it is no such number."""
    if fields.get(name) is None:
        return None
    step = number_of(fields, name)
    if step >= MOST_STEPS:
        raise WireError(f"{name} is no number of a step")
    return step


# The role of a process, from the environment that launchers of Fluid set.

_OF_SERVERS = ("PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_PSERVER_ENDPOINTS")
_OF_TRAINERS = ("PADDLE_TRAINER_ENDPOINTS",)
"""Environment variables that list addresses; the first one that is set counts."""


def is_address(text: str) -> bool:
    """Whether a text is HOST:PORT, with a port that others can connect to."""
    host, _, port = text.rpartition(":")
    return bool(host.strip()) and port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16


def require_apart(addresses: Mapping[str, str]) -> None:
    """Raises DiagnosticError if two machines have the same address."""
    at: dict[str, str] = {}
    for role, address in addresses.items():
        other = at.setdefault(address, role)
        if other != role:
            raise _role_error(f"{other} and {role} are both at {address}")


def role_of_environment(
    environment: Mapping[str, str], known: Mapping[str, str], trainers: int = 0
) -> tuple[str, dict[str, str]]:
    """The role of this process, and the addresses in the environment that replace those of the job.

    `known` has the job's addresses by role: of servers, or of trainers in a job without servers. `trainers` is the
    number of trainers (0: not known). Raises DiagnosticError if the environment has no role, or one of another job.
    """
    count = environment.get("PADDLE_TRAINERS_NUM", "")
    if trainers and count and count != str(trainers):
        raise _role_error(f"PADDLE_TRAINERS_NUM is {count}, the job has {trainers} trainers")
    collective = bool(known) and not any(role.startswith("pserver") for role in known)
    kind = environment.get("TRAINING_ROLE", "TRAINER" if collective else "").upper()
    addresses = _listed_addresses(environment, known, _OF_TRAINERS if collective else _OF_SERVERS)
    if kind == "TRAINER":
        number = environment.get("PADDLE_TRAINER_ID", "")
        if not number.isdecimal():
            raise _role_error("TRAINING_ROLE is TRAINER, but PADDLE_TRAINER_ID is no number")
        return f"trainer_{int(number)}", addresses
    if kind == "PSERVER":
        own = environment.get("PADDLE_CURRENT_ENDPOINT") or ":".join(
            (environment.get("POD_IP", "127.0.0.1"), environment.get("PADDLE_PORT", ""))
        )
        for role, address in {**known, **addresses}.items():
            if address == own and role.startswith("pserver"):
                return role, addresses
        raise _role_error(f"TRAINING_ROLE is PSERVER, but no server of the job is at {own} (POD_IP:PADDLE_PORT)")
    other = f", not to {kind}" if kind else ""
    raise _role_error(f"give --role NAME, or set TRAINING_ROLE to PSERVER or TRAINER{other}")


def _listed_addresses(
    environment: Mapping[str, str], known: Mapping[str, str], variables: Sequence[str]
) -> dict[str, str]:
    """The addresses that one of these environment variables lists, by role in the order of the machines."""
    name = next((name for name in variables if environment.get(name)), "")
    given = [text.strip() for text in environment.get(name, "").split(",") if text.strip()]
    roles = sorted(known, key=lambda role: (len(role), role))
    if given and len(given) != len(roles):
        raise _role_error(f"{name} names {len(given)} machines, the job has {len(roles)} that listen")
    wrong = next((address for address in given if not is_address(address)), None)
    if wrong is not None:
        raise _role_error(f"{name} has {wrong}, which is no HOST:PORT")
    return dict(zip(roles, given, strict=False))


def _role_error(message: str) -> DiagnosticError:
    return DiagnosticError([error("start-role", message)])
