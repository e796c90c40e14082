"""A sub-block as the source of a Python function of its frame, as `pstranspile.runtime.run.source` makes one of block
0.

What the block computes stays in its frame, where the ops around it and the gradient block look for it; the function
saves looking up what its own ops read.
"""

from __future__ import annotations

from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING

from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Program
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.bound import BoundOp, arguments_of, fail, slot_of
from pstranspile.runtime.run.source import Missing, Source, ValueKind, in_frame, reads_of

if TYPE_CHECKING:
    from pstranspile.runtime.run.frame import Frame


class BlockSource(Source):
    """Writes the function of a sub-block."""

    def __init__(self, program: Program, block: int, reads: frozenset[str]):
        super().__init__(program, (), (), frozenset(), block=block, reads=reads)

    def _write(self) -> None:
        self.lines.append("def step(frame, find, local, written):")
        for index, bound in enumerate(self.bound):
            self._op(index, bound)
        self._add("return")

    def _op(self, index: int, bound: BoundOp) -> None:
        for name in () if bound.looks else bound.reads:
            if name not in self.kinds:
                self._add(f"{self._local(name)} = find({name!r})", index)
                self._written(name, ValueKind.ANYTHING, sure=False)
        super()._op(index, bound)

    def _persistable(self, name: str) -> bool:
        """All variables have their place outside of the function."""
        return True

    def _target(self, name: str) -> str:
        var = self.block.vars.get(name)
        home = "written" if var is None or var.persistable else "local"
        return f"{self._local(name)} = {home}[{name!r}]"

    def _store(self, index: int, name: str, value: str, kind: ValueKind) -> None:
        """Gives a variable its new value, unless that is None."""
        known = name in self.kinds and name not in self.unsure
        self._add(f"if {value} is not None: {self._target(name)} = {value}", index)
        if name not in self.kinds:
            self._add(f"else: {self._local(name)} = find({name!r})", index)
        self._written(name, min(kind, self.kinds.get(name, kind)), sure=known)

    def _call_in_frame(self, index: int, bound: BoundOp) -> None:
        """Calls a kernel that may look for variables itself; what it may have written is looked up again."""
        self.names[f"c{index}"] = in_frame(bound)
        self._add(f"c{index}(frame)", index)
        for name in self.touched[index]:
            self.kinds.pop(name, None)
            self.unsure.discard(name)


class _Written:
    """A frame as something to assign to: `written[name] = value` is `frame.write(name, value)`."""

    __slots__ = ("frame",)

    def __init__(self, frame: Frame):
        self.frame = frame

    def __setitem__(self, name: str, value: Value) -> None:
        self.frame.write(name, value)


class BlockCode:
    """The functions of a program's sub-blocks, each written when it is first run."""

    def __init__(self, program: Program):
        self._program = program
        self._known: dict[int, tuple[BlockSource, FunctionType]] = {}

    @cached_property
    def _reads(self) -> frozenset[str]:
        return reads_of(self._program)

    def run(self, frame: Frame) -> None:
        """Runs the ops of a frame's block. Raises DiagnosticError."""
        known = self._known.get(frame.index)
        if known is None:
            source = BlockSource(self._program, frame.index, self._reads)
            known = self._known[frame.index] = source, source.compiled(f"<block {frame.index} of {id(self):x}>")
        source, step = known
        try:
            step(frame, frame.find, frame.local, _Written(frame))
        except DiagnosticError:
            raise
        except Exception as problem:
            index, values = source.failed(step, problem)
            if index >= 0:
                bound = source.bound[index]
                if isinstance(problem, Missing):
                    raise frame.missing(bound.op, slot_of(bound, problem.name), problem.name) from None
                fail(bound, arguments_of(bound, values), problem)
            raise
