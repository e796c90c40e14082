"""Fluid's branches: `cond`, `case`, `switch_case`, and `IfElse` for the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from pstranspile.fluid.graph.live import LiveDraft
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.graph.vartype import numpy_name
from pstranspile.fluid.layers.accepted import check_kind, check_variable, checked_all
from pstranspile.fluid.layers.adapt import live, to_core, wrap
from pstranspile.fluid.layers.compare import equal
from pstranspile.fluid.layers.tensor import cast, fill_constant
from pstranspile.fluid.layers.utils import assert_same_structure, map_structure
from pstranspile.frontends.layers import basic, branches
from pstranspile.frontends.layers.draft import Value
from pstranspile.ir.model import TensorType, Var
from pstranspile.ir.types import DType

Branch = Callable[[], Any]


def _copied(made: Any, draft: LiveDraft, outside: int) -> Any:
    """Copies, in the block of index `outside`, of what a branch gives."""

    def copy(item: Any) -> Any:
        value = to_core(item) if isinstance(item, Variable) else to_core(fill_constant([1], "float32", item))
        name = draft.names.mint("_generated_var")
        draft.declare(value.var._replace(name=name, persistable=False, parameter=None), outside)
        draft.op("assign", {"X": value}, {"Out": name})
        return Value(draft, name)

    return None if made is None else map_structure(copy, made)


def _branch(condition: Value, function: Branch | None) -> Any:
    """Runs a branch's function in a conditional block; gives copies of what it made outside the block."""
    if function is None:
        return None
    draft = live()
    outside = draft.current
    with branches.when(condition):
        return _copied(function(), draft, outside)


def _check_function(layer: str, name: str, function: Any, *, optional: bool = True) -> None:
    if not callable(function) and not (optional and function is None):
        raise TypeError(f"{layer}: {name} must be a function without parameters, not {type(function).__name__}")


def cond(pred: Any, true_fn: Branch | None = None, false_fn: Branch | None = None, name: str | None = None) -> Any:
    """What `true_fn()` gives where `pred` (bool [1]) holds, and `false_fn()` where it does not.

    Raises ValueError when the functions give variables that are nested otherwise.
    """
    if name is not None and not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"cond: name must be a str, not {type(name).__name__}")
    condition = to_core(pred)
    _check_function("cond", "true_fn", true_fn)
    made = _branch(condition, true_fn)
    _check_function("cond", "false_fn", false_fn)
    other = _branch(branches.logical_not(condition), false_fn) if false_fn is not None else None
    if made is None and other is None:
        return None
    problem = "Incompatible return values of true_fn and false_fn in cond"
    if made is None or other is None:
        raise ValueError(f"{problem}: {'true_fn' if made is None else 'false_fn'} gives nothing, the other something")
    try:
        assert_same_structure(made, other, check_types=False)
    except ValueError as difference:
        raise ValueError(f"{problem}: {difference}") from None
    mask = basic.cast(condition, DType.INT32)

    def selected(no: Value, yes: Value) -> Any:
        return _selected([no, yes], mask)

    return map_structure(selected, other, made)


def select_input(inputs: Sequence[Any], mask: Any) -> Any:
    """The variable of `inputs` whose number `mask` (int32 [1]) is."""
    check_kind("select_input", "inputs", inputs, ("list", "tuple"))
    check_variable("select_input", "mask", mask, ("int32",))
    return _selected(to_core(inputs), to_core(mask))


def _selected(values: list[Value], mask: Value) -> Any:
    draft = live()
    draft.names.mint("select_input")
    out = draft.declare(values[0].var._replace(name=draft.names.mint("_generated_var"), persistable=False))
    draft.op("select_input", {"X": values, "Mask": mask}, {"Out": out})
    return wrap(out)


def select_output(input: Any, outputs: Sequence[Any], mask: Any) -> Any:
    """Copies `input` to the variable of `outputs` whose number `mask` (int32 [1]) is; gives them all."""
    check_kind("select_output", "input", input, ("Variable",))
    check_variable("select_output", "mask", mask, ("int32",))
    check_kind("select_output", "outputs", outputs, ("list", "tuple"))
    draft = live()
    draft.names.mint("select_output")
    draft.op("select_output", {"X": to_core(input), "Mask": to_core(mask)}, {"Out": to_core(outputs)})
    return outputs


def case(pred_fn_pairs: Sequence[Any], default: Branch | None = None, name: str | None = None) -> Any:
    """What the function beside the first condition that holds gives; `default`, or the last function, if none does."""
    check_kind("case", "pred_fn_pairs", pred_fn_pairs, ("list", "tuple"))
    pairs = list(pred_fn_pairs)
    if not pairs:
        raise ValueError("case needs at least one pair of a condition and a function")
    for pair in pairs:
        _check_pair("case", "pred_fn_pairs", pair)
        check_kind("case", "a condition", pair[0], ("Variable",))
    _check_function("case", "default", default)
    chosen: Branch = pairs.pop()[1] if default is None else default
    for condition, function in reversed(pairs):
        chosen = _either(condition, function, chosen)
    return chosen()


def _check_pair(layer: str, name: str, pair: Any) -> None:
    if not isinstance(pair, tuple) or len(pair) != 2:  # pyright: ignore[reportUnknownArgumentType]
        raise TypeError(f"{layer}: {name} must hold pairs (tuples of two), not {pair!r}")
    _check_function(layer, f"the second of each of {name}", pair[1], optional=False)


def _either(condition: Any, function: Branch, otherwise: Branch | None) -> Branch:
    return lambda: cond(condition, function, otherwise)


def switch_case(branch_index: Any, branch_fns: Any, default: Branch | None = None, name: str | None = None) -> Any:
    """What the function of this number gives; `default`, or the one with the largest number, for all other numbers."""
    check_variable("switch_case", "branch_index", branch_index, ("uint8", "int32", "int64"))
    if numpy_name(branch_index.dtype) != "int64":
        branch_index = cast(branch_index, "int64")
    numbered = _numbered(branch_fns)
    _check_function("switch_case", "default", default)
    if default is None:
        *numbered, (_, chosen) = sorted(numbered, key=_number_of)
    else:
        chosen = default
    pairs = [(equal(branch_index, fill_constant([1], "int64", number)), function) for number, function in numbered]
    for condition, function in pairs:
        chosen = _either(condition, function, chosen)
    return chosen()


def _numbered(branch_fns: Any) -> list[tuple[int, Branch]]:
    """The functions of a `switch_case` with their numbers. Raises TypeError for what is no pair of both."""
    if not isinstance(branch_fns, list | tuple | dict):
        raise TypeError(f"switch_case: branch_fns must be a list, tuple or dict, not {type(branch_fns).__name__}")
    items: list[Any] = list(branch_fns.items() if isinstance(branch_fns, dict) else branch_fns)  # pyright: ignore
    if all(map(callable, items)):
        items = list(enumerate(items))
    for pair in items:
        _check_pair("switch_case", "branch_fns", pair)
        if not isinstance(pair[0], int):
            raise TypeError(f"switch_case: a function has the number {pair[0]!r}, which is no int")
    numbers = [number for number, _ in items]
    for number in numbers:
        if numbers.count(number) > 1:
            raise ValueError(f"switch_case: the number {number} has more than one function")
    return items


def _number_of(pair: Any) -> int:
    return pair[0]


class ConditionalBlock:
    """Ops made in its `block` run only if the inputs have elements; with `is_scalar_condition`, if the input holds."""

    def __init__(self, inputs: Sequence[Any], is_scalar_condition: bool = False, name: str | None = None):
        for value in inputs:
            check_kind("ConditionalBlock", "each of inputs", value, ("Variable",))
        self._inputs, self._scalar = to_core(list(inputs)), is_scalar_condition

    def block(self) -> Any:
        """The ops that run or don't."""
        return branches.when(*self._inputs, scalar=self._scalar)


class IfElse:
    """Branches for the rows of a batch: rows whose condition (bool [n, 1]) holds go one way, the others another."""

    def __init__(self, cond: Any, name: str | None = None):
        check_kind("IfElse", "cond", cond, ("Variable",))
        check_kind("IfElse", "name", name, ("str", "NoneType"))
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
                        Var(draft.names.mint(f"ifelse_input{self._layer}"), tensor=TensorType(value.dtype, value.shape))
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
            check_kind("IfElse", "an output", out, ("Variable",))
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


checked_all(globals())
