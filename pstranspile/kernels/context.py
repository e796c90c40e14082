"""What a kernel may ask of whoever runs it, beside the values of its inputs.

The interpreter in `pstranspile.run` gives it, to a parameter called `surroundings` or `context`. Kernels that need
nothing of this name neither. One that asks for variables by name needs the `context`, and all variables that it may
look at must be put there before it runs, which costs; the `surroundings` cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from pstranspile.ir.model import Op, Var
from pstranspile.kernels.random.row_numbers import Rows
from pstranspile.kernels.random.streams import Key

Value: TypeAlias = Any
"""A numpy array, LoDTensor, SelectedRows, list of these (a tensor array), or what an op keeps for itself."""


class Surroundings(Protocol):
    """Where an op of a running program stands: declarations, random numbers, files; no values of variables."""

    def declared(self, name: str) -> Var | None:
        """The declaration that a variable's name means where the op stands, None if there is none."""
        ...

    def stream(
        self, name: str, seed: int, of: str = "", dims: Sequence[int] = (), lod: list[list[int]] | None = None
    ) -> tuple[Key, int]:
        """The stream of random numbers for variable `name`: its key and the offset of the variable's first element.

        Both go to the functions of `pstranspile.kernels.random.streams`. The key comes from the program's seed, the
        op's `seed` and the name of the whole variable; the offset is not 0 if the variable is a slice of that whole.
        With `seed` 0 every run of the op has a stream of its own. A persistable variable, which is being initialised,
        gets the same numbers in every run under one program seed. An op that has a seed draws the same numbers every
        time. Every machine draws the same. If numbers are for each row of a batch, `of` names the variable whose rows
        they are, and `dims` and `lod` are those of the numbers. Each row then draws what it draws on a machine that has
        the whole batch. Where it is unknown which rows a machine has, each machine has numbers of its own.
        """
        ...

    def rows(self, name: str, dims: Sequence[int], lod: list[list[int]] | None = None) -> Rows | None:
        """Which rows of the whole batch a value of a variable holds; None if that can't be told."""
        ...

    def path(self, file_path: str) -> Path:
        """Where the file that an attribute names lies (relative paths start at the run's own folder)."""
        ...


class ExecutionContext(Surroundings, Protocol):
    """The surroundings of one op of a running program: the execution of one block, over those of the blocks around."""

    @property
    def op(self) -> Op:
        """The op that is run, for messages and for the names of its variables."""
        ...

    def find(self, name: str) -> Value | None:
        """The value of a variable of this block or of one around it, None if it has none yet."""
        ...

    def write(self, name: str, value: Value) -> None:
        """Sets a variable that is not an output of the op (a table that grows as it is read), where it is declared."""
        ...

    def forget(self, name: str) -> None:
        """Takes a variable's value away; reading it is an error until something writes it again."""
        ...

    def own(self, name: str) -> Value | None:
        """The value of a variable in this execution of the block alone, None if it has none here."""
        ...

    def keep(self, name: str, value: Value) -> None:
        """Sets a variable in this execution of the block alone, hiding those of the same name around it."""
        ...

    def enter(self, block: int) -> ExecutionContext:
        """A new execution of another block of the program, which sees the variables of this one."""
        ...

    def ops(self) -> tuple[Op, ...]:
        """The ops of this execution's block."""
        ...

    def execute(self) -> None:
        """Runs the ops of this execution's block in order."""
        ...
