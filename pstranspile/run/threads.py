"""How many threads numpy's matrix products use."""

from __future__ import annotations

import os
import sys

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def use_threads(count: int) -> None:
    """Has the matrix products of this process use so many threads.

    One thread gives the same sums on every machine, and is faster for small products and on busy machines, where
    threads wait for each other.
    """
    if "numpy" not in sys.modules:
        os.environ.update(dict.fromkeys(VARIABLES, str(count)))
        return
    from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]

    threadpool_limits(limits=count, user_api="blas")
