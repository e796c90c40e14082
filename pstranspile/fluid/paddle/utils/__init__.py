"""Fluid's `paddle.utils`."""

from pstranspile.fluid import unique_name as unique_name
from pstranspile.fluid.install_check import run_check as run_check
from pstranspile.fluid.paddle.utils import image_util as image_util
from pstranspile.fluid.paddle.utils.plot import Ploter as Ploter
