"""Passes that scripts put into a BuildStrategy: what of them is honoured, and what is refused."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.missing import refused

_REPEATS = "multi_batch_merge_pass"
_DIFFERENT = ("batch_norm", "sync_batch_norm", "data_norm", "dropout", "seed", "sampling_id", "shuffle_batch", "nce")
"""Ops beside `*random*` that make something else of the same values when they are computed again."""


class Pass:
    """A pass by its name, with settings."""

    def __init__(self, name: str):
        self._name = name
        self.settings: dict[str, Any] = {}

    def type(self) -> str:
        """The name."""
        return self._name

    def set(self, name: str, value: Any) -> None:
        """Gives a setting a value. Raises NotHere for one that the pass does not have."""
        if name != "num_repeats":
            raise refused(f"{self._name}.{name}", "it has num_repeats")
        self.settings[name] = value


class PassBuilder:
    """The passes of a BuildStrategy. `multi_batch_merge_pass` can be added, others are refused."""

    def __init__(self) -> None:
        self._passes: list[Pass] = []

    def all_passes(self) -> list[Pass]:
        """The passes, in order."""
        return list(self._passes)

    def insert_pass(self, index: int, name: str) -> Pass:
        """Puts a pass at a place. Raises NotHere for one that is not there."""
        if name != _REPEATS:
            raise refused(f"the pass {name}", "ops are run as the program has them")
        self._passes.insert(index, Pass(name))
        return self._passes[index]

    def append_pass(self, name: str) -> Pass:
        """Adds a pass at the end. Raises NotHere for one that is not there."""
        return self.insert_pass(len(self._passes), name)

    def remove_pass(self, index: int) -> None:
        """Takes a pass away."""
        del self._passes[index]

    def require_same(self, program: Program) -> None:
        """Raises NotHere where a step of this program would not be what the passes make of it.

        Merged batches are gradients of several times the same fed rows, averaged: those of one time, unless a reader
        gives other rows each time or an op computes something else.
        """
        if all(each.settings.get("num_repeats", 1) <= 1 for each in self._passes):
            return
        if program.readers:
            raise refused(f"{_REPEATS} with a reader", "have the reader give larger batches")
        for block in program.drafts:
            for op in block.all_ops():
                if op.type in _DIFFERENT or "random" in op.type:
                    raise refused(f"{_REPEATS} with {op.type}", "feed larger batches")
