"""The lines of Python files that made ops, as places in scripts, which texts and ProgramDescs keep."""

from __future__ import annotations

from pstranspile.ir.model import Location, Module, Op, Program


def with_script_places(module: Module, ending: str = "") -> Module:
    """The module whose programs state the lines that made their ops, as `in_script` has them."""
    return module.with_programs({name: in_script(program, ending) for name, program in module.programs.items()})


def in_script(program: Program, ending: str = "") -> Program:
    """The program whose ops state the line of the file that made them as a place in a script.

    `ending` is that of the names of the files which are scripts: the lines of others, such as those of a program's
    text, stay what they are.
    """
    known: dict[Location, Location] = {}
    blocks = [block._replace(ops=tuple([_placed(op, ending, known) for op in block.ops])) for block in program.blocks]
    return program._replace(blocks=tuple(blocks))


def _placed(op: Op, ending: str, known: dict[Location, Location]) -> Op:
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
