"""The op graph: which op uses what which other op made, as a networkx DiGraph over op indices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pstranspile.compiler.analysis.uses import effects_of
from pstranspile.ir.expect import expect_program, suggesting
from pstranspile.ir.model import Program

if TYPE_CHECKING:
    import networkx

    OpGraph = networkx.DiGraph[int]
else:
    OpGraph = Any


@suggesting
def op_graph(program: Program, indices: Iterable[int]) -> OpGraph:
    """The graph of these ops of block 0 (indices ascending), sub-blocks included in the op that owns them.

    An edge a -> b with attribute `var` means that b reads the value of `var` that a wrote, or overwrites it
    (`overwrites=True`). Only the latest writer before b counts, so in-place updates order correctly.
    Nodes have the attributes `op`, the Op, `type`, its type, and `inputs`, the variables that the op reads and no
    earlier op of the graph wrote.
    """
    import networkx

    expect_program(program, "op_graph")
    graph: OpGraph = networkx.DiGraph()
    writer: dict[str, int] = {}
    for index in indices:
        op = program.main_block.ops[index]
        effects = effects_of(program, op)
        graph.add_node(index, op=op, type=op.type, inputs=tuple(name for name in effects.reads if name not in writer))
        for name in effects.reads:
            if name in writer:
                graph.add_edge(writer[name], index, var=name, overwrites=False)
        for name in effects.writes:
            if name in writer and not graph.has_edge(writer[name], index):
                graph.add_edge(writer[name], index, var=name, overwrites=True)
            writer[name] = index
    return graph
