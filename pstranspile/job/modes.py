"""The modes of distribution and the switches of Fluid's configuration that mean each of them.

Fluid chooses a mode by combinations of switches, read at different places; some combinations contradict
themselves and give clusters that hang. Here every combination means exactly one mode or is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class ModeSettings(NamedTuple):
    """What a job says of itself in a mode of distribution. `cause` is the setting that asks for it, in Fluid's words.

    `implementation` names what makes its programs: a file in `pstranspile/modes`, and a class in it. `flags` are the
    switches that the mode fixes; `free` those it leaves open, with the value they have when the mode is named and they
    are not.
    """

    doc: str
    cause: str
    implementation: str
    flags: Mapping[str, bool]
    free: Mapping[str, bool] = {}
    servers: bool = True


SWITCHES = (
    "sync_mode",
    "runtime_split_send_recv",
    "half_async",
    "completely_not_async",
    "geo_sgd_mode",
)
"""The switches that choose a mode. All are off by default except `sync_mode`."""


def _off(*names: str) -> dict[str, bool]:
    return dict.fromkeys(names, False)


_COLLECTIVE = {"sync_mode": True, **_off(*SWITCHES[1:])}

MODES: Mapping[str, ModeSettings] = {
    "sync": ModeSettings(
        "every step, servers wait for the gradients of all trainers, average them and update once",
        "sync_mode = true",
        "sync:Sync",
        {"sync_mode": True, **_off("runtime_split_send_recv", "half_async", "geo_sgd_mode")},
        _off("completely_not_async"),
    ),
    "async": ModeSettings(
        "servers update at every gradient that arrives; trainers do not wait for each other",
        "sync_mode = false",
        "asynchronous:Async",
        {"sync_mode": False, **_off("half_async", "completely_not_async", "geo_sgd_mode")},
        _off("runtime_split_send_recv"),
    ),
    "half-async": ModeSettings(
        "a communicator in every trainer averages the gradients of its threads before it sends them",
        "half_async = true",
        "half_async:HalfAsync",
        {"sync_mode": False, "half_async": True, **_off("completely_not_async", "geo_sgd_mode")},
        {"runtime_split_send_recv": True},
    ),
    "fleet-sync": ModeSettings(
        "as half-async, and the communicators wait for each other: the Sync strategy of Fluid's Fleet",
        "completely_not_async = true",
        "fleet_sync:FleetSync",
        {
            "sync_mode": False,
            "completely_not_async": True,
            "runtime_split_send_recv": True,
            "half_async": True,  # without it nothing makes a trainer wait for its communicator
            "geo_sgd_mode": False,
        },
    ),
    "geo": ModeSettings(
        "trainers update locally and exchange the differences of their parameters every few steps",
        "geo_sgd_mode = true",
        "geo.mode:Geo",
        {"sync_mode": False, "geo_sgd_mode": True, **_off("half_async", "completely_not_async")},
        {"runtime_split_send_recv": True},
    ),
    "nccl2": ModeSettings(
        "no servers: the trainers' startup programs set up the communicator of a multi-process executor",
        "mode = nccl2",
        "nccl2:Nccl2",
        _COLLECTIVE,
        servers=False,
    ),
    "grad-allreduce": ModeSettings(
        "no servers: gradients are summed over all trainers by collective operators",
        "collective_mode = grad_allreduce",
        "grad_allreduce:GradAllreduce",
        _COLLECTIVE,
        servers=False,
    ),
    "local-sgd": ModeSettings(
        "no servers: trainers update locally and average their parameters by collective operators",
        "collective_mode = local_sgd",
        "local_sgd:LocalSgd",
        _COLLECTIVE,
        servers=False,
    ),
    "single-process-multi-thread": ModeSettings(
        "no servers: as grad-allreduce, for the devices of one process",
        "collective_mode = single_process_multi_thread",
        "single_process:SingleProcess",
        _COLLECTIVE,
        servers=False,
    ),
}
"""Every mode by name."""

SERVER_MODES = tuple(name for name, mode in MODES.items() if mode.servers)
"""The modes with parameter servers."""

UPDATING_MODES = tuple(name for name in SERVER_MODES if not MODES[name].flags.get("geo_sgd_mode"))
"""The modes whose servers update the parameters; in geo trainers do."""

CONFIG_MODES = ("pserver", "nccl2", "collective")
"""The values of Fluid's own field `mode`. `pserver` and `collective` leave the rest to other fields."""

COLLECTIVE_MODES = {
    "grad_allreduce": "grad-allreduce",
    "local_sgd": "local-sgd",
    "single_process_multi_thread": "single-process-multi-thread",
}
"""Fluid's values of `collective_mode`, and the mode each of them means."""


class Conflict(NamedTuple):
    """Two values that do not go together: the key to name, and why."""

    key: str
    message: str


def derive_mode(given: Mapping[str, object]) -> tuple[str | None, tuple[Conflict, ...]]:
    """The mode that the given keys mean, or None and why there is none.

    A mode named outright wins, and `flag_conflicts` then says what contradicts it. Otherwise the switches
    decide: `geo_sgd_mode`, `completely_not_async`, `half_async`, `runtime_split_send_recv`, `sync_mode`, in
    this order.
    """
    asked, collective = given.get("mode"), given.get("collective_mode")
    if collective is not None and collective not in COLLECTIVE_MODES:
        names = ", ".join(COLLECTIVE_MODES)
        return None, (Conflict("collective_mode", f"collective_mode is {collective!r}; it takes {names}"),)
    named = COLLECTIVE_MODES[str(collective)] if collective is not None else None
    if asked == "collective" or (asked is None and named):
        if named is None:
            message = f"collective_mode: mode collective needs it; it takes {', '.join(COLLECTIVE_MODES)}"
            return None, (Conflict("collective_mode", message),)
        return named, ()
    if named and asked != named:
        message = f"collective_mode = {collective} does not go together with mode = {asked}"
        return None, (Conflict("collective_mode", message),)
    if isinstance(asked, str) and asked != "pserver":
        return (asked if asked in MODES else None), ()
    return _from_switches(given), ()


_ASKING = ("geo_sgd_mode", "completely_not_async", "half_async")
"""Switches that ask for a mode when they are on, the strongest first."""


def _from_switches(given: Mapping[str, object]) -> str:
    if given.get("geo_sgd_mode"):
        return "geo"
    if given.get("completely_not_async"):
        return "fleet-sync" if given.get("runtime_split_send_recv") else "sync"
    if given.get("half_async"):
        return "half-async"
    if given.get("runtime_split_send_recv"):
        return "async"
    return "async" if given.get("sync_mode") is False else "sync"


def flag_conflicts(mode: str, given: Mapping[str, object]) -> Iterable[Conflict]:
    """What was said about the switches and contradicts `mode`, by key."""
    why = f"mode = {mode}" if given.get("mode") == mode else _cause(mode, given)
    for key, value in MODES[mode].flags.items():
        setting = given.get(key)
        if setting is None or setting is value or _meant_synchronous(mode, key, given):
            continue
        shown = str(setting).lower()
        yield Conflict(key, f"{key} = {shown} does not go together with {why}")


def _cause(mode: str, given: Mapping[str, object]) -> str:
    """The setting that led to a mode that was not named."""
    switch = next((key for key in (*_ASKING, "runtime_split_send_recv") if given.get(key)), None)
    return MODES[mode].cause if switch is None or not MODES[mode].servers else f"{switch} = true"


def _meant_synchronous(mode: str, key: str, given: Mapping[str, object]) -> bool:
    """Whether `completely_not_async` alone asks for sync mode, in spite of the switches for async ones."""
    return (
        mode == "sync"
        and bool(given.get("completely_not_async"))
        and given.get("mode") != "sync"
        and key in ("sync_mode", "half_async")
    )


def resolved_flags(mode: str, given: Mapping[str, object]) -> dict[str, object]:
    """Every switch and `collective_mode`, as they are in a job of this mode.

    A switch the mode leaves open keeps what was said. When nothing was, it has the mode's own value if the
    mode was named, and Fluid's default (off) if the mode follows from the other switches.
    """
    spec = MODES[mode]
    by_name = given.get("mode") == mode
    free = {
        key: given.get(key) if given.get(key) is not None else (value and by_name) for key, value in spec.free.items()
    }
    collective = next((c for c, name in COLLECTIVE_MODES.items() if name == mode), None)
    return {**spec.flags, **free, "collective_mode": collective}
