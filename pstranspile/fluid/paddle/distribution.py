"""`paddle.distribution`: Fluid's distributions."""

from pstranspile.fluid.layers.distributions import Categorical as Categorical
from pstranspile.fluid.layers.distributions import Normal as Normal
from pstranspile.fluid.layers.distributions import Uniform as Uniform
