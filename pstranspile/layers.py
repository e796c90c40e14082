"""Models written in Python: the public name of `pstranspile.frontends.layers`."""

from pstranspile.frontends.layers import *  # noqa: F403
