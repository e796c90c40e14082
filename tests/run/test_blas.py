"""Threads and kernels of matrix products."""

import os
import platform
import subprocess
import sys

import pytest

SHOW = "from threadpoolctl import threadpool_info; print({p['num_threads'] for p in threadpool_info()})"


@pytest.mark.parametrize("first", ["import numpy", "pass"])
def test_threads_are_set_before_and_after_numpy_is_imported(first: str) -> None:
    code = f"{first}; from pstranspile.run.blas import use_threads; use_threads(1); import numpy; {SHOW}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{1}"


KERNELS = "from threadpoolctl import threadpool_info; print({p['architecture'] for p in threadpool_info()})"


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="what the CPU has can't be read")
@pytest.mark.parametrize("chosen", [{}, {"OPENBLAS_CORETYPE": "Haswell"}])
def test_kernels_are_chosen_before_numpy_is_imported(chosen: dict[str, str]):
    """In place of those that the environment names, if they fuse multiplication and addition."""
    code = f"from pstranspile.run.blas import use_rounded_products; use_rounded_products(); import numpy; {KERNELS}"
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"} | chosen
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip().lower() == "{'sandybridge'}"


def test_a_choice_of_kernels_that_round_products_holds():
    code = "from pstranspile.run.blas import use_rounded_products; use_rounded_products(); import os; " + (
        "print(os.environ['OPENBLAS_CORETYPE'])"
    )
    told = {**os.environ, "OPENBLAS_CORETYPE": "Nehalem"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=told)
    assert done.stdout.strip() == "Nehalem"
