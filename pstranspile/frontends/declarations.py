"""The order of declarations: a ProgramDesc has that of a hash table, a person wants one to find them in."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Block, Module, Program, Var

_NUMBER = re.compile("([0-9]+)")


def with_sorted_declarations(module: Module, names: Collection[str]) -> Module:
    """The module with the variables of these programs sorted: what is kept between steps first, then by name.

    Numbers in names count as numbers: `fc_2` stands before `fc_10`.
    """

    def in_order(block: Block) -> Block:
        variables = sorted(block.vars.values(), key=_place)
        return block._replace(vars=FrozenMap({var.name: var for var in variables})) if variables else block

    def of_program(program: Program) -> Program:
        return program._replace(blocks=tuple(map(in_order, program.blocks)))

    return module.with_programs({name: of_program(p) for name, p in module.programs.items() if name in names})


def _place(var: Var) -> tuple[bool, list[str | tuple[int, str]]]:
    parts: list[Any] = _NUMBER.split(var.name)
    parts[1::2] = [(len(digits), digits) for digits in parts[1::2]]
    return not var.persistable, parts
