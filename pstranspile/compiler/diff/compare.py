"""The differences of two programs, block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pstranspile.compiler.diff.align import align
from pstranspile.compiler.diff.canonical import Keys, Renaming, generated_names, op_line, op_names, var_key, var_line
from pstranspile.compiler.diff.difference import Difference, Line
from pstranspile.ir.attributes import same_attr
from pstranspile.ir.distribution import Distribution
from pstranspile.ir.model import Block, Module, Op, Program, Var
from pstranspile.ir.text.distribution import statements
from pstranspile.ir.text.literals import name as name_text
from pstranspile.ops.textual import LANGUAGE

CONTEXT = 3
"""Equal ops shown before and after those that differ."""


class Comparison:
    """Compares programs of one machine; generated names mean the same in all of them.

    `programs` are all programs that will be compared, of both sides.
    """

    def __init__(self, programs: Iterable[Program], role: str = ""):
        self.role = role
        self.generated = generated_names(programs)
        self.renaming = Renaming(self.generated)
        self.keys = Keys(self.generated)
        self.differences: list[Difference] = []

    def modules(self, a: Module, b: Module) -> None:
        """Programs of the same name are compared, the others reported."""
        for name in [*a.programs, *(name for name in b.programs if name not in a.programs)]:
            if name in a.programs and name in b.programs:
                self.programs(a.programs[name], b.programs[name], name)
            else:
                sign, program = ("-", a[name]) if name in a.programs else ("+", b[name])
                self._add(name, -1, "program", [Line(sign, f"{_program_head(name, program)} {_extent(program)}")])

    def programs(self, a: Program, b: Program, name: str) -> None:
        """Seed, version and distribution (which serialized programs do not carry), then every block."""
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
                texts = [_block_head(index, block), *map(var_line, _sorted(block)), *map(op_line, block.ops), "}"]
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
        first, second = _settled(a.ops), _settled(b.ops)
        for change in self._hunks(first, second, self._partners(first, second)):
            self._add(program, index, "ops", *change)
        lines = self._variables(a, b)
        if lines:  # after the ops, which say what generated names stand for; shown before them
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
        """For every op of `a` the position of its equal in `b`, -1 for none."""
        keys = self.keys

        def same(first: Op, second: Op) -> bool:
            return _alike(first, second) or keys.op(first) == keys.op(second)

        count = min(len(a), len(b))
        start = 0
        while start < count and same(a[start], b[start]):
            start += 1
        end = 0
        while end < count - start and (
            _alike(a[-1 - end], b[-1 - end]) or keys.op(a[-1 - end]) == keys.op(b[-1 - end])
        ):
            end += 1
        numbers: dict[object, int] = {}
        middle_a = [numbers.setdefault(keys.op(op), len(numbers)) for op in a[start : len(a) - end]]
        middle_b = [numbers.setdefault(keys.op(op), len(numbers)) for op in b[start : len(b) - end]]
        partner = list(range(start))
        partner += [start + j if j >= 0 else -1 for j in align(middle_a, middle_b)]
        partner += range(len(b) - end, len(b))
        # A generated name that is used in another way makes its op another one.
        for i, j in enumerate(partner) if self.generated else ():
            if j >= 0 and not self.renaming.pair(op_names(a[i]), op_names(b[j])):
                partner[i] = -1
        return partner

    def _hunks(self, a: Sequence[Op], b: Sequence[Op], partner: list[int]) -> Iterator[tuple[list[Line], int, int]]:
        """(lines, position in a, position in b) of every group of changes with the ops around it."""
        changes = list(_changes(partner, len(b)))
        at = 0
        while at < len(changes):
            group = [changes[at]]
            while at + 1 < len(changes) and changes[at + 1][0] - group[-1][1] <= 2 * CONTEXT:
                at += 1
                group.append(changes[at])
            at += 1
            start = max(group[0][0] - CONTEXT, 0)
            # Between changes both sides hold the same ops, so context can be counted back on either.
            start_b = group[0][2] - (group[0][0] - start)
            lines = [Line(" ", op_line(op)) for op in a[start : group[0][0]]]
            for number, (alo, ahi, blo, bhi) in enumerate(group):
                lines += [Line("-", op_line(op)) for op in a[alo:ahi]]
                lines += [Line("+", op_line(op)) for op in b[blo:bhi]]
                until = group[number + 1][0] if number + 1 < len(group) else min(ahi + CONTEXT, len(a))
                lines += [Line(" ", op_line(op)) for op in a[ahi:until]]
            yield lines, start, start_b


def _changes(partner: list[int], count: int) -> Iterator[tuple[int, int, int, int]]:
    """Ranges (in a, in b) without partners, in order."""
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


def _alike(a: Op, b: Op) -> bool:
    """Whether two ops are equal as they stand, kinds of attributes included: the quick answer to most questions."""
    if a is b:
        return True
    if a[:-1] != b[:-1]:
        return False
    if a.attrs is b.attrs:
        return True
    return all(map(same_attr, a.attrs.values(), [b.attrs[name] for name in a.attrs]))


def _settled(ops: tuple[Op, ...]) -> Sequence[Op]:
    """The ops, with those `fake_init` ops that follow each other in order of what they make."""
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


def _sorted(block: Block) -> list[Var]:
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
