"""Statistics of programs: Fluid's `contrib.model_stat`, `contrib.memory_usage_calc` and `contrib.op_frequence`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from pstranspile.fluid.framework import Program
from pstranspile.fluid.graph.values import VarType, numpy_name
from pstranspile.fluid.missing import names_of_fluid

_ACTIVATIONS = ("sigmoid", "tanh", "relu", "leaky_relu", "prelu")
_HEAD = ("No.", "TYPE", "INPUT", "OUTPUT", "PARAMs", "FLOPs")


class _OpSummary(NamedTuple):
    """An op in a summary: the dims of its input and output, its number of parameters, and its number of operations for
    one image.
    """

    type: str
    input_dims: Sequence[int]
    output_dims: Sequence[int]
    parameters: float
    operations: float


def _op_summary(op: Any, shapes: dict[str, tuple[int, ...]]) -> _OpSummary | None:
    """The entry of an op in a summary, None for ops that are not in it."""

    def shape(slot: str, written: bool = False) -> tuple[int, ...]:
        return shapes[(op.output(slot) if written else op.input(slot))[0]]

    if op.type in ("conv2d", "depthwise_conv2d"):
        kernel, out = shape("Filter"), shape("Output", True)
        taken = kernel[2] * kernel[3] * (kernel[1] / op.attr("groups")) + bool(op.input("Bias"))
        return _OpSummary(op.type, shape("Input"), out, kernel[0] * taken, 2 * prod(out[1:]) * taken)
    if op.type == "pool2d":
        out = shape("Out", True)
        return _OpSummary(op.type, shape("X"), out, 0, prod(out[1:]) * prod(op.attr("ksize")[:2]))
    if op.type == "mul" and "fc" in op.output("Out")[0]:
        size = prod(shape("Y"))
        return _OpSummary(op.type, shape("X"), shape("Out", True), size + 1, size)
    if op.type in _ACTIVATIONS:
        return _OpSummary(op.type, shape("X"), shape("Out", True), op.type == "prelu", prod(shape("X")[1:]))
    if op.type == "batch_norm":
        read = shape("X")
        return _OpSummary(op.type, read, shape("Y", True), read[1] * 2, prod(read[1:]) * 2)
    return None


def _table(rows: list[tuple[str, ...]]) -> str:
    """Rows of text as a table with frames; each column is as wide as its longest text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    text = ["|" + "|".join(f" {cell:>{width}} " for cell, width in zip(row, widths, strict=True)) + "|" for row in rows]
    return "\n".join([line, text[0], line, *text[1:], line])


def summary(main_prog: Program) -> None:
    """Prints, for the convolutions, poolings, fully connected layers, activations and normalisations of a program,
    their dims, parameters and operations for one image, and the totals of both.
    """
    found: list[_OpSummary] = []
    for block in main_prog.blocks:
        shapes = {name: tuple(var.shape) for name, var in block.vars.items()}
        found += [counted for op in block.ops if (counted := _op_summary(op, shapes)) is not None]
    rows: list[tuple[str, ...]] = [_HEAD]
    for number, op in enumerate(found):
        dims = (str(tuple(of[1:])) for of in (op.input_dims, op.output_dims))
        rows.append((str(number), op.type, *dims, str(int(op.parameters)), str(int(op.operations))))
    parameters = sum(int(op.parameters) for op in found)
    operations = sum(int(op.operations) for op in found)
    print(_table(rows))
    print(f"Total PARAMs: {parameters}({parameters / 10**6:.4f}M)")
    print(f"Total FLOPs: {operations}({operations / 10**9:.2f}G)")
    print(f"Counted are convolutions, fc, batch_norm, pool2d, {', '.join(_ACTIVATIONS)}")


_BYTES = {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "float16": 2, "int32": 4, "float32": 4}


def memory_usage(program: Any, batch_size: int) -> tuple[float, float, str]:
    """The least and the greatest memory for the outputs of the ops in block 0, and its unit: 5 and 10 % more than the
    elements need.

    Raises ValueError for a batch size that is not positive, and where other dims than the batch are unknown.
    """
    if not isinstance(program, Program):
        raise TypeError(f"memory_usage takes a Program, not a {type(program).__name__}")
    if batch_size <= 0:
        raise ValueError(f"a batch has at least one row, not {batch_size}")
    block = program.global_block()
    names = dict.fromkeys(name for op in block.ops for name in op.output_arg_names if name in block.vars)
    total = float(sum(_size(block.var(name), batch_size) for name in names))
    unit = "B"
    for larger in ("KB", "MB"):
        if total > 1024:
            total, unit = total / 1024, larger
    return total * 1.05, total * 1.1, unit


def _size(variable: Any, batch_size: int) -> int:
    if variable.type is not VarType.LOD_TENSOR:
        return 0
    if sum(dim < 0 for dim in variable.shape) > 1:
        raise ValueError(f"{variable.name} has more than one dim that is not known: {list(variable.shape)}")
    elements = prod(batch_size if dim < 0 else dim for dim in variable.shape)
    return elements * _BYTES.get(numpy_name(variable.dtype), 8)


def op_freq_statistic(program: Program) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """The number of ops of each type in block 0, and for each pair of types how often one reads what the other writes
    (`"mul-> elementwise_add"`), the most frequent first. Parameters are left out. Raises TypeError if `program` is not
    a program.
    """
    if not isinstance(program, Program):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"op_freq_statistic takes a Program, not a {type(program).__name__}")
    block = program.global_block()
    parameters = {parameter.name for parameter in block.all_parameters()}
    ops, pairs, writers = Counter[str](), Counter[tuple[str, str]](), dict[str, str]()
    for op in block.ops:
        ops[op.type] += any(name not in parameters for name in op.output_arg_names)
        pairs.update((writers[name], op.type) for name in op.input_arg_names if name in writers)
        writers |= {name: op.type for name in op.output_arg_names if name not in parameters}
    by_reader: dict[str, dict[str, int]] = {}
    for (writer, reader), count in pairs.items():
        by_reader.setdefault(reader, {})[f"{writer}->{reader}"] = count
    flat = [pair for counts in by_reader.values() for pair in counts.items()]
    return [(name, count) for name, count in ops.most_common() if count], sorted(flat, key=lambda pair: -pair[1])


__getattr__ = names_of_fluid(__name__, globals())
