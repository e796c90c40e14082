"""ATen operators that draw random numbers as ops of a program, which draws random numbers of its own."""

from __future__ import annotations

from typing import Any

from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.reading import is_code
from pstranspile.frontends.torch.elements import compare
from pstranspile.frontends.torch.tracing import FLOATS, Tracing, aten, dtype_of


def _drawn(op_type: str, node: Any, tracing: Tracing, out: str, **attrs: object) -> str:
    """`out`, filled with random numbers in the shape of the node. Raises Refused unless they are f32 or f64."""
    value = node.meta["val"]
    kind, sizes = dtype_of(value.dtype), tracing.shape_of(value, out)
    if kind not in FLOATS:
        raise Refused("it draws other numbers than f32 and f64")
    inputs: dict[str, Any] = {}
    if any(map(is_code, sizes)):
        inputs["ShapeTensorList"] = [tracing.measured(size) for size in sizes]
    shape = [-1 if is_code(size) else size for size in sizes] or [1]
    if not sizes:
        tracing.scalars.add(out)
    tracing.op(op_type, inputs, {"Out": out}, shape=shape, dtype=kind.value, **attrs)
    tracing.draft.stop_gradient.add(out)
    return out


@aten("rand", "rand_like")
def _evenly(node: Any, tracing: Tracing, out: str) -> None:
    _drawn("uniform_random", node, tracing, out, min=0.0, max=1.0)


@aten("randn", "randn_like")
def _normal(node: Any, tracing: Tracing, out: str) -> None:
    _drawn("gaussian_random", node, tracing, out)


@aten("bernoulli")
def _flags(node: Any, tracing: Tracing, out: str) -> None:
    """Elements that are 1 with a probability, else 0. The probability is one number, or a tensor with one for each."""
    x = tracing.value(node.args[0])
    rate = tracing.constant_of(float(node.args[1]), tracing.dtype(x), out) if len(node.args) > 1 else x
    drawn = _drawn("uniform_random", node, tracing, tracing.temp(out), min=0.0, max=1.0)
    compare("less_than", drawn, rate, below := tracing.temp(out), tracing)
    tracing.cast(below, out, dtype_of(node.meta["val"].dtype))
    tracing.draft.stop_gradient.add(out)
