"""`paddle.optimizer` of the first 2.x versions: Fluid's optimizers with the later names and orders of arguments."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid import optimizer as fluid
from pstranspile.fluid.layers.adapt import bound, signature_of
from pstranspile.fluid.regularizer import L2Decay

Optimizer = fluid.Optimizer
_RENAMED = {"parameters": "parameter_list", "weight_decay": "regularization"}
_TAIL = "weight_decay=None, grad_clip=None, name=None"


def _later(base: Any, arguments: str) -> Any:
    """Fluid's optimizer with other arguments. A weight decay that is a number is the factor of L2."""
    name: str = base.__name__
    signature = signature_of(arguments)

    def start(self: Any, *args: Any, **options: Any) -> None:
        given = bound(name, signature, args, options)
        decay = given.get("weight_decay")
        if isinstance(decay, int | float):
            given = {**given, "weight_decay": L2Decay(float(decay))}
        base.__init__(self, **{_RENAMED.get(key, key): value for key, value in given.items()})

    return type(name, (base,), {"__init__": start, "__doc__": f"{base.__doc__}, with the arguments of 2.x."})


_ADAM = "learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-08, parameters=None"
SGD = _later(fluid.SGD, f"learning_rate=0.001, parameters=None, {_TAIL}")
Momentum = _later(fluid.Momentum, f"learning_rate=0.001, momentum=0.9, parameters=None, use_nesterov=False, {_TAIL}")
Adagrad = _later(
    fluid.Adagrad, f"learning_rate, epsilon=1e-06, parameters=None, {_TAIL}, initial_accumulator_value=0.0"
)
Adam = _later(fluid.Adam, f"{_ADAM}, weight_decay=None, grad_clip=None, lazy_mode=False, name=None")
Adamax = _later(fluid.Adamax, f"{_ADAM}, {_TAIL}")
Adadelta = _later(fluid.Adadelta, f"learning_rate=0.001, epsilon=1e-06, rho=0.95, parameters=None, {_TAIL}")
RMSProp = _later(
    fluid.RMSProp,
    f"learning_rate, rho=0.95, epsilon=1e-06, momentum=0.0, centered=False, parameters=None, {_TAIL}",
)


def __getattr__(name: str) -> Any:
    from pstranspile.fluid.paddle.later import not_there

    raise not_there(f"paddle.optimizer.{name}", globals())
