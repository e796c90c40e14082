"""Which machine a process is, as the environment tells it that launchers of Fluid set."""

from __future__ import annotations

from collections.abc import Mapping

from pstranspile.ir.diagnostics import DiagnosticError, error


def role_of_environment(environment: Mapping[str, str], servers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The role, and the addresses of servers that the environment gives in place of the job's.

    `servers` are the job's, by role. Raises DiagnosticError if the environment does not say it.
    """
    kind = environment.get("TRAINING_ROLE", "").upper()
    listed = environment.get("PADDLE_PSERVERS_IP_PORT_LIST", "") or environment.get("PADDLE_PSERVER_ENDPOINTS", "")
    given = [text.strip() for text in listed.split(",") if text.strip()]
    if given and len(given) != len(servers):
        raise _refused(f"PADDLE_PSERVERS_IP_PORT_LIST names {len(given)} servers, the job has {len(servers)}")
    addresses = dict(zip(servers, given, strict=False))
    if kind == "TRAINER":
        number = environment.get("PADDLE_TRAINER_ID", "")
        if not number.isdecimal():
            raise _refused("TRAINING_ROLE is TRAINER, but PADDLE_TRAINER_ID is no number")
        return f"trainer_{int(number)}", addresses
    if kind == "PSERVER":
        own = environment.get("PADDLE_CURRENT_ENDPOINT") or ":".join(
            (environment.get("POD_IP", "127.0.0.1"), environment.get("PADDLE_PORT", ""))
        )
        for role, address in {**servers, **addresses}.items():
            if address == own:
                return role, addresses
        raise _refused(f"TRAINING_ROLE is PSERVER, but no server of the job is at {own} (POD_IP:PADDLE_PORT)")
    raise _refused("give --role NAME, or set TRAINING_ROLE to PSERVER or TRAINER")


def _refused(message: str) -> DiagnosticError:
    return DiagnosticError([error("start-role", message)])
