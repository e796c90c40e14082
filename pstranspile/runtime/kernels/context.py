"""Information that the interpreter offers to kernels in addition to the values of their inputs.

A kernel receives it in a parameter called `surroundings` or `context`. A kernel with neither parameter depends on its
inputs only. The `surroundings` cost nothing. The `context` also gives access to variables by name. It costs time,
because all variables that the kernel may read must be stored in it before the kernel runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from pstranspile.ir.model import Op, Var
from pstranspile.runtime.kernels.random import Key, Rows

Value: TypeAlias = Any
"""A numpy array, a LoDTensor, SelectedRows, a list of these (a tensor array), or an object private to an op."""


class Surroundings(Protocol):
    """The surroundings of an op in a running program: declarations, random numbers and files, but no
    variables' values.
    """

    def declared(self, name: str) -> Var | None:
        """The declaration that a variable's name resolves to at the op, None if there is none."""
        ...

    def stream(
        self, name: str, seed: int, of: str = "", dims: Sequence[int] = (), lod: list[list[int]] | None = None
    ) -> tuple[Key, int]:
        """The key of the random stream of variable `name`, and the offset of the variable's first element in it.

        Both are arguments of the functions in `pstranspile.runtime.kernels.random`. The key is made from the
        program's seed, the op's `seed` and the name of the whole variable. The offset is not 0 if the variable is a
        slice of the whole. With `seed` 0 every run of the op has its own stream, except that a persistable variable,
        which is being initialised, gets the same numbers in every run under one program seed. An op with a seed draws
        the same numbers every time. All machines draw the same numbers.

        If there are numbers for each row of a batch, `of` names the variable with those rows, and `dims` and `lod`
        describe the numbers. Each row then draws the numbers that it draws on a machine with the whole batch. If it is
        unknown which rows a machine has, each machine draws numbers of its own.
        """
        ...

    def rows(self, name: str, dims: Sequence[int], lod: list[list[int]] | None = None) -> Rows | None:
        """The rows of the whole batch that a value of a variable holds; None if they are not known."""
        ...

    def path(self, file_path: str) -> Path:
        """The path of a file named by an attribute. Relative paths start at the folder of the run."""
        ...


class ExecutionContext(Surroundings, Protocol):
    """One execution of a block. It sees the variables of the executions of the enclosing blocks."""

    @property
    def op(self) -> Op:
        """The op that is run, for messages and for the names of its variables."""
        ...

    def find(self, name: str) -> Value | None:
        """The value of a variable of this block or an enclosing one, None if it has none yet."""
        ...

    def write(self, name: str, value: Value) -> None:
        """Sets a variable that is not an output of the op, such as a table that grows when it is read, where it is
        declared.
        """
        ...

    def forget(self, name: str) -> None:
        """Removes a variable's value. Reading it is an error until something writes it again."""
        ...

    def own(self, name: str) -> Value | None:
        """The value of a variable in this execution only, None if it has none here."""
        ...

    def keep(self, name: str, value: Value) -> None:
        """Sets a variable in this execution only. It hides a variable of the same name in enclosing blocks."""
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
