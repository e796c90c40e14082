"""Fluid's `layers`."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.layers import (
    collective,
    control_flow,
    detection,
    device,
    distributions,
    io,
    learning_rate_scheduler,
    loss,
    metric_op,
    newer,
    nn,
    ops,
    regions,
    rnn,
    sequence_lod,
    sized,
    tensor,
)
from pstranspile.fluid.missing import names_of_fluid

_MODULES: tuple[Any, ...] = (
    nn,
    io,
    tensor,
    control_flow,
    ops,
    device,
    learning_rate_scheduler,
    metric_op,
    rnn,
    sequence_lod,
    sized,
    loss,
    detection,
    regions,
    newer,
    distributions,
    collective,
)


def _names(module: Any) -> list[tuple[str, Any]]:
    return [(name, getattr(module, name)) for name in dir(module)]


for _module in _MODULES:
    globals().update(
        {
            name: value
            for name, value in _names(_module)
            if not name.startswith("_") and getattr(value, "__module__", "").startswith(__name__)
        }
    )
_get = names_of_fluid(__name__, globals())


def __getattr__(name: str) -> Any:
    return _get(name)
