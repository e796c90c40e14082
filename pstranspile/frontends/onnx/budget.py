"""What reading a model may take, beyond what its file holds: one account for all that is computed or repeated."""

from __future__ import annotations

from pstranspile.frontends.onnx.graph import Refused

MOST_NODES = 100_000
"""The most nodes that functions, branches and definitions of a model may stand for; nested ones multiply."""

DEEPEST = 100
"""How deep functions and branches may be nested in each other."""

FREE_BYTES = 64 << 20
"""Bytes that may be computed of any model, however small."""

BYTES_A_BYTE = 8
"""Bytes that may be computed for each byte that the model holds: weights are transposed, cast and cut in files."""

FREE_WORK = 1 << 31
"""Elements that may be computed with for any model, however small; some seconds of a processor."""

WORK_A_BYTE = 64
"""Elements that may be computed with for each byte that the model holds."""

NUMBER_BYTES = 64
"""What a whole number takes that is kept by itself, in an attribute of the program."""


class Budget:
    """What is left of the memory, the work and the nodes that reading a model may take."""

    def __init__(self, held: int):
        self._bytes = FREE_BYTES + BYTES_A_BYTE * held
        self._work = FREE_WORK + WORK_A_BYTE * held
        self._nodes = MOST_NODES
        self.depth = 0
        """How many functions and branches the node that is read stands in."""

    def affords(self, size: int, work: int) -> bool:
        """Whether one node may take this many bytes, and work on this many elements; if so they are taken.

        It may take half of what is left, so that something is left for the small numbers that dims are computed of.
        """
        if 2 * size > self._bytes or 2 * work > self._work:
            return False
        self._bytes -= size
        self._work -= work
        return True

    def take(self, size: int, work: int = 0) -> None:
        """Takes this many bytes, and work on this many elements. Raises Refused if that much is not left."""
        if size > self._bytes:
            raise Refused(f"it takes {size} bytes while the model is read, and {self._bytes} are left for all of it")
        if work > self._work:
            raise Refused(
                f"it works on {work} elements while the model is read, and {self._work} are left for all of it"
            )
        self._bytes -= size
        self._work -= work

    def enter(self) -> None:
        """Begins a node in a function or branch. Raises Refused for too many, or where they are nested too deep."""
        self._nodes -= 1
        if self._nodes < 0:
            raise Refused(f"functions and branches of the model stand for more than {MOST_NODES} nodes")
        if self.depth >= DEEPEST:
            raise Refused(f"functions and branches are nested more than {DEEPEST} deep")
        self.depth += 1

    def leave(self) -> None:
        """Ends a node in a function or branch."""
        self.depth -= 1
