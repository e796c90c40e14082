"""Fluid's `contrib.layers`."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.contrib.layers import rnn_impl as rnn_impl
from pstranspile.fluid.contrib.layers.rnn_impl import BasicGRUUnit as BasicGRUUnit
from pstranspile.fluid.contrib.layers.rnn_impl import BasicLSTMUnit as BasicLSTMUnit
from pstranspile.fluid.contrib.layers.rnn_impl import basic_gru as basic_gru
from pstranspile.fluid.contrib.layers.rnn_impl import basic_lstm as basic_lstm
from pstranspile.fluid.missing import names_of_fluid

_get = names_of_fluid(__name__, globals())


def __getattr__(name: str) -> Any:
    return _get(name)
