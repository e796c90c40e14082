"""The modes of distribution and the switches of Fluid's configuration that mean each of them.

Fluid chooses a mode by combinations of switches, read at different places; some combinations contradict
themselves and give clusters that hang. Here every combination means exactly one mode or is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import Any, NamedTuple


class Promise(Enum):
    """When a mode gives the same result as a single machine on the whole batch."""

    __hash__ = object.__hash__  # Enum would call the built-in `hash`, which a script may have replaced

    ALWAYS = "always"
    SINGLE_TRAINER = "with a single trainer; servers apply the gradients of several one by one, as they come"
    NEVER = "never: parameters of different trainers differ between exchanges"


class ModeSettings(NamedTuple):
    """The settings of a job in a mode of distribution.

    `doc` says in a sentence what the mode does. `cause` is the setting that asks for it, in Fluid's words. `flags` are
    the switches that the mode fixes; `free` those it leaves open, with the value they have when the mode is named and
    they are not. `options` are the keys of PARTICULAR that have an effect in it.
    """

    doc: str
    cause: str
    flags: Mapping[str, bool]
    free: Mapping[str, bool] = {}
    options: tuple[str, ...] = ()
    servers: bool = True
    promise: Promise = Promise.ALWAYS


SWITCHES = (
    "sync_mode",
    "runtime_split_send_recv",
    "half_async",
    "completely_not_async",
    "geo_sgd_mode",
)
"""The switches that choose a mode. All are off by default except `sync_mode`."""

PARTICULAR = (
    "enable_dc_asgd",
    "geo_sgd_need_push_nums",
    "slice_var_up",
    "split_method",
    "min_block_size",
    "distributed_table",
    "large_tables",
    "id_counts",
    "server_memory",
    "nccl_comm_num",
    "use_hierarchical_allreduce",
    "hierarchical_allreduce_inter_nranks",
)
"""The keys of a job that do not have an effect in every mode."""

COSTS = ("id_counts", "server_memory")
"""The options that placement by cost takes into account."""

UPDATING = ("slice_var_up", "split_method", "min_block_size", "distributed_table", "large_tables", *COSTS)
"""The options of a mode whose servers update the parameters."""

COLLECTIVE: Mapping[str, bool] = {key: key == "sync_mode" for key in SWITCHES}
"""The switches of every mode without servers."""


def off(*names: str) -> dict[str, bool]:
    """A mapping of these switches to False."""
    return dict.fromkeys(names, False)


@cache
def mode_names() -> tuple[str, ...]:
    """Every mode, sorted: mode `half-async` is the file `half_async.py` in `pstranspile/compiler/modes`.

    (A file whose name would be a keyword of Python ends in an underscore: `async_.py`.)
    """
    files = (Path(__file__).parents[1] / "modes").glob("[a-z]*.py")
    return tuple(sorted(file.stem.rstrip("_").replace("_", "-") for file in files))


def settings_of(mode: str) -> ModeSettings:
    """The settings in the file of a mode. Raises KeyError if there is no such mode.

    Only that file is imported, by its name, as a job should not depend on the compiler's modules.
    """
    return mode_module(mode).MODE.settings


@cache
def mode_module(mode: str) -> Any:
    """The module of a mode. Raises KeyError if there is no such mode."""
    if mode not in mode_names():
        raise KeyError(mode)
    stem = mode.replace("-", "_")
    return import_module(
        f"pstranspile.compiler.modes.{stem}_" if iskeyword(stem) else f"pstranspile.compiler.modes.{stem}"
    )


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
    """The mode that the given keys mean, or None and the reasons why there is none.

    A mode that is named takes precedence, and `flag_conflicts` then reports contradictions. Otherwise the switches
    decide: `geo_sgd_mode`, `completely_not_async`, `half_async`, `runtime_split_send_recv`, `sync_mode`, in this order.
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
        return (asked if asked in mode_names() else None), ()
    return _from_switches(given), ()


_ASKING = ("geo_sgd_mode", "completely_not_async", "half_async")
"""The switches that ask for a mode when they are on, in order of precedence."""


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
    """The given switches that contradict `mode`, by key."""
    why = f"mode = {mode}" if given.get("mode") == mode else _cause(mode, given)
    for key, value in settings_of(mode).flags.items():
        setting = given.get(key)
        if setting is None or setting is value or _meant_synchronous(mode, key, given):
            continue
        shown = str(setting).lower()
        yield Conflict(key, f"{key} = {shown} does not go together with {why}")


def _cause(mode: str, given: Mapping[str, object]) -> str:
    """The setting that led to a mode that was not named."""
    switch = next((key for key in (*_ASKING, "runtime_split_send_recv") if given.get(key)), None)
    settings = settings_of(mode)
    return settings.cause if switch is None or not settings.servers else f"{switch} = true"


def _meant_synchronous(mode: str, key: str, given: Mapping[str, object]) -> bool:
    """Whether `completely_not_async` alone asks for sync mode, in spite of the switches for async ones."""
    return (
        mode == "sync"
        and bool(given.get("completely_not_async"))
        and given.get("mode") != "sync"
        and key in ("sync_mode", "half_async")
    )


def resolved_flags(mode: str, given: Mapping[str, object]) -> dict[str, object]:
    """The values of every switch and of `collective_mode` in a job of this mode.

    A switch the mode leaves open keeps the job's value. If the job has none, it has the mode's own value if the mode
    was named, and Fluid's default (off) if the mode follows from the other switches.
    """
    settings = settings_of(mode)
    by_name = given.get("mode") == mode
    free = {
        key: given.get(key) if given.get(key) is not None else (value and by_name)
        for key, value in settings.free.items()
    }
    collective = next((c for c, name in COLLECTIVE_MODES.items() if name == mode), None)
    return {**settings.flags, **free, "collective_mode": collective}
