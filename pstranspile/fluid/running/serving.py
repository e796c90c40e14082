"""A server whose program a script wrote itself: its trainers are any that call, as many as it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pstranspile.cluster.machines.server import listening_op
from pstranspile.cluster.net.process import Place
from pstranspile.cluster.net.terms import Terms
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.plan import fingerprint
from pstranspile.fluid.machines import ServerMachine, require_callable
from pstranspile.ir.distribution import DistributedVar
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Program, Role

NAME = "pserver_0"


@dataclass(frozen=True)
class _WrittenJob:
    """What is known of a job of which there is one server's program alone."""

    server: Role
    job: Job | None = None
    distributed_vars: tuple[DistributedVar, ...] = ()

    def roles(self) -> dict[str, Role]:
        """The server, and the trainers that it waits for, whose programs nobody knows here."""
        op = listening_op(self.server.main)
        assert op is not None
        count: Any = op.attrs.get("Fanin", 1)
        names = [f"trainer_{number}" for number in range(int(count))]
        return {**{name: Role(name, Program(), Program()) for name in names}, NAME: self.server}


class WrittenServer(ServerMachine):
    """A server that is given its program, and works in the scope of the script."""

    def __init__(self, program: Program):
        role = Role(NAME, _keeping(program), Program())
        super().__init__(_WrittenJob(role), role)
        self._remember(program, role.main)

    def terms(self, **edited: Program) -> tuple[Terms, Place]:
        """What the processes agree on, and where this one is. Raises DiagnosticError."""
        op = listening_op(self.role.main)
        assert op is not None
        require_callable({NAME: str(op.attrs["endpoint"])})
        return super().terms(**edited)

    @property
    def hash(self) -> str:
        """What tells the server's program from others."""
        return fingerprint(self.role.module).partition(":")[2]


def _keeping(program: Program) -> Program:
    """The program that keeps what the blocks of its server write, to be asked for."""
    main = program.main_block
    written = {name for block in program.blocks[1:] for op in block.ops for name in op.output_names}
    kept = {name: var._replace(persistable=var.persistable or name in written) for name, var in main.vars.items()}
    return program._replace(blocks=(main._replace(vars=FrozenMap(kept)), *program.blocks[1:]))
