"""What looks at the runs of programs: the check for numbers that are not finite, and the profiler."""

from __future__ import annotations

from pstranspile.fluid.running.finite import Finite
from pstranspile.fluid.running.flags import FLAGS
from pstranspile.fluid.running.profiling import Profiler, active
from pstranspile.runtime.run.watchers import NotFinite


def watchers() -> tuple[NotFinite | Profiler, ...]:
    """The watchers of a run, as flags and the script say now."""
    return (*active, Finite()) if FLAGS["FLAGS_check_nan_inf"] else tuple(active)
