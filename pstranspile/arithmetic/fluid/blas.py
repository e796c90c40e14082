"""Which kernels numpy's OpenBLAS takes: those that round as Fluid's library does make its sums many times faster."""

from __future__ import annotations

import os
import platform
import sys

_KERNELS, _NEEDED = "Sandybridge", "avx"
"""OpenBLAS's fastest kernels that round a product before they add it, and what the CPU must have for them."""

_OLDER = frozenset(
    {"athlon", "atom", "barcelona", "bobcat", "core2", "dunnington", "nano", "nehalem", "opteron", "penryn", "prescott"}
)
"""Others that do, as OpenBLAS calls them."""


def use_rounded_products() -> None:
    """Has numpy's OpenBLAS, if numpy is not imported yet, take kernels without fused multiply-add.

    `product_order` then makes its sums with them, which is many times faster than what it does otherwise, and gives
    the same. Kernels that the environment chooses are kept if they do without as well. It has no effect on CPUs that
    lack AVX, and where that can't be read (off Linux).
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
