"""Whether the library that frames travel with is there."""

from __future__ import annotations

from importlib.util import find_spec

from pstranspile.ir.diagnostics import DiagnosticError, error


def require_grpc() -> None:
    """Raises DiagnosticError if grpcio is not installed."""
    if find_spec("grpc") is None:
        message = "processes talk by gRPC, which is not installed; get it with: pip install 'pstranspile[cluster]'"
        raise DiagnosticError([error("start-library", message)])
