"""`paddle.optimizer` of the first 2.x versions: Fluid's optimizers with the later names and orders of arguments.

It also has the weight decays of `paddle.regularizer`, under their later names.
"""

from __future__ import annotations

from typing import Any

from pstranspile.fluid import optimizer as fluid
from pstranspile.fluid import regularizer
from pstranspile.fluid.framework import name_scope
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.layers import assign
from pstranspile.fluid.layers.adapt import bound, signature_of
from pstranspile.fluid.paddle.later import not_there
from pstranspile.fluid.paddle.optimizer import lr as lr
from pstranspile.fluid.running.rates import LRScheduler

_TAIL = "weight_decay=None, grad_clip=None, name=None"


class L1Decay(regularizer.L1Decay):
    """Adds `coeff` times the signs of a parameter to its gradient."""

    def __init__(self, coeff: float = 0.0):
        super().__init__(coeff)


class L2Decay(regularizer.L2Decay):
    """Adds `coeff` times a parameter to its gradient."""

    def __init__(self, coeff: float = 0.0):
        super().__init__(coeff)


class Optimizer(fluid.Optimizer):
    """The base class of optimizers, with the arguments of 2.x. A weight decay that is a number is the coefficient of
    L2.
    """

    def __init__(
        self,
        learning_rate: Any,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
        **settings: Any,
    ):
        decay = L2Decay(float(weight_decay)) if isinstance(weight_decay, int | float) else weight_decay
        fluid.Optimizer.__init__(self, learning_rate, parameters, decay, grad_clip, name, **settings)

    def minimize(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        loss: Variable,
        startup_program: Any = None,
        parameters: Any = None,
        no_grad_set: Any = None,
        parameter_list: Any = None,
    ) -> Any:
        """Appends the ops that train the parameters on `loss`; returns the ops that update, and pairs of a parameter
        and its gradient.
        """
        return super().minimize(loss, startup_program, parameters or parameter_list, no_grad_set)

    def set_lr(self, value: float) -> None:
        """Changes the learning rate, and its variable if the program in use has one. Raises RuntimeError if the rate
        follows a schedule.
        """
        if isinstance(self._learning_rate, LRScheduler):
            raise RuntimeError("the learning rate goes by a schedule: change that")
        self._learning_rate = float(value)
        known = self._global_learning_rate()
        if known is not None:
            attrs = {"shape": [1], "dtype": known.dtype, "value": float(value)}
            known.block.append_op("fill_constant", outputs={"Out": [known]}, attrs=attrs)

    def __getattr__(self, name: str) -> Any:
        if name in ("step", "clear_grad", "state_dict", "set_state_dict"):
            raise fluid.unsupported_error(f"{type(self).__name__}.{name}", "there are static graphs only: use minimize")
        raise AttributeError(f"{type(self).__name__} has no {name!r}", name=name, obj=self)


_CHANGED = frozenset({"Adam", "Lamb", "Adadelta"})
"""Optimizers that compute differently from 2.0 on."""


def _later(base: Any, arguments: str) -> Any:
    """Fluid's optimizer with the arguments of 2.x."""
    name: str = base.type
    signature = signature_of(arguments)

    def start(self: Any, *args: Any, **options: Any) -> None:
        given = bound(name, signature, args, options)
        if given.pop("rescale_grad", 1.0) != 1.0:
            raise fluid.unsupported_error(f"{name}(rescale_grad=...)", "scale the loss")
        given.pop("multi_precision", None)  # parameters have 32 bits
        if name in _CHANGED:
            given["later"] = True
        Optimizer.__init__(self, **given)

    members = {"__init__": start, "__doc__": f"{base.__doc__}, with the arguments of 2.x."}
    return type(name, (Optimizer, base), members)


_ADAM = "learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-08, parameters=None"
_TAIL_OF_ADAM = "lazy_mode=False, multi_precision=False, name=None"
SGD = _later(fluid.SGD, f"learning_rate=0.001, parameters=None, {_TAIL}")
Momentum = _later(
    fluid.Momentum,
    "learning_rate=0.001, momentum=0.9, parameters=None, use_nesterov=False, "
    "weight_decay=None, grad_clip=None, multi_precision=False, rescale_grad=1.0, name=None",
)
Adagrad = _later(
    fluid.Adagrad, f"learning_rate, epsilon=1e-06, parameters=None, {_TAIL}, initial_accumulator_value=0.0"
)
Adam = _later(fluid.Adam, f"{_ADAM}, weight_decay=None, grad_clip=None, {_TAIL_OF_ADAM}")
_Lamb = _later(
    fluid.Lamb,
    "learning_rate=0.001, lamb_weight_decay=0.01, beta1=0.9, beta2=0.999, epsilon=1e-06, parameters=None, "
    "grad_clip=None, exclude=None, name=None",
)
Adamax = _later(fluid.Adamax, f"{_ADAM}, {_TAIL}")
Adadelta = _later(fluid.Adadelta, f"learning_rate=0.001, epsilon=1e-06, rho=0.95, parameters=None, {_TAIL}")
RMSProp = _later(
    fluid.RMSProp,
    f"learning_rate, rho=0.95, epsilon=1e-06, momentum=0.0, centered=False, parameters=None, {_TAIL}",
)


class Lamb(_Lamb):  # pyright: ignore[reportUntypedBaseClass]
    """Fluid's Lamb, with the arguments of 2.x."""

    def __init__(self, *args: Any, exclude_from_weight_decay_fn: Any = None, **options: Any):
        super().__init__(*args, exclude=exclude_from_weight_decay_fn, **options)  # pyright: ignore[reportUnknownMemberType]


class AdamW(Adam):  # pyright: ignore[reportUntypedBaseClass]
    """Adam with decoupled weight decay: before the update, it subtracts the learning rate times `weight_decay` times
    the parameter.

    `apply_decay_param_fun` decides by a parameter's name whether it decays. Raises TypeError for a decay that is
    neither a number nor a variable.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: float = 1e-8,
        parameters: Any = None,
        weight_decay: Any = 0.01,
        apply_decay_param_fun: Any = None,
        grad_clip: Any = None,
        lazy_mode: bool = False,
        multi_precision: bool = False,
        name: str | None = None,
    ):
        if not isinstance(weight_decay, float | Variable):
            raise TypeError(f"weight_decay of AdamW is a float or a variable, not a {type(weight_decay).__name__}")
        self._coeff, self._applies = weight_decay, apply_decay_param_fun
        super().__init__(  # pyright: ignore[reportUnknownMemberType]
            learning_rate, beta1, beta2, epsilon, parameters, None, grad_clip, lazy_mode, multi_precision, name
        )

    def apply_gradients(self, params_grads: Any) -> list[Any]:
        """Appends the decay, clipping and updates for these pairs; returns the ops that update, and those that they
        need.
        """
        self._create_global_learning_rate()
        rate: Any = self._global_learning_rate()
        for param, grad in params_grads:
            if grad is None or (self._applies is not None and not self._applies(param.name)):
                continue
            factor = param.optimize_attr["learning_rate"]
            with param.block.program._optimized_guard([param, grad]), name_scope("weight decay"):
                kept = 1.0 - (rate if factor == 1.0 else rate * factor) * self._coeff
                assign(param * kept, param)
        return Optimizer.apply_gradients(self, params_grads)


def __getattr__(name: str) -> Any:
    raise not_there(f"paddle.optimizer.{name}", globals())
