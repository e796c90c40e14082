"""Threads of matrix products."""

import subprocess
import sys

import pytest

SHOW = "from threadpoolctl import threadpool_info; print({p['num_threads'] for p in threadpool_info()})"


@pytest.mark.parametrize("first", ["import numpy", "pass"])
def test_threads_are_set_before_and_after_numpy_is_imported(first: str) -> None:
    code = f"{first}; from pstranspile.run.threads import use_threads; use_threads(1); import numpy; {SHOW}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{1}"
