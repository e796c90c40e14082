"""Gradients of activations: from the gradient `dy` of the result and from the result `y`, of the same dims."""

from __future__ import annotations

import numpy as np

from pstranspile.runtime.arithmetic import loops
from pstranspile.runtime.values import Array


def tanh_grad(dy: Array, y: Array) -> Array:
    """dy * (1 - y * y)."""
    out = np.empty(y.shape, y.dtype)
    return out if dy.shape == y.shape and loops.tanh_grad(y, dy, out) else dy * (1 - y * y)


def sigmoid_grad(dy: Array, y: Array) -> Array:
    """dy * y * (1 - y)."""
    out = np.empty(y.shape, y.dtype)
    return out if dy.shape == y.shape and loops.sigmoid_grad(y, dy, out) else dy * y * (1 - y)


def relu_grad(dy: Array, y: Array) -> Array:
    """dy where y > 0, otherwise dy * 0."""
    out = np.empty(y.shape, y.dtype)
    return out if dy.shape == y.shape and loops.relu_grad(y, dy, out) else dy * (y > 0)
