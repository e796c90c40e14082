"""Fluid's `transpiler.ps_dispatcher`: which server holds what."""

from pstranspile.fluid.missing import names_of_fluid
from pstranspile.plan.dispatch import Dispatcher as PSDispatcher
from pstranspile.plan.dispatch import HashName as HashName
from pstranspile.plan.dispatch import RoundRobin as RoundRobin

_ = PSDispatcher


__getattr__ = names_of_fluid(__name__, globals())
