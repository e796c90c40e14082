"""How many threads numpy's matrix products use."""

from __future__ import annotations

import os
import sys

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def use_threads(count: int | None = None) -> None:
    """Has the matrix products of this process use so many threads.

    One thread is faster for small products and on busy machines, where threads wait for each other. So it is one if no
    number is asked for, unless numpy is imported already, which has then chosen. Raises ImportError if a number is
    asked for after that, and threadpoolctl, which changes it, is not installed.
    """
    if "numpy" not in sys.modules:
        os.environ.update(dict.fromkeys(VARIABLES, str(count or 1)))
    elif count is not None:
        from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]

        threadpool_limits(limits=count, user_api="blas")
