"""Fluid's `layers`."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.layers import (
    collective,
    control_flow,
    detection,
    distributions,
    io,
    learning_rate_scheduler,
    loss,
    nn,
    ops,
    rnn,
    sequence_lod,
    tensor,
)
from pstranspile.fluid.missing import names_of_fluid

device = collective
"""Fluid's module of devices."""
metric_op = loss
"""Fluid's module of metrics."""

for _module in (
    nn,
    io,
    tensor,
    control_flow,
    ops,
    learning_rate_scheduler,
    rnn,
    sequence_lod,
    loss,
    detection,
    distributions,
    collective,
):
    globals().update(
        {
            name: value
            for name, value in vars(_module).items()
            if not name.startswith("_") and getattr(value, "__module__", "") in (__name__, _module.__name__)
        }
    )
_get = names_of_fluid(__name__, globals())


def __getattr__(name: str) -> Any:
    return _get(name)
