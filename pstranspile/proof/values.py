"""What numbers the inputs of a program may hold, by what reads them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count
from typing import Any

import numpy as np

from pstranspile.ir.model import Op, Program
from pstranspile.ir.roles import OpRole
from pstranspile.ops import facts_of
from pstranspile.ops.attributes import ints_attr
from pstranspile.ops.facts import Below, Numbers

HUGE = 1000.0
"""A `scale` by so much makes a mask: what it reads is 0 or 1."""

_SAME: Collection[Numbers] = ("moved", "in_order")
"""What is stated of ops whose outputs hold the numbers of their inputs: what reads the outputs limits the inputs."""

_GROWING: Collection[Numbers] = (*_SAME, "combined")
"""What is stated of ops that make large and positive numbers of numbers that are."""


class Limits:
    """What numbers an input may hold, by what reads it."""

    def __init__(self, main: Program):
        self.main = main
        self.readers: dict[str, list[Op]] = {}
        for block in main.blocks:
            for op in block.ops:
                for name in op.input_names:
                    self.readers.setdefault(name, []).append(op)

    def draw(self, name: str, kind: Any, shape: tuple[int, ...], random: Any, below: int | None = None) -> Any:
        """Numbers of an element type for an input. Integers lie below `below` and what ops that read them count."""
        if kind.kind in "iu":
            result = [*self._counts(name), *([] if below is None else [below])]
            first = 1 if self._blank_first(name) else 0
            return random.integers(min(first, min(result, default=2) - 1), min(result, default=2), shape).astype(kind)
        read = list(self._reads(name, _SAME))
        if kind.kind == "b" or any(facts_of(op.type).domains.get(slot) == "binary" for op, slot, _ in read):
            return random.integers(0, 2, shape).astype(kind)
        if any(slot == "Label" and op.attrs.get("soft_label") for op, slot, _ in read):
            classes = random.integers(0, shape[-1], shape[:-1])
            return np.eye(shape[-1], dtype=kind)[classes]
        summed = list(self._reads(name, _GROWING))
        if any(op.type == "scale" and abs(_float(op, "scale")) >= HUGE for op, _, _ in summed):
            return (random.random(shape) < 0.75).astype(kind)
        if any(facts_of(op.type).domains.get(slot) == "positive" for op, slot, _ in summed):
            return random.uniform(0.5, 1.5, shape).astype(kind)
        return random.uniform(-1.0, 1.0, shape).astype(kind)

    def kept(self, name: str, rows: Any, firsts: Any) -> Any:
        """Integers of sequences that begin at `firsts`, so that `sequence_erase` leaves each of them one."""
        read = self._reads(name, _SAME)
        erased = {token for op, _, _ in read if op.type == "sequence_erase" for token in ints_attr(op, "tokens")}
        left = next(number for number in count() if number not in erased)
        if erased and left < min(self._counts(name), default=left + 1):
            rows[firsts] = np.where(np.isin(rows[firsts], list(erased)), left, rows[firsts])
        return rows

    def _reads(self, name: str, through: Collection[Numbers]) -> Iterator[tuple[Op, str, str]]:
        """The forward ops that read the numbers of an input, as they are or as ops of these kinds hand them on."""
        waiting, seen = [name], {name}
        while waiting:
            here = waiting.pop()
            for op in self.readers.get(here, ()):
                if op.role is not None and op.role & (OpRole.BACKWARD | OpRole.OPTIMIZE):
                    continue
                yield from ((op, slot, here) for slot, names in op.inputs.items() if here in names)
                if facts_of(op.type).numbers in through:
                    waiting += [out for out in op.output_names if out not in seen]
                    seen.update(op.output_names)

    def _counts(self, name: str) -> list[int]:
        """What the integers of an input stay below."""
        bounds = (_bound(op, here, self.main) for op, _, here in self._reads(name, _SAME))
        return [bound for bound in bounds if bound is not None]

    def _blank_first(self, name: str) -> bool:
        """Whether 0 is the blank of what labels are aligned with."""
        read = self._reads(name, _SAME)
        return any(op.type == "warpctc" and slot == "Label" and not op.attrs.get("blank") for op, slot, _ in read)


def _float(op: Op, name: str) -> float:
    value = op.attrs.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _bound(op: Op, name: str, main: Program) -> int | None:
    for slot, names in op.inputs.items():
        if name not in names:
            continue
        limit = facts_of(op.type).domains.get(slot)
        if not isinstance(limit, Below):
            continue
        if limit.axis is None:
            count = op.attrs.get(limit.of)
            if isinstance(count, int):
                return count
            continue
        var = main.find_var(op.input(limit.of) or "")
        dim = var.shape[limit.axis] if var is not None and var.shape else 0
        if dim > 0:
            return dim - 1 if op.type == "warpctc" and op.attrs.get("blank") == dim - 1 else dim
    return None
