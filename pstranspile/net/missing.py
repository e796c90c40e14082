"""Whether the library is there with which servers of Fluid are called."""

from __future__ import annotations

from importlib.util import find_spec

from pstranspile.ir.diagnostics import DiagnosticError, error


def require_grpc() -> None:
    """Raises DiagnosticError if grpcio is not installed."""
    if find_spec("grpc") is None:
        message = "servers of Fluid are called by gRPC, which is not installed: pip install 'pstranspile[cluster]'"
        raise DiagnosticError([error("start-library", message)])
