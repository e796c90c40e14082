"""Passes that scripts put into a BuildStrategy: what of them is honoured, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.missing import refused

_REPEATS = "multi_batch_merge_pass"
_DIFFERENT = ("batch_norm", "sync_batch_norm", "data_norm", "dropout", "seed", "sampling_id", "shuffle_batch", "nce")
"""Ops beside `*random*` that make something else of the same values when they are computed again."""


_DRAWS = "graph_viz_pass"
_SETTINGS = {_REPEATS: "num_repeats", _DRAWS: "graph_viz_path"}
"""The setting of each pass that can be added."""
_FUSING = {
    "fuse_bn_act_ops": "fuse_bn_act_pass",
    "fuse_elewise_add_act_ops": "fuse_elewise_add_act_pass",
    "fuse_relu_depthwise_conv": "fuse_relu_depthwise_conv_pass",
}
"""Passes that a BuildStrategy asks for by these settings. They change no value, so nothing is done for them."""


class Pass:
    """A pass by its name, with settings."""

    def __init__(self, name: str):
        self._name = name
        self.settings: dict[str, Any] = {}

    def type(self) -> str:
        """The name."""
        return self._name

    def set(self, name: str, value: Any) -> None:
        """Gives a setting a value. Raises NotHere for one that the pass does not have."""
        known = _SETTINGS.get(self._name, "no settings")
        if name != known:
            raise refused(f"{self._name}.{name}", f"it has {known}")
        self.settings[name] = value


class PassBuilder:
    """The passes of a BuildStrategy. Others than `multi_batch_merge_pass` and `graph_viz_pass` can't be added."""

    def __init__(self) -> None:
        self._passes: list[Pass] = []

    def ask(self, settings: Mapping[str, Any]) -> PassBuilder:
        """Puts the passes in front that a BuildStrategy asks for; gives itself."""
        known = [each.type() for each in self._passes]
        self._passes[:0] = [Pass(n) for key, n in _FUSING.items() if settings.get(key) and n not in known]
        return self

    def all_passes(self) -> list[Pass]:
        """The passes, in order."""
        return list(self._passes)

    def insert_pass(self, index: int, name: str) -> Pass:
        """Puts a pass at a place. Raises NotHere for one that is not there."""
        if name not in _SETTINGS:
            raise refused(f"the pass {name}", "ops are run as the program has them")
        self._passes.insert(index, Pass(name))
        return self._passes[index]

    def append_pass(self, name: str) -> Pass:
        """Adds a pass at the end. Raises NotHere for one that is not there."""
        return self.insert_pass(len(self._passes), name)

    def remove_pass(self, index: int) -> None:
        """Takes a pass away."""
        del self._passes[index]

    def draw(self, program: Program) -> None:
        """Writes the program as a graph for Graphviz where a pass asks for it."""
        from pstranspile.frontends.drawing import dot_text

        for each in self._passes:
            if path := each.settings.get(_SETTINGS[_DRAWS]):
                Path(path).write_bytes(dot_text(program.freeze(), "main").encode("utf-8", "backslashreplace"))

    def require_same(self, program: Program) -> None:
        """Raises NotHere where a step of this program would not be what the passes make of it.

        Merged batches are gradients of several times the same fed rows, averaged: those of one time, unless a reader
        gives other rows each time or an op computes something else.
        """
        if all(each.settings.get("num_repeats", 1) <= 1 for each in self._passes):
            return
        if program.readers:
            raise refused(f"{_REPEATS} with a reader", "have the reader give larger batches")
        for block in program.drafts:
            for op in block.all_ops():
                if op.type in _DIFFERENT or "random" in op.type:
                    raise refused(f"{_REPEATS} with {op.type}", "feed larger batches")
