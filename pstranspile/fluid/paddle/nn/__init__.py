"""`paddle.nn` of the first 2.x versions, as far as programs go: layers as objects, activations and losses."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.clip import GradientClipByGlobalNorm as ClipGradByGlobalNorm
from pstranspile.fluid.clip import GradientClipByNorm as ClipGradByNorm
from pstranspile.fluid.clip import GradientClipByValue as ClipGradByValue
from pstranspile.fluid.paddle.nn import functional as functional
from pstranspile.fluid.paddle.nn import initializer as initializer
from pstranspile.fluid.paddle.nn import layer as layer
from pstranspile.fluid.param_attr import ParamAttr as ParamAttr

_ = ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue


def __getattr__(name: str) -> Any:
    found = None if name.startswith("_") else vars(layer).get(name)
    if isinstance(found, type):
        return found
    from pstranspile.fluid.paddle.later import not_there

    raise not_there(f"paddle.nn.{name}", [*globals(), *vars(layer)])
