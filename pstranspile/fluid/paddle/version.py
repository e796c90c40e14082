"""The version of Fluid whose interface this package has, and queries about the installation.

Paddle's `sysconfig` returns the folders of headers and libraries, for scripts that build ops in C++; Fluid's
`check_import_scipy` checks SciPy's files.
"""

from __future__ import annotations

from pathlib import Path

full_version = "1.8.5"
major, minor, patch, rc = "1", "8", "5", "0"
istaged = True
commit = "8e1712a71057e3ca06a2927ceec51c18cb171fdc"


_FOLDER = Path(__file__).parent


def get_include() -> str:
    """The folder where Paddle has its C++ headers, of which this package has none."""
    return str(_FOLDER / "include")


def get_lib() -> str:
    """The folder where Paddle has its libraries, of which this package has none."""
    return str(_FOLDER / "libs")


def check_import_scipy(OsName: str) -> None:
    """On Windows (`nt`), raises ImportError if a library that SciPy needs is missing; does nothing elsewhere."""
    if OsName == "nt":
        try:
            import scipy.io  # noqa: F401  # pyright: ignore
        except ImportError as problem:
            if "DLL load failed" in str(problem):
                raise ImportError(f"{problem}: install the Visual C++ Redistributable of 2015") from problem
