"""The library of numpy's matrix products: how many threads it uses, and which of its kernels.

Both are set in the environment, and so before numpy is imported.
"""

from __future__ import annotations

import os
import platform
import sys

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def use_threads(count: int | None = None) -> None:
    """Sets the number of threads for matrix products of this process.

    One thread is faster for small products and on busy machines, where threads wait for each other. So it is one if no
    number is asked for, unless numpy is imported already, which has then chosen. Raises ImportError if a number is
    asked for after that, and threadpoolctl, which changes it, is not installed.
    """
    if "numpy" not in sys.modules:
        os.environ.update(dict.fromkeys(VARIABLES, str(count or 1)))
    elif count is not None:
        from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]

        threadpool_limits(limits=count, user_api="blas")


_KERNELS = "Sandybridge"
"""OpenBLAS's fastest kernels that round a product before they add it."""

_NEEDED = "avx"
"""The feature that the CPU must have for them."""

_OLDER = frozenset(
    {"athlon", "atom", "barcelona", "bobcat", "core2", "dunnington", "nano", "nehalem", "opteron", "penryn", "prescott"}
)
"""Others that do, as OpenBLAS calls them."""


def use_rounded_products() -> None:
    """Has numpy's OpenBLAS, if numpy is not imported yet, take kernels without fused multiply-add.

    `arithmetic.fluid.product_order` then makes its sums with them, which is many times faster than what it does
    otherwise, and gives the same. Kernels that the environment chooses are kept if they do without as well. It has no
    effect on CPUs that lack AVX, and where that can't be read (off Linux).
    """
    chosen = os.environ.get("OPENBLAS_CORETYPE", "").lower()
    if "numpy" in sys.modules or chosen in _OLDER or platform.machine() != "x86_64" or _NEEDED not in _cpu_flags():
        return
    os.environ["OPENBLAS_CORETYPE"] = _KERNELS


def _cpu_flags() -> list[str]:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("flags"):
                    return line.split()
    except OSError:  # no such file: not Linux
        pass
    return []
