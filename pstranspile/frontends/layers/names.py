"""Fluid's generated names: counters for variables, and a tree of scopes for ops."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from pstranspile.ir.model import Program

_NUMBERED = re.compile(r"(.*)_(\d+)\Z", re.DOTALL)


class Names:
    """Mints `key_0`, `key_1`, ... for each key."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def mint(self, key: str) -> str:
        """The next name of `key`: `fc` gives fc_0, fc_1, ..."""
        number = self._next.get(key, 0)
        self._next[key] = number + 1
        return f"{key}_{number}"

    def copy(self) -> dict[str, int]:
        """The state of the counters, for `restore`."""
        return dict(self._next)

    def restore(self, counters: dict[str, int]) -> None:
        """Sets the counters back to an earlier state."""
        self._next = dict(counters)

    def skip(self, name: str) -> None:
        """Marks a name as used, and the layer's name before its first dot.

        `fc_0.w_1` uses up `fc_0` and `fc_0.w_0`, so that the next ones are `fc_1` and `fc_0.w_2`.
        """
        numbered = _NUMBERED.match(name)
        if numbered:
            key, number = numbered[1], int(numbered[2])
            self._next[key] = max(self._next.get(key, 0), number + 1)
        layer, dot, _ = name.partition(".")
        if dot:
            self.skip(layer)


class Scopes:
    """The names of nested scopes: a scope entered again at the same place is `name_1`, `name_2`, ..."""

    def __init__(self) -> None:
        self._children: dict[str, int] = {}
        self.path = "/"
        self.device: str | None = None

    @contextmanager
    def inside(self, name: str) -> Generator[None]:
        """Enters a scope for the context; ops created in it have `/name/` as `op_namescope`."""
        before, key = self.path, self.path + name
        count = self._children.get(key, 0)
        self._children[key] = count + 1
        self.path = f"{key}_{count}/" if count else f"{key}/"
        try:
            yield
        finally:
            self.path = before

    @contextmanager
    def on(self, device: str | None) -> Generator[None]:
        """Ops made in the block carry the device as `op_device`, those with a sub-block excepted; None: the default."""
        before, self.device = self.device, device
        try:
            yield
        finally:
            self.device = before

    def skip(self, path: str) -> None:
        """Marks a scope's path as used."""
        parts = path.strip("/").split("/")
        for depth, part in enumerate(parts):
            if not part:
                continue
            inner = "".join(f"{outer}/" for outer in parts[:depth])
            numbered = _NUMBERED.match(part)
            for name, number in ((numbered[1], int(numbered[2]) + 1) if numbered else (part, 1), (part, 1)):
                key = f"/{inner}{name}"
                self._children[key] = max(self._children.get(key, 0), number)


def names_in_use(programs: Iterable[Program]) -> tuple[Names, Scopes]:
    """Counters that continue after the names and scopes of these programs."""
    names, scopes = Names(), Scopes()
    for program in programs:
        for block in program.blocks:
            for name in block.vars:
                names.skip(name)
            paths = {op.attrs.get("op_namescope") for op in block.ops}
            for path in sorted(path for path in paths if isinstance(path, str)):
                scopes.skip(path)
    return names, scopes
