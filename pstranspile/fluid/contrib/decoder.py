"""Fluid's `contrib.decoder`: decoders of sequences that use the same cell for training and search."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from pstranspile.fluid import core, layers, unique_name
from pstranspile.fluid.framework import default_main_program
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.missing import names_of_fluid

# The states of a decoder from step to step, and the cell that computes them.


class InitState:
    """The value of a state in the first step: `init`, or `value` in the dims `shape`, with as many rows as `init_boot`.

    With `need_reorder` the rows are put in the order of a DynamicRNN's sequences. Raises ValueError without both `init`
    and `init_boot`.
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
        self._value, self._needs_reorder = init, need_reorder

    @property
    def value(self) -> Any:
        """The variable with the first value."""
        return self._value

    @property
    def need_reorder(self) -> bool:
        """Whether the rows are put in the order of a DynamicRNN's sequences."""
        return self._needs_reorder


class KeptState(Protocol):
    """A state that a decoder keeps from step to step."""

    def get_state(self) -> Any:
        """The state's variable in this step."""
        ...

    def update_state(self, state: Any) -> None:
        """Sets the state's value in the next step."""
        ...


class Decoder(Protocol):
    """The methods of a decoder that its cell calls."""

    def kept_state(self, state: InitState) -> KeptState:
        """The state that the decoder keeps from step to step, for its first value."""
        ...


class MemoryState:
    """A state that is a memory of a DynamicRNN."""

    def __init__(self, rnn: layers.DynamicRNN, state: InitState):
        self._rnn = rnn
        self._memory = rnn.memory(init=state.value, need_reorder=state.need_reorder)

    def get_state(self) -> Any:
        """The state's variable in this step."""
        return self._memory

    def update_state(self, state: Any) -> None:
        """Sets the state's value in the next step."""
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
        """The state's variable in this step."""
        return layers.array_read(array=self._array, i=self._step)

    def update_state(self, state: Any) -> None:
        """Sets the state's value in the next step."""
        layers.increment(x=self._step, value=1, in_place=True)
        layers.array_write(state, array=self._array, i=self._step)


class StateCell:
    """The states of a decoder, and how each step computes them; `inputs` has the cell's inputs by name, None for those
    that each step sets.

    A function decorated with `state_updater` reads the cell's inputs and states and sets its states. `out_state` is the
    name of the state that is the result. Raises ValueError for states that are not an InitState, and if no state has
    this name.
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
        self._states_by_decoder: dict[str, dict[int, KeptState]] = {}
        self._out, self._decoder, self._entered = out_state, None, False
        self._updater: Callable[[StateCell], Any] | None = None

    _decoder: Decoder | None

    def enter(self, decoder: Decoder) -> None:
        """Attaches the cell to a decoder. Raises ValueError if it is attached to one already."""
        if self._decoder is not None:
            raise ValueError("the StateCell is in a decoder already")
        self._decoder, self._entered = decoder, False

    def leave(self, decoder: Decoder) -> None:
        """Detaches the cell from a decoder. Raises ValueError if it is not attached to this one."""
        if self._decoder is not decoder:
            raise ValueError("the StateCell is not in this decoder")
        self._decoder, self._entered = None, False

    def _begin(self) -> None:
        """Fetches the states that the decoder keeps, at the first use in each decoder."""
        if self._decoder is None or self._entered:
            return
        for name in self.names:
            if name not in self._states_by_decoder:
                state = self._now[name]
                if not isinstance(state, InitState):
                    raise ValueError(f"the state {name} is set before the decoder begins, it must be an InitState then")
                self._states_by_decoder[name] = {id(self._decoder): self._decoder.kept_state(state)}
            self._now[name] = self._of_decoder(name).get_state()
        self._entered = True

    def _of_decoder(self, name: str) -> KeptState:
        kept = self._states_by_decoder[name].get(id(self._decoder))
        if kept is None:
            raise ValueError(f"another decoder keeps the state {name}: each decoder needs a StateCell of its own")
        return kept

    def get_state(self, state_name: str) -> Any:
        """The present value of a state. Raises ValueError for an unknown name."""
        self._begin()
        if state_name not in self._now:
            raise ValueError(f"there is no state {state_name!r}; the states are {', '.join(self.names)}")
        return self._now[state_name]

    def get_input(self, input_name: str) -> Any:
        """An input of this step. Raises ValueError for an unknown name, and for an input that is not set."""
        value = self.inputs.get(input_name)
        if value is None:
            raise ValueError(f"there is no input {input_name!r} in this step")
        return value

    def set_state(self, state_name: str, state_value: Any) -> None:
        """Sets a state within the step."""
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
        """Computes the states of a step from its inputs. Raises ValueError for unknown inputs."""
        self._begin()
        for name, value in inputs.items():
            if name not in self.inputs:
                raise ValueError(f"the cell has no input {name!r}; its inputs are {', '.join(self.inputs)}")
            self.inputs[name] = value
        if self._updater is None:
            raise ValueError("the StateCell has no function that computes its states: decorate one with state_updater")
        self._updater(self)

    def update_states(self) -> None:
        """Passes the states to the next step."""
        self._begin()
        for name in self._states_by_decoder:
            self._of_decoder(name).update_state(self._now[name])

    def out_state(self) -> Any:
        """The state that is the result."""
        return self._now[self._out]


class _Stage:
    """The stage of a decoder: before, within or after its block."""

    def __init__(self, kind: str):
        self.kind = kind
        self._within: bool | None = None

    def require_within(self, method: str) -> None:
        """Raises ValueError outside of the block."""
        if not self._within:
            raise ValueError(f"{self.kind}.{method} must be called within its block")

    def require_after(self) -> None:
        """Raises ValueError before the end of the block."""
        if self._within is not False:
            raise ValueError(f"the results of a {self.kind} are there after its block")

    @contextmanager
    def in_block(self) -> Generator[None]:
        """A context manager for the block. Raises ValueError for a second one."""
        if self._within is not None:
            raise ValueError(f"a {self.kind} has one block")
        self._within = True
        yield
        self._within = False


class TrainingDecoder:
    """Decodes known sequences, step by step, with a DynamicRNN."""

    def __init__(self, state_cell: StateCell, name: str | None = None):
        self._stage = _Stage("TrainingDecoder")
        self._rnn = layers.DynamicRNN()
        self._cell = state_cell
        state_cell.enter(self)

    @contextmanager
    def block(self) -> Generator[None]:
        """A context manager for the ops of each step."""
        with self._stage.in_block(), self._rnn.block():
            yield
        self._cell.leave(self)

    def kept_state(self, state: InitState) -> KeptState:
        """A state that is a memory of the DynamicRNN."""
        return MemoryState(self._rnn, state)

    @property
    def state_cell(self) -> StateCell:
        """The cell, which is only available within the block."""
        self._stage.require_within("state_cell")
        return self._cell

    @property
    def dynamic_rnn(self) -> layers.DynamicRNN:
        """The decoder's DynamicRNN."""
        return self._rnn

    def step_input(self, x: Any) -> Any:
        """The rows of the sequences x in this step."""
        self._stage.require_within("step_input")
        return self._rnn.step_input(x)

    def static_input(self, x: Any) -> Any:
        """The whole x in every step, for the sequences that have not ended."""
        self._stage.require_within("static_input")
        return self._rnn.static_input(x)

    def output(self, *outputs: Any) -> None:
        """Adds variables of this step to the results."""
        self._stage.require_within("output")
        self._rnn.output(*outputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results of all steps."""
        self._stage.require_after()
        return self._rnn(*args, **kwargs)


class BeamSearchDecoder:
    """Finds the most probable sequences of at most `max_len` words, `beam_size` at a time; each ends with the word
    `end_id`.

    They begin with `init_ids` and `init_scores`. Words from a dictionary of `target_dict_dim` have embeddings of
    `word_dim` numbers; each step considers the `topk_size` best words. `input_var_dict` has inputs of the cell that
    stay the same.
    """

    def __init__(
        self,
        state_cell: StateCell,
        init_ids: Any,
        init_scores: Any,
        target_dict_dim: int,
        word_dim: int,
        input_var_dict: Mapping[str, Any] | None = None,
        topk_size: int = 50,
        sparse_emb: bool = True,
        max_len: int = 100,
        beam_size: int = 1,
        end_id: int = 1,
        name: str | None = None,
    ):
        self._stage = _Stage("BeamSearchDecoder")
        self._step = layers.zeros(shape=[1], dtype="int64")
        self._step.stop_gradient = True
        self._steps = layers.fill_constant(shape=[1], dtype="int64", value=max_len)
        limit = layers.fill_constant(shape=[1], dtype="int64", value=max_len)
        self._goes_on = layers.less_than(x=self._step, y=limit)
        self._loop = layers.While(self._goes_on)
        self._cell = state_cell
        state_cell.enter(self)
        self._first = layers.fill_constant(shape=[1], value=0, dtype="int64", force_cpu=True)
        self._arrays: dict[str, Any] = {}
        self._next: list[tuple[Any, Any]] = []
        self._ids: Any = None
        self._scores: Any = None
        self._begins = init_ids, init_scores
        self._words, self._width, self._looked_at, self._sparse = target_dict_dim, word_dim, topk_size, sparse_emb
        self._beam, self._end, self._fixed = beam_size, end_id, dict(input_var_dict or {})

    @contextmanager
    def block(self) -> Generator[None]:
        """A context manager for the ops of each step."""
        with self._stage.in_block(), self._loop.block():
            yield
            with layers.Switch() as switch, switch.case(self._goes_on):
                layers.increment(x=self._step, value=1.0, in_place=True)
                for value, array in self._next:
                    layers.array_write(x=value, i=self._step, array=array)
                layers.less_than(x=self._step, y=self._steps, cond=self._goes_on)
        self._cell.leave(self)

    def kept_state(self, state: InitState) -> KeptState:
        """A state with an element for each step."""
        return ArrayState(self._around(), state)

    def _around(self) -> Any:
        """The block around the loop. Raises ValueError outside of a loop."""
        program = default_main_program()
        index = program.current_block().parent_idx
        if index < 0:
            raise ValueError("a BeamSearchDecoder reads its arrays within its block")
        return program.block(index)

    @property
    def state_cell(self) -> StateCell:
        """The cell, within the block."""
        self._stage.require_within("state_cell")
        return self._cell

    def early_stop(self) -> None:
        """Makes this step the last one."""
        layers.fill_constant(shape=[1], value=0, dtype="bool", force_cpu=True, out=self._goes_on)

    def decode(self) -> None:
        """Adds the usual block: the cell's state determines each word's probability, and beams continue with the best
        words.
        """
        with self.block():
            ids = self.read_array(init=self._begins[0], is_ids=True)
            scores = self.read_array(init=self._begins[1], is_scores=True)
            words = layers.embedding(
                input=ids, size=[self._words, self._width], dtype="float32", is_sparse=self._sparse
            )
            fed, fixed = self._of_beams(scores)
            fed |= {name: words for name in self._cell.inputs if name not in fed}
            self._cell.compute_state(inputs=fed)
            state = layers.lod_reset(x=self._cell.out_state(), y=scores)
            chances = layers.fc(input=state, size=self._words, act="softmax")
            best, places = layers.topk(chances, k=self._looked_at)
            total = layers.elementwise_add(x=layers.log(x=best), y=layers.reshape(scores, shape=[-1]), axis=0)
            chosen, chosen_scores = layers.beam_search(
                ids, scores, places, total, self._beam, end_id=self._end, level=0
            )
            with layers.Switch() as switch:
                with switch.case(layers.is_empty(chosen)):
                    self.early_stop()
                with switch.default():
                    self._cell.update_states()
                    self.update_array(ids, chosen)
                    self.update_array(scores, chosen_scores)
                    for name, value in fixed.items():
                        self.update_array(value, fed[name])

    def _of_beams(self, scores: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The constant inputs, by name, repeated for each beam and as they were read; also repeats the rows of the
        cell's states for each beam.
        """
        fed: dict[str, Any] = {}
        fixed: dict[str, Any] = {}
        for name, value in self._fixed.items():
            if name not in self._cell.inputs:
                raise ValueError(f"the StateCell has no input {name!r}; its inputs are {', '.join(self._cell.inputs)}")
            fixed[name] = self.read_array(init=value)
            fed[name] = layers.sequence_expand(fixed[name], scores)
        for name in self._cell.names:
            self._cell.set_state(name, layers.sequence_expand(self._cell.get_state(name), scores))
        return fed, fixed

    def read_array(self, init: Any, is_ids: bool = False, is_scores: bool = False) -> Any:
        """A variable that is `init` in the first step, and then the value that `update_array` set in the step before.

        `is_ids` and `is_scores` mark the variables from which the results are made. Raises ValueError for both at once,
        TypeError for an `init` that is not a variable.
        """
        self._stage.require_within("read_array")
        if is_ids and is_scores:
            raise ValueError("an array can't hold ids and scores")
        if not isinstance(init, Variable):
            raise TypeError(f"init must be a Variable, not {type(init).__name__}")
        block = self._around()
        array = block.create_var(
            name=unique_name.generate("beam_search_decoder_array"),
            type=core.VarDesc.VarType.LOD_TENSOR_ARRAY,
            dtype=init.dtype,
        )
        block.append_op(type="write_to_array", inputs={"X": init, "I": self._first}, outputs={"Out": array})
        if is_ids:
            self._ids = array
        elif is_scores:
            self._scores = array
        value = layers.array_read(array=array, i=self._step)
        self._arrays[value.name] = array
        return value

    def update_array(self, array: Any, value: Any) -> None:
        """Sets the value of a variable of `read_array` in the next step. Raises ValueError for other variables."""
        self._stage.require_within("update_array")
        for name, given in (("array", array), ("value", value)):
            if not isinstance(given, Variable):
                raise TypeError(f"{name} must be a Variable, not {type(given).__name__}")
        held = self._arrays.get(array.name)
        if held is None:
            raise ValueError(f"%{array.name} was not read with read_array")
        self._next.append((value, held))

    def __call__(self) -> Any:
        """The sequences found, and their scores."""
        self._stage.require_after()
        return layers.beam_search_decode(ids=self._ids, scores=self._scores, beam_size=self._beam, end_id=self._end)


__getattr__ = names_of_fluid(__name__, globals())
