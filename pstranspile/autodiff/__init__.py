"""Backward and update ops for a forward program: gradients, optimizers, clipping, regularisation, rates.

from pstranspile.autodiff import Adam, minimize
minimize(loss, Adam(0.001))                       # on a model being built with pstranspile.layers
module = train(module, "mean_0.tmp_0", Adam(0.001))   # on a finished forward module
"""
