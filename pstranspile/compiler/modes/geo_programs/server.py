"""Mode geo on a server: it adds the changes that trainers send to the slices that it holds."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.compiler.emit.pserver import RPC_THREADS
from pstranspile.compiler.emit.rules import ADD_CHANGE, SERVE, made, made_of_program
from pstranspile.compiler.emit.server_block import ServerMain, ServerProgram
from pstranspile.compiler.modes.geo_programs.trainer import change_of
from pstranspile.compiler.plan.plan import Plan, PlannedParameter, Slice
from pstranspile.ir.attributes import BlockRefs, Strings
from pstranspile.ir.model import Origin, Program
from pstranspile.ops.build import make_op

GEO = 3
"""The value of `distributed_mode` for servers in mode geo."""


def emit_geo_server(
    plan: Plan,
    source: Program,
    owned: Sequence[tuple[PlannedParameter, Slice]],
    updated_by: dict[str, Origin | None],
    endpoint: str,
) -> ServerMain:
    """The main program of the server at `endpoint`, which owns these slices: a block for each.

    `source` declares the parameters; `updated_by` gives the source op that updates each. A server that owns nothing has
    one empty block, without which Fluid's does not start.
    """
    server = ServerProgram(source)
    blocks: list[int] = []
    entries: list[str] = []
    sparse_pairs: list[str] = []
    for parameter, s in owned:
        server.declare_parameter(parameter, s)
    for parameter, s in owned:
        change = change_of(s.name, parameter.dtype, s.shape, sparse=parameter.sparse)
        server.blocks[0].vars[change.name] = change
        block = server.new_block(0)
        blocks.append(block)
        entries.append(f"{change.name}:{block}")
        if parameter.sparse:
            sparse_pairs.append(f"{change.name}:{s.name}")
        origin = made(updated_by[parameter.name], ADD_CHANGE)
        add = make_op("sum", {"X": [s.name, change.name]}, {"Out": [s.name]}, origin=origin)
        server.blocks[block].ops.append(add)
    if not blocks:
        blocks.append(server.new_block(0))
    attrs = {
        "endpoint": endpoint,
        "optimize_blocks": BlockRefs(blocks),
        "Fanin": plan.trainers,
        "distributed_mode": GEO,
        "grad_to_block_id": Strings(entries),
        "sparse_grad_to_param": Strings(sparse_pairs),
        "rpc_get_thread_num": RPC_THREADS,
        "rpc_send_thread_num": RPC_THREADS,
        "rpc_prefetch_thread_num": RPC_THREADS,
    }
    serve = make_op("listen_and_serv", {"X": []}, {}, attrs, origin=made_of_program(source, SERVE))
    server.blocks[0].ops.append(serve)
    return server.finish()
