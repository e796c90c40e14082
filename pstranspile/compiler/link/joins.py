"""A gradient is cut into the pieces that are sent: all of its rows, in order, once."""

from __future__ import annotations

from collections.abc import Iterator

from pstranspile.compiler.link.base import finding
from pstranspile.compiler.link.machines import Trainer
from pstranspile.compiler.link.receives import check_cut
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ops.attributes import ints_attr

SECTIONS = {"split_byref": "sections", "split_selected_rows": "height_sections"}
"""Ops that cut a gradient, and their attribute with the rows of each piece."""


def check_splits(trainer: Trainer) -> Iterator[Diagnostic]:
    """Every piece has the rows that the split gives it, and is sent, in the order of the pieces."""
    splits = [item for kind in SECTIONS for item in trainer.main.of(kind)]
    if not splits:
        return
    sent = {names[0]: names for _, op in trainer.main.of("send") if (names := op.inputs.get("X"))}
    for _, op in splits:
        whole, parts, name = op.input("X") or "", op.outputs.get("Out", ()), SECTIONS[op.type]
        sections = ints_attr(op, name)
        if len(sections) != len(parts):
            message = f"{len(sections)} {name} for {len(parts)} pieces of %{whole}"
            yield finding("link-partition", trainer.role, op, message, whole)
        else:
            yield from check_cut(trainer, op, trainer.main.vars, whole, parts, sections)
        if not parts or sent.get(parts[0]) != parts:
            message = f"the pieces of %{whole} are not sent together in their order"
            yield finding("link-partition", trainer.role, op, message, whole)
