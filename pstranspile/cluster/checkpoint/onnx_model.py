"""What a program computes, with the values it has come to, as an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pstranspile.cluster.checkpoint.inference import asked_for, inference_program
from pstranspile.frontends.onnx.exporting import onnx_bytes
from pstranspile.ir.expect import expect, expect_program, names_of
from pstranspile.ir.model import Program
from pstranspile.runtime.files.variables import persistable_names


def onnx_model(program: Program, scope: Mapping[str, Any], targets: Sequence[str] = ()) -> bytes:
    """The ONNX model that infers `targets` with the values of `scope`, default: what the fetch ops of the program name.

    The program is cut down to what the targets need of what is fed, and set to testing. Raises DiagnosticError:
    `onnx-op` for what ONNX can't express, `inference-program` for targets that can't be computed from what is fed.
    """
    expect_program(program, "onnx_model")
    expect(scope, Mapping, "onnx_model", "a scope")
    wanted = names_of(targets, "onnx_model")
    feeds, wanted = asked_for(program, wanted)
    cut = inference_program(program, feeds, wanted).program
    values = {name: scope[name] for name in persistable_names(cut) if name in scope}
    return onnx_bytes(cut, feeds, wanted, values)
