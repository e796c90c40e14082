"""Fluid's flags, which scripts can set and read, and what launchers and users set in variables of the environment.

Of the flags only `FLAGS_check_nan_inf` has an effect; the others control a runtime that is not used here. Launchers
also send messages to the processes of a script.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, MutableMapping
from typing import Any

from pstranspile.ir.diagnostics import DiagnosticError, error

# Whether a script builds static graphs: scripts of Fluid 1.x always do, those of 2.x after `paddle.enable_static()`.

_undecided: list[bool] = []
"""Not empty while a script runs that has not yet chosen between static and dynamic graphs."""


def begin_script() -> None:
    """Marks the start of a script, which has not yet chosen between static and dynamic graphs."""
    _undecided[:] = [True]


def build_static() -> None:
    """Marks the script as one that builds static graphs: it has called `enable_static`, or uses Fluid, whose graphs are
    static.
    """
    _undecided.clear()


def is_dynamic() -> bool:
    """Whether graphs of the script would be dynamic in Paddle: it has imported `paddle`, but not `paddle.fluid`, and
    has not called `enable_static`.
    """
    return bool(_undecided) and "paddle" in sys.modules and "paddle.fluid" not in sys.modules


def require_static() -> None:
    """Raises DiagnosticError where the script would build a dynamic graph in Paddle."""
    if _undecided and is_dynamic():
        message = (
            "dynamic graphs are not run: in Paddle 2.x, graphs are dynamic until paddle.enable_static() is called; "
            "a script that builds static graphs calls it first"
        )
        raise DiagnosticError([error("script-dynamic", message)])


# Numbers in variables of the environment, which launchers and users set.


def whole(name: str, default: int | None = None) -> int:
    """The whole number in a variable of the environment.

    Raises ValueError for another text, and for a variable that is not set where there is no `default`; the message
    names the variable and its text.
    """
    text = os.environ.get(name, "").strip()
    if not text and default is not None:
        return default
    try:
        return int(text if "_" not in text and text.isascii() else "")
    except ValueError:
        held = f"holds {os.environ[name]!r}, which is no whole number" if name in os.environ else "is not set"
        raise ValueError(f"the variable {name} of the environment {held}") from None


def seconds(name: str, default: float) -> float:
    """The number of seconds in a variable of the environment. Raises ValueError as `whole`, and for a
    number below 0.
    """
    text = os.environ.get(name, "").strip()
    try:
        value = float(text) if text else default
        if value >= 0:
            return value
    except ValueError:
        pass
    raise ValueError(f"the variable {name} of the environment holds {text!r}, which is no number of seconds")


_PUBLIC: dict[str, Any] = {
    "FLAGS_allocator_strategy": "auto_growth",
    "FLAGS_benchmark": False,
    "FLAGS_check_nan_inf": False,
    "FLAGS_cpu_deterministic": False,
    "FLAGS_eager_delete_tensor_gb": 0.0,
    "FLAGS_enable_parallel_graph": False,
    "FLAGS_enable_rpc_profiler": False,
    "FLAGS_fraction_of_cpu_memory_to_use": 1.0,
    "FLAGS_fuse_parameter_groups_size": 1,
    "FLAGS_fuse_parameter_memory_size": -1.0,
    "FLAGS_init_allocated_mem": False,
    "FLAGS_initial_cpu_memory_in_mb": 500,
    "FLAGS_inner_op_parallelism": 0,
    "FLAGS_memory_fraction_of_eager_deletion": 1.0,
    "FLAGS_multiple_of_cupti_buffer_size": 1,
    "FLAGS_paddle_num_threads": 1,
    "FLAGS_pe_profile_fname": "",
    "FLAGS_print_sub_graph_dir": "",
    "FLAGS_reader_queue_speed_test_mode": False,
    "FLAGS_tracer_profile_fname": "xxgperf",
    "FLAGS_use_pinned_memory": True,
    "FLAGS_use_system_allocator": False,
}
"""Flags that scripts may read and set, with their defaults in Fluid's build for the CPU."""

_PRIVATE: dict[str, Any] = {
    "FLAGS_free_idle_chunk": False,
    "FLAGS_free_when_no_cache_hit": False,
    "FLAGS_use_mkldnn": False,
}


class Flags(MutableMapping[str, Any]):
    """All flags by name: Fluid's, which the environment may also set, and others that the script has set.

    The environment is read when a flag is first looked up.
    """

    def __init__(self) -> None:
        self._set: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._set:
            usual = (_PUBLIC if name in _PUBLIC else _PRIVATE)[name]
            given = os.environ.get(name)
            if given is None:
                self._set[name] = usual
            else:
                self._set[name] = given.lower() in ("1", "true") if isinstance(usual, bool) else type(usual)(given)
        return self._set[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name in _PRIVATE:
            raise RuntimeError(f"{name} can't be set by scripts")
        usual = _PUBLIC.get(name)
        self._set[name] = value if usual is None else type(usual)(value)

    def __delitem__(self, name: str) -> None:
        raise RuntimeError(f"{name} can't be taken away")

    def __iter__(self) -> Iterator[str]:
        return iter({**_PUBLIC, **_PRIVATE, **self._set})

    def __len__(self) -> int:
        return len(list(iter(self)))

    def is_public(self, name: str) -> bool:
        """Whether scripts may read and set a flag."""
        return name in self and name not in _PRIVATE


FLAGS = Flags()
"""The flags of this process."""


def set_flags(flags: dict[str, Any]) -> None:
    """Sets flags. Raises TypeError if `flags` is not a dict, ValueError for private flags."""
    if not isinstance(flags, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("set_flags takes a dict")
    for name, value in flags.items():
        if name in _PRIVATE or not name.startswith("FLAGS_"):
            raise ValueError(f"{name} is no flag of Fluid that scripts can set")
        FLAGS[name] = value


def get_flags(flags: Any) -> dict[str, Any]:
    """The values of flags by name. Raises TypeError if `flags` is neither a name nor a list of names, ValueError for
    unknown and private flags.
    """
    if not isinstance(flags, str | list | tuple):
        raise TypeError("get_flags takes a name or a list of names")
    names: list[Any] = [flags] if isinstance(flags, str) else [*flags]
    unknown = next((name for name in names if not FLAGS.is_public(name)), None)
    if unknown is not None:
        raise ValueError(f"{unknown} is no flag of Fluid that scripts can read")
    return {name: FLAGS[name] for name in names}


# What launchers tell the processes of a script: variables of the environment, and messages.


LAUNCHER = "PSTRANSPILE_LAUNCHER"
"""The variable of the environment with the number of the pipe to which the launcher writes."""

TRAINERS_ENDED = b"t"
"""The bytes that the launcher writes to the pipe of a server when all trainers have ended."""

MEETING = "PADDLE_GLOO_HTTP_ENDPOINT"
"""The variable of the environment by which launchers, like those of 2.x, set the address where trainers meet."""
