"""Numbers of Python that a step computes of the sizes of its tensors, such as `0.5 * len(x)`."""

from __future__ import annotations

from typing import Any

from pstranspile.frontends.layers.draft import Refused
from pstranspile.frontends.onnx.reading import Held
from pstranspile.frontends.torch.tracing import Tracing
from pstranspile.ir.types import DType

_WHOLE = {
    "mul": "Mul",
    "add": "Add",
    "sub": "Sub",
    "floordiv": "Div",
    "mod": "Mod",
    "sym_max": "Max",
    "sym_min": "Min",
}
"""Operations on whole numbers whose result is one, by function name."""

_FRACTIONS = {
    "mul": "elementwise_mul",
    "add": "elementwise_add",
    "sub": "elementwise_sub",
    "truediv": "elementwise_div",
    "pow": "elementwise_pow",
    "sym_max": "elementwise_max",
    "sym_min": "elementwise_min",
}
"""The op of each operation on numbers whose result is a fraction, by function name."""

_ROUNDED = {"trunc": "", "sym_int": "", "ceil": "ceil", "floor": "floor"}
"""The op of each function that makes a whole number of a fraction; "" where a cast makes the same."""

_OF_ONE = {"_sym_sqrt": "sqrt", "sym_sqrt": "sqrt"}
"""The op of each function of one number, by function name."""


def read_number(node: Any, name: str, tracing: Tracing) -> bool:
    """Computes the number of a node, which calls a function with this name on numbers; whether that is translated."""
    operands = node.args
    if not all(_is_number(arg, tracing) for arg in operands):
        return False
    whole = all(_is_whole(arg, tracing) for arg in operands)
    if name == "sym_float":
        return _rename(node, operands[0], tracing)
    if name == "neg":
        name, operands = "mul", (operands[0], -1)
    if name == "pow" and whole and isinstance(operands[1], int) and operands[1] > 0:
        made = tracing.number_of(operands[0])
        for _ in range(operands[1] - 1):
            made = tracing.integer("Mul", made, tracing.number_of(operands[0]))
        tracing.integers[node.name] = made
    elif name in _WHOLE and whole:
        tracing.integers[node.name] = tracing.integer(_WHOLE[name], *map(tracing.number_of, operands))
    elif name in _FRACTIONS:
        x, y = (_fraction(arg, node.name, tracing) for arg in operands)
        _keep(node, tracing.made(_FRACTIONS[name], node.name, X=x, Y=y), tracing)
    elif name in _OF_ONE:
        _keep(node, tracing.made(_OF_ONE[name], node.name, X=_fraction(operands[0], node.name, tracing)), tracing)
    elif name in _ROUNDED:
        x = _fraction(operands[0], node.name, tracing)
        _round(node, tracing.made(_ROUNDED[name], node.name, X=x) if _ROUNDED[name] else x, tracing)
    else:
        return False
    return True


def _is_number(arg: Any, tracing: Tracing) -> bool:
    if hasattr(arg, "name"):
        return arg.name in tracing.integers or arg.name in tracing.fractions
    return isinstance(arg, int | float)


def _is_whole(arg: Any, tracing: Tracing) -> bool:
    return arg.name in tracing.integers if hasattr(arg, "name") else isinstance(arg, int)


def _rename(node: Any, arg: Any, tracing: Tracing) -> bool:
    """Has a node be the number that it makes a fraction of."""
    _keep(node, _fraction(arg, node.name, tracing), tracing)
    return True


def _fraction(arg: Any, of: str, tracing: Tracing) -> str:
    """A variable f64[1] with a number, which is one of Python."""
    if not hasattr(arg, "name"):
        return tracing.constant_of(float(arg), DType.FP64, of)
    if arg.name in tracing.fractions:
        return tracing.fractions[arg.name]
    return tracing.as_type(tracing.measured(tracing.integers[arg.name]), DType.FP64)


def _keep(node: Any, made: str, tracing: Tracing) -> None:
    tracing.draft.stop_gradient.add(made)
    tracing.scalars.add(made)
    tracing.fractions[node.name] = made


def _round(node: Any, made: str, tracing: Tracing) -> None:
    """Keeps the whole number in a variable f64[1], which may be the size of a tensor."""
    tracing.draft.stop_gradient.add(made)
    held = tracing.as_type(made, DType.INT32)
    tracing.draft.stop_gradient.add(held)
    tracing.integers[node.name] = tracing.sizes.code(Held(held))
    tracing.know(node.meta.get("val"), tracing.integers[node.name])


def fraction_of(node: Any, kind: DType, tracing: Tracing) -> str | None:
    """The variable of an element type with the fraction of a node; None for a node that is none."""
    made = tracing.fractions.get(node.name)
    if made is None:
        return None
    if kind not in (DType.FP32, DType.FP64):
        raise Refused("it makes whole numbers of a fraction that is computed of sizes")
    return tracing.as_type(made, kind)
