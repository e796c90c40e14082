"""Gradients, optimizers and rates: the public name of `pstranspile.frontends.autodiff`."""

from pstranspile.frontends.autodiff import *  # noqa: F403
