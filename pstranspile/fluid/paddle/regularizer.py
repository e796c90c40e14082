"""`paddle.regularizer`: weight decay under its later names."""

from pstranspile.fluid.regularizer import L1Decay as L1Decay
from pstranspile.fluid.regularizer import L2Decay as L2Decay
