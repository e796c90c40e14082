"""What a program computes, with the values it has come to, as an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pstranspile.analysis.uses import effects_of
from pstranspile.checkpoint.inference import inference_program
from pstranspile.interop.onnx.exporting import feeds_and_targets, onnx_bytes
from pstranspile.interop.variables import persistable_names
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.expect import expect, expect_program, names_of
from pstranspile.ir.model import Program


def onnx_model(program: Program, scope: Mapping[str, Any], targets: Sequence[str] = ()) -> bytes:
    """The ONNX model that infers `targets` with the values of `scope`, default: what the fetch ops of the program name.

    The program is cut down to what the targets need of what is fed, and set to testing. Raises DiagnosticError:
    `onnx-op` for what ONNX can't express, `inference-program` for targets that can't be computed from what is fed.
    """
    expect_program(program, "onnx_model")
    expect(scope, Mapping, "onnx_model", "a scope")
    wanted = names_of(targets, "onnx_model")
    feeds, fetched = feeds_and_targets(program)
    if wanted:
        feeds = _needed_feeds(program, wanted)
    elif not fetched:
        message = "the program has no fetch op; --fetch names what an ONNX model shall compute"
        raise DiagnosticError([error("inference-program", message)])
    wanted = wanted or fetched
    cut = inference_program(program, feeds, wanted).program
    values = {name: scope[name] for name in persistable_names(cut) if name in scope}
    return onnx_bytes(cut, feeds, wanted, values)


def _needed_feeds(program: Program, targets: Sequence[str]) -> tuple[str, ...]:
    """What is fed of what the targets depend on, in the order of declaration.

    That is what is read before any op makes it and is not kept between steps, and what feed ops name.
    """
    block, needed = program.main_block, set(targets)
    kept: list[tuple[set[str], set[str]]] = []
    for op in reversed(block.ops):
        effects = effects_of(program, op)
        reads, writes = {*effects.reads}, {*effects.writes}
        if op.type != "feed" and not needed.isdisjoint(writes):
            kept.append((reads, writes))
            needed |= reads
    made, fed = set[str](), set[str]()
    for reads, writes in reversed(kept):
        fed |= reads - made
        made |= writes
    return tuple(name for name, var in block.vars.items() if name in fed and not var.persistable)
