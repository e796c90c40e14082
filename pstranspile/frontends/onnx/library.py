"""The package onnx, which is installed where ONNX models are read or written, and its names of element types."""

from __future__ import annotations

import importlib
from typing import Any

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.types import DType

OPSET = 17
"""The version of ONNX's operators that models are written in: the first with LayerNormalization."""

IR_VERSION = 8
"""The version of the file format that goes with it."""

ELEMENT_TYPES: dict[DType, int] = {
    DType.FP32: 1,
    DType.UINT8: 2,
    DType.INT8: 3,
    DType.INT16: 5,
    DType.INT32: 6,
    DType.INT64: 7,
    DType.BOOL: 9,
    DType.FP16: 10,
    DType.FP64: 11,
}
"""ONNX's number of each element type (`TensorProto.DataType`)."""


FUNCTIONS = {
    "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "abs": "Abs",
    "ceil": "Ceil", "floor": "Floor", "cos": "Cos", "sin": "Sin", "acos": "Acos", "asin": "Asin", "atan": "Atan",
    "erf": "Erf", "reciprocal": "Reciprocal", "sign": "Sign", "softplus": "Softplus", "softsign": "Softsign",
    "logical_not": "Not",
}  # fmt: skip
"""Fluid's functions of one input X without attributes, with ONNX's names."""

OPERATORS = {
    "elementwise_add": "Add", "elementwise_sub": "Sub", "elementwise_mul": "Mul", "elementwise_div": "Div",
    "elementwise_max": "Max", "elementwise_min": "Min", "elementwise_pow": "Pow", "equal": "Equal",
    "less_than": "Less", "less_equal": "LessOrEqual", "greater_than": "Greater", "greater_equal": "GreaterOrEqual",
    "logical_and": "And", "logical_or": "Or", "logical_xor": "Xor",
}  # fmt: skip
"""Fluid's functions of X and Y, and ONNX's names of them."""


def library(part: str = "onnx") -> Any:
    """The package, or a part of it such as `onnx.helper`. Raises DiagnosticError if it is not installed."""
    try:
        return importlib.import_module(part)
    except ImportError:
        message = "ONNX models need the package onnx: pip install 'pstranspile[onnx]'"
        raise DiagnosticError([error("onnx-library", message)]) from None
