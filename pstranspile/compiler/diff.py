"""The semantic difference of programs: the differences that remain when spelling and order without meaning are ignored.

These are no differences: The order of slots, attributes and declarations. An attribute at its schema's default and one
that is left out. An empty slot and a missing one. The order of `grad_to_block_id`, and of `fake_init` ops that follow
each other. Generated names (`__control_var@...`, `_generated_var_0`, `tmp_dc_output_0`) that are used alike. The
attributes `op_callstack`, `op_namescope` and `op_device`. Where things stand in their files. Everything else is one.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from pstranspile.frontends.loading import Report, load
from pstranspile.ir.argument_checks import check_arguments, wrong_type
from pstranspile.ir.attributes import AttrValue, Floats, Strings, same_attr
from pstranspile.ir.diagnostics import in_one_line
from pstranspile.ir.model import MAIN, Attrs, Block, Distribution, FrozenMap, Module, Op, Program, Slots, Var
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.text.distribution import statements
from pstranspile.ir.text.literals import name as name_text
from pstranspile.ir.text.printer import op_text, var_parts
from pstranspile.ir.types import DType, OpRole
from pstranspile.ops import schema_of
from pstranspile.ops.schema import GENERIC_ATTRS, AttrSpec
from pstranspile.ops.textual import LANGUAGE

__all__ = ["Difference", "Line", "diff", "diff_folders", "diff_modules", "diff_programs", "render", "summary"]

# Differences as values, and as text for the user.


class Line(NamedTuple):
    """A line of program text. Its sign is `-` if only the first program has it, `+` if only the second, a space for
    context.
    """

    sign: str
    text: str


class Difference(NamedTuple):
    """One difference of two inputs, with the lines around it.

    `role` is the machine in an output folder ("" elsewhere), `program` the name of the program ("" for a role that only
    one side has), `block` the index of the block (-1: the program as a whole). `what` names the part: `role`,
    `program`, `distribution`, `block`, `variables` or `ops`. `first` and `second` are the positions in the two blocks
    of the first op shown (-1 for other parts).
    """

    role: str
    program: str
    block: int
    what: str
    lines: tuple[Line, ...]
    first: int = -1
    second: int = -1

    @property
    def place(self) -> str:
        """The location of the difference in words: `trainer_0 @main`."""
        return " ".join(part for part in (self.role, f"@{self.program}" if self.program else "") if part)

    @property
    def heading(self) -> str:
        """The text between the `@@` signs of the difference's hunk: `block ^0, ops 12 and 13`."""
        if self.block < 0:
            return self.what
        if self.what != "ops":
            return f"block ^{self.block}, {self.what}"
        same = self.first == self.second
        where = f"op {self.first}" if same else f"ops {self.first} and {self.second}"
        return f"block ^{self.block}, {where}"

    def as_dict(self) -> dict[str, Any]:
        """The fields of the difference by name, as plain values for JSON; every line has a sign and a text."""
        return {**self._asdict(), "lines": [line._asdict() for line in self.lines]}


def summary(differences: Sequence[Difference]) -> str:
    """The numbers of differences by part and of lines, in a sentence: `3 differences (2 in ops, 1 in variables): 4
    lines less, 5 more`.
    """
    if not differences:
        return "no differences"
    parts = Counter(difference.what for difference in differences)
    signs = Counter(line.sign for difference in differences for line in difference.lines)
    count = f"{len(differences)} {'difference' if len(differences) == 1 else 'differences'}"
    what = ", ".join(f"{number} in {part}" for part, number in parts.items())
    return f"{count} ({what}): {signs['-']} {'line' if signs['-'] == 1 else 'lines'} less, {signs['+']} more"


class Differences(tuple[Difference, ...]):
    """The differences of two inputs, in their order; as text they are shown in the manner of a unified diff."""

    __slots__ = ()

    def __str__(self) -> str:
        """The differences as `diff` prints them, and their numbers below."""
        return f"{render(self)}{summary(self)}"


_COLOURS = {"-": "\x1b[31m", "+": "\x1b[32m", "@": "\x1b[36m", "=": "\x1b[1m"}
_RESET = "\x1b[0m"


def render(differences: Iterable[Difference], colour: bool = False, names: tuple[str, str] = ("a", "b")) -> str:
    """The differences in the manner of a unified diff, grouped by program; "" when there are none.

    `names` are the names of the two inputs in the heads of the groups. The text ends with a line end.
    """
    out: list[str] = []
    place: str | None = None
    for difference in differences:
        if difference.place != place:
            place = difference.place
            shown = f" {place}" if place else ""
            heads = (f"--- {names[0]}{shown}", f"+++ {names[1]}{shown}")
            out += [_line("=", in_one_line(head), colour) for head in heads]
        out.append(_line("@", f"@@ {difference.heading} @@", colour))
        out += [_line(sign, f"{sign}{text}", colour) for sign, text in difference.lines]
    return "\n".join([*out, ""]) if out else ""


def _line(kind: str, text: str, colour: bool) -> str:
    code = _COLOURS.get(kind) if colour else None
    return f"{code}{text}{_RESET}" if code else text.rstrip()


# The parts of ops and variables that are compared.
#
# Left out: attributes at their schema's default (or empty, where there is no default), empty slots, the order of slots
# and attributes, `op_callstack`, `op_namescope`, `op_device`, and where things came from. Generated names are compared
# by their use (see `Renaming`), not by their spelling.

IGNORED = frozenset({"op_callstack", "op_namescope", "op_device"})
"""Attributes that do not change the effect of an op."""

UNORDERED = frozenset({"grad_to_block_id"})
"""Attributes that are lists without a meaningful order."""

_GENERATED = Pattern(r"__control_var@|_generated_var|tmp_dc_output").match
_MASK = "\x00"


def generated_names(programs: Iterable[Program]) -> frozenset[str]:
    """The declared variables whose names a transpiler has generated, so that the spelling has no meaning."""
    blocks = [block for program in programs for block in program.blocks]
    return frozenset([name for block in blocks for name in block.vars if _GENERATED(name)])


class Renaming:
    """A one-to-one mapping from generated names of the first input to those of the second, extended at each first
    use.
    """

    def __init__(self, generated: frozenset[str]) -> None:
        self.generated = generated
        self.forward: dict[str, str] = {}
        self.backward: dict[str, str] = {}

    def pair(self, first: Iterable[str], second: Iterable[str]) -> bool:
        """Whether names can correspond to each other, in order; if so, the generated ones are mapped to each other from
        now on.
        """
        new: dict[str, str] = {}
        back: dict[str, str] = {}
        for a, b in zip(first, second, strict=True):
            if a not in self.generated:
                if a != b:
                    return False
                continue
            if self.forward.get(a, new.get(a, b)) != b or self.backward.get(b, back.get(b, a)) != a:
                return False
            new[a], back[b] = b, a
        self.forward.update(new)
        self.backward.update(back)
        return True


class Keys:
    """Keys of ops: equal for ops with the same meaning, whatever names of the set `generated` they use."""

    def __init__(self, generated: frozenset[str]) -> None:
        self._generated_names = generated
        self._attrs: dict[tuple[str, int], tuple[Any, ...]] = {}
        self._live_attrs: list[Attrs] = []  # prevents other objects from getting the ids of these attributes

    def op(self, op: Op) -> tuple[Any, ...]:
        """The key of an op."""
        known = (op.type, id(op.attrs))
        attrs = self._attrs.get(known)
        if attrs is None:
            attrs = self._attrs[known] = _attrs_key(op.type, op.attrs)
            self._live_attrs.append(op.attrs)
        role_vars = self._names(op.role_vars or ())
        return (
            op.type,
            int(op.role or 0),
            role_vars,
            op.is_target,
            self._slots(op.inputs),
            self._slots(op.outputs),
            attrs,
        )

    def _names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        if self._generated_names.isdisjoint(names):
            return names
        return tuple([_MASK if name in self._generated_names else name for name in names])

    def _slots(self, slots: Slots) -> tuple[Any, ...]:
        return tuple(sorted([(slot, self._names(names)) for slot, names in slots.items() if names]))


def op_names(op: Op) -> list[str]:
    """All variable names of an op, in the order of its key."""
    names = list(op.role_vars or ())
    for slots in (op.inputs, op.outputs):
        for slot in sorted(slots):
            names += slots[slot]
    return names


def _attrs_key(op_type: str, attrs: Attrs) -> tuple[Any, ...]:
    kept = sorted(_significant(op_type, attrs).items())
    return tuple([(name, type(value), _comparable(name, value)) for name, value in kept])


def _comparable(name: str, value: AttrValue) -> object:
    if isinstance(value, float | Floats):
        return repr(value)  # as text, a NaN is equal to itself
    return tuple(sorted(value)) if name in UNORDERED and isinstance(value, Strings) else value


def _significant(op_type: str, attrs: Attrs) -> dict[str, AttrValue]:
    """The attributes that are compared: those not ignored, not at their default, and not empty without a default."""
    schema = schema_of(op_type)
    specs: Mapping[str, AttrSpec] = schema.attrs if schema is not None else {}
    significant: dict[str, AttrValue] = {}
    for name, value in attrs.items():
        if name in IGNORED:
            continue
        spec = specs.get(name)
        default = spec.default if spec is not None else None
        if default is not None and same_attr(value, default):
            continue
        if value in ("", ()) and (default is None or default in ("", ())):
            continue
        significant[name] = value
    return significant


def op_line(op: Op) -> str:
    """The canonical text of an op, without the parts that are not compared."""
    schema = schema_of(op.type)
    inputs = {slot: names for slot, names in sorted(op.inputs.items()) if names}
    defaults: dict[str, AttrValue] = {}
    if schema is not None:
        inputs = {**schema.empty_inputs, **inputs}
        defaults.update(schema.defaults)
    else:
        defaults.update({name: spec.default for name, spec in GENERIC_ATTRS.items() if spec.default is not None})
    shown = op._replace(
        inputs=FrozenMap(inputs),
        outputs=FrozenMap({slot: names for slot, names in sorted(op.outputs.items()) if names}),
        attrs=FrozenMap({**defaults, **_significant(op.type, op.attrs)}),
        role=op.role or OpRole.FORWARD,
        role_vars=op.role_vars or (),
    )
    return op_text(shown, LANGUAGE)


def var_key(var: Var) -> tuple[Any, ...]:
    """The parts of a declaration that are compared, without its name. A declaration without a description has the
    default one.
    """
    tensor = var.tensor
    described = (DType.BOOL.value, (), 0) if tensor is None else (tensor.dtype.value, *tensor[1:])
    return (
        var.kind.value,
        described,
        var.persistable,
        var.need_check_feed,
        var.parameter,
        tuple([(reader.dtype.value, *reader[1:]) for reader in var.readers]),
        var.elements,
    )


def var_line(var: Var) -> str:
    """The canonical text of a declaration."""
    before, after = var_parts(var._replace(written_defaults=None))
    return f"{before}{name_text(var.name)}{after}"


# Alignment of the items of two sequences, in acceptable time for long ones, too.

MAX_CELLS = 400_000
"""The most pairs of items for which a range without unique items is aligned item by item."""

MAX_DEPTH = 40
"""How often a range is divided at unique items before it is aligned directly."""


def align(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """For every item of `a`, the position of its partner in `b`, or -1. Partners are equal and in order.

    This is a patience diff: equal ends are aligned first, then items that occur once on each side, then the ranges
    between these in the same way; small ranges without such items are aligned by their longest common blocks.
    """
    partner = [-1] * len(a)
    todo = [(0, len(a), 0, len(b), 0)]
    while todo:
        alo, ahi, blo, bhi, depth = todo.pop()
        while alo < ahi and blo < bhi and a[alo] == b[blo]:
            partner[alo] = blo
            alo, blo = alo + 1, blo + 1
        while alo < ahi and blo < bhi and a[ahi - 1] == b[bhi - 1]:
            ahi, bhi = ahi - 1, bhi - 1
            partner[ahi] = bhi
        if alo == ahi or blo == bhi:
            continue
        anchors = _anchors(a, alo, ahi, b, blo, bhi) if depth < MAX_DEPTH else []
        if anchors:
            for i, j in [*anchors, (ahi, bhi)]:
                todo.append((alo, i, blo, j, depth + 1))
                if i < ahi:
                    partner[i] = j
                alo, blo = i + 1, j + 1
        elif (ahi - alo) * (bhi - blo) <= MAX_CELLS:
            for i, j in _blocks(a[alo:ahi], b[blo:bhi]):
                partner[alo + i] = blo + j
    return partner


def _once(items: Sequence[int], low: int, high: int) -> dict[int, int]:
    """The positions of the items that occur once in a range."""
    indices: dict[int, int] = {}
    for position in range(low, high):
        item = items[position]
        indices[item] = -1 if item in indices else position
    return {item: position for item, position in indices.items() if position >= 0}


def _anchors(a: Sequence[int], alo: int, ahi: int, b: Sequence[int], blo: int, bhi: int) -> list[tuple[int, int]]:
    """The longest series of items that occur once on each side and are in order on both, as pairs of positions."""
    in_b = _once(b, blo, bhi)
    pairs = [(i, in_b[item]) for item, i in _once(a, alo, ahi).items() if item in in_b]
    pairs.sort()
    ends: list[int] = []  # smallest end in b of a series of each length
    at: list[int] = []  # index in `pairs` of that end
    before: list[int] = []
    for index, (_, j) in enumerate(pairs):
        length = bisect_left(ends, j)
        before.append(at[length - 1] if length else -1)
        if length == len(ends):
            ends.append(j)
            at.append(index)
        else:
            ends[length], at[length] = j, index
    series: list[tuple[int, int]] = []
    index = at[-1] if at else -1
    while index >= 0:
        series.append(pairs[index])
        index = before[index]
    return series[::-1]


def _blocks(a: Sequence[int], b: Sequence[int]) -> Iterator[tuple[int, int]]:
    from difflib import SequenceMatcher

    for block in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
        yield from ((block.a + k, block.b + k) for k in range(block.size))


CONTEXT = 3
"""The number of equal ops shown before and after those that differ."""


class Comparison:
    """Compares programs of one machine; a generated name means the same in all of them.

    `programs` are all programs that will be compared, of both sides.
    """

    def __init__(self, programs: Iterable[Program], role: str = ""):
        self.role = role
        self.generated = generated_names(programs)
        self.renaming = Renaming(self.generated)
        self.keys = Keys(self.generated)
        self.differences: list[Difference] = []

    def modules(self, a: Module, b: Module) -> None:
        """Compares programs of the same name, and reports the others."""
        for name in [*a.programs, *(name for name in b.programs if name not in a.programs)]:
            if name in a.programs and name in b.programs:
                self.programs(a.programs[name], b.programs[name], name)
            else:
                sign, program = ("-", a[name]) if name in a.programs else ("+", b[name])
                self._add(name, -1, "program", [Line(sign, f"{_program_head(name, program)} {_extent(program)}")])

    def programs(self, a: Program, b: Program, name: str) -> None:
        """Compares seed, version and distribution (which serialized programs do not have), then every block."""
        if a is b:
            return
        if a.random_seed != b.random_seed or (a.version or 0) != (b.version or 0):
            self._add(name, -1, "program", [Line("-", _program_head(name, a)), Line("+", _program_head(name, b))])
        if a.distribution is not None and b.distribution is not None and a.distribution != b.distribution:
            self._add(name, -1, "distribution", _distribution_lines(a.distribution, b.distribution))
        for index in range(max(len(a.blocks), len(b.blocks))):
            if index < len(a.blocks) and index < len(b.blocks):
                self._block(name, index, a.blocks[index], b.blocks[index])
            else:
                sign, block = ("-", a.blocks[index]) if index < len(a.blocks) else ("+", b.blocks[index])
                texts = [
                    _block_head(index, block),
                    *map(var_line, _sorted_variables(block)),
                    *map(op_line, block.ops),
                    "}",
                ]
                self._add(name, index, "block", [Line(sign, text) for text in texts])

    def _add(
        self, program: str, block: int, what: str, lines: Sequence[Line], first: int = -1, second: int = -1
    ) -> None:
        self.differences.append(Difference(self.role, program, block, what, tuple(lines), first, second))

    def _block(self, program: str, index: int, a: Block, b: Block) -> None:
        if (a.parent, a.forward_block) != (b.parent, b.forward_block):
            heads = [Line("-", _block_head(index, a)), Line("+", _block_head(index, b))]
            self._add(program, index, "block", heads)
        at = len(self.differences)
        first, second = _sort_fake_inits(a.ops), _sort_fake_inits(b.ops)
        for change in self._hunks(first, second, self._partners(first, second)):
            self._add(program, index, "ops", *change)
        lines = self._variables(a, b)
        if lines:  # computed after the ops, which determine the mapping of generated names, but shown before them
            self.differences.insert(at, Difference(self.role, program, index, "variables", tuple(lines)))

    # Variables

    def _variables(self, a: Block, b: Block) -> list[Line]:
        if not self.generated and a.vars == b.vars:
            return []
        lines: list[tuple[str, int, Line]] = []

        def change(var: Var | None, other: Var | None) -> None:
            name = var.name if var is not None else other.name if other is not None else ""
            if var is not None:
                lines.append((name, 0, Line("-", var_line(var))))
            if other is not None:
                lines.append((name, 1, Line("+", var_line(other))))

        met: set[str] = set()
        free: list[Var] = []
        for name, var in a.vars.items():
            partner = self.renaming.forward.get(name) if name in self.generated else name
            other = b.vars.get(partner) if partner is not None else None
            if partner is None:
                free.append(var)
            elif other is None:
                change(var, None)
            else:
                met.add(other.name)
                if var_key(var) != var_key(other):
                    change(var, other)
        rest = [var for name, var in b.vars.items() if name not in met]
        unused = Counter(var_key(var) for var in rest if self._is_free(var.name))
        for var in free:  # generated names that no compared op uses: as many of each description
            key = var_key(var)
            if unused[key] > 0:
                unused[key] -= 1
            else:
                change(var, None)
        for var in rest:
            if not self._is_free(var.name):
                change(None, var)
            elif unused[var_key(var)] > 0:
                unused[var_key(var)] -= 1
                change(None, var)
        return [line for _, _, line in sorted(lines)]

    def _is_free(self, name: str) -> bool:
        return name in self.generated and name not in self.renaming.backward

    # Ops

    def _partners(self, a: Sequence[Op], b: Sequence[Op]) -> list[int]:
        """The position of the equal op in `b` for every op of `a`; -1 for none."""
        keys = self.keys

        def same_meaning(first: Op, second: Op) -> bool:
            return _is_identical(first, second) or keys.op(first) == keys.op(second)

        count = min(len(a), len(b))
        start = 0
        while start < count and same_meaning(a[start], b[start]):
            start += 1
        end = 0
        while end < count - start and (
            _is_identical(a[-1 - end], b[-1 - end]) or keys.op(a[-1 - end]) == keys.op(b[-1 - end])
        ):
            end += 1
        numbers: dict[object, int] = {}
        middle_a = [numbers.setdefault(keys.op(op), len(numbers)) for op in a[start : len(a) - end]]
        middle_b = [numbers.setdefault(keys.op(op), len(numbers)) for op in b[start : len(b) - end]]
        partner = list(range(start))
        partner += [start + j if j >= 0 else -1 for j in align(middle_a, middle_b)]
        partner += range(len(b) - end, len(b))
        # An op that uses a generated name differently is a different op.
        for i, j in enumerate(partner) if self.generated else ():
            if j >= 0 and not self.renaming.pair(op_names(a[i]), op_names(b[j])):
                partner[i] = -1
        return partner

    def _hunks(self, a: Sequence[Op], b: Sequence[Op], partner: list[int]) -> Iterator[tuple[list[Line], int, int]]:
        """Yields (lines, position in a, position in b) for every group of changes with the ops around it."""
        changes = list(_changes(partner, len(b)))
        at = 0
        while at < len(changes):
            group = [changes[at]]
            while at + 1 < len(changes) and changes[at + 1][0] - group[-1][1] <= 2 * CONTEXT:
                at += 1
                group.append(changes[at])
            at += 1
            start = max(group[0][0] - CONTEXT, 0)
            # Between changes both sides have the same ops, so context can be counted on either.
            start_b = group[0][2] - (group[0][0] - start)
            lines = [Line(" ", op_line(op)) for op in a[start : group[0][0]]]
            for number, (alo, ahi, blo, bhi) in enumerate(group):
                lines += [Line("-", op_line(op)) for op in a[alo:ahi]]
                lines += [Line("+", op_line(op)) for op in b[blo:bhi]]
                until = group[number + 1][0] if number + 1 < len(group) else min(ahi + CONTEXT, len(a))
                lines += [Line(" ", op_line(op)) for op in a[ahi:until]]
            yield lines, start, start_b


def _changes(partner: list[int], count: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields the ranges (in a, in b) of ops without partners, in order."""
    i = j = 0
    while i < len(partner) or j < count:
        alo, blo = i, j
        while i < len(partner) and partner[i] < 0:
            i += 1
        j = partner[i] if i < len(partner) else count
        if i > alo or j > blo:
            yield alo, i, blo, j
        if i < len(partner):
            i, j = i + 1, j + 1


def _is_identical(a: Op, b: Op) -> bool:
    """Whether two ops are equal without any normalisation, including the kinds of attributes: a quick test that settles
    most cases.
    """
    if a is b:
        return True
    if a[:-1] != b[:-1]:
        return False
    if a.attrs is b.attrs:
        return True
    return all(map(same_attr, a.attrs.values(), [b.attrs[name] for name in a.attrs]))


def _sort_fake_inits(ops: tuple[Op, ...]) -> Sequence[Op]:
    """The ops, with consecutive `fake_init` ops sorted by their outputs."""
    at = [index for index, op in enumerate(ops) if op.type == "fake_init"]
    if len(at) < 2:
        return ops
    settled = list(ops)
    start = 0
    for number, index in enumerate(at):
        if number + 1 == len(at) or at[number + 1] != index + 1:
            run = slice(at[start], index + 1)
            settled[run] = sorted(settled[run], key=lambda op: sorted(op.output_names))
            start = number + 1
    return settled


def _sorted_variables(block: Block) -> list[Var]:
    return sorted(block.vars.values(), key=lambda var: var.name)


def _program_head(name: str, program: Program) -> str:
    seed = f" seed={program.random_seed}" if program.random_seed else ""
    version = f" version={program.version}" if program.version else ""
    return f"program @{name_text(name)}{seed}{version}"


def _distribution_lines(a: Distribution, b: Distribution) -> list[Line]:
    """The statements that only one of two distributions has."""
    first, second = ([op_line(op) for op in statements(part, LANGUAGE)] for part in (a, b))
    gone, new = set(first).difference(second), set(second).difference(first)
    return [Line("-", text) for text in first if text in gone] + [Line("+", text) for text in second if text in new]


def _extent(program: Program) -> str:
    ops = sum(len(block.ops) for block in program.blocks)
    return f"({len(program.blocks)} {'block' if len(program.blocks) == 1 else 'blocks'}, {ops} ops)"


def _block_head(index: int, block: Block) -> str:
    forward = "" if block.forward_block == -1 else f" forward=^{block.forward_block}"
    return f"block ^{index}{'' if block.parent == -1 else f' in ^{block.parent}'}{forward} {{"


Comparable: TypeAlias = Program | Module | str | os.PathLike[str]
"""A program, a module, or the path of a file or of an output folder."""


def diff_programs(a: Program, b: Program, name: str = MAIN) -> Differences:
    """The differences of two programs, block by block; `name` is their name in the result."""
    comparison = Comparison([a, b])
    comparison.programs(a, b, name)
    return Differences(comparison.differences)


def diff_modules(a: Module, b: Module, role: str = "") -> Differences:
    """The differences of the programs with the same names, and the programs that only one module has."""
    comparison = Comparison([*a.programs.values(), *b.programs.values()], role)
    comparison.modules(a, b)
    return Differences(comparison.differences)


def diff_folders(a: str | os.PathLike[str], b: str | os.PathLike[str], *, report: Report | None = None) -> Differences:
    """The differences of two output folders, role by role, and the roles that only one of them has.

    The programs of a role may be text in one folder and serialized in the other. Warnings of loading go to
    `report`. Raises DiagnosticError.
    """
    from pstranspile.compiler.folders import load_role, roles_in

    first, second = roles_in(a), roles_in(b)
    differences: list[Difference] = []
    for role in sorted({*first, *second}):
        if role in first and role in second:
            differences += diff_modules(load_role(first[role], report), load_role(second[role], report), role)
        else:
            sign, paths = ("-", first[role]) if role in first else ("+", second[role])
            lines = tuple(Line(sign, path.name) for path in paths)
            differences.append(Difference(role, "", -1, "role", lines))
    return Differences(differences)


@check_arguments
def diff(a: Comparable, b: Comparable, *, report: Report | None = None) -> Differences:
    """The differences of two programs, modules, files or output folders, in any of these forms.

    Raises DiagnosticError when a file can't be read, TypeError when one side is a folder or a program and the other is
    not.
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
