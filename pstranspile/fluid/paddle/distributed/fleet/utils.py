"""`paddle.distributed.fleet.utils`: the file system of this host, and programs that look up rows on servers.

`DistributedInfer` belongs to `paddle.distributed.fleet.utils.ps_util`.
"""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.framework import default_main_program
from pstranspile.fluid.graph.program import TEST
from pstranspile.fluid.missing import hold_parts, unsupported_error
from pstranspile.fluid.paddle.distributed.fleet.one_fleet import fleet
from pstranspile.fluid.paddle.distributed.fs_wrapper import LocalFS as LocalFS
from pstranspile.fluid.paddle.later import not_there

_LOOKUPS = ("lookup_table", "lookup_table_v2")


class HDFSClient:
    """The later client of a hadoop cluster; making one raises NotHere."""

    def __init__(self, *_: Any, **__: Any):
        raise unsupported_error("fleet.utils.HDFSClient", "mount the cluster's file system, and take LocalFS")


class DistributedInfer:
    """A program, separate from the one that trains, that looks rows of tables up on the same servers as the trainer."""

    def __init__(self, main_program: Any = None, startup_program: Any = None):
        self.origin_main_program = (main_program or default_main_program()).clone()
        self.origin_startup_program = startup_program

    def init_distributed_infer_env(
        self, exe: Any, loss: Any, role_maker: Any = None, dirname: str | None = None
    ) -> None:
        """Does nothing if Fleet has made programs; otherwise raises NotHere, because `minimize` and loading must come
        before.
        """
        if not getattr(_training_program(), "machine", None):
            raise unsupported_error(
                "init_distributed_infer_env", "call fleet.minimize and fleet.load_persistables before"
            )

    def get_dist_infer_program(self) -> Any:
        """The program, with lookups on servers in the tables that the trainer looks up there."""
        program, trained = self.origin_main_program, _training_program()
        tables = {op.input("W")[0]: op for op in trained.global_block().ops if op.type == "distributed_lookup_table"}
        block: Any = program.global_block()
        for index, op in enumerate(block.ops):
            remote = tables.get(op.input("W")[0]) if op.type in _LOOKUPS else None
            if remote is None:
                continue
            outputs = {"Outputs": [block.var(op.output("Out")[0])]}
            inputs = {"Ids": [block.var(op.input("Ids")[0])], "W": [block.var(op.input("W")[0])]}
            block._remove_op(index)
            block._insert_op(index, remote.type, inputs=inputs, outputs=outputs, attrs=remote.all_attrs())
        if tables:
            program.machine, program.part = trained.machine, TEST
        return program


def _training_program() -> Any:
    """The program that this process trains."""
    return getattr(fleet.inner, "main_program", None) or default_main_program()


hold_parts(__name__, globals())


def __getattr__(name: str) -> Any:
    raise not_there(f"paddle.distributed.fleet.utils.{name}", globals())
