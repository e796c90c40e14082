"""Operators of `ai.onnx.ml`, in which models of other kinds of learning are written: linear ones and their scaling."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.reading import Reading, attribute, onnx_reader
from pstranspile.frontends.onnx.reshaping import with_x_shape
from pstranspile.ir.types import DType


def _held(node: Any, name: str, out: str, reading: Reading, *, dims: tuple[int, ...] | None = None) -> str:
    """Numbers in an attribute as a parameter."""
    array = np.array(attribute(node, name, ()), "float32")
    return reading.weight(f"{out}.{name}", array if dims is None else array.reshape(dims))


def _as_floats(value: str, reading: Reading) -> str:
    return reading.as_type(value, DType.FP32)


def _linear(node: Any, targets: int, out: str, reading: Reading) -> None:
    width = len(attribute(node, "coefficients")) // max(targets, 1)
    weight = _held(node, "coefficients", node.output[-1], reading, dims=(targets, width))
    product = reading.made("matmul", out, {"transpose_Y": True}, X=_as_floats(node.input[0], reading), Y=weight)
    if len(attribute(node, "intercepts", ())) == 0:
        reading.alias(out, product)
        return
    bias = _held(node, "intercepts", node.output[-1], reading)
    reading.op("elementwise_add", {"X": product, "Y": bias}, {"Out": out})


def _transformed(kind: str, source: str, out: str, reading: Reading) -> None:
    ops = {"SOFTMAX": "softmax", "LOGISTIC": "sigmoid"}
    if kind == "NONE":
        reading.alias(out, source)
    elif kind in ops:
        reading.op(ops[kind], {"X": source}, {"Out": out})
    else:
        raise Refused(f"its post_transform is {kind}")


@onnx_reader("ai.onnx.ml.LinearRegressor")
def _regressor(node: Any, reading: Reading) -> None:
    out = node.output[0]
    _linear(node, attribute(node, "targets", 1), made := reading.temp(out), reading)
    _transformed(attribute(node, "post_transform", "NONE"), made, out, reading)


@onnx_reader("ai.onnx.ml.LinearClassifier")
def _classifier(node: Any, reading: Reading) -> None:
    label, scores = node.output
    labels = list(attribute(node, "classlabels_ints", ()))
    if not labels:
        raise Refused("its classes are texts; give the classifier numbers for them")
    rows = len(attribute(node, "intercepts", ())) or len(labels)
    _linear(node, rows, made := reading.temp(scores), reading)
    kind = attribute(node, "post_transform", "NONE")
    _transformed(kind, made, wide := reading.temp(scores), reading)
    if rows == 1:  # one column decides between two classes
        one = 1.0 if kind in ("LOGISTIC", "SOFTMAX") else 0.0
        other = reading.scaled(wide, -1.0, one)
        reading.op("concat", {"X": [other, wide]}, {"Out": scores}, axis=1)
    else:
        reading.alias(scores, wide)
    at = reading.made("arg_max", label, {"axis": 1, "keepdims": False}, X=scores)
    if labels == [*range(len(labels))]:
        reading.alias(label, at)
    else:
        reading.known[table := reading.temp(label)] = np.array(labels, "int64")
        reading.op("gather", {"X": table, "Index": at}, {"Out": label})


@onnx_reader("ai.onnx.ml.Scaler")
def _scaler(node: Any, reading: Reading) -> None:
    source, out = _as_floats(node.input[0], reading), node.output[0]
    shift = np.array(attribute(node, "offset", (0,)), "float32")
    factor = np.array(attribute(node, "scale", (1,)), "float32")
    reading.known[offset := reading.temp(out)] = shift
    reading.known[scale := reading.temp(out)] = factor
    made = reading.made("elementwise_sub", out, X=source, Y=offset)
    reading.op("elementwise_mul", {"X": made, "Y": scale}, {"Out": out})


@onnx_reader("ai.onnx.ml.ArrayFeatureExtractor")
def _columns(node: Any, reading: Reading) -> None:
    (source, index), out = node.input, node.output[0]
    rank = len(reading.dims(source))
    flat = [int(number) for number in reading.constant(index, "its columns").reshape(-1)]
    reading.known[chosen := reading.temp(index)] = np.array(flat, "int64")
    if rank == 1:
        row = reading.made("gather", out, X=source, Index=chosen)
        with_x_shape("unsqueeze2", row, out, reading, axes=[0])
    else:
        reading.op("index_select", {"X": source, "Index": chosen}, {"Out": out}, dim=rank - 1)


@onnx_reader("ai.onnx.ml.FeatureVectorizer")
def _vectorizer(node: Any, reading: Reading) -> None:
    parts = [_as_floats(name, reading) for name in node.input]
    reading.op("concat", {"X": parts}, {"Out": node.output[0]}, axis=1)


@onnx_reader("ai.onnx.ml.ZipMap")
def _named(node: Any, reading: Reading) -> None:
    raise Refused("it makes a map of classes; export the model with zipmap=False")
