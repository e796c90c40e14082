"""Comparisons of tensors, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pstranspile.fluid.layers.accepted import checked_all
from pstranspile.fluid.layers.adapt import to_core, wrap
from pstranspile.frontends.layers import basic
from pstranspile.ir.types import DType


def _compared(op_type: str) -> Callable[..., Any]:
    def compare(x: Any, y: Any, force_cpu: bool | None = None, cond: Any = None) -> Any:
        """Element by element whether it holds, into `cond` if given."""
        out = DType.BOOL if cond is None else to_core(cond)
        attrs = None if force_cpu is None else {"force_cpu": bool(force_cpu)}
        made = basic.layer_outputs(op_type, {"X": to_core(x), "Y": to_core(y)}, {"Out": out}, attrs)[0]
        return cond if cond is not None else wrap(made.stopped())

    compare.__name__ = op_type
    return compare


less_than = _compared("less_than")
less_equal = _compared("less_equal")
greater_than = _compared("greater_than")
greater_equal = _compared("greater_equal")
equal = _compared("equal")
not_equal = _compared("not_equal")
checked_all(globals())
