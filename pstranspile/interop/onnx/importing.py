"""An ONNX model as a module: a forward network, whose parameters start from nothing until they are given values."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from pstranspile.interop.onnx.graph import Refused
from pstranspile.interop.onnx.library import library
from pstranspile.interop.onnx.reading import READERS, Reader, Reading
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, error, first_findings
from pstranspile.ir.model import Location, Module
from pstranspile.ops.shapes import ShapeError
from pstranspile.values import Array

OLDEST, NEWEST = 13, 23
"""The versions of ONNX's operators that are read: from the first in which axes are inputs."""


class Imported(NamedTuple):
    """A module, the values of its persistable variables, and the variables that the model's outputs are."""

    module: Module
    values: Mapping[str, Array]
    outputs: tuple[str, ...]


def from_onnx(data: bytes, file: str = "<onnx>") -> Imported:
    """The network in an ONNX model. Variables have the names that values have there.

    Weights become parameters, other constants variables that are kept. The startup program sets what is whole numbers;
    the rest is NaN there, so that nothing is computed without the values given here (`--init`). Raises DiagnosticError:
    `onnx-model` for a damaged file, `onnx-op` for every node that Fluid's ops can't express.
    """
    model = _model(data, file)
    reading = Reading(model.graph)
    findings: list[Diagnostic] = []
    for number, node in enumerate(model.graph.node):
        if reading.is_lost(node):
            continue
        try:
            _read(node, reading)
        except (Refused, ShapeError) as reason:
            name = f" {node.name}" if node.name else ""
            notes = [Note(f"it makes {', '.join(node.output)}")]
            message = f"node {number} {node.op_type}{name}: {reason}"
            findings.append(error("onnx-op", message, Location(file), notes=notes))
            reading.lose(node)
    if findings:
        raise DiagnosticError(first_findings(findings))
    outputs = tuple(reading.finish(value.name) for value in model.graph.output)
    return Imported(reading.module(), reading.values, outputs)


def _model(data: bytes, file: str) -> Any:
    """The model, checked. Raises DiagnosticError."""
    onnx, checker = library(), library("onnx.checker")
    decode_error = importlib.import_module("google.protobuf.message").DecodeError
    try:
        model = onnx.load_from_string(data)
        checker.check_model(model, full_check=True)
    except (decode_error, checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as problem:
        message = f"no ONNX model, or a damaged one: {str(problem).splitlines()[0]}"
        raise DiagnosticError([error("onnx-model", message, Location(file))]) from None
    versions = {part.domain: part.version for part in model.opset_import}
    version = versions.pop("", versions.pop("ai.onnx", 0))
    if versions.keys() - {"ai.onnx.ml"} or not OLDEST <= version <= NEWEST:
        held = ", ".join([f"version {version}", *(f"operators of {domain}" for domain in versions)])
        message = f"the model has {held}; versions {OLDEST} to {NEWEST} of ONNX's own operators are read"
        raise DiagnosticError([error("onnx-model", message, Location(file))])
    return model


def readers() -> Mapping[str, Reader]:
    """The reader of each node type that Fluid's ops can express."""
    for name in ("read_math", "read_tensors", "read_images"):
        importlib.import_module(f"pstranspile.interop.onnx.{name}")
    return READERS


def _read(node: Any, reading: Reading) -> None:
    if node.domain not in ("", "ai.onnx"):
        raise Refused(f"it is an operator of {node.domain}")
    if reading.fold(node):
        return
    reader = readers().get(node.op_type)
    if reader is None:
        raise Refused("no op of Fluid computes this here")
    reader(node, reading)
