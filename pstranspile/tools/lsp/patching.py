"""A module after some of its text's statements changed, made of the module before: what stayed is kept, and moved."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from pstranspile.ir.attributes import BlockRef, BlockRefs
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Block, Location, Module, Op, Origin, Program, SourceText, Var
from pstranspile.tools.lsp.changes import Change
from pstranspile.tools.lsp.outline import Outline

Value = Op | Var
"""What a statement in a block stands for."""

_LOCATION = Var._fields.index("location")
# A hundred thousand values are made of kept ones.
_new: Any = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def patched(
    module: Module, changes: Sequence[Change], values: Mapping[int, Value], outline: Outline, source: SourceText
) -> Module | None:
    """The module of a text, made of that of an older one.

    `values` are the ops and variables that new statements stand for, by line; `outline` is that of the new text. The
    changes must leave heads and ends of programs and blocks as they are, and be in blocks. None where the whole text
    must be read: a variable is declared twice, or an op that refers to blocks came or went.
    """
    if any(_refers(value) for value in values.values()):
        return None
    new: dict[tuple[str, int], dict[int, Value]] = {}
    for line, value in values.items():
        section = outline.section_at(line)
        if section is None:
            return None
        new.setdefault((section.program, section.block), {})[line] = value
    programs: dict[str, Program] = {}
    for name, program in module.programs.items():
        blocks: list[Block] = []
        for index, block in enumerate(program.blocks):
            made = _block(block, changes, new.get((name, index), {}), (name, index))
            if made is None:
                return None
            blocks.append(made)
        programs[name] = program._replace(blocks=tuple(blocks))
    return Module(FrozenMap(programs), source)


def _refers(value: Value) -> bool:
    """Whether an op refers to blocks, whose labels are those of the whole text."""
    return isinstance(value, Op) and any(isinstance(held, BlockRef | BlockRefs) for held in value.attrs.values())


def _block(
    block: Block, changes: Sequence[Change], values: Mapping[int, Value], where: tuple[str, int]
) -> Block | None:
    """A block after changes, with the new values of it by line; `where` are its program and number."""
    ops: list[Op] = []
    for change, kept, out in _parts(block.ops, changes):
        if any(map(_refers, out)):
            return None
        for line in range(change.first, change.last):
            op = values.get(line)
            if isinstance(op, Op) and op.origin is not None:
                ops.append(op._replace(origin=Origin(*where, len(ops), op.origin.location)))
        ops += _moved_ops(block.ops[kept], change.moves, len(ops) - kept.start)
    variables: list[Var] = []
    declared = tuple(block.vars.values())
    for change, kept, _ in _parts(declared, changes):
        new = [values.get(line) for line in range(change.first, change.last)]
        variables += [var for var in new if isinstance(var, Var)]
        variables += _moved_variables(declared[kept], change.moves)
    names = FrozenMap(zip([var.name for var in variables], variables, strict=True))
    if len(names) != len(variables):
        return None
    head = block.location.line - 1 if block.location is not None else 0
    moves = next((change.moves for change in reversed(changes) if change.old_last <= head), 0)
    return block._replace(ops=tuple(ops), vars=names, location=_moved(block.location, moves))


def _parts(values: Sequence[Value], changes: Sequence[Change]) -> Iterator[tuple[Change, slice, Sequence[Value]]]:
    """The changes, first one that changes nothing: the values of a block kept behind each, and those it takes out."""
    lines = [_line(value) for value in values]
    for change, following in pairwise((Change(0, 0, 0, 0), *changes, None)):
        assert change is not None
        first, last = bisect_left(lines, change.old_first), bisect_left(lines, change.old_last)
        end = bisect_left(lines, following.old_first) if following is not None else len(values)
        yield change, slice(last, end), values[first:last]


def _line(value: Value) -> int:
    """The line of a value, from 0; -1 where it comes from no text."""
    place = (value.origin.location if value.origin else None) if isinstance(value, Op) else value.location
    return place.line - 1 if place else -1


def _moved_ops(ops: Sequence[Op], lines: int, positions: int) -> Sequence[Op]:
    """Ops so many lines further down, at so many positions later in their block."""
    if not lines and not positions:
        return ops
    result: list[Op] = []
    for op in ops:
        origin = op.origin
        assert origin is not None
        program, block, position, place, rule = origin
        origin = _new(Origin, (program, block, position + positions, _moved(place, lines), rule))
        result.append(_new(Op, (*op[:-1], origin)))
    return result


def _moved_variables(variables: Sequence[Var], lines: int) -> Sequence[Var]:
    """Variables so many lines further down."""
    if not lines:
        return variables
    before, after = slice(_LOCATION), slice(_LOCATION + 1, None)
    return [_new(Var, (*var[before], _moved(var.location, lines), *var[after])) for var in variables]


def _moved(place: Location | None, lines: int) -> Location | None:
    if place is None or not lines:
        return place
    return _new(Location, (place[0], place[1] + lines, place[2], place[3]))
