"""Fluid's `transpiler`: turns one program into the programs of a cluster."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.transpiler import distribute_transpiler
from pstranspile.fluid.transpiler.distribute_transpiler import Collective as Collective
from pstranspile.fluid.transpiler.distribute_transpiler import DistributeTranspiler as DistributeTranspiler
from pstranspile.fluid.transpiler.distribute_transpiler import DistributeTranspilerConfig as DistributeTranspilerConfig
from pstranspile.fluid.transpiler.distribute_transpiler import GeoSgdTranspiler as GeoSgdTranspiler
from pstranspile.fluid.transpiler.distribute_transpiler import GradAllReduce as GradAllReduce
from pstranspile.fluid.transpiler.distribute_transpiler import HashName as HashName
from pstranspile.fluid.transpiler.distribute_transpiler import LocalSGD as LocalSGD
from pstranspile.fluid.transpiler.distribute_transpiler import RoundRobin as RoundRobin
from pstranspile.fluid.transpiler.distribute_transpiler import SingleProcessMultiThread as SingleProcessMultiThread

collective = distribute_transpiler
"""Fluid's module of collective transpilers."""


def memory_optimize(input_program: Any, *_: Any, **__: Any) -> None:
    """Does nothing, as in Fluid 1.8, because values are always released after their last use."""


def release_memory(input_program: Any, skip_opt_set: Any = None) -> None:
    """Does nothing, as in Fluid 1.8, because values are always released after their last use."""


__getattr__ = names_of_fluid(__name__, globals())
