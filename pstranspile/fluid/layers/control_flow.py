"""Fluid's `layers.control_flow`: loops, branches, arrays."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.graph.vartype import dtype_of
from pstranspile.fluid.layers import utils as nest
from pstranspile.fluid.layers.accepted import check_variable, checked_all
from pstranspile.fluid.layers.adapt import adapt, live, renamed_all, to_core, wrap
from pstranspile.fluid.layers.branching import ConditionalBlock as ConditionalBlock
from pstranspile.fluid.layers.branching import IfElse as IfElse
from pstranspile.fluid.layers.branching import case as case
from pstranspile.fluid.layers.branching import cond as cond
from pstranspile.fluid.layers.branching import select_input as select_input
from pstranspile.fluid.layers.branching import select_output as select_output
from pstranspile.fluid.layers.branching import switch_case as switch_case
from pstranspile.fluid.layers.compare import equal as equal
from pstranspile.fluid.layers.compare import greater_equal as greater_equal
from pstranspile.fluid.layers.compare import greater_than as greater_than
from pstranspile.fluid.layers.compare import less_equal as less_equal
from pstranspile.fluid.layers.compare import less_than as less_than
from pstranspile.fluid.layers.compare import not_equal as not_equal
from pstranspile.fluid.layers.dynamic_rnn import DynamicRNN as DynamicRNN
from pstranspile.fluid.layers.ranks import array_to_lod_tensor as array_to_lod_tensor
from pstranspile.fluid.layers.ranks import lod_rank_table as lod_rank_table
from pstranspile.fluid.layers.ranks import lod_tensor_to_array as lod_tensor_to_array
from pstranspile.fluid.layers.ranks import max_sequence_len as max_sequence_len
from pstranspile.fluid.layers.ranks import merge_lod_tensor as merge_lod_tensor
from pstranspile.fluid.layers.ranks import reorder_lod_tensor_by_rank as reorder_lod_tensor_by_rank
from pstranspile.fluid.layers.ranks import shrink_memory as shrink_memory
from pstranspile.fluid.layers.ranks import split_lod_tensor as split_lod_tensor
from pstranspile.fluid.layers.tensor import assign
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.layers import basic, branches, loops
from pstranspile.frontends.layers.draft import Value
from pstranspile.ir.model import TensorType, Var
from pstranspile.ir.types import DType, VarKind

array_write = adapt(loops.array_write, "x, i, array=None", index="i")
array_read = adapt(loops.array_read, "array, i", index="i")


def increment(x: Any, value: float = 1.0, in_place: bool = True) -> Any:
    """x plus `value`, in x itself unless `in_place` is False."""
    if in_place:
        return wrap(basic.increment(to_core(x), float(value)))
    return wrap(basic.layer("increment", {"X": to_core(x)}, to_core(x).dtype, {"step": float(value)}))


def create_array(dtype: Any) -> Any:
    """An array of tensors that holds nothing yet."""
    draft = live()
    name = f"{draft.names.mint('array')}.out"
    return wrap(draft.declare(Var(name, VarKind.LOD_TENSOR_ARRAY, TensorType(dtype_of(dtype), ()))))


def array_length(array: Any) -> Any:
    """How many tensors an array holds, int64 [1]."""
    made = basic.layer("lod_array_length", {"X": to_core(array)}, DType.INT64, key="array_length")
    return wrap(made.declared([1]).stopped())


def is_empty(x: Any, cond: Any = None) -> Any:
    """Whether x has no elements, bool [1]; into `cond` if given."""
    out = DType.BOOL if cond is None else to_core(cond)
    return wrap(basic.layer_outputs("is_empty", {"X": to_core(x)}, {"Out": out})[0])


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
    """The same tensor, which is printed whenever it is computed, after the seconds since 1970 and the message."""
    attrs = {
        "first_n": first_n,
        "summarize": summarize,
        "message": message or "",
        "print_tensor_name": print_tensor_name,
        "print_tensor_type": print_tensor_type,
        "print_tensor_shape": print_tensor_shape,
        "print_tensor_lod": print_tensor_lod,
        "print_phase": print_phase.upper(),
    }
    value = to_core(input)
    return wrap(basic.layer("print", {"In": value}, value.dtype, attrs, key=f"print_{input.name}"))


class While:
    """A loop: ops made in its `block` are repeated as long as `cond` (bool [1], which they must change) is true."""

    def __init__(self, cond: Variable, is_test: bool = False, name: str | None = None):
        _check_condition("While", "cond", cond)
        self._condition, self._is_test = to_core(cond), is_test

    def block(self) -> Any:
        """The ops that are repeated."""
        return loops.while_(self._condition, is_test=self._is_test)


def _check_condition(layer: str, parameter: str, condition: Any) -> None:
    check_variable(layer, parameter, condition, ("bool",))
    if prod(condition.shape) != 1:
        raise TypeError(f"{layer}: {parameter} must have one element, not the dims {list(condition.shape)}")


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Sequence[Any],
    is_test: bool = False,
    name: str | None = None,
) -> Any:
    """Repeats `body(*loop_vars)` as long as `cond(*loop_vars)` holds; gives the variables."""
    for parameter, function in (("cond", cond), ("body", body)):
        if not callable(function):
            raise TypeError(f"while_loop: {parameter} must be a function, not {type(function).__name__}")
    if several(loop_vars) and not loop_vars:
        raise ValueError("while_loop: loop_vars must hold something")
    holds = cond(*loop_vars)
    _check_condition("while_loop", "what cond gives", holds)
    with While(holds, is_test, name).block():
        made = body(*nest.copied(list(loop_vars)))  # a body may change lists and dicts
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
    """Cases of which the first that holds runs; used as `with Switch() as switch: with switch.case(...): ...`."""

    def __init__(self, name: str | None = None):
        self._core = branches.Switch()

    def __enter__(self) -> Switch:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def case(self, condition: Any) -> Any:
        """Ops made in the block run if the condition holds and none before it did."""
        check_variable("Switch.case", "condition", condition, ("bool",))
        return self._core.case(to_core(condition))

    def default(self) -> Any:
        """Ops made in the block run if no case did."""
        return self._core.default()


class StaticRNN:
    """A network over the first dim of its inputs; its methods have Fluid's names."""

    def __init__(self, name: str | None = None):
        self._draft = live()
        self._core = loops.StaticRNN(self._draft, name=name)
        self._outside = 0

    @contextmanager
    def step(self) -> Generator[None]:
        """Ops made in the block are what the network does in each step."""
        self._outside = self._draft.current
        with self._core.step():
            yield

    def step_input(self, x: Any) -> Any:
        """The part of x for this step."""
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
        """What the step before has handed on: in the first one `init`, or a constant for each row of `batch_ref`."""
        if init is not None:
            return wrap(self._core.memory(self._before_steps(to_core(init))))
        if shape is None or batch_ref is None:
            raise ValueError("the memory of a StaticRNN needs init, or shape and batch_ref")
        draft, like = self._draft, to_core(batch_ref)
        with draft.inside(self._outside):
            name = draft.names.mint(f"{self._core.name}@memory_boot")
            start = draft.declare(Var(name, tensor=TensorType(like.dtype, ())))
            attrs = {
                "value": init_value,
                "shape": [int(dim) for dim in shape],
                "dtype": like.dtype,
                "input_dim_idx": ref_batch_dim_idx,
                "output_dim_idx": init_batch_dim_idx,
            }
            draft.op("fill_constant_batch_size_like", {"Input": like}, {"Out": start}, attrs)
        return wrap(self._core.memory(Value(draft, name)))

    def _before_steps(self, init: Value) -> Value:
        """What a memory starts as; an op of the step that makes it of things outside is moved before the network."""
        draft = self._draft
        step, outside = draft.blocks[draft.current], draft.blocks[self._outside]
        made = next((op for op in step.ops if init.name in op.output_names), None)
        if made is not None and not any(name in step.vars for name in made.input_names):
            step.ops.remove(made)
            outside.ops.append(made)
            outside.vars.update({name: step.vars.pop(name) for name in made.output_names})
        return init

    def update_memory(self, mem: Any, var: Any) -> None:
        """Hands `var` on to the next step."""
        self._core.update_memory(to_core(mem), to_core(var))

    def step_output(self, o: Any) -> None:
        """Makes a value of this step part of what the network gives."""
        self._core.step_output(to_core(o))

    def output(self, *outputs: Any) -> None:
        """Makes values of this step part of what the network gives."""
        for output in outputs:
            self.step_output(output)

    def __call__(self) -> Any:
        """What the network gives, [steps, ...]: one variable, or a list of several."""
        made = wrap(self._core.outputs())
        return made[0] if len(made) == 1 else made


__getattr__ = names_of_fluid(__name__, globals())
renamed_all({name: value for name, value in globals().items() if getattr(value, "__signature__", None) is not None})
checked_all(globals())
