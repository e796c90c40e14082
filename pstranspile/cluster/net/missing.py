"""The library with which servers of Fluid are called, which is an extra of this package."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pstranspile.ir.diagnostics import DiagnosticError, error


def grpc_library() -> Any:
    """The module `grpc`. Raises DiagnosticError if grpcio is not installed."""
    try:
        return import_module("grpc")
    except ImportError as problem:
        what = "is not installed" if isinstance(problem, ModuleNotFoundError) else f"can't be imported ({problem})"
        message = f"servers of Fluid are called by gRPC, which {what}: pip install 'pstranspile[cluster]'"
        raise DiagnosticError([error("start-library", message)]) from None
