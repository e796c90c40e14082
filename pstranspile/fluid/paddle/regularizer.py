"""`paddle.regularizer`: weight decay, under the later names."""

from __future__ import annotations

from pstranspile.fluid import regularizer as fluid


class L1Decay(fluid.L1Decay):
    """`coeff` times the signs of a parameter, added to its gradient."""

    def __init__(self, coeff: float = 0.0):
        super().__init__(coeff)


class L2Decay(fluid.L2Decay):
    """`coeff` times a parameter, added to its gradient."""

    def __init__(self, coeff: float = 0.0):
        super().__init__(coeff)
