"""Backward and update ops for a forward program: gradients, optimizers, clipping, regularisation, rates.

from pstranspile.frontends.autodiff import Adam, minimize, train
minimize(loss, Adam(0.001))                           # on a model being built with pstranspile.frontends.layers
module = train(module, "mean_0.tmp_0", Adam(0.001))   # on a finished forward module
"""

from pstranspile.frontends.autodiff.averages import ExponentialMovingAverage as ExponentialMovingAverage
from pstranspile.frontends.autodiff.averages import ModelAverage as ModelAverage
from pstranspile.frontends.autodiff.averages import lookahead as lookahead
from pstranspile.frontends.autodiff.backward import ParamGrad as ParamGrad
from pstranspile.frontends.autodiff.backward import append_backward as append_backward
from pstranspile.frontends.autodiff.backward import append_gradients as append_gradients
from pstranspile.frontends.autodiff.clips import ClipByGlobalNorm as ClipByGlobalNorm
from pstranspile.frontends.autodiff.clips import ClipByNorm as ClipByNorm
from pstranspile.frontends.autodiff.clips import ClipByValue as ClipByValue
from pstranspile.frontends.autodiff.clips import set_gradient_clip as set_gradient_clip
from pstranspile.frontends.autodiff.minimize import apply_gradients as apply_gradients
from pstranspile.frontends.autodiff.minimize import draft_of_module as draft_of_module
from pstranspile.frontends.autodiff.minimize import minimize as minimize
from pstranspile.frontends.autodiff.minimize import train as train
from pstranspile.frontends.autodiff.optimizers import L1 as L1
from pstranspile.frontends.autodiff.optimizers import L2 as L2
from pstranspile.frontends.autodiff.optimizers import OPTIMIZERS as OPTIMIZERS
from pstranspile.frontends.autodiff.optimizers import SGD as SGD
from pstranspile.frontends.autodiff.optimizers import Adadelta as Adadelta
from pstranspile.frontends.autodiff.optimizers import Adagrad as Adagrad
from pstranspile.frontends.autodiff.optimizers import Adam as Adam
from pstranspile.frontends.autodiff.optimizers import Adamax as Adamax
from pstranspile.frontends.autodiff.optimizers import DecayedAdagrad as DecayedAdagrad
from pstranspile.frontends.autodiff.optimizers import Dpsgd as Dpsgd
from pstranspile.frontends.autodiff.optimizers import Ftrl as Ftrl
from pstranspile.frontends.autodiff.optimizers import Lamb as Lamb
from pstranspile.frontends.autodiff.optimizers import LarsMomentum as LarsMomentum
from pstranspile.frontends.autodiff.optimizers import Momentum as Momentum
from pstranspile.frontends.autodiff.optimizers import Optimizer as Optimizer
from pstranspile.frontends.autodiff.optimizers import RMSProp as RMSProp
from pstranspile.frontends.autodiff.schedules import Cosine as Cosine
from pstranspile.frontends.autodiff.schedules import Exponential as Exponential
from pstranspile.frontends.autodiff.schedules import InverseTime as InverseTime
from pstranspile.frontends.autodiff.schedules import LinearWarmup as LinearWarmup
from pstranspile.frontends.autodiff.schedules import NaturalExp as NaturalExp
from pstranspile.frontends.autodiff.schedules import Noam as Noam
from pstranspile.frontends.autodiff.schedules import Piecewise as Piecewise
from pstranspile.frontends.autodiff.schedules import Polynomial as Polynomial
from pstranspile.frontends.autodiff.schedules import Schedule as Schedule
