"""Whether the library that reads columnar files is there."""

from __future__ import annotations

from importlib.util import find_spec

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location


def require_pyarrow(file: str) -> None:
    """Raises DiagnosticError if pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        message = "such files are read by pyarrow, which is not installed; get it with: pip install 'pstranspile[data]'"
        raise DiagnosticError([error("data-library", message, Location(file))])
