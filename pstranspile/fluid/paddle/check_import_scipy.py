"""Fluid's `check_import_scipy`."""

from __future__ import annotations


def check_import_scipy(OsName: str) -> None:
    """On Windows (`nt`), raises ImportError where SciPy's files lack a library; does nothing elsewhere."""
    if OsName == "nt":
        try:
            import scipy.io  # noqa: F401  # pyright: ignore
        except ImportError as problem:
            if "DLL load failed" in str(problem):
                raise ImportError(f"{problem}: install the Visual C++ Redistributable of 2015") from problem
