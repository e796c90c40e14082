"""`paddle.nn` of the first 2.x versions, as far as it applies to programs: layers as objects,
activations and losses.
"""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.clip import ClipGradByGlobalNorm as ClipGradByGlobalNorm
from pstranspile.fluid.clip import ClipGradByNorm as ClipGradByNorm
from pstranspile.fluid.clip import ClipGradByValue as ClipGradByValue
from pstranspile.fluid.paddle.nn import functional as functional
from pstranspile.fluid.paddle.nn import initializer as initializer
from pstranspile.fluid.paddle.nn import layer, recurrent, transformer
from pstranspile.fluid.param_attr import ParamAttr as ParamAttr

_LAYERS: dict[str, Any] = {
    name: held
    for module in (layer, recurrent, transformer)
    for name, held in vars(module).items()
    if isinstance(held, type) and issubclass(held, layer.Layer) and not name.startswith("_")
}


def __getattr__(name: str) -> Any:
    if name in _LAYERS:
        return _LAYERS[name]
    from pstranspile.fluid.paddle.later import not_there

    raise not_there(f"paddle.nn.{name}", [*globals(), *_LAYERS])
