"""The lines of Python files that made ops: found while an op is made, and kept as places that texts and ProgramDescs
state.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache, lru_cache
from pathlib import Path

from pstranspile.ir.model import MAIN, Location, Module, Op, Origin, Program

_OURS = str(Path(__file__).parents[1]) + os.sep
"""The folder of this package."""

_PYTHON = sysconfig.get_path("stdlib") + os.sep
"""The folder of Python's own modules."""

_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
"""The folders of installed packages, which stand within Python's own in some systems."""

_COMMANDS = sysconfig.get_path("scripts") + os.sep
"""The folder of commands, such as the one of this package."""

_GENERATED = ("<frozen ", "<decorator-gen-")
"""The beginnings of names of files that nobody has written. (`<stdin>` and a notebook's cells are the user's own.)"""


@cache
def _passes_on(file: str) -> bool:
    """Whether functions of a file only pass on a user's call: those of this package, of Python's own library and of
    installed commands.
    """
    if file.startswith((_OURS, *_GENERATED)):
        return True
    if file.startswith(_COMMANDS):
        return not file.endswith(".py")
    return file.startswith(_PYTHON) and not any(folder in file for folder in _INSTALLED)


def calling_place(block: int) -> Origin | None:
    """The origin of an op that is made now, in this block of the main program: the line that is being run in the
    innermost frame of a user's file. None if there is no such frame.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    file = ""  # of the frame before: one file often has several, so that it is not asked about again
    while (found := frame.f_code.co_filename) is file or _passes_on(found):
        file = found
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return _made_at(found, frame.f_lineno, block)


@lru_cache(maxsize=1 << 12)
def _made_at(file: str, line: int, block: int) -> Origin:
    """One value for all ops of a line, which is quicker than one for each."""
    return Origin(MAIN, block, -1, Location(file, line))


# Places in scripts.


def with_script_places(module: Module, ending: str = "") -> Module:
    """The module whose programs state the lines that made their ops, as `in_script` has them."""
    return module.with_programs({name: in_script(program, ending) for name, program in module.programs.items()})


def in_script(program: Program, ending: str = "") -> Program:
    """The program whose ops state the line of the file that made them as a place in a script.

    `ending` is that of the names of the files which are scripts: the lines of others, such as those of a program's
    text, stay what they are.
    """
    known: dict[Location, Location] = {}
    blocks = [
        block._replace(ops=tuple([_with_script_location(op, ending, known) for op in block.ops]))
        for block in program.blocks
    ]
    return program._replace(blocks=tuple(blocks))


def _with_script_location(op: Op, ending: str, known: dict[Location, Location]) -> Op:
    origin = op.origin
    place = origin.location if origin is not None else None
    if origin is None or place is None or not place.line or place.script is not None:
        return op
    if not place.file.endswith(ending):
        return op
    made = known.get(place)
    if made is None:
        made = known[place] = Location(place.file, script=Location(place.file, place.line))
    return op._replace(origin=origin._replace(location=made))
