"""Fluid's `layers.control_flow`: loops, branches, arrays."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

from pstranspile.fluid.graph.program import LiveDraft
from pstranspile.fluid.graph.values import dtype_of, numpy_name, several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.layers import utils as nest
from pstranspile.fluid.layers.adapt import (
    adapt,
    check_kind,
    check_variable,
    every,
    live,
    made_by,
    one_op,
    to_core,
    with_argument_checks,
    wrap,
)
from pstranspile.fluid.layers.tensor import assign, cast, fill_constant
from pstranspile.fluid.layers.utils import assert_same_structure, map_structure
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.layers import basic, loops
from pstranspile.frontends.layers.draft import Value, whole_dim
from pstranspile.ir.model import TensorType, Var
from pstranspile.ir.types import DType, VarKind

# Comparisons of tensors, element by element.


def _comparison_layer(op_type: str) -> Callable[..., Any]:
    def compare(x: Any, y: Any, force_cpu: bool | None = None, cond: Any = None) -> Any:
        """The result of the comparison for each element, as bools; written to `cond` if given."""
        out = DType.BOOL if cond is None else to_core(cond)
        attrs = None if force_cpu is None else {"force_cpu": bool(force_cpu)}
        made = basic.layer_outputs(op_type, {"X": to_core(x), "Y": to_core(y)}, {"Out": out}, attrs)[0]
        return cond if cond is not None else wrap(made.stopped())

    compare.__name__ = op_type
    return with_argument_checks(compare)


less_than = _comparison_layer("less_than")
less_equal = _comparison_layer("less_equal")
greater_than = _comparison_layer("greater_than")
greater_equal = _comparison_layer("greater_equal")
equal = _comparison_layer("equal")
not_equal = _comparison_layer("not_equal")


# Ragged tensors as arrays of steps, longest sequence first, and the rows of a batch split by a mask.

_reordered = one_op("reorder_lod_tensor_by_rank", "x, rank_table", "X=x RankTable=rank_table")
max_sequence_len = one_op(
    "max_sequence_len",
    "rank_table",
    "RankTable=rank_table",
    "Out:int64",
    called="max_sequence_len",
    key="max_seqence_len",  # Fluid's spelling
)
shrink_memory = one_op("shrink_rnn_memory", "x, i, table", "X=x I=i RankTable=table", key="shrink_memory")
split_lod_tensor = one_op(
    "split_lod_tensor", "input, mask, level=0", "X=input Mask=mask", "OutTrue OutFalse", "level", gives=every
)


@with_argument_checks
def reorder_lod_tensor_by_rank(x: Any, rank_table: Any) -> Any:
    """The sequences of x, or its rows, in the order of a rank table. Raises TypeError if `rank_table` is not a rank
    table.
    """
    if to_core(rank_table).var.kind is not VarKind.LOD_RANK_TABLE:
        raise TypeError(f"reorder_lod_tensor_by_rank: {rank_table.name} is no rank table")
    return _reordered(x, rank_table)


@with_argument_checks
def lod_rank_table(x: Any, level: int = 0) -> Any:
    """A rank table: the sequences of x sorted by length, longest first."""
    draft = live()
    draft.names.mint("lod_rank_table")
    table = draft.declare(Var(draft.names.mint("lod_rank_table"), VarKind.LOD_RANK_TABLE))
    draft.op("lod_rank_table", {"X": to_core(x)}, {"Out": table}, {"level": level})
    return wrap(table)


@with_argument_checks
def lod_tensor_to_array(x: Any, table: Any) -> Any:
    """The steps of a ragged x as an array; each has the next rows of all sequences that are long enough."""
    draft, value = live(), to_core(x)
    draft.names.mint("lod_tensor_to_array")
    name = draft.names.mint("lod_tensor_to_array")
    tensor = value.tensor._replace(lod_level=max(value.lod_level - 1, 0))
    array = draft.declare(Var(name, VarKind.LOD_TENSOR_ARRAY, tensor))
    draft.op("lod_tensor_to_array", {"X": value, "RankTable": to_core(table)}, {"Out": array})
    return wrap(array)


@with_argument_checks
def array_to_lod_tensor(x: Any, table: Any) -> Any:
    """The ragged tensor with the steps in an array."""
    value = to_core(x)
    inputs = {"X": value, "RankTable": to_core(table)}
    made = basic.layer("array_to_lod_tensor", inputs, value.dtype)
    tensor = made.tensor._replace(shape=value.shape, lod_level=value.lod_level + 1)
    return wrap(made.draft.declare(made.var._replace(tensor=tensor)))


@with_argument_checks
def merge_lod_tensor(in_true: Any, in_false: Any, x: Any, mask: Any, level: int = 0) -> Any:
    """The rows that `split_lod_tensor` has split, joined again in the order of x."""
    inputs = {"X": x, "Mask": mask, "InTrue": in_true, "InFalse": in_false}
    return made_by("merge_lod_tensor", inputs, "Out:InTrue", {"level": level})[0]


# Fluid's branches: `cond`, `case`, `switch_case`, and `IfElse` for the rows of a batch.

Branch = Callable[[], Any]


def _copy_results(results: Any, draft: LiveDraft, outside: int) -> Any:
    """Copies of a branch's results in the block with index `outside`."""

    def copy(item: Any) -> Any:
        value = to_core(item) if isinstance(item, Variable) else to_core(fill_constant([1], "float32", item))
        name = draft.names.mint("_generated_var")
        draft.declare(value.var._replace(name=name, persistable=False, parameter=None), outside)
        draft.op("assign", {"X": value}, {"Out": name})
        return Value(draft, name)

    return None if results is None else map_structure(copy, results)


def _branch(condition: Value, function: Branch | None) -> Any:
    """Runs a branch's function in a conditional block; returns copies of its results outside the block."""
    if function is None:
        return None
    draft = live()
    outside = draft.current
    with loops.when(condition):
        return _copy_results(function(), draft, outside)


def _check_function(layer: str, name: str, function: Any, *, optional: bool = True) -> None:
    if not callable(function) and not (optional and function is None):
        raise TypeError(f"{layer}: {name} must be a function without parameters, not {type(function).__name__}")


@with_argument_checks
def cond(pred: Any, true_fn: Branch | None = None, false_fn: Branch | None = None, name: str | None = None) -> Any:
    """The result of `true_fn()` if `pred` (bool [1]) is true, else that of `false_fn()`.

    Raises ValueError when the functions return variables with different nesting.
    """
    if name is not None and not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"cond: name must be a str, not {type(name).__name__}")
    condition = to_core(pred)
    _check_function("cond", "true_fn", true_fn)
    true_result = _branch(condition, true_fn)
    _check_function("cond", "false_fn", false_fn)
    false_result = _branch(loops.logical_not(condition), false_fn) if false_fn is not None else None
    if true_result is None and false_result is None:
        return None
    problem = "Incompatible return values of true_fn and false_fn in cond"
    if true_result is None or false_result is None:
        raise ValueError(
            f"{problem}: {'true_fn' if true_result is None else 'false_fn'} gives nothing, the other something"
        )
    try:
        assert_same_structure(true_result, false_result, check_types=False)
    except ValueError as difference:
        raise ValueError(f"{problem}: {difference}") from None
    mask = basic.cast(condition, DType.INT32)

    def select_result(no: Value, yes: Value) -> Any:
        return _append_select_op([no, yes], mask)

    return map_structure(select_result, false_result, true_result)


@with_argument_checks
def select_input(inputs: Sequence[Any], mask: Any) -> Any:
    """The variable of `inputs` at the index `mask` (int32 [1])."""
    check_kind("select_input", "inputs", inputs, ("list", "tuple"))
    check_variable("select_input", "mask", mask, ("int32",))
    return _append_select_op(to_core(inputs), to_core(mask))


def _append_select_op(values: list[Value], mask: Value) -> Any:
    draft = live()
    draft.names.mint("select_input")
    out = draft.declare(values[0].var._replace(name=draft.names.mint("_generated_var"), persistable=False))
    draft.op("select_input", {"X": values, "Mask": mask}, {"Out": out})
    return wrap(out)


@with_argument_checks
def select_output(input: Any, outputs: Sequence[Any], mask: Any) -> Any:
    """Copies `input` to the variable of `outputs` at the index `mask` (int32 [1]); returns all of `outputs`."""
    check_kind("select_output", "input", input, ("Variable",))
    check_variable("select_output", "mask", mask, ("int32",))
    check_kind("select_output", "outputs", outputs, ("list", "tuple"))
    draft = live()
    draft.names.mint("select_output")
    draft.op("select_output", {"X": to_core(input), "Mask": to_core(mask)}, {"Out": to_core(outputs)})
    return outputs


def case(pred_fn_pairs: Sequence[Any], default: Branch | None = None, name: str | None = None) -> Any:
    """The result of the function beside the first condition that is true; of `default`, or else the last function, if
    none is.
    """
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
    """The result of the function with the number `branch_index`; of `default`, or else the function with the largest
    number, for all other numbers.
    """
    check_variable("switch_case", "branch_index", branch_index, ("uint8", "int32", "int64"))
    if numpy_name(branch_index.dtype) != "int64":
        branch_index = cast(branch_index, "int64")
    numbered = _numbered_branches(branch_fns)
    _check_function("switch_case", "default", default)
    if default is None:
        *numbered, (_, chosen) = sorted(numbered, key=_number_of)
    else:
        chosen = default
    pairs = [(equal(branch_index, fill_constant([1], "int64", number)), function) for number, function in numbered]
    for condition, function in pairs:
        chosen = _either(condition, function, chosen)
    return chosen()


def _numbered_branches(branch_fns: Any) -> list[tuple[int, Branch]]:
    """The functions of a `switch_case` with their numbers. Raises TypeError for an item that is not a pair of both."""
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
    """Ops made in its `block` run only if all inputs have elements; with `is_scalar_condition`, only if the input is
    true.
    """

    def __init__(self, inputs: Sequence[Any], is_scalar_condition: bool = False, name: str | None = None):
        for value in inputs:
            check_kind("ConditionalBlock", "each of inputs", value, ("Variable",))
        self._inputs, self._scalar = to_core(list(inputs)), is_scalar_condition

    def block(self) -> Any:
        """A context manager for the ops that run under the condition."""
        return loops.when(*self._inputs, scalar=self._scalar)


class IfElse:
    """Branches for the rows of a batch: rows whose condition (bool [n, 1]) is true pass through one block, the others
    through another.
    """

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
        with loops.when(self._condition, scalar=False):
            yield
        self._side = None
        if not self._results[side]:
            raise ValueError("a block of an IfElse needs an output")

    def true_block(self) -> Any:
        """A context manager for the ops that work on the rows whose condition is true."""
        return self._block(1)

    def false_block(self) -> Any:
        """A context manager for the ops that work on the rows whose condition is false."""
        return self._block(0)

    def input(self, x: Any) -> Any:
        """The rows of x that belong to the present block."""
        if self._side is None:
            raise ValueError("input is called inside a block of an IfElse")
        value, draft = to_core(x), self._draft
        if value.name not in self._split:
            with draft.enter_block(self._outside):
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
        """Adds rows computed in the present block to the result."""
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
        """The rows of both blocks, in the order of the batch. Raises ValueError when the blocks have different numbers
        of outputs.
        """
        false, true = self._results
        if len(false) != len(true):
            raise ValueError(f"the blocks of an IfElse give {len(true)} and {len(false)} variables")
        merged: list[Any] = []
        for first, second in zip(true, false, strict=True):
            inputs = {"InTrue": first, "InFalse": second, "Mask": self._condition, "X": self._condition}
            out = basic.layer("merge_lod_tensor", inputs, first.dtype, {"level": 0})
            merged.append(wrap(out.redeclare_dims(first.shape)))
        return merged


# Fluid's `DynamicRNN`: a network over the steps of ragged sequences, longest first.


class DynamicRNN:
    """A network over the steps of ragged sequences; its methods have Fluid's names.

    drnn = DynamicRNN()
    with drnn.block():
        word = drnn.step_input(sentence)
        before = drnn.memory(shape=[200])
        after = fc([word, before], 200, act="tanh")
        drnn.update_memory(before, after)
        drnn.output(after)
    last = sequence_last_step(drnn())
    """

    def __init__(self, name: str | None = None):
        draft = self._draft = live()
        self._layer = name or draft.names.mint("dynamic_rnn")
        self._condition = draft.temporary(self._layer, DType.BOOL)
        draft.names.mint("while")
        self._outside = draft.current
        self._table: Value | None = None
        self._length: Value | None = None
        self._step: Value | None = None
        self._zero: Value | None = None
        self._first_input: Value | None = None
        self._memories: dict[str, Value] = {}
        self._links: list[tuple[Value, Value]] = []
        self._arrays: list[Value] = []
        self._outputs: list[Value] = []
        self._open = False

    def _declare_variable(
        self, key: str, kind: VarKind, dtype: DType | None, shape: tuple[int, ...] = (), level: int = 0
    ) -> Value:
        tensor = TensorType(dtype, shape, level) if dtype is not None else None
        return self._draft.declare(Var(self._draft.names.mint(key), kind, tensor))

    def _require(self, method: str, *, opened: bool = True) -> None:
        if self._open != opened:
            raise ValueError(f"{method} is called {'inside' if opened else 'outside'} the block of a DynamicRNN")

    @contextmanager
    def block(self) -> Generator[None]:
        """A context manager for the ops that run in each step. Raises ValueError when entered twice."""
        self._require("block", opened=False)
        draft = self._draft
        step = self._step = basic.fill_constant(draft, [1], DType.INT64, 0, force_cpu=True)
        draft.stop_gradient.discard(step.name)
        self._open = True
        with loops.while_(self._condition):
            yield
            if self._length is None:
                raise ValueError("a DynamicRNN needs a step_input, whose sequences tell how many steps there are")
            basic.increment(step)
            for value, array in self._links:
                loops.array_write(value, step, array)
            self._compare(step)
        self._open = False
        for array in self._arrays:
            tensor = array.tensor
            out = array_to_lod_tensor(wrap(array), wrap(self._require_step_input(self._table)))
            out.redeclare(shape=(-1, *tensor.shape[1:]))
            self._outputs.append(to_core(out))

    def _compare(self, step: Value) -> None:
        inputs = {"X": step, "Y": self._require_step_input(self._length)}
        basic.layer_outputs("less_than", inputs, {"Out": self._condition}, {"force_cpu": True})

    def _require_step_input(self, value: Value | None) -> Value:
        if value is None:
            raise ValueError("a DynamicRNN needs a step_input before memories and static inputs")
        return value

    @property
    def step_idx(self) -> Any:
        """The number of the step, int64 [1]."""
        return wrap(self._require_step_input(self._step))

    def step_input(self, x: Any, level: int = 0) -> Any:
        """The rows of x in this step, one for each sequence that is long enough."""
        self._require("step_input")
        check_kind("DynamicRNN.step_input", "x", x, ("Variable",))
        draft, value, step = self._draft, to_core(x), self._require_step_input(self._step)
        with draft.enter_block(self._outside):
            if self._table is None:
                self._table = self._declare_variable("lod_rank_table", VarKind.LOD_RANK_TABLE, None)
                draft.op("lod_rank_table", {"X": value}, {"Out": self._table}, {"level": level})
                self._length = self._declare_variable("dynamic_rnn_max_seq_len", VarKind.LOD_TENSOR, DType.INT64, (1,))
                draft.op("max_sequence_len", {"RankTable": self._table}, {"Out": self._length})
                self._compare(step)
            array = self._declare_variable(
                "dynamic_rnn_input_array",
                VarKind.LOD_TENSOR_ARRAY,
                value.dtype,
                value.shape,
                max(value.lod_level - 1, 0),
            )
            draft.op("lod_tensor_to_array", {"X": value, "RankTable": self._table}, {"Out": array})
        self._first_input = self._first_input or array
        return wrap(loops.array_read(array, step))

    def static_input(self, x: Any) -> Any:
        """The whole x in every step, its sequences in the order of the step inputs, without those that have ended."""
        self._require("static_input")
        check_kind("DynamicRNN.static_input", "x", x, ("Variable",))
        table, value = self._require_step_input(self._table), to_core(x)
        with self._draft.enter_block(self._outside):
            ordered = self._declare_variable(
                "dynamic_rnn_static_input_reordered", VarKind.LOD_TENSOR, value.dtype, value.shape, value.lod_level
            )
            self._draft.op("reorder_lod_tensor_by_rank", {"X": value, "RankTable": table}, {"Out": ordered})
        return wrap(self._shrunk(ordered))

    def _shrunk(self, value: Value) -> Value:
        inputs = {
            "X": value,
            "I": self._require_step_input(self._step),
            "RankTable": self._require_step_input(self._table),
        }
        made = basic.layer("shrink_rnn_memory", inputs, value.dtype, key="shrink_memory")
        draft, tensor = self._draft, made.tensor
        return draft.declare(made.var._replace(tensor=tensor._replace(shape=value.shape, lod_level=value.lod_level)))

    def memory(
        self,
        init: Any = None,
        shape: Any = None,
        value: float = 0.0,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ) -> Any:
        """The value from the step before; in the first step `init`, or `value` in rows of dims `shape`."""
        self._require("memory")
        check_kind("DynamicRNN.memory", "init", init, ("Variable", "NoneType"))
        check_kind("DynamicRNN.memory", "shape", shape, ("list", "tuple", "NoneType"))
        step = self._require_step_input(self._step)
        with self._draft.enter_block(self._outside):
            zero = self._first_index()
            start = self._constant_memory(shape, value, dtype_of(dtype)) if init is None else to_core(init)
            if init is not None and need_reorder:
                table = self._require_step_input(self._table)
                ordered = self._declare_variable(
                    "dynamic_rnn_mem_init_reordered", VarKind.LOD_TENSOR, start.dtype, start.shape, start.lod_level
                )
                self._draft.op("reorder_lod_tensor_by_rank", {"X": start, "RankTable": table}, {"Out": ordered})
                start = ordered
            array = self._declare_variable("dynamic_rnn_mem_array", VarKind.LOD_TENSOR_ARRAY, start.dtype, start.shape)
            self._draft.op("write_to_array", {"X": start, "I": zero}, {"Out": array})
        made = self._shrunk(loops.array_read(array, step).redeclare_dims(start.shape))
        self._memories[made.name] = array
        return wrap(made)

    def _first_index(self) -> Value:
        if self._zero is None:
            self._zero = self._declare_variable("zero_idx", VarKind.LOD_TENSOR, DType.INT64, (1,))
            attrs = {"shape": [1], "dtype": DType.INT64, "value": 0.0, "force_cpu": True}
            self._draft.op("fill_constant", {}, {"Out": self._zero}, attrs)
        return self._zero

    def _constant_memory(self, shape: Any, value: float, dtype: DType) -> Value:
        """The first rows of a memory without an initial variable: as many as the first step has."""
        source = self._require_step_input(self._first_input)
        start = self._declare_variable("mem_init", VarKind.LOD_TENSOR, dtype)
        first = self._declare_variable("in0", VarKind.LOD_TENSOR, source.dtype)
        self._draft.op("read_from_array", {"X": source, "I": self._first_index()}, {"Out": first})
        attrs = {"shape": [-1, *(shape or ())], "value": value, "dtype": dtype}
        self._draft.op("fill_constant_batch_size_like", {"Input": first}, {"Out": start}, attrs)
        return start

    def update_memory(self, ex_mem: Any, new_mem: Any) -> None:
        """Makes `new_mem` the value of a memory in the next step. Raises ValueError if `ex_mem` is not a memory."""
        self._require("update_memory")
        check_kind("DynamicRNN.update_memory", "ex_mem", ex_mem, ("Variable",))
        check_kind("DynamicRNN.update_memory", "new_mem", new_mem, ("Variable",))
        array = self._memories.get(to_core(ex_mem).name)
        if array is None:
            raise ValueError(f"{ex_mem.name} is no memory of this DynamicRNN")
        self._links.append((to_core(new_mem), array))

    def output(self, *outputs: Any) -> None:
        """Adds values of this step to the results of the network."""
        self._require("output")
        for output in outputs:
            check_kind("DynamicRNN.output", "each of outputs", output, ("Variable",))
            value = to_core(output)
            dtype, shape, level = value.dtype, value.shape, value.lod_level
            with self._draft.enter_block(self._outside):
                key = f"{self._layer}_output_array_{value.name}"
                array = self._declare_variable(key, VarKind.LOD_TENSOR_ARRAY, dtype, shape, level)
            loops.array_write(value, self._require_step_input(self._step), array)
            self._arrays.append(array)

    def __call__(self) -> Any:
        """The results of the network, ragged like its inputs: one variable, or a list of several."""
        self._require("the network", opened=False)
        made = wrap(self._outputs)
        if not made:
            raise ValueError("a DynamicRNN without an output gives nothing")
        return made[0] if len(made) == 1 else made


array_write = adapt(loops.array_write, "x, i, array=None", index="i")
array_read = adapt(loops.array_read, "array, i", index="i")


@with_argument_checks
def increment(x: Any, value: float = 1.0, in_place: bool = True) -> Any:
    """x plus `value`, written to x itself unless `in_place` is False."""
    if in_place:
        return wrap(basic.increment(to_core(x), float(value)))
    return wrap(basic.layer("increment", {"X": to_core(x)}, to_core(x).dtype, {"step": float(value)}))


def create_array(dtype: Any) -> Any:
    """An empty array of tensors."""
    draft = live()
    name = f"{draft.names.mint('array')}.out"
    return wrap(draft.declare(Var(name, VarKind.LOD_TENSOR_ARRAY, TensorType(dtype_of(dtype), ()))))


def array_length(array: Any) -> Any:
    """The number of tensors in an array, int64 [1]."""
    made = basic.layer("lod_array_length", {"X": to_core(array)}, DType.INT64, key="array_length")
    return wrap(made.redeclare_dims([1]).stopped())


@with_argument_checks
def is_empty(x: Any, cond: Any = None) -> Any:
    """Whether x has no elements, bool [1]; written to `cond` if given."""
    return made_by("is_empty", {"X": x}, "Out:bool", into={"Out": cond})[0]


@with_argument_checks
def Print(
    input: Any,
    first_n: int = -1,
    message: str | None = None,
    summarize: int = 20,
    print_tensor_name: bool = True,
    print_tensor_type: bool = True,
    print_tensor_shape: bool = True,
    print_tensor_lod: bool = True,
    print_phase: str = "both",
) -> Any:
    """The same tensor, printed whenever it is computed, after the seconds since 1970 and the message."""
    return print_tensor(
        input,
        first_n,
        message,
        summarize,
        print_phase,
        print_tensor_name=print_tensor_name,
        print_tensor_type=print_tensor_type,
        print_tensor_shape=print_tensor_shape,
        print_tensor_lod=print_tensor_lod,
    )


def print_tensor(input: Any, first_n: int, message: str | None, summarize: int, print_phase: str, **told: bool) -> Any:
    """The same tensor, printed whenever it is computed; `told` are the op's attributes that choose what is printed."""
    attrs = {
        "first_n": first_n,
        "summarize": summarize,
        "message": message or "",
        "print_phase": print_phase.upper(),
        **told,
    }
    value = to_core(input)
    return wrap(basic.layer("print", {"In": value}, value.dtype, attrs, key=f"print_{input.name}"))


class While:
    """A loop: ops made in its `block` are repeated while `cond` (bool [1], which they must change) is true."""

    def __init__(self, cond: Variable, is_test: bool = False, name: str | None = None):
        _check_condition("While", "cond", cond)
        self._condition, self._is_test = to_core(cond), is_test

    def block(self) -> Any:
        """A context manager for the ops that are repeated."""
        return loops.while_(self._condition, is_test=self._is_test)


def _check_condition(layer: str, parameter: str, condition: Any) -> None:
    check_variable(layer, parameter, condition, ("bool",))
    if prod(condition.shape) != 1:
        raise TypeError(f"{layer}: {parameter} must have one element, not the dims {list(condition.shape)}")


@with_argument_checks
def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Sequence[Any],
    is_test: bool = False,
    name: str | None = None,
) -> Any:
    """Repeats `body(*loop_vars)` while `cond(*loop_vars)` is true; returns the variables after the last repetition."""
    for parameter, function in (("cond", cond), ("body", body)):
        if not callable(function):
            raise TypeError(f"while_loop: {parameter} must be a function, not {type(function).__name__}")
    if several(loop_vars) and not loop_vars:
        raise ValueError("while_loop: loop_vars must hold something")
    holds = cond(*loop_vars)
    _check_condition("while_loop", "what cond gives", holds)
    with While(holds, is_test, name).block():
        made = body(*nest.copy_structure(list(loop_vars)))  # a body may change lists and dicts
        made = list(made) if several(made) else [made]
        try:
            nest.assert_same_structure(made, list(loop_vars), check_types=False)
        except ValueError as difference:
            raise ValueError(f"while_loop: the body must give what it takes, but {difference}") from None
        again = cond(*made)
        for value, target in zip(nest.flatten(made), nest.flatten(list(loop_vars)), strict=True):
            assign(value, target)
        assign(again, holds)
    return list(loop_vars)


class Switch:
    """Cases of which only the first whose condition is true runs; used as `with Switch() as switch: with
    switch.case(...): ...`.
    """

    def __init__(self, name: str | None = None):
        self._core = loops.Switch()

    def __enter__(self) -> Switch:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def case(self, condition: Any) -> Any:
        """A context manager for ops that run if the condition is true and no earlier one was."""
        check_variable("Switch.case", "condition", condition, ("bool",))
        return self._core.case(to_core(condition))

    def default(self) -> Any:
        """A context manager for ops that run if no case did."""
        return self._core.default()


class StaticRNN:
    """A network over the first dim of its inputs; its methods have Fluid's names."""

    def __init__(self, name: str | None = None):
        self._draft = live()
        self._core = loops.StaticRNN(self._draft, name=name)
        self._outside = 0

    @contextmanager
    def step(self) -> Generator[None]:
        """A context manager for the ops that run in each step."""
        self._outside = self._draft.current
        with self._core.step():
            yield

    def step_input(self, x: Any) -> Any:
        """The slice of x for this step."""
        return wrap(self._core.step_input(to_core(x)))

    def memory(
        self,
        init: Any = None,
        shape: Any = None,
        batch_ref: Any = None,
        init_value: float = 0.0,
        init_batch_dim_idx: int = 0,
        ref_batch_dim_idx: int = 1,
    ) -> Any:
        """The value from the step before; in the first step `init`, or a constant for each row of `batch_ref`."""
        if init is not None:
            return wrap(self._core.memory(self._before_steps(to_core(init))))
        if shape is None or batch_ref is None:
            raise ValueError("the memory of a StaticRNN needs init, or shape and batch_ref")
        draft, like = self._draft, to_core(batch_ref)
        with draft.enter_block(self._outside):
            name = draft.names.mint(f"{self._core.name}@memory_boot")
            start = draft.declare(Var(name, tensor=TensorType(like.dtype, ())))
            attrs = {
                "value": init_value,
                "shape": [whole_dim(dim) for dim in shape],
                "dtype": like.dtype,
                "input_dim_idx": ref_batch_dim_idx,
                "output_dim_idx": init_batch_dim_idx,
            }
            draft.op("fill_constant_batch_size_like", {"Input": like}, {"Out": start}, attrs)
        return wrap(self._core.memory(Value(draft, name)))

    def _before_steps(self, init: Value) -> Value:
        """The first value of a memory; if an op in the step computes it from variables outside, this op is moved in
        front of the network.
        """
        draft = self._draft
        step, outside = draft.blocks[draft.current], draft.blocks[self._outside]
        made = next((op for op in step.ops if init.name in op.output_names), None)
        if made is not None and not any(name in step.vars for name in made.input_names):
            step.ops.remove(made)
            outside.ops.append(made)
            outside.vars.update({name: step.vars.pop(name) for name in made.output_names})
        return init

    def update_memory(self, mem: Any, var: Any) -> None:
        """Makes `var` the value of a memory in the next step."""
        self._core.update_memory(to_core(mem), to_core(var))

    def step_output(self, o: Any) -> None:
        """Adds a value of this step to the results of the network."""
        self._core.step_output(to_core(o))

    def output(self, *outputs: Any) -> None:
        """Adds values of this step to the results of the network."""
        for output in outputs:
            self.step_output(output)

    def __call__(self) -> Any:
        """The results of the network, [steps, ...]: one variable, or a list of several."""
        made = wrap(self._core.outputs())
        return made[0] if len(made) == 1 else made


__getattr__ = names_of_fluid(__name__, globals())
