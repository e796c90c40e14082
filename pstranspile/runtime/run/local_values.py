"""The local variables of generated code: what is known of their values, and where the LoD of a value is.

A value that may have LoD is split where an op takes none: one local then holds the data, another one (`lv2` for `v2`)
the LoD, or None if there is none. A LoDTensor is made where an op needs one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntEnum

from pstranspile.runtime.run.bound import EMPTY_NAME, BoundOp, lod_sources


class ValueKind(IntEnum):
    """What is known of a variable's value at some place: from nothing, to a plain array."""

    ANYTHING = 0
    NO_LOD = 1
    ARRAY = 2


class LocalValues(ABC):
    """Lines of code, and what is known of the locals at the last one."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._indent = "    "
        self.owners: dict[int, int] = {}
        """Line of the source -> index of the op it belongs to."""
        self.locals: dict[str, str] = {}
        self.kinds: dict[str, ValueKind] = {}
        self.apart: set[str] = set()
        """Variables whose local holds only the data (see `kinds`); the LoD has a local of its own."""
        self.unsure: set[str] = set()
        """Variables whose local may be None: not written after all."""

    @abstractmethod
    def _persistable(self, name: str) -> bool:
        """Whether a variable is kept from step to step."""

    def _local(self, name: str) -> str:
        return self.locals.setdefault(name, f"v{len(self.locals)}")

    def _add(self, line: str, op: int = -1) -> None:
        self.lines.append(self._indent + line)
        self.owners[len(self.lines)] = op

    def _least(self, bound: BoundOp) -> ValueKind:
        """What is known of all inputs of an op."""
        return min(
            (ValueKind.ANYTHING if name in self.apart else self.kinds[name] for name in bound.reads),
            default=ValueKind.ARRAY,
        )

    def _whole(self, name: str) -> str:
        """An expression for the value of a variable, with its LoD."""
        v = self._local(name)
        return f"({v} if l{v} is None else new(LoDTensor, ({v}, l{v})))" if name in self.apart else v

    def _join(self, index: int, name: str) -> None:
        """Makes the local of a variable hold its value with its LoD."""
        if name in self.apart:
            v = self._local(name)
            self._add(f"if l{v} is not None: {v}, l{v} = new(LoDTensor, ({v}, l{v})), None", index)
            self.apart.discard(name)
            self.kinds[name] = ValueKind.ANYTHING

    def _takes_apart(self, index: int, bound: BoundOp) -> bool:
        """Has the locals of all inputs of an op hold no LoD, if its kernel gets none; False where that can't be."""
        made = [name for name in bound.makes if name != EMPTY_NAME]
        if (
            bound.sees_lod
            or self._least(bound) is not ValueKind.ANYTHING
            or any(result.duplicable for result in bound.results)
        ):
            return False
        ragged = [name for name in bound.reads if name not in self.apart and self.kinds[name] is ValueKind.ANYTHING]
        if any(map(self._persistable, (*made, *ragged))) or not self.kinds.keys().isdisjoint(made):
            return False
        for name in ragged:
            v = self._local(name)
            self._add(f"{v}, l{v} = {v} if {v}.__class__ is LoDTensor else ({v}, None)", index)
            self.kinds[name] = ValueKind.NO_LOD
        self.apart.update(ragged)
        return True

    def _give_lods(self, index: int, bound: BoundOp) -> None:
        """Gives the results of an op, which the locals hold, the LoD of its inputs (see `bound.with_lod`)."""
        sources = lod_sources(bound.arguments, bound.results, bound.lod)
        for result, places in zip(bound.results, sources, strict=True):
            mine = dict.fromkeys(name for place in places for name in bound.arguments[place].names)
            given = [name for name in mine if name in self.apart]
            for name in result.names[:1] if given else ():
                if name != EMPTY_NAME:
                    v = self._local(name)
                    self._add(f"l{v} = {' or '.join(f'l{self._local(each)}' for each in given)}", index)
                    array = "" if self.kinds[name] is ValueKind.ARRAY else f"{v}.__class__ is ndarray and "
                    fits = f"l{v} and {array}{v}.ndim and len({v}) == l{v}[-1][-1]"
                    self._add(f"if not ({fits}): l{v} = None", index)
                    self.apart.add(name)

    def _arguments(self, bound: BoundOp, *, whole: bool = False) -> str:
        def one(name: str) -> str:
            return "None" if name == EMPTY_NAME else self._whole(name) if whole else self._local(name)

        parts: list[str] = []
        for argument in bound.arguments:
            _, names, duplicable, _ = argument
            if argument.is_frame:
                parts.append("frame")
            elif duplicable:
                parts.append(f"[{', '.join(map(one, names))}]")
            else:
                parts.append(one(names[0]) if names else "None")
        return ", ".join(parts)

    def _written(self, name: str, kind: ValueKind, *, sure: bool) -> None:
        self.kinds[name] = kind
        if sure:
            self.unsure.discard(name)
        else:
            self.unsure.add(name)
