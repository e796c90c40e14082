"""Backward and update ops for a forward program: gradients, optimizers, clipping, regularisation, rates.

from pstranspile.autodiff import Adam, minimize, train
minimize(loss, Adam(0.001))                           # on a model being built with pstranspile.layers
module = train(module, "mean_0.tmp_0", Adam(0.001))   # on a finished forward module
"""

from pstranspile.autodiff.averages import ExponentialMovingAverage as ExponentialMovingAverage
from pstranspile.autodiff.averages import ModelAverage as ModelAverage
from pstranspile.autodiff.averages import lookahead as lookahead
from pstranspile.autodiff.backward import ParamGrad as ParamGrad
from pstranspile.autodiff.backward import append_backward as append_backward
from pstranspile.autodiff.clips import ClipByGlobalNorm as ClipByGlobalNorm
from pstranspile.autodiff.clips import ClipByNorm as ClipByNorm
from pstranspile.autodiff.clips import ClipByValue as ClipByValue
from pstranspile.autodiff.clips import set_gradient_clip as set_gradient_clip
from pstranspile.autodiff.gradients import append_gradients as append_gradients
from pstranspile.autodiff.minimize import apply_gradients as apply_gradients
from pstranspile.autodiff.minimize import draft_of_module as draft_of_module
from pstranspile.autodiff.minimize import minimize as minimize
from pstranspile.autodiff.minimize import train as train
from pstranspile.autodiff.optimizers import OPTIMIZERS as OPTIMIZERS
from pstranspile.autodiff.optimizers import SGD as SGD
from pstranspile.autodiff.optimizers import Adadelta as Adadelta
from pstranspile.autodiff.optimizers import Adagrad as Adagrad
from pstranspile.autodiff.optimizers import Adam as Adam
from pstranspile.autodiff.optimizers import Adamax as Adamax
from pstranspile.autodiff.optimizers import DecayedAdagrad as DecayedAdagrad
from pstranspile.autodiff.optimizers import Dpsgd as Dpsgd
from pstranspile.autodiff.optimizers import Ftrl as Ftrl
from pstranspile.autodiff.optimizers import Lamb as Lamb
from pstranspile.autodiff.optimizers import LarsMomentum as LarsMomentum
from pstranspile.autodiff.optimizers import Momentum as Momentum
from pstranspile.autodiff.optimizers import Optimizer as Optimizer
from pstranspile.autodiff.optimizers import RMSProp as RMSProp
from pstranspile.autodiff.regularizers import L1 as L1
from pstranspile.autodiff.regularizers import L2 as L2
from pstranspile.autodiff.schedules import Cosine as Cosine
from pstranspile.autodiff.schedules import Exponential as Exponential
from pstranspile.autodiff.schedules import InverseTime as InverseTime
from pstranspile.autodiff.schedules import LinearWarmup as LinearWarmup
from pstranspile.autodiff.schedules import NaturalExp as NaturalExp
from pstranspile.autodiff.schedules import Noam as Noam
from pstranspile.autodiff.schedules import Piecewise as Piecewise
from pstranspile.autodiff.schedules import Polynomial as Polynomial
from pstranspile.autodiff.schedules import Schedule as Schedule
