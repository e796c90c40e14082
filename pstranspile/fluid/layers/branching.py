"""Fluid's branches: `cond`, `case`, `switch_case`, and `IfElse` for the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.layers.adapt import live, to_core, wrap
from pstranspile.fluid.layers.compare import equal
from pstranspile.fluid.layers.tensor import fill_constant
from pstranspile.ir.model import TensorType, Var
from pstranspile.ir.types import DType
from pstranspile.layers import basic, branches
from pstranspile.layers.draft import Value

Branch = Callable[[], Any]


def _flat(made: Any) -> list[Any]:
    if made is None:
        return []
    if several(made):
        return [item for part in made for item in _flat(part)]  # pyright: ignore[reportUnknownVariableType]
    return [made]


def _packed(like: Any, items: Any) -> Any:
    if several(like):
        parts = [_packed(part, items) for part in like]
        return tuple(parts) if isinstance(like, tuple) else parts
    return None if like is None else next(items)


def _branch(condition: Value, function: Branch | None) -> tuple[Any, list[Value]]:
    """Runs a branch's function in a conditional block; gives what it made, and copies of it outside the block."""
    draft = condition.draft
    outside = draft.current
    copies: list[Value] = []
    made: Any = None
    with branches.when(condition):
        made = function() if function is not None else None
        for item in _flat(made):
            value = to_core(item) if isinstance(item, Variable) else to_core(fill_constant([1], "float32", item))
            name = draft.names.mint("_generated_var")
            draft.declare(value.var._replace(name=name, persistable=False, parameter=None), outside)
            draft.op("assign", {"X": value}, {"Out": name})
            copies.append(Value(draft, name))
    return made, copies


def cond(pred: Any, true_fn: Branch | None = None, false_fn: Branch | None = None, name: str | None = None) -> Any:
    """What `true_fn()` gives where `pred` (bool [1]) holds, and `false_fn()` where it does not.

    Raises ValueError when the functions give different numbers of variables.
    """
    condition = to_core(pred)
    otherwise = branches.logical_not(condition)
    made, yes = _branch(condition, true_fn)
    other, no = _branch(otherwise, false_fn)
    if len(yes) != len(no):
        raise ValueError(f"true_fn gives {len(yes)} variables and false_fn {len(no)}: cond needs as many of both")
    if not yes:
        return None
    mask = basic.cast(condition, DType.INT32)
    merged: list[Any] = []
    for first, second in zip(yes, no, strict=True):
        if first.shape != second.shape and len(first.shape) != len(second.shape):
            raise ValueError(f"true_fn gives dims {list(first.shape)} where false_fn gives {list(second.shape)}")
        out = basic.layer("select_input", {"X": [second, first], "Mask": mask}, first.dtype)
        merged.append(wrap(out.declared(first.shape)))
    del other
    return _packed(made, iter(merged))


def case(pred_fn_pairs: Sequence[Any], default: Branch | None = None, name: str | None = None) -> Any:
    """What the function beside the first condition that holds gives; `default`, or the last function, if none does."""
    pairs = list(pred_fn_pairs)
    if not pairs:
        raise ValueError("case needs at least one pair of a condition and a function")
    if default is None:
        default = pairs.pop()[1]
    chosen: Branch = default or pairs[-1][1]
    for condition, function in reversed(pairs):
        chosen = _either(condition, function, chosen)
    return chosen()


def _either(condition: Any, function: Branch, otherwise: Branch | None) -> Branch:
    return lambda: cond(condition, function, otherwise)


def switch_case(branch_index: Any, branch_fns: Any, default: Branch | None = None, name: str | None = None) -> Any:
    """What the function of this number gives; `default`, or the one with the largest number, for all other numbers."""
    items: Any = branch_fns if several(branch_fns) else branch_fns.items()
    pairs_of: list[Any] = [item if several(item) else (number, item) for number, item in enumerate(items)]
    numbered: list[tuple[int, Branch]] = sorted(pairs_of, key=_number_of)
    if default is None:
        default = numbered[-1][1]
    pairs = [
        (equal(branch_index, fill_constant([1], branch_index.dtype, number)), function) for number, function in numbered
    ]
    return case(pairs, default)


def _number_of(pair: Any) -> int:
    return pair[0]


class IfElse:
    """Branches for the rows of a batch: rows whose condition (bool [n, 1]) holds go one way, the others another."""

    def __init__(self, cond: Any, name: str | None = None):
        self._draft = live()
        self._layer = name or self._draft.names.mint("ifelse")
        self._condition = to_core(cond)
        self._split: dict[str, tuple[Value, Value]] = {}
        self._results: tuple[list[Value], list[Value]] = ([], [])
        self._side: int | None = None
        self._outside = self._draft.current

    @contextmanager
    def _block(self, side: int) -> Generator[None]:
        self._side = side
        with branches.when(self._condition, scalar=False):
            yield
        self._side = None
        if not self._results[side]:
            raise ValueError("a block of an IfElse needs an output")

    def true_block(self) -> Any:
        """Ops made in the block are for the rows whose condition holds."""
        return self._block(1)

    def false_block(self) -> Any:
        """Ops made in the block are for the other rows."""
        return self._block(0)

    def input(self, x: Any) -> Any:
        """The rows of x for this block."""
        if self._side is None:
            raise ValueError("input is called inside a block of an IfElse")
        value, draft = to_core(x), self._draft
        if value.name not in self._split:
            with draft.inside(self._outside):
                parts = [
                    draft.declare(
                        Var(draft.names.mint(f"{self._layer}_input"), tensor=TensorType(value.dtype, value.shape))
                    )
                    for _ in range(2)
                ]
                inputs = {"X": value, "Mask": self._condition}
                draft.op("split_lod_tensor", inputs, {"OutTrue": parts[0], "OutFalse": parts[1]}, {"level": 0})
            self._split[value.name] = parts[0], parts[1]
        return wrap(self._split[value.name][1 - self._side])

    def output(self, *outs: Any) -> None:
        """Makes rows of this block part of the result."""
        if self._side is None:
            raise ValueError("output is called inside a block of an IfElse")
        for out in outs:
            value, draft = to_core(out), self._draft
            name = draft.names.mint(f"{self._layer}_output")
            draft.declare(Var(name, tensor=TensorType(value.dtype, value.shape)), self._outside)
            draft.op("assign", {"X": value}, {"Out": name})
            self._results[self._side].append(Value(draft, name))

    def __call__(self) -> Any:
        """The rows of both blocks, in the order of the batch. Raises ValueError when they give different numbers."""
        false, true = self._results
        if len(false) != len(true):
            raise ValueError(f"the blocks of an IfElse give {len(true)} and {len(false)} variables")
        merged: list[Any] = []
        for first, second in zip(true, false, strict=True):
            inputs = {"InTrue": first, "InFalse": second, "Mask": self._condition, "X": self._condition}
            out = basic.layer("merge_lod_tensor", inputs, first.dtype, {"level": 0})
            merged.append(wrap(out.declared(first.shape)))
        return merged
