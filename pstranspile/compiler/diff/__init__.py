"""The semantic difference of programs: what is left when spelling and order that mean nothing are set aside.

These are no differences: The order of slots, attributes and declarations. An attribute at its schema's default and one
that is left out. An empty slot and a missing one. The order of `grad_to_block_id`, and of `fake_init` ops that follow
each other. Generated names (`__control_var@...`, `_generated_var_0`, `tmp_dc_output_0`) that are used alike. The
attributes `op_callstack`, `op_namescope` and `op_device`. Where things stand in their files. Everything else is one.
"""

from __future__ import annotations

import os
from typing import TypeAlias

from pstranspile.compiler.diff.compare import Comparison, Difference, Line, render, summary
from pstranspile.frontends.loading import Report, load
from pstranspile.ir.expect import suggesting, wrong_type
from pstranspile.ir.model import MAIN, Module, Program

__all__ = ["Difference", "Line", "diff", "diff_folders", "diff_modules", "diff_programs", "render", "summary"]

Comparable: TypeAlias = Program | Module | str | os.PathLike[str]
"""A program, a module, or the path of a file or of an output folder."""


def diff_programs(a: Program, b: Program, name: str = MAIN) -> tuple[Difference, ...]:
    """The differences of two programs, block by block; `name` is what they are called."""
    comparison = Comparison([a, b])
    comparison.programs(a, b, name)
    return tuple(comparison.differences)


def diff_modules(a: Module, b: Module, role: str = "") -> tuple[Difference, ...]:
    """The differences of the programs of the same names, and the programs that only one module has."""
    comparison = Comparison([*a.programs.values(), *b.programs.values()], role)
    comparison.modules(a, b)
    return tuple(comparison.differences)


def diff_folders(
    a: str | os.PathLike[str], b: str | os.PathLike[str], *, report: Report | None = None
) -> tuple[Difference, ...]:
    """The differences of two output folders, role by role, and the roles that only one of them has.

    The programs of a role may be text in one folder and serialized in the other. Warnings of loading go to
    `report`. Raises DiagnosticError.
    """
    from pstranspile.compiler.diff.folders import load_role, roles_in

    first, second = roles_in(a), roles_in(b)
    differences: list[Difference] = []
    for role in sorted({*first, *second}):
        if role in first and role in second:
            differences += diff_modules(load_role(first[role], report), load_role(second[role], report), role)
        else:
            sign, paths = ("-", first[role]) if role in first else ("+", second[role])
            lines = tuple(Line(sign, path.name) for path in paths)
            differences.append(Difference(role, "", -1, "role", lines))
    return tuple(differences)


@suggesting
def diff(a: Comparable, b: Comparable, *, report: Report | None = None) -> tuple[Difference, ...]:
    """The differences of two programs, modules, files or output folders, each side given as it is at hand.

    Raises DiagnosticError when a file can't be read, TypeError when one side is a folder or a program and the other
    is not.
    """
    paths = [side for side in (a, b) if isinstance(side, str | os.PathLike)]
    folders = [path for path in paths if path != "-" and os.path.isdir(path)]
    if len(folders) == 2:
        return diff_folders(folders[0], folders[1], report=report)
    if folders:
        raise TypeError(f"{os.fspath(folders[0])} is a folder, the other side is not")
    first, second = (load(x, report=report) if isinstance(x, str | os.PathLike) else x for x in (a, b))
    if isinstance(first, Module) and isinstance(second, Module):
        return diff_modules(first, second)
    if isinstance(first, Program) and isinstance(second, Program):
        return diff_programs(first, second)
    for side in (first, second):
        if not isinstance(side, Module | Program):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise wrong_type("diff", "programs, modules and paths", side)
    raise TypeError("one side is a program, the other a module of programs")
