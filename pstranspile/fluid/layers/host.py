"""`layers.py_func`: a function of the script as an op."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.layers.accepted import check_kind
from pstranspile.fluid.layers.adapt import live, to_core
from pstranspile.fluid.lod_tensor import LoDTensor
from pstranspile.fluid.lod_tensor import to_core as value_of
from pstranspile.ir.attributes import Strings
from pstranspile.runtime.kernels.programs.host import HostFunction, register


def _called(function: Callable[..., Any]) -> HostFunction:
    """The function over values of runs; it is given LoDTensors, and none if it takes no arguments."""
    takes_none = not inspect.signature(function).parameters

    def call(values: Sequence[Any]) -> list[Any]:
        given = [LoDTensor(getattr(value, "data", value), getattr(value, "lod", ())) for value in map(_plain, values)]
        made = function() if takes_none else function(*given)
        items: list[Any] = [*made] if several(made) else [made]
        return [_value(item) for item in items]

    return call


def _plain(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.ndarray | np.generic) else value


def _value(item: Any) -> Any:
    if item is None or isinstance(item, LoDTensor):
        return value_of(item)
    return np.asarray(item)


def _listed(layer: str, given: Any) -> list[Any]:
    items: list[Any] = [] if given is None else list(given) if several(given) else [given]
    for item in items:
        check_kind("py_func", layer, item, ("Variable",))
    return items


def py_func(
    func: Callable[..., Any],
    x: Any,
    out: Any,
    backward_func: Callable[..., Any] | None = None,
    skip_vars_in_backward_input: Any = None,
) -> Any:
    """`out`, variables with declared dims, filled with what `func` gives for the tensors `x`.

    `backward_func` takes x, out and the gradients of out, without what is to be skipped, and gives the gradients of x.
    """
    if not callable(func):
        raise TypeError(f"py_func: func must be a function, not {type(func).__name__}")
    read, written = _listed("x", x), _listed("out", out)
    for variable in written:
        if not variable.shape:
            raise ValueError(f"py_func: the dims of {variable.name} must be declared")
    skipped = {variable.name for variable in _listed("skip_vars_in_backward_input", skip_vars_in_backward_input)}
    unknown = skipped - {variable.name for variable in (*read, *written)}
    if unknown:
        raise ValueError(f"py_func: {min(unknown)} can't be skipped, it is neither in x nor in out")
    draft = live()
    draft.names.mint("py_func")
    attrs = {
        "forward_callable_id": register(_called(func)),
        "backward_callable_id": -1 if backward_func is None else register(_called(backward_func)),
        "backward_skip_vars": Strings(sorted(skipped) if backward_func is not None else ()),
    }
    draft.op("py_func", {"X": to_core(read)}, {"Out": to_core(written)}, attrs)
    return out
