"""How numpy's BLAS is set up: how many threads it uses, and which kernels."""

from __future__ import annotations

import os
import platform
import sys

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

_KERNELS, _NEEDED = "Sandybridge", "avx"
"""OpenBLAS's fastest kernels that round a product before they add it, and what the CPU must have for them."""


def use_threads(count: int) -> None:
    """Has the matrix products of this process use so many threads.

    One thread is faster for small products and on busy machines, where threads wait for each other.
    """
    if "numpy" not in sys.modules:
        os.environ.update(dict.fromkeys(VARIABLES, str(count)))
        return
    from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]

    threadpool_limits(limits=count, user_api="blas")


def use_rounded_products() -> None:
    """Has numpy's OpenBLAS, if numpy is not imported yet, take kernels without fused multiply-add.

    `ops.product_order` then makes its sums with them, which is several times faster than what it does otherwise. It has
    no effect if the user has chosen kernels, on CPUs that lack AVX, and where that can't be read (off Linux).
    """
    if "numpy" not in sys.modules and platform.machine() == "x86_64" and _NEEDED in _cpu_flags():
        os.environ.setdefault("OPENBLAS_CORETYPE", _KERNELS)


def _cpu_flags() -> list[str]:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("flags"):
                    return line.split()
    except OSError:  # no such file: not Linux
        pass
    return []
