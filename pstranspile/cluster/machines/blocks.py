"""A server's blocks, made ready to run on what was received."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from pstranspile.cluster.machines.script import changed_in_place
from pstranspile.ir.attributes import BlockRef, BlockRefs
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, Program, Var
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.frame import Execution
from pstranspile.runtime.run.prepared import Prepared
from pstranspile.runtime.run.scope import Scope, own_copy


def part_of(program: Program, ops: Iterable[Op], blocks: Iterable[int] = ()) -> Program:
    """The program with these ops in block 0, which also declares what the given blocks declare."""
    main = program.main_block
    variables: dict[str, Var] = {}
    for index in blocks:
        variables.update(program.blocks[index].vars)
    variables.update(main.vars)
    block = main._replace(ops=tuple(ops), vars=FrozenMap(variables))
    return program._replace(blocks=(block, *program.blocks[1:]))


def block_program(program: Program, blocks: Sequence[int]) -> Program:
    """The program with the ops of these blocks, one after the other, in block 0."""
    return part_of(program, [op for index in blocks for op in program.blocks[index].ops], blocks)


def block_alone(program: Program, index: int) -> Program:
    """The program with the ops of this block in block 0, and no other block, where they run none: a server has a block
    for each variable, and what is made of one should not cost as much as all of them.
    """
    own = program.blocks[index]
    if any(isinstance(value, BlockRef | BlockRefs) for op in own.ops for value in op.attrs.values()):
        return block_program(program, [index])
    main, names = program.main_block, dict.fromkeys(n for op in own.ops for n in (*op.input_names, *op.output_names))
    known = {name: main.vars.get(name) or own.vars.get(name) for name in names}
    variables = {name: var for name, var in known.items() if var is not None}
    return program._replace(blocks=(main._replace(ops=own.ops, vars=FrozenMap(variables)),))


def with_temporaries(program: Program, names: Collection[str]) -> Program:
    """The program that forgets these variables after a run, although they are declared persistable."""
    main = program.main_block
    kept = {n: var._replace(persistable=False) if n in names else var for n, var in main.vars.items()}
    return program._replace(blocks=(main._replace(vars=FrozenMap(kept)), *program.blocks[1:]))


def read_first(ops: Iterable[Op]) -> list[str]:
    """The variables that ops read before any of them has written them, in order."""
    written: set[str] = set()
    result: dict[str, None] = {}
    for op in ops:
        result.update(dict.fromkeys(name for name in op.input_names if name not in written))
        written.update(op.output_names)
    return list(result)


class Block(Prepared):
    """A block of a server, as a function of the received variables `feeds`; gives the values of `fetches`."""

    def __init__(self, program: Program, scope: Scope, feeds: Sequence[str], fetches: Sequence[str], **options: Any):
        super().__init__(Execution(program, scope, **options), feeds, fetches)
        ops = program.main_block.ops
        persistable = program.main_block.vars
        self.changes = frozenset(
            name for op in ops for name in op.output_names if name in persistable and persistable[name].persistable
        )
        """The persistable variables that the block writes."""
        changed = changed_in_place(program)
        self._own = [place for place, name in enumerate(feeds) if name in changed]

    def apply(self, received: list[Value]) -> Sequence[Value]:
        """Runs the block once. What it changes in place it changes in copies. Raises DiagnosticError."""
        for place in self._own:
            received[place] = own_copy(received[place])
        result = self._run(received, {})
        self.execution.step += 1
        return result
