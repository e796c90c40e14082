"""What scripts take from Fluid's `contrib`."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.contrib import layers as layers
from pstranspile.fluid.contrib import mixed_precision as mixed_precision
from pstranspile.fluid.contrib.layers import BasicGRUUnit as BasicGRUUnit
from pstranspile.fluid.contrib.layers import BasicLSTMUnit as BasicLSTMUnit
from pstranspile.fluid.contrib.layers import basic_gru as basic_gru
from pstranspile.fluid.contrib.layers import basic_lstm as basic_lstm
from pstranspile.fluid.contrib.layers import multiclass_nms2 as multiclass_nms2
from pstranspile.fluid.contrib.memory_usage_calc import memory_usage as memory_usage
from pstranspile.fluid.missing import names_of_fluid

_get = names_of_fluid(__name__, globals())


def __getattr__(name: str) -> Any:
    return _get(name)
