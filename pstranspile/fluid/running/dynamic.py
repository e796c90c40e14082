"""Whether a script builds static graphs: those of Fluid 1.x always do, those of 2.x once they have said so."""

from __future__ import annotations

import sys

from pstranspile.ir.diagnostics import DiagnosticError, error

_undecided: list[bool] = []
"""Not empty while a script is run that has not said what graphs it builds."""


def begin_script() -> None:
    """A script begins, which has said nothing yet."""
    _undecided[:] = [True]


def build_static() -> None:
    """The script builds static graphs: it has said so, or uses Fluid, whose graphs are static."""
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
