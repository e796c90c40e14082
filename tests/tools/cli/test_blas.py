"""Threads and kernels of matrix products."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pstranspile.tools.cli import blas

SHOW = "from threadpoolctl import threadpool_info; print({p['num_threads'] for p in threadpool_info()})"


@pytest.mark.parametrize("first", ["import numpy", "pass"])
def test_threads_are_set_before_and_after_numpy_is_imported(first: str) -> None:
    code = f"{first}; from pstranspile.tools.cli.blas import use_threads; use_threads(1); import numpy; {SHOW}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{1}"


@pytest.mark.parametrize("first", ["import numpy", "pass"])
def test_threads_are_left_to_numpy_unless_a_number_is_asked_for(first: str) -> None:
    """Nothing is loaded that could change them, and of a process that has no numpy yet it is one."""
    code = f"{first}; import os, sys; from pstranspile.tools.cli.blas import use_threads; use_threads()\n"
    code += "print('threadpoolctl' in sys.modules, os.environ.get('OPENBLAS_NUM_THREADS'))"
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["False", "2" if first == "import numpy" else "1"]


@pytest.mark.parametrize("command", ["run --arithmetic fluid --feed", "check --pservers 1 --trainers 1 --feed"])
def test_commands_choose_before_numpy_is_imported(command: str, tmp_path: Path) -> None:
    feed = tmp_path / "feed.npz"
    np.savez(feed, x=np.ones((1, 4, 13), "float32"), y=np.ones((1, 4, 1), "float32"))
    code = f"""
import contextlib, io, os
from pstranspile.tools.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    assert main({[*command.split(), str(feed), "--steps", "1", "golden/linear_regression.ir"]}) == 0
print(os.environ.get("OPENBLAS_NUM_THREADS"))
{SHOW}
"""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["1", "{1}"]


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
        "from pstranspile.tools.cli.blas import use_rounded_products; use_rounded_products()\n"
        "import os; from threadpoolctl import threadpool_info\n"
        "from pstranspile.fluid.arithmetic import product_order as sums\n"
        "rounds, apis = sums._blas_is_in_sequence(), {p['internal_api'] for p in threadpool_info()}\n"
        "print(rounds or os.environ.get('OPENBLAS_CORETYPE') != 'Sandybridge' or 'openblas' not in apis)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
