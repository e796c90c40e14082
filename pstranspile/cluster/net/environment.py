"""The role of a process, from the environment that launchers of Fluid set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pstranspile.ir.diagnostics import DiagnosticError, error

_OF_SERVERS = ("PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_PSERVER_ENDPOINTS")
_OF_TRAINERS = ("PADDLE_TRAINER_ENDPOINTS",)
"""Environment variables that list addresses; the first one that is set counts."""


def is_address(text: str) -> bool:
    """Whether a text is HOST:PORT, with a port that others can connect to."""
    host, _, port = text.rpartition(":")
    return bool(host.strip()) and port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16


def require_apart(addresses: Mapping[str, str]) -> None:
    """Raises DiagnosticError if two machines are at one address."""
    at: dict[str, str] = {}
    for role, address in addresses.items():
        other = at.setdefault(address, role)
        if other != role:
            raise _refused(f"{other} and {role} are both at {address}")


def role_of_environment(
    environment: Mapping[str, str], known: Mapping[str, str], trainers: int = 0
) -> tuple[str, dict[str, str]]:
    """The role, and the addresses in the environment that replace those of the job.

    `known` has the job's addresses by role: of servers, or of trainers in a job without servers. `trainers` is the
    number of trainers (0: not known). Raises DiagnosticError if the environment has no role, or one of another job.
    """
    count = environment.get("PADDLE_TRAINERS_NUM", "")
    if trainers and count and count != str(trainers):
        raise _refused(f"PADDLE_TRAINERS_NUM is {count}, the job has {trainers} trainers")
    collective = bool(known) and not any(role.startswith("pserver") for role in known)
    kind = environment.get("TRAINING_ROLE", "TRAINER" if collective else "").upper()
    addresses = _listed(environment, known, _OF_TRAINERS if collective else _OF_SERVERS)
    if kind == "TRAINER":
        number = environment.get("PADDLE_TRAINER_ID", "")
        if not number.isdecimal():
            raise _refused("TRAINING_ROLE is TRAINER, but PADDLE_TRAINER_ID is no number")
        return f"trainer_{int(number)}", addresses
    if kind == "PSERVER":
        own = environment.get("PADDLE_CURRENT_ENDPOINT") or ":".join(
            (environment.get("POD_IP", "127.0.0.1"), environment.get("PADDLE_PORT", ""))
        )
        for role, address in {**known, **addresses}.items():
            if address == own and role.startswith("pserver"):
                return role, addresses
        raise _refused(f"TRAINING_ROLE is PSERVER, but no server of the job is at {own} (POD_IP:PADDLE_PORT)")
    other = f", not to {kind}" if kind else ""
    raise _refused(f"give --role NAME, or set TRAINING_ROLE to PSERVER or TRAINER{other}")


def _listed(environment: Mapping[str, str], known: Mapping[str, str], variables: Sequence[str]) -> dict[str, str]:
    """The addresses that one of these variables lists, in the order of the machines."""
    name = next((name for name in variables if environment.get(name)), "")
    given = [text.strip() for text in environment.get(name, "").split(",") if text.strip()]
    roles = sorted(known, key=lambda role: (len(role), role))
    if given and len(given) != len(roles):
        raise _refused(f"{name} names {len(given)} machines, the job has {len(roles)} that listen")
    wrong = next((address for address in given if not is_address(address)), None)
    if wrong is not None:
        raise _refused(f"{name} has {wrong}, which is no HOST:PORT")
    return dict(zip(roles, given, strict=False))


def _refused(message: str) -> DiagnosticError:
    return DiagnosticError([error("start-role", message)])
