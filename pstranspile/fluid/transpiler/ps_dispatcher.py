"""Fluid's `transpiler.ps_dispatcher`: which server holds what."""

from pstranspile.compiler.plan.make import Dispatcher as PSDispatcher
from pstranspile.compiler.plan.make import HashName as HashName
from pstranspile.compiler.plan.make import RoundRobin as RoundRobin
from pstranspile.fluid.missing import names_of_fluid

_ = PSDispatcher


__getattr__ = names_of_fluid(__name__, globals())
