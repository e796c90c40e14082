"""A check that the library is installed with which servers of Fluid are called."""

from __future__ import annotations

from importlib import import_module

from pstranspile.ir.diagnostics import DiagnosticError, error


def require_grpc() -> None:
    """Raises DiagnosticError if grpcio is not installed."""
    try:
        import_module("grpc")
    except ImportError as problem:
        what = "is not installed" if isinstance(problem, ModuleNotFoundError) else f"can't be imported ({problem})"
        message = f"servers of Fluid are called by gRPC, which {what}: pip install 'pstranspile[cluster]'"
        raise DiagnosticError([error("start-library", message)]) from None
