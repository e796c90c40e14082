"""The gradients and values that gradient blocks see when they run, like `run.frame` and the kernels."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from pstranspile.ops.gradients.old_values import OLD
from pstranspile.ops.gradients.versions import Forward, Use

Uses = frozenset[Use]


class Frame:
    """The gradients of one execution of a block, as sets of terms."""

    def __init__(self, parent: Frame | None, declared: AbstractSet[str]):
        self.parent = parent
        self.declared = declared
        self.local: dict[str, Uses] = {}
        self.forward: Frame | None = parent

    def steps(self) -> Frame:
        """The frame of the steps of this block's ops. Gradient blocks share that of the forward pass."""
        return self.forward if self.forward is not None else self

    def find(self, name: str) -> Uses | None:
        """The terms of a gradient in this frame or an enclosing one, None if it does not exist yet."""
        frame: Frame | None = self
        while frame is not None:
            if name in frame.local:
                return frame.local[name]
            frame = frame.parent
        return None

    def write(self, name: str, terms: Uses) -> None:
        """Sets a gradient in the frame that has or declares it, by default in this one."""
        frame: Frame | None = self
        while frame is not None:
            if name in frame.local or name in frame.declared:
                frame.local[name] = terms
                return
            frame = frame.parent
        self.local[name] = terms


class Values:
    """The version of each variable that gradient ops read.

    `around` are the values of the enclosing block. `before` and `after` are the versions that the op with the sub-block
    reads and writes there. `kept` are the variables whose values each step of a loop keeps (None: no loop).
    """

    def __init__(
        self,
        forward: Forward,
        around: Values | None,
        before: Mapping[str, int],
        after: Mapping[str, int] | None = None,
        kept: AbstractSet[str] | None = None,
    ):
        self.forward = forward
        self.around = around
        self._before = before
        self._after = after or {}
        self._kept = kept
        self._updated = forward.updated_in_place() if kept is not None else set[str]()
        self._back: dict[str, int] = {}

    def back(self, name: str) -> None:
        """Undoes the last update of a variable, as its gradient op does."""
        self._back[name] = self._back.get(name, 0) + 1

    def seen(self, name: str) -> int | None:
        """The version that a name refers to; None if the value is no version of this block."""
        base, copy, writes = name.partition(OLD)
        if copy:
            if base in self.forward.last or base in self.forward.block.vars or self.around is None:
                return self.forward.version(base, int(writes))
            return 0 if self.around.seen(name) == self._before.get(base, 0) else None
        last = self.forward.last.get(name, 0) - self._back.get(name, 0)
        if self.around is None or name in self.forward.block.vars:
            return last
        if name not in self.forward.last:
            around = self.around.seen(name)
            return 0 if around is not None and around == self._before.get(name, around) else None
        if self._kept is not None and name in self._kept and name not in self._updated:
            return 0
        return last if self.around.seen(name) == self._after.get(name) else None
