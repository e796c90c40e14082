"""Fluid's `transpiler.ps_dispatcher`: which server holds what."""

from pstranspile.compiler.plan.dispatch import Dispatcher as PSDispatcher
from pstranspile.compiler.plan.dispatch import HashName as HashName
from pstranspile.compiler.plan.dispatch import RoundRobin as RoundRobin
from pstranspile.fluid.missing import names_of_fluid

_ = PSDispatcher


__getattr__ = names_of_fluid(__name__, globals())
