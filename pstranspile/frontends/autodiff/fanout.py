"""Gradients of variables that are used more than once: partial gradients, renamed, and their sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, Slots
from pstranspile.ops.gradient import EMPTY_NAME, SUFFIX, bare_op


def sum_partial_gradients(ops: Sequence[Op], block: int) -> list[Op]:
    """Makes every gradient written once: partial gradients get names of their own and a `sum` op.

    A variable that k ops write becomes `x@GRAD@RENAME@block<block>@0` to k-1. The `sum` stands before the first op that
    reads the complete gradient, or at the end, as in Fluid.
    """
    return _FanOut(ops, block).run()


class _FanOut:
    """One walk over the gradient ops; linear in their number."""

    def __init__(self, ops: Sequence[Op], block: int):
        self.ops = list(ops)
        self.block = block
        self.parts: dict[str, list[str]] = {}
        self.renamed: dict[str, int] = {}
        self.mentions: dict[str, list[int]] = {}
        self.sums: list[tuple[Op, int]] = []
        self.sum_of: dict[str, int] = {}

    def run(self) -> list[Op]:
        for index in range(len(self.ops)):
            for name in _names(self.ops[index].inputs):
                if SUFFIX in name:
                    self._read(name, index)
            self._write(index)
        for name, parts in self.parts.items():
            if len(parts) > 1:
                self._sum(name, parts, len(self.ops))
        return _inserted(self.ops, self.sums)

    def _read(self, name: str, index: int) -> None:
        parts = self.parts.setdefault(name, [])
        if len(parts) > 1:
            self._sum(name, parts, index)
            self.parts[name] = [name]
        if parts:  # an earlier read is of another gradient of that name, passed into the block
            self.mentions.setdefault(name, []).append(index)

    def _sum(self, name: str, parts: list[str], before: int) -> None:
        self.sum_of[name] = len(self.sums)
        origin = next((op.origin for op in reversed(self.ops[:before]) if op.origin), None) if before else None
        made = bare_op("sum", {"X": tuple(parts)}, {"Out": (name,)}, {"use_mkldnn": False, "op_device": ""})
        self.sums.append((made._replace(origin=origin), before))

    def _write(self, index: int) -> None:
        op = self.ops[index]
        read = set(_names(op.inputs))
        outputs = {slot: list(names) for slot, names in sorted(op.outputs.items())}
        places = [(slot, at) for slot, names in outputs.items() for at in range(len(names))]
        changed = False
        for place, (slot, at) in enumerate(places):
            name = outputs[slot][at]
            if SUFFIX not in name or name == EMPTY_NAME or name in read:
                continue
            parts = self.parts.setdefault(name, [])
            if not parts:
                parts.append(name)
                self.mentions.setdefault(name, []).append(index)
                continue
            if len(parts) == 1:
                first = self._partial(name)
                parts[0] = first
                self._rename_before(name, first, index)
                for earlier_slot, earlier_at in places[:place]:
                    if outputs[earlier_slot][earlier_at] == name:
                        outputs[earlier_slot][earlier_at] = first
            outputs[slot][at] = self._partial(name)
            parts.append(outputs[slot][at])
            changed = True
        if changed:
            self.ops[index] = op._replace(outputs=FrozenMap({slot: tuple(outputs[slot]) for slot in op.outputs}))

    def _partial(self, name: str) -> str:
        number = self.renamed.get(name, 0)
        self.renamed[name] = number + 1
        return f"{name}@RENAME@block{self.block}@{number}"

    def _rename_before(self, name: str, new: str, index: int) -> None:
        for at in self.mentions.pop(name, ()):
            if at < index:
                op = self.ops[at]
                self.ops[at] = op._replace(
                    inputs=_renamed(op.inputs, name, new), outputs=_renamed(op.outputs, name, new)
                )
        number = self.sum_of.pop(name, None)
        if number is not None:
            op, before = self.sums[number]
            self.sums[number] = (op._replace(outputs=_renamed(op.outputs, name, new)), before)


def _names(slots: Slots) -> Iterable[str]:
    """All names, slot by slot in alphabetical order, as in Fluid's op descriptions."""
    return (name for _, names in sorted(slots.items()) for name in names)


def _renamed(slots: Slots, old: str, new: str) -> Slots:
    return FrozenMap({slot: tuple(new if name == old else name for name in names) for slot, names in slots.items()})


def _inserted(ops: list[Op], more: list[tuple[Op, int]]) -> list[Op]:
    """`ops` with each op of `more` inserted before the op of its index, in their order."""
    before: dict[int, list[Op]] = {}
    for op, index in more:
        before.setdefault(index, []).append(op)
    made: list[Op] = []
    for index, op in enumerate(ops):
        made += before.get(index, ())
        made.append(op)
    return made + before.get(len(ops), [])
