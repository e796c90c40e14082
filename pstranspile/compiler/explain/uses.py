"""Who reads and writes each variable of a machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pstranspile.ir.model import Program


class Used(NamedTuple):
    """An op that uses a variable: program, block and number."""

    program: str
    block: int
    number: int


class Uses(NamedTuple):
    """Variable -> the ops of a machine that read it, and those that write it, each once and in order."""

    readers: Mapping[str, list[Used]]
    writers: Mapping[str, list[Used]]

    def read(self, name: str) -> list[Used]:
        """The ops that read a variable."""
        return self.readers.get(name, [])

    def written(self, name: str) -> list[Used]:
        """The ops that write a variable."""
        return self.writers.get(name, [])


def uses_of_machine(programs: Mapping[str, Program]) -> Uses:
    """The def-use index of all programs of a machine."""
    readers: dict[str, list[Used]] = {}
    writers: dict[str, list[Used]] = {}
    for program_name, program in programs.items():
        for index, block in enumerate(program.blocks):
            for number, op in enumerate(block.ops):
                used = Used(program_name, index, number)
                for name in dict.fromkeys(op.input_names):
                    readers.setdefault(name, []).append(used)
                for name in dict.fromkeys(op.output_names):
                    writers.setdefault(name, []).append(used)
    return Uses(readers, writers)
