"""Do the programs of a module say the same of the variables they share?

Persistable variables of block 0 are shared by name: what @startup initialises, @main finds.
"""

from __future__ import annotations

from collections.abc import Iterator

from pstranspile.compiler.verify.places import declared_here
from pstranspile.ir.describe import type_text, var_text
from pstranspile.ir.diagnostics import Diagnostic, error, warning
from pstranspile.ir.frozen import EMPTY
from pstranspile.ir.model import STARTUP, Module, Var
from pstranspile.ir.types import DType
from pstranspile.ops.shapes import fits


def check_agreement(module: Module) -> Iterator[Diagnostic]:
    """Persistable variables that two programs declare differently, found at the later program.

    An element type `bool` and dims of -1 fit everything, as in the rest of the verifier, and so does a variable
    without any description. Another type is a warning: a program works on what the variable holds. Another kind of
    variable is an error.
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
    """What two declarations of a name say differently; empty when they agree, or mean different variables."""
    name = var_text(mine.name)
    if mine.persistable != other.persistable:
        temporary, reader = (here, there) if other.persistable else (there, here)
        if temporary != STARTUP:
            return ""  # a variable of a step, or of a server's
        return f"@{STARTUP} declares {name} as temp, so its value is gone when @{reader} runs; declare it alike in both"
    if not mine.persistable or (mine.tensor == other.tensor and mine.kind is other.kind):
        return ""
    differ = mine.kind is not other.kind
    if not differ and mine.tensor is not None and other.tensor is not None:
        types = DType.BOOL in (mine.dtype, other.dtype) or mine.dtype is other.dtype
        differ = not types or not (fits(mine.shape, other.shape) or not mine.shape or not other.shape)
    return f"{name} is {type_text(mine)} in @{here}, but {type_text(other)} in @{there}" if differ else ""
