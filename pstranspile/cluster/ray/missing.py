"""A check whether Ray is installed."""

from __future__ import annotations

from importlib.util import find_spec

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.extras import installing


def require_ray() -> None:
    """Raises DiagnosticError if Ray is not installed."""
    if find_spec("ray") is None:
        message = f"Ray is not installed; get it with: {installing('ray')}"
        raise DiagnosticError([error("ray-library", message)])
