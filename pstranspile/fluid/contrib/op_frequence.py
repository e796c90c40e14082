"""Fluid's `contrib.op_frequence`: how often ops, and pairs of ops, are in a program."""

from __future__ import annotations

from collections import Counter

from pstranspile.fluid.framework import Program
from pstranspile.fluid.missing import names_of_fluid


def op_freq_statistic(program: Program) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """How many ops of each type block 0 has, and how many of each type read what one of another type writes (`"mul->
    elementwise_add"`), the most frequent first. Parameters don't count. Raises TypeError for what is no program.
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
