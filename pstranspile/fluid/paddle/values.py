"""Methods of variables of 2.x that read and set their values in a scope."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.fluid.executor import global_scope


def get_value(var: Any, scope: Any = None) -> Any:
    """The tensor of a variable in a scope (default: the one in use). Raises ValueError if it has no value."""
    held = (scope or global_scope()).find_var(var.name)
    if held is None:
        raise ValueError(f"{var.name} has no value in the scope: run the start-up program first")
    return held.get_tensor()


def set_value(var: Any, value: Any, scope: Any = None) -> None:
    """Sets a variable in a scope (default: the one in use) to an array or a tensor.

    Raises TypeError for other values, ValueError if the variable has no value yet, or one with other dims.
    """
    if not isinstance(value, np.ndarray) and not hasattr(value, "lod"):
        raise TypeError(f"{var.name} is set to an array or a tensor, not to a {type(value).__name__}")
    tensor, made = get_value(var, scope), np.array(value)
    if made.shape != np.array(tensor).shape:
        raise ValueError(f"{var.name} has the dims {[*np.array(tensor).shape]}, the value {[*made.shape]}")
    tensor.set(made.astype(np.array(tensor).dtype, copy=False), None)
