"""States of a decoder from step to step, and the cell that computes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pstranspile.fluid import core, layers, unique_name


class InitState:
    """What a state is in the first step: `init`, or `value` in the dims `shape`, with as many rows as `init_boot`.

    `need_reorder`: the rows are put in the order in which a DynamicRNN takes sequences. Raises ValueError without both
    `init` and `init_boot`.
    """

    def __init__(
        self,
        init: Any = None,
        shape: Any = None,
        value: float = 0.0,
        init_boot: Any = None,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ):
        if init is None and init_boot is None:
            raise ValueError("InitState needs init, or init_boot to know how many rows it has")
        if init is None:
            init = layers.fill_constant_batch_size_like(input=init_boot, value=value, shape=shape, dtype=dtype)
        self._value, self._reordered = init, need_reorder

    @property
    def value(self) -> Any:
        """The variable that holds it."""
        return self._value

    @property
    def need_reorder(self) -> bool:
        """Whether its rows are put in another order."""
        return self._reordered


class KeptState(Protocol):
    """A state within a decoder."""

    def get_state(self) -> Any:
        """Its variable in this step."""
        ...

    def update_state(self, state: Any) -> None:
        """Sets what it is in the next step."""
        ...


class Decoder(Protocol):
    """A decoder as its cell sees it."""

    def kept(self, state: InitState) -> KeptState:
        """A state that the decoder keeps from step to step."""
        ...


class MemoryState:
    """A state that a DynamicRNN keeps."""

    def __init__(self, rnn: layers.DynamicRNN, state: InitState):
        self._rnn = rnn
        self._memory = rnn.memory(init=state.value, need_reorder=state.need_reorder)

    def get_state(self) -> Any:
        """Its variable in this step."""
        return self._memory

    def update_state(self, state: Any) -> None:
        """Sets what it is in the next step."""
        self._rnn.update_memory(self._memory, state)


class ArrayState:
    """A state that is an array with an element for each step, declared in a block around the loop."""

    def __init__(self, block: Any, state: InitState):
        kinds = core.VarDesc.VarType
        self._array = block.create_var(
            name=unique_name.generate("array_state_array"), type=kinds.LOD_TENSOR_ARRAY, dtype=state.value.dtype
        )
        self._step = block.create_var(
            name=unique_name.generate("array_state_counter"), type=kinds.LOD_TENSOR, dtype="int64"
        )
        attrs = {"shape": [1], "dtype": self._step.dtype, "value": 0.0, "force_cpu": True}
        block.append_op(type="fill_constant", inputs={}, outputs={"Out": [self._step]}, attrs=attrs)
        self._step.stop_gradient = True
        block.append_op(type="write_to_array", inputs={"X": state.value, "I": self._step}, outputs={"Out": self._array})

    def get_state(self) -> Any:
        """Its variable in this step."""
        return layers.array_read(array=self._array, i=self._step)

    def update_state(self, state: Any) -> None:
        """Sets what it is in the next step."""
        layers.increment(x=self._step, value=1, in_place=True)
        layers.array_write(state, array=self._array, i=self._step)


class StateCell:
    """The states of a decoder, and how each step computes them: `inputs` by name, None where a step gives them.

    A function decorated with `state_updater` reads the cell's inputs and states and sets its states. `out_state` names
    the state that is the result. Raises ValueError for states that are no InitState, and if none has that name.
    """

    def __init__(
        self, inputs: dict[str, Any], states: Mapping[str, InitState], out_state: str, name: str | None = None
    ):
        for state_name, state in states.items():
            if not isinstance(state, InitState):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f"the state {state_name} must be an InitState, not {type(state).__name__}")
        if out_state not in states:
            raise ValueError(f"out_state is {out_state!r}, the states are {', '.join(states)}")
        self.inputs = inputs
        self.names = list(states)
        self._now: dict[str, Any] = dict(states)
        self._kept: dict[str, dict[int, KeptState]] = {}
        self._out, self._decoder, self._entered = out_state, None, False
        self._updater: Callable[[StateCell], Any] | None = None

    _decoder: Decoder | None

    def enter(self, decoder: Decoder) -> None:
        """Belongs to a decoder from now on. Raises ValueError if it belongs to another one."""
        if self._decoder is not None:
            raise ValueError("the StateCell is in a decoder already")
        self._decoder, self._entered = decoder, False

    def leave(self, decoder: Decoder) -> None:
        """Belongs to no decoder any more. Raises ValueError if it did not belong to this one."""
        if self._decoder is not decoder:
            raise ValueError("the StateCell is not in this decoder")
        self._decoder, self._entered = None, False

    def _begin(self) -> None:
        """Takes the states that the decoder keeps, once in each decoder."""
        if self._decoder is None or self._entered:
            return
        for name in self.names:
            if name not in self._kept:
                state = self._now[name]
                if not isinstance(state, InitState):
                    raise ValueError(f"the state {name} is set before the decoder begins, it must be an InitState then")
                self._kept[name] = {id(self._decoder): self._decoder.kept(state)}
            self._now[name] = self._of_decoder(name).get_state()
        self._entered = True

    def _of_decoder(self, name: str) -> KeptState:
        kept = self._kept[name].get(id(self._decoder))
        if kept is None:
            raise ValueError(f"another decoder keeps the state {name}: each decoder needs a StateCell of its own")
        return kept

    def get_state(self, state_name: str) -> Any:
        """A state as it is now. Raises ValueError for an unknown name."""
        self._begin()
        if state_name not in self._now:
            raise ValueError(f"there is no state {state_name!r}; the states are {', '.join(self.names)}")
        return self._now[state_name]

    def get_input(self, input_name: str) -> Any:
        """An input of this step. Raises ValueError if there is none of the name, or none yet."""
        value = self.inputs.get(input_name)
        if value is None:
            raise ValueError(f"there is no input {input_name!r} in this step")
        return value

    def set_state(self, state_name: str, state_value: Any) -> None:
        """Changes a state within the step."""
        self._now[state_name] = state_value

    def state_updater(self, updater: Callable[[StateCell], Any]) -> Callable[[StateCell], None]:
        """Decorates the function that computes the states of a step from a cell."""
        self._updater = updater

        def apply(state_cell: StateCell) -> None:
            if state_cell is self:
                raise TypeError("compute_state calls the updater of its own cell")
            updater(state_cell)

        return apply

    def compute_state(self, inputs: Mapping[str, Any]) -> None:
        """Computes the states of a step from its inputs. Raises ValueError for inputs that the cell does not have."""
        self._begin()
        for name, value in inputs.items():
            if name not in self.inputs:
                raise ValueError(f"the cell has no input {name!r}; its inputs are {', '.join(self.inputs)}")
            self.inputs[name] = value
        if self._updater is None:
            raise ValueError("the StateCell has no function that computes its states: decorate one with state_updater")
        self._updater(self)

    def update_states(self) -> None:
        """Keeps the states for the next step."""
        self._begin()
        for name in self._kept:
            self._of_decoder(name).update_state(self._now[name])

    def out_state(self) -> Any:
        """The state that is the result."""
        return self._now[self._out]
