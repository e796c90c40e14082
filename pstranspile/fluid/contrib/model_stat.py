"""Fluid's `contrib.model_stat`: a table of a network's parameters and operations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from pstranspile.fluid.framework import Program
from pstranspile.fluid.missing import names_of_fluid

_ACTIVATIONS = ("sigmoid", "tanh", "relu", "leaky_relu", "prelu")
_HEAD = ("No.", "TYPE", "INPUT", "OUTPUT", "PARAMs", "FLOPs")


class _Counted(NamedTuple):
    """An op that counts: what it reads and writes, its parameters and its operations for one image."""

    type: str
    read: Sequence[int]
    written: Sequence[int]
    parameters: float
    operations: float


def _counted(op: Any, shapes: dict[str, tuple[int, ...]]) -> _Counted | None:
    """What an op counts for, None for nothing."""

    def shape(slot: str, written: bool = False) -> tuple[int, ...]:
        return shapes[(op.output(slot) if written else op.input(slot))[0]]

    if op.type in ("conv2d", "depthwise_conv2d"):
        kernel, out = shape("Filter"), shape("Output", True)
        taken = kernel[2] * kernel[3] * (kernel[1] / op.attr("groups")) + bool(op.input("Bias"))
        return _Counted(op.type, shape("Input"), out, kernel[0] * taken, 2 * prod(out[1:]) * taken)
    if op.type == "pool2d":
        out = shape("Out", True)
        return _Counted(op.type, shape("X"), out, 0, prod(out[1:]) * prod(op.attr("ksize")[:2]))
    if op.type == "mul" and "fc" in op.output("Out")[0]:
        size = prod(shape("Y"))
        return _Counted(op.type, shape("X"), shape("Out", True), size + 1, size)
    if op.type in _ACTIVATIONS:
        return _Counted(op.type, shape("X"), shape("Out", True), op.type == "prelu", prod(shape("X")[1:]))
    if op.type == "batch_norm":
        read = shape("X")
        return _Counted(op.type, read, shape("Y", True), read[1] * 2, prod(read[1:]) * 2)
    return None


def _table(rows: list[tuple[str, ...]]) -> str:
    """Rows of text in frames, each column as wide as it must be."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    text = ["|" + "|".join(f" {cell:>{width}} " for cell, width in zip(row, widths, strict=True)) + "|" for row in rows]
    return "\n".join([line, text[0], line, *text[1:], line])


def summary(main_prog: Program) -> None:
    """Prints, for the convolutions, poolings, fully connected layers, activations and normalisations of a program,
    their dims, parameters and operations for one image, and how many these are in total.
    """
    found: list[_Counted] = []
    for block in main_prog.blocks:
        shapes = {name: tuple(var.shape) for name, var in block.vars.items()}
        found += [counted for op in block.ops if (counted := _counted(op, shapes)) is not None]
    rows: list[tuple[str, ...]] = [_HEAD]
    for number, op in enumerate(found):
        dims = (str(tuple(of[1:])) for of in (op.read, op.written))
        rows.append((str(number), op.type, *dims, str(int(op.parameters)), str(int(op.operations))))
    parameters = sum(int(op.parameters) for op in found)
    operations = sum(int(op.operations) for op in found)
    print(_table(rows))
    print(f"Total PARAMs: {parameters}({parameters / 10**6:.4f}M)")
    print(f"Total FLOPs: {operations}({operations / 10**9:.2f}G)")
    print(f"Counted are convolutions, fc, batch_norm, pool2d, {', '.join(_ACTIVATIONS)}")


__getattr__ = names_of_fluid(__name__, globals())
