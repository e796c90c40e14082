"""Fluid's `install_check`: checks whether programs can be trained."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.fluid import layers, optimizer, unique_name
from pstranspile.fluid.compiler import CompiledProgram
from pstranspile.fluid.executor import Executor, scope_guard
from pstranspile.fluid.framework import CPUPlace, Program, cpu_places, program_guard
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.scope import Scope

L: Any = layers


def run_check() -> None:
    """Trains a small program for one step, on one device and on two, and prints that it succeeded."""
    for devices in (1, 2):
        main, startup = Program(), Program()
        with scope_guard(Scope()), program_guard(main, startup), unique_name.guard():
            x = L.data(name="x", shape=[2])
            loss = L.mean(L.fc(x, size=3))
            optimizer.SGD(learning_rate=0.01).minimize(loss)
            executor = Executor(CPUPlace())
            executor.run(startup)
            parallel = CompiledProgram(main).with_data_parallel(loss_name=loss.name, places=cpu_places(devices))
            executor.run(main if devices == 1 else parallel, feed={"x": np.ones((2, 2), "float32")}, fetch_list=[loss])
        print(f"a program is trained on {devices} device{'s' * (devices > 1)}")


__getattr__ = names_of_fluid(__name__, globals())
