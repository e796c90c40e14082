"""An inference program as an ONNX model."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from pstranspile.frontends.onnx.graph import WRITERS, Graph, Refused, Writer
from pstranspile.frontends.onnx.library import ELEMENT_TYPES, IR_VERSION, OPSET, library
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, at_op, error, first_findings, raise_errors
from pstranspile.ir.model import Op, Program
from pstranspile.runtime.values import Array


def onnx_bytes(
    program: Program, feeds: Sequence[str], targets: Sequence[str], values: Mapping[str, Array], name: str = "main"
) -> bytes:
    """The ONNX model that computes `targets` from `feeds` as block 0 of the program does.

    `values` are the persistable variables that it reads. Ops that no target needs are left out. Raises DiagnosticError:
    `onnx-op` for every op that ONNX can't express, `onnx-library` if onnx is not installed.
    """
    graph = Graph(program, values)
    findings: list[Diagnostic] = []
    for variable in feeds:
        try:
            graph.feed(variable)
        except Refused as reason:
            var = program.find_var(variable)
            findings.append(error("onnx-op", str(reason), var.location if var else None, focus=f"%{variable}"))
    raise_errors(findings)
    for op in _needed(program.main_block.ops, feeds, targets):
        try:
            _write(op, graph)
        except Refused as reason:
            findings.append(at_op("onnx-op", str(reason), op, focus=f"%{reason.variable}" if reason.variable else ""))
    if findings:
        raise DiagnosticError(first_findings(_causes(findings)))
    return _model(graph, program, feeds, targets, name)


def _needed(ops: Sequence[Op], feeds: Sequence[str], targets: Sequence[str]) -> list[Op]:
    """The ops that the targets need, without those that feed and fetch."""
    wanted, result = set(targets), list[Op]()
    for op in reversed(ops):
        if op.type in ("feed", "fetch") or wanted.isdisjoint(op.output_names):
            continue
        result.append(op)
        wanted |= {name for name in op.input_names if name not in feeds}
    return result[::-1]


def writers() -> Mapping[str, Writer]:
    """The writer of each op type that ONNX can express."""
    importlib.import_module("pstranspile.frontends.onnx.writing")
    return WRITERS


def _write(op: Op, graph: Graph) -> None:
    writer = writers().get(op.type)
    if writer is None:
        raise Refused("ONNX has no counterpart of this op here")
    writer(op, graph)


_FOLLOWS = "no op that ONNX can express makes it"


def _causes(findings: Sequence[Diagnostic]) -> Sequence[Diagnostic]:
    """The findings without those that only follow from others."""
    return [finding for finding in findings if _FOLLOWS not in finding.message] or findings


def _model(graph: Graph, program: Program, feeds: Sequence[str], targets: Sequence[str], name: str) -> bytes:
    helper = library("onnx.helper")

    def info(value: str, variable: str) -> Any:
        dims = [None if dim < 0 else dim for dim in graph.dims(variable)]
        return helper.make_tensor_value_info(value, ELEMENT_TYPES[graph.dtype(variable)], dims)

    outputs: list[str] = []
    for target in targets:
        value = graph.read(target)
        if value in (*feeds, *outputs):  # an output of a graph is made by a node, and once
            value = graph.node("Identity", [value])
        outputs.append(value)
    inner = [info(value, variable) for value, variable in graph.made.items() if value not in outputs]
    made = helper.make_graph(
        graph.nodes,
        name,
        [info(feed, feed) for feed in feeds],
        [info(value, target) for value, target in zip(outputs, targets, strict=True)],
        graph.initializers,
        value_info=inner,
    )
    model = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="pstranspile"
    )
    _check(model)
    return model.SerializeToString(deterministic=True)


def _check(model: Any) -> None:
    """Raises DiagnosticError if ONNX does not take the model, or makes other dims of it than are declared."""
    checker = library("onnx.checker")
    try:
        checker.check_model(model, full_check=True)
    except (checker.ValidationError, library("onnx.shape_inference").InferenceError) as problem:
        message = f"ONNX would compute something else than the program declares: {problem}"
        raise DiagnosticError([error("onnx-op", message)]) from None
