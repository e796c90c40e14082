"""Removal of unneeded gradient ops, and zeros for missing gradients."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from pstranspile.ir.model import Op
from pstranspile.ops.gradient import SUFFIX, bare_op, differentiated


def without_unwanted(ops: Iterable[Op], unwanted: set[str]) -> list[Op]:
    """The ops without those that only compute unwanted gradients, or compute them only from unwanted ones.

    `unwanted` grows by the gradients of the latter. If a remaining op reads an unwanted gradient, a `fill_zeros_like`
    before it gives zeros.
    """
    kept = [op for op in ops if not _removable(op, unwanted)]
    made: list[Op] = []
    for op in kept:
        for _, names in sorted(op.inputs.items()):
            for name in names:
                if SUFFIX in name and name in unwanted:
                    like = {"X": (differentiated(name),)}
                    zeros = bare_op("fill_zeros_like", like, {"Out": (name,)}, {"op_device": ""})
                    made.append(zeros._replace(origin=op.origin))
        made.append(op)
    return made


def _removable(op: Op, unwanted: set[str]) -> bool:
    written = list(op.output_names)
    if all(name in unwanted for name in written):
        return True
    read = [name for name in op.input_names if SUFFIX in name]
    if read and all(name in unwanted for name in read):
        unwanted.update(written)
        return True
    return False


def without_unconnected(ops: Sequence[Op], forward: Iterable[Op], known: Iterable[str] = ()) -> list[Op]:
    """The ops without chains that start from gradients that no op writes.

    A chain starts at an op that reads only variables that neither forward ops nor earlier ops write. It is removed if
    all later ops that read its results read nothing else. If all ops would be removed, all stay.
    """
    seen = {name for op in forward for names in (op.input_names, op.output_names) for name in names}
    seen.update(known)
    starts: list[int] = []
    made: set[str] = set()
    for index, op in enumerate(ops):
        read = set(op.input_names)
        if not any(name in seen or name in made for name in read):
            starts.append(index)
        made.update(op.output_names)
    if not starts:
        return list(ops)
    uses, gone = _Uses(ops), set[int]()
    for start in starts:
        gone |= _chain(start, uses)
    if len(gone) == len(ops):
        return list(ops)
    return [op for index, op in enumerate(ops) if index not in gone]


_Version = tuple[str, int]


class _Uses:
    """The readers and writers of each version of a variable; every write makes a new version."""

    def __init__(self, ops: Sequence[Op]):
        version: dict[str, int] = {}
        self.readers: dict[_Version, list[int]] = {}
        self.read: list[set[_Version]] = []
        self.written: list[set[_Version]] = []
        for index, op in enumerate(ops):
            read = {(name, version.get(name, 0)) for name in op.input_names}
            for value in read:
                self.readers.setdefault(value, []).append(index)
            written: set[_Version] = set()
            for name in op.output_names:
                version[name] = version.get(name, 0) + 1
                written.add((name, version[name]))
            self.read.append(read)
            self.written.append(written)


def _chain(start: int, uses: _Uses) -> set[int]:
    """The ops that depend only on `start`; empty if one of them also reads something else."""
    ready = set(uses.read[start])
    result, waiting = {start}, deque([start])
    while waiting:
        index = waiting.popleft()
        if not uses.read[index] or not uses.read[index] <= ready:
            return set()
        for value in uses.written[index]:
            for reader in uses.readers.get(value, ()):
                if reader not in result:
                    result.add(reader)
                    waiting.append(reader)
        ready |= uses.written[index]
    return result
