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
    rnn,
    sequence_lod,
    sized,
    tensor,
)
from pstranspile.fluid.missing import names_of_fluid

_NOT_LAYERS = frozenset(
    (
        *("BasicGRUUnit", "BasicLSTMUnit", "multiclass_nms2"),  # of `contrib.layers`
        *("BeamOutputs", "BeamStates", "Layer", "kept_where", "renamed"),
    )
)
"""Names of the modules below that are no layers of `fluid.layers`."""

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
    newer,
    distributions,
    collective,
)


def _names(module: Any) -> list[tuple[str, Any]]:
    names = [name for name in dir(module) if not name.startswith("_") and name not in _NOT_LAYERS]
    return [(name, getattr(module, name)) for name in names]


for _module in _MODULES:
    globals().update(
        {name: value for name, value in _names(_module) if getattr(value, "__module__", "").startswith(__name__)}
    )
_get = names_of_fluid(__name__, globals())


def __getattr__(name: str) -> Any:
    return _get(name)
