"""What numbers the inputs of a program may hold, by what reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np

from pstranspile.ir.model import Op, Program
from pstranspile.ir.roles import OpRole
from pstranspile.ops.attributes import ints_attr

SAME_NUMBERS = frozenset(
    {
        *("assign", "cast", "concat", "expand", "flatten", "flatten2", "lod_reset", "reshape", "reshape2", "slice"),
        *("sequence_concat", "sequence_expand", "sequence_pad", "sequence_reshape", "sequence_slice", "split", "stack"),
        *("sequence_unpad", "squeeze", "squeeze2", "transpose", "transpose2", "unsqueeze", "unsqueeze2", "unstack"),
    }
)
"""Op types whose outputs hold the numbers of their inputs, so that what reads the outputs limits the inputs."""

_LINEAR = frozenset(
    {"sum", "reduce_sum", "reduce_mean", "mean", "elementwise_add", "sequence_pool", "matmul", "elementwise_mul"}
)
"""Op types that make large and positive numbers of numbers that are."""

_POSITIVE = frozenset({("elementwise_div", "Y"), ("log", "X"), ("sqrt", "X"), ("rsqrt", "X"), ("elementwise_pow", "X")})
"""(Op type, slot) of inputs that must be above 0."""

HUGE = 1000.0
"""A `scale` by so much makes a mask: what it reads is 0 or 1."""

_PROBABILITIES = {
    "sigmoid_cross_entropy_with_logits": "Label",
    "log_loss": "Labels",
    "bce_loss": "Label",
    "modified_huber_loss": "Y",
    "rank_loss": "Label",
    "margin_rank_loss": "Label",
    "hinge_loss": "Labels",
    "auc": "Label",
}
"""Op type -> the slot that takes 0 or 1."""


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
        read = list(self._reads(name, SAME_NUMBERS))
        if kind.kind == "b" or any(slot == _PROBABILITIES.get(op.type) for op, slot, _ in read):
            return random.integers(0, 2, shape).astype(kind)
        if any(slot == "Label" and op.attrs.get("soft_label") for op, slot, _ in read):
            classes = random.integers(0, shape[-1], shape[:-1])
            return np.eye(shape[-1], dtype=kind)[classes]
        summed = list(self._reads(name, SAME_NUMBERS | _LINEAR))
        if any(op.type == "scale" and abs(_float(op, "scale")) >= HUGE for op, _, _ in summed):
            return (random.random(shape) < 0.75).astype(kind)
        if any((op.type, slot) in _POSITIVE for op, slot, _ in summed):
            return random.uniform(0.5, 1.5, shape).astype(kind)
        return random.uniform(-1.0, 1.0, shape).astype(kind)

    def kept(self, name: str, rows: Any, firsts: Any) -> Any:
        """Integers of sequences that begin at `firsts`, so that `sequence_erase` leaves each of them one."""
        read = self._reads(name, SAME_NUMBERS)
        erased = {token for op, _, _ in read if op.type == "sequence_erase" for token in ints_attr(op, "tokens")}
        left = next(number for number in count() if number not in erased)
        if erased and left < min(self._counts(name), default=left + 1):
            rows[firsts] = np.where(np.isin(rows[firsts], list(erased)), left, rows[firsts])
        return rows

    def _reads(self, name: str, through: frozenset[str]) -> Iterator[tuple[Op, str, str]]:
        """The forward ops that read the numbers of an input, as they are or as ops of some types hand them on."""
        waiting, seen = [name], {name}
        while waiting:
            here = waiting.pop()
            for op in self.readers.get(here, ()):
                if op.role is not None and op.role & (OpRole.BACKWARD | OpRole.OPTIMIZE):
                    continue
                yield from ((op, slot, here) for slot, names in op.inputs.items() if here in names)
                if op.type in through:
                    waiting += [out for out in op.output_names if out not in seen]
                    seen.update(op.output_names)

    def _counts(self, name: str) -> list[int]:
        """What the integers of an input stay below."""
        bounds = (_bound(op, here, self.main) for op, _, here in self._reads(name, SAME_NUMBERS))
        return [bound for bound in bounds if bound is not None]

    def _blank_first(self, name: str) -> bool:
        """Whether 0 is the blank of what labels are aligned with."""
        read = self._reads(name, SAME_NUMBERS)
        return any(op.type == "warpctc" and slot == "Label" and not op.attrs.get("blank") for op, slot, _ in read)


def _float(op: Op, name: str) -> float:
    value = op.attrs.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


_ROWS: Mapping[tuple[str, str], str] = {
    ("lookup_table", "Ids"): "W",
    ("lookup_table_v2", "Ids"): "W",
    ("distributed_lookup_table", "Ids"): "W",
    ("gather", "Index"): "X",
    ("tdm_sampler", "X"): "Travel",
    ("tdm_child", "X"): "TreeInfo",
}
"""(Op type, slot of indices) -> the slot whose rows they count."""

_CLASSES: Mapping[tuple[str, str], str] = {
    ("cross_entropy", "Label"): "X",
    ("cross_entropy2", "Label"): "X",
    ("softmax_with_cross_entropy", "Label"): "Logits",
    ("bpr_loss", "Label"): "X",
    ("sigmoid_focal_loss", "Label"): "X",
    ("sample_logits", "Labels"): "Logits",
    ("warpctc", "Label"): "Logits",
    ("linear_chain_crf", "Label"): "Emission",
    ("crf_decoding", "Label"): "Emission",
}
"""(Op type, slot of labels) -> the slot whose last dim counts the classes."""

_CHANNELS: Mapping[tuple[str, str], str] = {("nll_loss", "Label"): "X"}
"""(Op type, slot of labels) -> the slot whose dim 1 counts the classes."""

_COUNTS: Mapping[tuple[str, str], str] = {
    ("nce", "Label"): "num_total_classes",
    ("hierarchical_sigmoid", "Label"): "num_classes",
    ("center_loss", "Label"): "cluster_num",
    ("mean_iou", "Predictions"): "num_classes",
    ("mean_iou", "Labels"): "num_classes",
    ("precision_recall", "Indices"): "class_number",
    ("precision_recall", "Labels"): "class_number",
    ("one_hot", "X"): "depth",
    ("one_hot_v2", "X"): "depth",
    ("sampled_softmax_with_cross_entropy", "Labels"): "num_classes",
}
"""(Op type, slot) -> the attribute that counts the classes."""


def _bound(op: Op, name: str, main: Program) -> int | None:
    for slot, names in op.inputs.items():
        if name not in names:
            continue
        key = (op.type, slot)
        count = op.attrs.get(_COUNTS[key]) if key in _COUNTS else None
        if isinstance(count, int):
            return count
        for slots, axis in ((_ROWS, 0), (_CLASSES, -1), (_CHANNELS, 1)):
            dim = _dim(op, slots.get(key), main, axis)
            if dim:
                return dim - 1 if op.type == "warpctc" and op.attrs.get("blank") == dim - 1 else dim
    return None


def _dim(op: Op, slot: str | None, main: Program, axis: int) -> int | None:
    var = main.find_var(op.input(slot) or "") if slot else None
    shape = var.shape if var is not None else ()
    return shape[axis] if shape and shape[axis] > 0 else None
