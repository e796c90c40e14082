"""`paddle.metric`: the share of predictions that are right."""

from pstranspile.fluid.layers import accuracy as accuracy
