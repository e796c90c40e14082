"""Loops: `While` over tensor arrays, and recurrent networks of fixed length."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from pstranspile.frontends.layers.basic import layer, layer_outputs
from pstranspile.frontends.layers.draft import BlockDraft, Draft, Value, gradient_block, names_of, train_in
from pstranspile.ir.attributes import BlockRef
from pstranspile.ir.model import TensorType, Var
from pstranspile.ir.types import DType, OpRole, VarKind
from pstranspile.ops.gradient import bare_op, gradient_name

# Conditional blocks: ops that run only when a condition holds.


def logical_not(x: Value) -> Value:
    """not x, element by element."""
    return layer("logical_not", {"X": x}, DType.BOOL)


def logical_and(x: Value, y: Value) -> Value:
    """x and y, element by element."""
    return layer("logical_and", {"X": x, "Y": y}, DType.BOOL)


def logical_or(x: Value, y: Value) -> Value:
    """x or y, element by element."""
    return layer("logical_or", {"X": x, "Y": y}, DType.BOOL)


def logical_xor(x: Value, y: Value) -> Value:
    """x xor y, element by element: one of them is true, but not both."""
    return layer("logical_xor", {"X": x, "Y": y}, DType.BOOL)


@contextmanager
def when(*conditions: Value, scalar: bool = True) -> Generator[None]:
    """Ops created in the context go into a sub-block that runs only if the condition (bool[1]) is true.

    Without `scalar` it runs if every condition has elements. If a loss is minimised in it, its gradients and updates
    are in a block of their own, which a `conditional_block_grad` runs.
    """
    draft = conditions[0].draft
    draft.names.mint("conditional_block")
    index = draft.new_block()
    with draft.enter_block(index) as inner:
        yield
    read, written = _through(draft, inner)
    scope = draft.fresh("_generated_var")
    draft.declare(scope.var._replace(kind=VarKind.STEP_SCOPES))
    attrs = {"sub_block": BlockRef(index), "is_scalar_condition": scalar}
    draft.op("conditional_block", {"Cond": conditions, "Input": read}, {"Out": written, "Scope": scope}, attrs)
    trained = gradient_block(draft.blocks, index)
    if trained is None:
        return
    known = {name: var for name in _through(draft, draft.blocks[trained])[0] if (var := draft.find(name))}
    gradients = {gradient_name(name): var for name, var in known.items()}
    inputs = {"Cond": names_of(conditions), "Input": tuple(known), "Out": tuple(written), "Scope": (scope.name,)}
    given = {"Out@GRAD": tuple(map(gradient_name, written))}
    attrs = {"sub_block": BlockRef(trained), "is_scalar_condition": scalar}
    made = bare_op("conditional_block_grad", {**inputs, **given}, {"Input@GRAD": tuple(gradients)}, attrs)
    draft.block.ops.append(made._replace(role=OpRole.BACKWARD, origin=draft.origin))
    for name, var in gradients.items():
        if draft.find(name, trained) is None:
            draft.declare(Var(name, tensor=var.tensor), trained)


def _through(draft: Draft, inner: BlockDraft) -> tuple[list[str], list[str]]:
    """The variables that a sub-block reads from outside and those that it writes there, in order of appearance."""
    read: dict[str, None] = {}
    written: dict[str, None] = {}
    for op in inner.all_ops():
        read.update((name, None) for name in op.input_names if name not in written)
        written.update((name, None) for name in op.output_names)
    return list(read), [name for name in written if draft.find(name) is not None]


class Switch:
    """Cases, of which the first whose condition is true runs:

    switch = Switch()
    with switch.case(step < 100.0): ...
    with switch.default(): ...
    """

    def __init__(self) -> None:
        self._not_yet: Value | None = None

    @contextmanager
    def case(self, condition: Value) -> Generator[None]:
        """Ops created in the context run if `condition` is true and no earlier case's condition was."""
        otherwise = logical_not(condition)
        if self._not_yet is None:
            self._not_yet, chosen = otherwise, condition
        else:
            before = self._not_yet
            self._not_yet = logical_and(before, otherwise)
            chosen = logical_and(before, condition)
        with when(chosen):
            yield

    @contextmanager
    def default(self) -> Generator[None]:
        """Ops created in the context run if no case did. Raises ValueError without a case before it."""
        if self._not_yet is None:
            raise ValueError("a default comes after at least one case")
        with when(self._not_yet):
            yield


def less_than(x: Value, y: Value, *, out: Value | None = None) -> Value:
    """x < y, element by element, written into `out` if given."""
    made = layer_outputs("less_than", {"X": x, "Y": y}, {"Out": out or DType.BOOL})[0]
    return made if out else made.stopped()


def array_write(x: Value, index: Value, array: Value | None = None) -> Value:
    """Writes x to array[index], in a new array if none is given, and returns the array, declared like the latest x."""
    draft = x.draft
    minted = draft.names.mint("array_write")
    target = array or draft.declare(
        Var(f"{minted}.out", VarKind.LOD_TENSOR_ARRAY, TensorType(x.dtype, x.shape, x.lod_level))
    )
    draft.op("write_to_array", {"X": x, "I": index}, {"Out": target})
    return target


def array_read(array: Value, index: Value) -> Value:
    """The element array[index]."""
    return layer("read_from_array", {"X": array, "I": index}, array.dtype, key="array_read")


@contextmanager
def while_(condition: Value, *, is_test: bool = False) -> Generator[None]:
    """Ops created in the context are repeated as long as `condition` (bool[1], which they must change) is true.

    With `is_test` the loop keeps nothing for a gradient.
    """
    draft = condition.draft
    draft.names.mint("while")
    index = draft.new_block()
    with draft.enter_block(index) as inner:
        yield
    train_in(draft.blocks, index)
    written = {condition.name: None}
    read: dict[str, None] = {}
    for op in inner.all_ops():
        read.update((name, None) for name in op.input_names if name not in written)
        written.update((name, None) for name in op.output_names)
    outputs = [name for name in written if draft.find(name) is not None]
    scopes = _step_scopes(draft)
    attrs = {"sub_block": BlockRef(index), "is_test": is_test}
    draft.op("while", {"X": list(read), "Condition": condition}, {"Out": outputs, "StepScopes": scopes}, attrs)


def _step_scopes(draft: Draft) -> Value:
    scopes = draft.fresh("_generated_var")
    return draft.declare(scopes.var._replace(kind=VarKind.STEP_SCOPES))


class _Memory(NamedTuple):
    start: Value
    previous_value: Value
    next_value: Value | None = None


class StaticRNN:
    """A recurrent network over the first dim of its inputs:

    rnn = StaticRNN(model)
    with rnn.step():
        x = rnn.step_input(steps)              # steps[t]
        before = rnn.memory(start)
        after = fc([x, before], 16, act="tanh")
        rnn.update_memory(before, after)
        rnn.step_output(after)
    outputs = rnn()                            # [steps, batch, 16]
    """

    def __init__(self, draft: Draft, *, name: str | None = None):
        self._draft = draft
        self.name = name or draft.names.mint("static_rnn")
        self._memories: dict[str, _Memory] = {}
        self._inputs: list[str] = []
        self._outputs: list[str] = []
        self._length: int | None = None
        self._outside = 0

    @contextmanager
    def step(self) -> Generator[None]:
        """Ops created in the context make up each step of the network."""
        draft = self._draft
        self._outside = draft.current
        index = draft.new_block()
        with draft.enter_block(index) as inner:
            yield
            train_in(draft.blocks, index)
            parameters = self._parameters(inner)
            scopes_at = self._outside
            with draft.enter_block(scopes_at):
                scopes = _step_scopes(draft)
            before, after = self._memory_names()
        inputs = {
            "inputs": self._inputs,
            "initial_states": [memory.start for memory in self._memories.values()],
            "parameters": parameters,
        }
        attrs = {
            "has_states": bool(self._memories),
            "ex_states": before,
            "states": after,
            "sub_block": BlockRef(index),
        }
        draft.op("recurrent", inputs, {"outputs": self._outputs, "step_scopes": scopes}, attrs)

    def step_input(self, x: Value) -> Value:
        """The slice of x for this step. All inputs have the same number of steps (their first dim)."""
        steps = x.shape[0]
        if self._length is None:
            self._length = steps
        elif steps not in (-1, self._length):
            raise ValueError(f"%{x.name} has {steps} steps, the inputs before it {self._length}")
        self._inputs.append(x.name)
        return self._draft.declare(Var(x.name, tensor=TensorType(x.dtype, x.shape[1:])))

    def memory(self, start: Value) -> Value:
        """The value that the previous step passed on; `start` in the first step."""
        name = self._draft.names.mint(f"{self.name}@mem")
        before = self._draft.declare(Var(name, tensor=TensorType(start.dtype, start.shape)))
        self._memories[name] = _Memory(start, before)
        return before

    def update_memory(self, memory: Value, value: Value) -> None:
        """Passes `value` on to the next step."""
        self._memories[memory.name] = self._memories[memory.name]._replace(next_value=value)

    def step_output(self, value: Value) -> None:
        """Makes this step's value part of the output."""
        out = self._append_memory_helper(value)
        tensor = TensorType(value.dtype, (self._length if self._length is not None else -1, *value.shape))
        self._draft.declare(Var(out.name, tensor=tensor), self._outside)
        self._outputs.append(out.name)

    def __call__(self) -> Value:
        """The first output over all steps, [steps, ...]. Raises ValueError when there is none."""
        return self.outputs()[0]

    def outputs(self) -> list[Value]:
        """Every output over all steps. Raises ValueError when there is none."""
        if not self._outputs:
            raise ValueError(f"{self.name} has no step_output")
        return [Value(self._draft, name) for name in self._outputs]

    def _append_memory_helper(self, value: Value) -> Value:
        out = self._draft.temporary(self.name, value.dtype)
        self._draft.op("rnn_memory_helper", {"X": value}, {"Out": out}, {"dtype": value.dtype})
        return out

    def _memory_names(self) -> tuple[list[str], list[str]]:
        before: list[str] = []
        after: list[str] = []
        for memory in self._memories.values():
            if memory.next_value is None:
                raise ValueError(f"the memory that starts with %{memory.start.name} is never updated")
            before.append(memory.previous_value.name)
            after.append(self._append_memory_helper(memory.next_value).name)
        return before, after

    def _parameters(self, inner: BlockDraft) -> list[str]:
        """The variables that the steps read from outside, each once, in order of appearance."""
        local = {*self._inputs, *self._memories}
        for op in inner.all_ops():
            local.update(op.output_names)
        return list({name: None for op in inner.all_ops() for name in op.input_names if name not in local})
