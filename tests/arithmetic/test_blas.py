"""Kernels of matrix products that round as Fluid does."""

import os
import platform
import subprocess
import sys

import pytest

from pstranspile.arithmetic.fluid import blas


def kernels(monkeypatch: pytest.MonkeyPatch, machine: str, flags: list[str], chosen: str, loaded: bool) -> str:
    """The kernels that the environment asks for in the end, "" for none."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(blas, "_cpu_flags", lambda: flags)
    monkeypatch.setitem(sys.modules, "numpy", sys)
    if not loaded:
        monkeypatch.delitem(sys.modules, "numpy")
    monkeypatch.setenv("OPENBLAS_CORETYPE", chosen)
    blas.use_rounded_products()
    return os.environ["OPENBLAS_CORETYPE"]


@pytest.mark.parametrize(
    ("chosen", "machine", "flags", "loaded", "found"),
    [
        ("", "x86_64", ["sse2", "avx"], False, "Sandybridge"),
        ("Haswell", "x86_64", ["avx"], False, "Sandybridge"),  # it fuses multiplication and addition
        ("Nehalem", "x86_64", ["avx"], False, "Nehalem"),  # it does not
        ("Haswell", "x86_64", ["avx"], True, "Haswell"),  # numpy has been imported, it is too late
        ("Haswell", "x86_64", ["sse2"], False, "Haswell"),
        ("", "arm64", ["avx"], False, ""),
    ],
)
def test_kernels_that_round_products(
    chosen: str, machine: str, flags: list[str], loaded: bool, found: str, monkeypatch: pytest.MonkeyPatch
):
    assert kernels(monkeypatch, machine, flags, chosen, loaded) == found


def test_what_the_cpu_has_is_read_where_it_can_be():
    assert ("fpu" in blas._cpu_flags()) == (sys.platform == "linux" and platform.machine() == "x86_64")  # pyright: ignore[reportPrivateUsage]


def test_products_are_rounded_with_these_kernels():
    code = (
        "from pstranspile.arithmetic.fluid.blas import use_rounded_products; use_rounded_products()\n"
        "import os; from threadpoolctl import threadpool_info; from pstranspile.arithmetic.fluid import product_order\n"
        "rounds, apis = product_order._blas_is_in_sequence(), {p['internal_api'] for p in threadpool_info()}\n"
        "print(rounds or os.environ.get('OPENBLAS_CORETYPE') != 'Sandybridge' or 'openblas' not in apis)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
