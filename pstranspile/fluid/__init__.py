"""Fluid's own interface over this compiler, for programs and habits that come from there.

The names of `paddle.fluid` are those of `pstranspile.fluid.interface`, which is imported when one of them is asked for:
other parts of this package, as Fluid's network protocol and its arithmetic, are used without them.

`graph` are programs that scripts change, `layers` what they call, `running` how an Executor feeds and runs them,
`paddle` the names of Paddle 2.x, `processes` what launchers start scripts as. `net` lets machines of Fluid take part in
a job, `arithmetic` rounds as Fluid does.

Other wings use `net.system` (FluidSystem) and `arithmetic`, named where a process begins, and `__main__`, the command
for scripts. Read `executor.py` first.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pstranspile.ir.startup_signals import guard

_COMMANDS = {f"{__name__}{part}" for part in ("", ".launch", ".launch_ps")}
"""The modules that `python -m` can run as commands."""


def _following(words: Sequence[str]) -> list[str]:
    """The word after the first `-m`."""
    return [*words[[*words, "-m"].index("-m") + 1 :]][:1]


if sys.argv[:1] == ["-m"] and not _COMMANDS.isdisjoint(_following(sys.orig_argv)):
    guard()  # a command that Python looks up: most of its start is yet to come

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Matrix products use one thread, as in Fluid, unless the environment asks for more. One thread is faster for small
# products and on busy machines, where threads wait for each other. numpy reads the variable when it is imported, so
# this stands before all else; the processes that a script starts have it as well.

from pstranspile.fluid.missing import module_here, names_of_fluid  # noqa: E402 (signals are taken care of first)

if TYPE_CHECKING:
    from pstranspile.fluid.interface import *  # noqa: F403

_NOT_FLUIDS = {"annotations", "interface"}
"""Names of the interface that Fluid lacks, or uses for modules."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__} has no attribute {name!r}")
    if find_spec(f"{__name__}.{name}") is not None and name != "interface":  # a module that nothing has imported
        return import_module(f"{__name__}.{name}")
    found = vars(import_module(f"{__name__}.interface"))
    if name in found and name not in _NOT_FLUIDS:
        globals()[name] = found[name]
        return found[name]
    module = None if name.startswith("_") else module_here(f"{__name__}.{name}")
    return names_of_fluid(__name__, found)(name) if module is None else import_module(module)


def __dir__() -> list[str]:
    names = {*globals(), *vars(import_module(f"{__name__}.interface"))}
    return sorted(names - _NOT_FLUIDS)
