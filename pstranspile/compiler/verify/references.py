"""The blocks that ops run, and checks that blocks are in a sound order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pstranspile.compiler.verify.places import Findings
from pstranspile.ir.attributes import BlockRef, BlockRefs, Strings
from pstranspile.ir.diagnostics import Diagnostic, error, warning
from pstranspile.ir.model import EMPTY, MAX_DEPTH, STARTUP, Block, Module, Op, Var
from pstranspile.ir.text.literals import declared_here, type_text, var_text
from pstranspile.ir.types import DType
from pstranspile.ops.shapes import fits

# The agreement of a module's programs on shared variables.
#
# Persistable variables of block 0 are shared by name: @main uses the variables that @startup initialises.


def check_agreement(module: Module) -> Iterator[Diagnostic]:
    """Findings about persistable variables that two programs declare differently, each at the later program.

    An element type `bool` and dims of -1 fit everything, as in the rest of the verifier, and so does a variable without
    any description. Another type is a warning: a program works on what the variable holds. Another kind of variable is
    an error.
    """
    blocks = {name: program.blocks[0].vars for name, program in module.programs.items() if program.blocks}
    head = next(iter(blocks), "")
    known = blocks.get(head, EMPTY)
    first: dict[str, str] = {}  # names that the first program does not declare -> the first that does
    for name in list(blocks)[1:]:
        fresh: list[str] = []
        for shared, mine in blocks[name].items():
            there = head if shared in known else first.get(shared)
            if there is None:
                fresh.append(shared)
                continue
            other = blocks[there][shared]
            if mine.persistable == other.persistable and mine.kind is other.kind and mine.tensor == other.tensor:
                continue
            why = _difference(mine, other, name, there)
            if why:
                make = warning if mine.persistable and other.persistable and mine.kind is other.kind else error
                finding = make("declared-differently", why, mine.location, focus=var_text(shared))
                yield finding._replace(subject=f"@{name}^0 {var_text(shared)}", notes=declared_here(other))
        first.update(dict.fromkeys(fresh, name))


def _difference(mine: Var, other: Var, here: str, there: str) -> str:
    """The difference of two declarations of a name; empty if they agree, or mean different variables."""
    name = var_text(mine.name)
    if mine.persistable != other.persistable:
        temporary, reader = (here, there) if other.persistable else (there, here)
        if temporary != STARTUP:
            return ""  # a variable of a single step, or of a server
        return f"@{STARTUP} declares {name} as temp, so its value is gone when @{reader} runs; declare it alike in both"
    if not mine.persistable or (mine.tensor == other.tensor and mine.kind is other.kind):
        return ""
    differ = mine.kind is not other.kind
    if not differ and mine.tensor is not None and other.tensor is not None:
        types = DType.BOOL in (mine.dtype, other.dtype) or mine.dtype is other.dtype
        differ = not types or not (fits(mine.shape, other.shape) or not mine.shape or not other.shape)
    return f"{name} is {type_text(mine)} in @{here}, but {type_text(other)} in @{there}" if differ else ""


_BLOCK_NUMBERS = ("lr_decay_block_id", "checkpint_block_id")
_BLOCK_LISTS = ("grad_to_block_id", "prefetch_var_name_to_block_id")


def references(op: Op) -> list[tuple[str, int]]:
    """The blocks an op runs, in order, each with the attribute that names it.

    `listen_and_serv` names some of its blocks by plain numbers, and some at the end of strings (`name:3`).
    """
    result: list[tuple[str, int]] = []
    if op.type == "listen_and_serv":
        for name in _BLOCK_NUMBERS:
            number = op.attrs.get(name)
            if isinstance(number, int) and number != -1:
                result.append((name, int(number)))
    for name, value in op.attrs.items():
        if isinstance(value, BlockRef):
            result.append((name, int(value)))
        elif isinstance(value, BlockRefs):
            result += [(name, index) for index in value]
    if op.type == "listen_and_serv":
        for name in _BLOCK_LISTS:
            entries = op.attrs.get(name)
            for entry in entries if isinstance(entries, Strings) else ():
                number = entry.rpartition(":")[2]
                result.append((name, int(number) if number.isdecimal() and len(number) < 10 else -1))
    return result


def check_blocks(findings: Findings) -> bool:
    """Reports wrong parents, forward blocks and references; False when blocks can't be walked at all."""
    blocks = findings.blocks
    count = len(blocks)
    before = len(findings.diagnostics)
    if blocks[0].parent != -1:
        findings.block("block-parent", f"block ^0 is the outermost; its parent can't be ^{blocks[0].parent}", 0)
    for index, block in enumerate(blocks):
        if index and not 0 <= block.parent < count:
            message = f"the parent of block ^{index} is ^{block.parent}, the program has blocks ^0 to ^{count - 1}"
            message = f"block ^{index} stands in no block" if block.parent == -1 else message
            findings.block("block-parent", message, index, f"^{block.parent}" if block.parent != -1 else "")
        if not -1 <= block.forward_block < count:
            message = f"the forward block of block ^{index} is ^{block.forward_block}, which does not exist"
            findings.block("block-parent", message, index, f"^{block.forward_block}")
    if len(findings.diagnostics) == before:
        _check_parent_cycles(findings)
    if len(findings.diagnostics) == before:
        _check_depth(findings)
    return len(findings.diagnostics) == before


def _check_parent_cycles(findings: Findings) -> None:
    blocks = findings.blocks
    sound = [False] * len(blocks)
    for start in range(len(blocks)):
        path: list[int] = []
        on_path: set[int] = set()
        at = start
        while at != -1 and not sound[at] and at not in on_path:
            path.append(at)
            on_path.add(at)
            at = blocks[at].parent
        if at != -1 and not sound[at]:
            cycle = path[path.index(at) :]
            chain = ", then ".join(f"^{index}" for index in [*cycle[1:], cycle[0]][:8])
            findings.block("block-cycle", f"the parents of block ^{at} lead back to it: {chain}", at)
        for index in path:
            sound[index] = True


def _check_depth(findings: Findings) -> None:
    """Reports the first block that is nested in too many others; parents are without cycles here."""
    blocks = findings.blocks
    depths = [-1] * len(blocks)
    depths[0] = 1
    for start in range(len(blocks)):
        path: list[int] = []
        at = start
        while depths[at] < 0:
            path.append(at)
            at = blocks[at].parent
        for index in reversed(path):
            depths[index] = depths[blocks[index].parent] + 1
        if depths[start] > MAX_DEPTH:
            findings.block("nesting", f"blocks stand inside each other more than {MAX_DEPTH} deep", start)
            return


def check_references(findings: Findings, referring: Sequence[tuple[int, int]]) -> None:
    """Reports references to blocks that do not exist, and blocks that run themselves.

    `referring` are the places (block, position) of the ops that refer to blocks.
    """
    blocks = findings.blocks
    edges: dict[int, list[tuple[int, int, str]]] = {}
    for block, position in referring:
        op = blocks[block].ops[position]
        for name, target in references(op):
            if 0 <= target < len(blocks):
                edges.setdefault(block, []).append((target, position, name))
            else:
                message = f"{name} refers to block ^{target}, the program has {_extent(blocks)}"
                findings.op("block-reference", message, (block, position), focus=f"^{target}")
    _check_reference_cycles(findings, edges)


def _extent(blocks: Sequence[Block]) -> str:
    return "the block ^0 only" if len(blocks) == 1 else f"blocks ^0 to ^{len(blocks) - 1}"


def _check_reference_cycles(findings: Findings, edges: dict[int, list[tuple[int, int, str]]]) -> None:
    """A depth-first search without recursion; every edge that closes a cycle is one finding."""
    done: dict[int, None] = {}
    cycles = False
    for start in sorted(edges):
        if start in done:
            continue
        path = [(start, iter(edges[start]))]
        on_path = {start}
        while path:
            block, rest = path[-1]
            edge = next(rest, None)
            if edge is None:
                path.pop()
                on_path.discard(block)
                done[block] = None
                continue
            target, position, name = edge
            if target in on_path or target == 0:
                what = "itself" if target == block else f"block ^{target}, which runs this block"
                message = f"{name} makes block ^{block} run {what}"
                cycles = True
                findings.op("block-reference-cycle", message, (block, position), focus=f"^{target}")
            elif target not in done:
                path.append((target, iter(edges.get(target, ()))))
                on_path.add(target)
    if not cycles:
        _check_reference_depth(findings, edges, list(done)[::-1])


def _check_reference_depth(
    findings: Findings, edges: dict[int, list[tuple[int, int, str]]], order: Sequence[int]
) -> None:
    """Reports the first op that makes blocks run each other too deep; `order` has each block before those it runs."""
    depths = dict.fromkeys(order, 1)
    for block in order:
        for target, position, name in edges.get(block, ()):
            depths[target] = max(depths[target], depths[block] + 1)
            if depths[target] > MAX_DEPTH:
                message = f"{name} makes blocks run each other more than {MAX_DEPTH} deep"
                findings.op("nesting", message, (block, position), focus=f"^{target}")
                return
