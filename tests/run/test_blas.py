"""Threads of matrix products."""

import os
import subprocess
import sys

import pytest

SHOW = "from threadpoolctl import threadpool_info; print({p['num_threads'] for p in threadpool_info()})"


@pytest.mark.parametrize("first", ["import numpy", "pass"])
def test_threads_are_set_before_and_after_numpy_is_imported(first: str) -> None:
    code = f"{first}; from pstranspile.run.blas import use_threads; use_threads(1); import numpy; {SHOW}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{1}"


@pytest.mark.parametrize("first", ["import numpy", "pass"])
def test_threads_are_left_to_numpy_unless_a_number_is_asked_for(first: str) -> None:
    """Nothing is loaded that could change them, and of a process that has no numpy yet it is one."""
    code = f"{first}; import os, sys; from pstranspile.run.blas import use_threads; use_threads()\n"
    code += "print('threadpoolctl' in sys.modules, os.environ.get('OPENBLAS_NUM_THREADS'))"
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["False", "2" if first == "import numpy" else "1"]
