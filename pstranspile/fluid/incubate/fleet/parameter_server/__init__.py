"""Fleet with parameter servers."""

from pstranspile.fluid.missing import names_of_fluid

__getattr__ = names_of_fluid(__name__, globals())
