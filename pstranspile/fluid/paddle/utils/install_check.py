"""Fluid's `install_check`: does a small program train."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.fluid import layers, unique_name
from pstranspile.fluid.core import CPUPlace
from pstranspile.fluid.executor import Executor, scope_guard
from pstranspile.fluid.framework import Program, program_guard
from pstranspile.fluid.input import data
from pstranspile.fluid.optimizer import SGD
from pstranspile.fluid.scope import Scope

L: Any = layers


def run_check() -> None:
    """Trains a small program, and says that this worked."""
    main, startup = Program(), Program()
    with program_guard(main, startup), unique_name.guard(), scope_guard(Scope()):
        loss = L.mean(L.fc(data("x", [-1, 2]), 1))
        SGD(0.01).minimize(loss)
        exe = Executor(CPUPlace())
        exe.run(startup)
        exe.run(main, feed={"x": np.ones((2, 2), "float32")}, fetch_list=[loss])
    print("A program trains on the CPU.")
