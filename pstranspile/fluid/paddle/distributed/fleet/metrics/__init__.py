"""`paddle.distributed.fleet.metrics`: figures over all trainers."""

from pstranspile.fluid.paddle.distributed.fleet.metrics.metric import acc as acc
from pstranspile.fluid.paddle.distributed.fleet.metrics.metric import auc as auc
from pstranspile.fluid.paddle.distributed.fleet.metrics.metric import mae as mae
from pstranspile.fluid.paddle.distributed.fleet.metrics.metric import max as max
from pstranspile.fluid.paddle.distributed.fleet.metrics.metric import min as min
from pstranspile.fluid.paddle.distributed.fleet.metrics.metric import mse as mse
from pstranspile.fluid.paddle.distributed.fleet.metrics.metric import rmse as rmse
from pstranspile.fluid.paddle.distributed.fleet.metrics.metric import sum as sum
