"""Gradients of tables that stay the rows they have, where nothing would see the zeros of all other rows.

An optimizer that changes nothing where the gradient is 0 gives bitwise the same from the rows. A step then costs as
much as the rows that it looked up. Another one may take the rows, too: that saves making the zeros and reading them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from math import prod

from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, Program
from pstranspile.ir.types import VarKind
from pstranspile.ops import with_defaults
from pstranspile.ops.attributes import flag, real
from pstranspile.runtime.arithmetic import either
from pstranspile.runtime.kernels.rows import AS_ROWS
from pstranspile.runtime.kernels.tables.embedding import LOOKUP_GRADIENTS
from pstranspile.runtime.run.bound import BoundOp, bind
from pstranspile.runtime.run.together import LARGEST


def gradients_as_rows(program: Program, fetches: Collection[str]) -> frozenset[str]:
    """The gradients that may be rows: made by lookups or as sums of these, for an update of a large table."""
    written: dict[str, list[Op]] = defaultdict(list)
    read: dict[str, list[Op]] = defaultdict(list)
    for block in program.blocks:
        for op in block.ops:
            for name in op.output_names:
                written[name].append(op)
            for name in op.input_names:
                read[name].append(op)
    result: set[str] = set()
    for op in program.main_block.ops:
        if not _takes_rows(op) or not _is_large(program, op.inputs["Param"][0]):
            continue
        names = list(_made_from(op.inputs["Grad"][0], written))
        single_use = all(len(written[name]) == len(read[name]) == 1 and name not in fetches for name in names)
        if single_use and all(_is_temporary(program, name) for name in names):
            result.update(names)
    return frozenset(result)


def bind_as_rows(op: Op) -> BoundOp:
    """A lookup's gradient that gives rows, or the sum or optimizer that takes them; but the dense ones in Fluid's
    arithmetic, in which what an optimizer makes of an element depends on where the element lies.
    """
    rows, dense = bind(op._replace(attrs=FrozenMap({**op.attrs, AS_ROWS: True}))), bind(op)
    return rows._replace(run=either(rows.run, dense.run), run_any=either(rows.run_any, dense.run_any))


def _takes_rows(op: Op) -> bool:
    return op.type in ("sgd", "adam") or (op.type == "adagrad" and real(with_defaults(op), "epsilon") > 0)


def _made_from(gradient: str, written: dict[str, list[Op]]) -> Iterator[str]:
    """The gradient and what it is the sum of; one that no lookup makes is given as "", which nothing writes."""
    makers = written[gradient]
    yield gradient
    for maker in makers:
        if maker.type == "sum":
            for term in maker.inputs["X"]:
                yield term if _is_lookup(written[term]) else ""
        elif not _is_lookup(makers):
            yield ""


def _is_lookup(makers: list[Op]) -> bool:
    return len(makers) == 1 and makers[0].type in LOOKUP_GRADIENTS and not flag(makers[0], "is_sparse")


def _is_large(program: Program, name: str) -> bool:
    var = program.main_block.vars.get(name)
    return var is not None and var.kind is VarKind.LOD_TENSOR and var.tensor is not None and prod(var.shape) > LARGEST


def _is_temporary(program: Program, name: str) -> bool:
    var = program.main_block.vars.get(name)
    return var is not None and not var.persistable and var.kind is VarKind.LOD_TENSOR
