"""An ONNX model as a module: a forward network, whose parameters start from nothing until they are given values."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from pstranspile.frontends.layers.attributes import OutOfRange
from pstranspile.frontends.onnx.bodies import Bodies, branch_of
from pstranspile.frontends.onnx.folding import fold
from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.models import opened, symbols_of, values_of, version_of, weights_of
from pstranspile.frontends.onnx.reading import READERS, Reader, Reading
from pstranspile.frontends.onnx.unread import reason_against
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, error, first_findings, raise_errors
from pstranspile.ir.model import Location, Module
from pstranspile.ops.shapes import ShapeError
from pstranspile.runtime.values import Array

_MALFORMED = (ArithmeticError, LookupError, TypeError, ValueError)
"""What readers raise for attributes that ONNX's own checks let pass, such as a mode that there is not."""


class Imported(NamedTuple):
    """A module, the values of its persistable variables, and the variables that the model's outputs are."""

    module: Module
    values: Mapping[str, Array]
    outputs: tuple[str, ...]


def from_onnx(data: bytes, file: str = "<onnx>", folder: str = "") -> Imported:
    """The network in an ONNX model. Variables have the names that values have there.

    Weights become parameters, other constants variables that are kept (`weights_of` gives the two). The startup program
    sets whole numbers; all other values are NaN there, so that a result without the values given here (`--init`) shows.
    Weights in separate files are read from `folder`. Raises DiagnosticError: `onnx-model` for a damaged file, `onnx-op`
    for every node that Fluid's ops can't express.
    """
    model = opened(data, file, folder)
    findings: list[Diagnostic] = []
    try:
        held = values_of(model)
        weights, version = weights_of(model, held), version_of(model)
        reading = Reading(model.graph, held, symbols_of(model), weights, version=version, size=len(data))
    except Refused as reason:
        raise DiagnosticError([error("onnx-op", str(reason), Location(file))]) from None
    except ValueError as problem:  # names that are no text
        raise DiagnosticError([error("onnx-model", f"a damaged model: {problem}", Location(file))]) from None
    bodies = Bodies(model, version)
    for number, node in enumerate(model.graph.node):
        if reading.is_lost(node):
            continue
        try:
            _read(node, reading, bodies)
        except (Refused, ShapeError, *_MALFORMED) as reason:
            name = f" {node.name}" if node.name else ""
            if isinstance(reason, _MALFORMED) and not isinstance(reason, OutOfRange | ShapeError):
                reason = f"it is not as ONNX defines it: {reason}"
            notes = [Note(f"it makes {', '.join(filter(None, node.output))}")]
            message = f"node {number} {node.op_type}{name}: {reason}"
            findings.append(error("onnx-op", message, Location(file), notes=notes))
            reading.lose(node)
    raise_errors(first_findings(findings))
    try:
        outputs = tuple(reading.finish(value.name) for value in model.graph.output)
    except Refused as reason:
        raise DiagnosticError([error("onnx-op", f"an output: {reason}", Location(file))]) from None
    return Imported(reading.module(), reading.values, outputs)


def readers() -> Mapping[str, Reader]:
    """The reader of each node type that Fluid's ops can express."""
    for name in (
        "math",
        "reductions",
        "tensors",
        "parts",
        "index",
        "scatter",
        "einsum",
        "images",
        "norms",
        "recurrent",
        "learned",
    ):
        importlib.import_module(f"pstranspile.frontends.onnx.read_{name}")
    return READERS


_RESHAPING = frozenset(
    [*("Unsqueeze", "Reshape", "Expand", "Range", "ConstantOfShape", "Tile", "OneHot", "Gather", "Flatten", "TopK")]
)
"""Nodes that make values with dims of values without."""


def _read(node: Any, reading: Reading, bodies: Bodies) -> None:
    if reason := reason_against(node):
        raise Refused(reason)
    if node.op_type == "If" and not node.domain:
        for held in branch_of(node, reading):
            _read_inside(held, reading, bodies)
        return
    own = node.domain in ("", "ai.onnx")
    if own and fold(node, reading):
        return
    reader = readers().get(node.op_type if own else f"{node.domain}.{node.op_type}")
    if reader is not None:
        reader(node, reading)
    elif not bodies.read(node, reading, lambda held, to: _read_inside(held, to, bodies)):
        raise Refused("no op of Fluid computes this here" if own else f"it is an operator of {node.domain}")
    given = [name for name in node.input if name]
    if given and node.op_type not in _RESHAPING and all(map(reading.is_scalar, given)):
        reading.scalars.update(node.output)


def _read_inside(node: Any, reading: Reading, bodies: Bodies) -> None:
    """Reads a node of a function or branch."""
    reading.budget.enter()
    try:
        _read(node, reading, bodies)
    finally:
        reading.budget.leave()
