"""Fluid's `layers.rnn`: cells of recurrent networks, networks of cells, decoders, and beam search."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from pstranspile.fluid.graph.values import VarType, dtype_of, numpy_name, several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.layers import control_flow, nn, ops, sequence_lod, tensor
from pstranspile.fluid.layers.adapt import (
    adapt,
    check_kind,
    check_variable,
    every,
    live,
    made_by,
    one_op,
    with_argument_checks,
)
from pstranspile.fluid.layers.control_flow import StaticRNN
from pstranspile.fluid.layers.objects import BasicGRUUnit, BasicLSTMUnit, kept_where
from pstranspile.fluid.layers.utils import (
    assert_same_structure,
    copy_structure,
    flatten,
    map_leaves,
    pack_sequence_as,
    pairwise,
)
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.layers import sequence
from pstranspile.ir.types import DType

FLOATS = ("float32", "float64")


def steps_first(x: Any) -> Any:
    """x with its first two dims exchanged: [batch, steps, ...] to [steps, batch, ...] and back."""
    return nn.transpose(x, [1, 0, *range(2, len(x.shape))])


class RNNCell:
    """One step of a recurrent network; a script's own cells define `call`, and `state_shape` if states may start as
    zeros.
    """

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """The outputs and the new states, which are nested like `states`. Raises NotImplementedError if a cell does not
        define it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define call(inputs, states)")

    def __call__(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """Computes one step; the same as `call`."""
        return self.call(inputs, states, **kwargs)

    @property
    def state_shape(self) -> Any:
        """The dims of the states without the batch, nested like the states."""
        raise NotImplementedError(f"{type(self).__name__} must define state_shape, or its states must be given")

    @property
    def state_dtype(self) -> Any:
        """The element types of the states."""
        raise NotImplementedError(f"{type(self).__name__} must define state_dtype, or dtype must be given")

    def get_initial_states(
        self, batch_ref: Any, shape: Any = None, dtype: Any = "float32", init_value: float = 0, batch_dim_idx: int = 0
    ) -> Any:
        """States of `shape` (by default the cell's) filled with a value, with as many rows as `batch_ref`."""
        like = flatten(batch_ref)[0]
        check_variable("RNNCell", "batch_ref", like, (*FLOATS, "int32", "int64"))
        shapes = self.state_shape if shape is None else shape
        kinds = self._state_dtypes() if dtype is None else dtype
        if _is_dims(shapes):
            return self._constant_state(like, shapes, flatten(kinds)[0], init_value, batch_dim_idx)
        parts: dict[Any, Any] | list[Any] = shapes
        each = kinds if several(kinds) and len(kinds) == len(parts) else [kinds] * len(parts)

        def part(dims: Any, kind: Any) -> Any:
            return self.get_initial_states(like, dims, kind, init_value, batch_dim_idx)

        if isinstance(parts, dict):
            return {key: part(parts[key], kind) for key, kind in zip(sorted(parts), each, strict=True)}
        return type(parts)(part(dims, kind) for dims, kind in zip(parts, each, strict=True))

    def _state_dtypes(self) -> Any:
        try:
            return self.state_dtype
        except NotImplementedError:
            return "float32"

    @staticmethod
    def _constant_state(like: Any, dims: Any, dtype: Any, value: float, batch_dim: int) -> Any:
        if dtype_of(dtype) not in (DType.FP32, DType.FP64):
            raise TypeError(f"RNNCell: dtype must be float32 or float64, not {dtype}")
        shape = [dims] if isinstance(dims, int) else list(dims)
        shape = shape if shape[0] == -1 else [-1, *shape]
        return tensor.fill_constant_batch_size_like(
            input=like, shape=shape, dtype=dtype, value=value, input_dim_idx=batch_dim
        )


def _is_dims(shape: Any) -> bool:
    return isinstance(shape, int) or (several(shape) and all(isinstance(dim, int) for dim in shape))


def _check_cell(name: str, hidden_size: Any, dtype: Any) -> None:
    check_kind(name, "hidden_size", hidden_size, ("int",))
    if dtype_of(dtype) not in (DType.FP32, DType.FP64):
        raise TypeError(f"{name}: dtype must be float32 or float64, not {dtype}")


class GRUCell(RNNCell):
    """A gated recurrent unit; its state and its output are the hidden state [batch, hidden_size]."""

    def __init__(
        self,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Any = None,
        activation: Any = None,
        dtype: Any = "float32",
        name: str = "GRUCell",
    ):
        _check_cell("GRUCell", hidden_size, dtype)
        self.hidden_size = hidden_size
        self.gru_unit = BasicGRUUnit(name, hidden_size, param_attr, bias_attr, gate_activation, activation, dtype)

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """The new hidden state twice: as the output and as the state."""
        check_variable("GRUCell", "inputs", inputs, FLOATS)
        check_variable("GRUCell", "states", states, FLOATS)
        hidden = self.gru_unit(inputs, states)
        return hidden, hidden

    @property
    def state_shape(self) -> Any:
        """The dims of the hidden state."""
        return [self.hidden_size]


class LSTMCell(RNNCell):
    """An LSTM; its state is a list of the hidden state and the cell, each [batch, hidden_size]."""

    def __init__(
        self,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Any = None,
        activation: Any = None,
        forget_bias: float = 1.0,
        dtype: Any = "float32",
        name: str = "LSTMCell",
    ):
        _check_cell("LSTMCell", hidden_size, dtype)
        self.hidden_size = hidden_size
        functions = gate_activation, activation
        self.lstm_unit = BasicLSTMUnit(name, hidden_size, param_attr, bias_attr, *functions, forget_bias, dtype)

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """The new hidden state as the output, and the list of the new hidden state and the new cell."""
        check_variable("LSTMCell", "inputs", inputs, FLOATS)
        check_kind("LSTMCell", "states", states, ("list",))
        for state in states:
            check_variable("LSTMCell", "each of states", state, FLOATS)
        hidden, cell = self.lstm_unit(inputs, *states)
        return hidden, [hidden, cell]

    @property
    def state_shape(self) -> Any:
        """The dims of the hidden state and of the cell."""
        return [[self.hidden_size], [self.hidden_size]]


def _check_inputs(inputs: Any, initial_states: Any, sequence_length: Any) -> None:
    for input in inputs if several(inputs) else [inputs]:
        check_variable("rnn", "inputs", input, FLOATS)
    for state in flatten(initial_states):
        check_kind("rnn", "initial_states", state, ("Variable", "NoneType"))
    check_kind("rnn", "sequence_length", sequence_length, ("Variable", "NoneType"))


def _with_gradient(x: Variable) -> Variable:
    x.stop_gradient = False
    return x


def _reverse_steps(x: Any) -> Any:
    return tensor.reverse(x, axis=[0])


@with_argument_checks
def rnn(
    cell: Any,
    inputs: Any,
    initial_states: Any = None,
    sequence_length: Any = None,
    time_major: bool = False,
    is_reverse: bool = False,
    **kwargs: Any,
) -> Any:
    """A network of one cell over padded sequences [batch, steps, ...]; returns its outputs and its last states.

    Steps beyond a row's `sequence_length` leave its states unchanged. `kwargs` are passed to the cell.
    """
    _check_inputs(inputs, initial_states, sequence_length)
    if initial_states is None:
        initial_states = cell.get_initial_states(batch_ref=inputs, batch_dim_idx=1 if time_major else 0)
    initial_states = map_leaves(_with_gradient, initial_states)
    steps = inputs if time_major else map_leaves(steps_first, inputs)
    mask = None
    if sequence_length is not None:
        longest = nn.shape(flatten(steps)[0])[0]
        kind = flatten(initial_states)[0].dtype
        mask = nn.transpose(sequence_lod.sequence_mask(sequence_length, maxlen=longest, dtype=kind), [1, 0])
    if is_reverse:
        steps, mask = map_leaves(_reverse_steps, steps), None if mask is None else _reverse_steps(mask)
    outputs, states = _over_steps(cell, steps, initial_states, mask, kwargs)
    if is_reverse:
        outputs = map_leaves(_reverse_steps, outputs)
    return outputs if time_major else map_leaves(steps_first, outputs), states


def _over_steps(cell: Any, steps: Any, initial_states: Any, mask: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """The outputs of the cell in every step, and its last states."""
    network = StaticRNN()
    with network.step():
        step = map_leaves(network.step_input, steps)
        before = map_leaves(network.memory, initial_states)
        outputs, after = cell.call(step, copy_structure(before), **options)  # a cell may change lists and dicts
        assert_same_structure(before, after)
        if mask is not None:
            row_mask = network.step_input(mask)
            after = pairwise(lambda old, new: kept_where(new, old, row_mask), before, after)
        pairwise(network.update_memory, before, after)
        map_leaves(network.step_output, outputs)
        map_leaves(network.step_output, after)
    made = network()
    given: list[Any] = [*made] if several(made) else [made]
    count = len(flatten(outputs))
    last = [state[-1] for state in given[count:]]
    return pack_sequence_as(outputs, given[:count]), pack_sequence_as(after, last)


_LEAST = 1e9
"""The size of the negative score that excludes a choice."""


class Decoder:
    """A decoder whose steps `dynamic_decode` repeats; a script's own decoders define these methods."""

    def initialize(self, inits: Any) -> Any:
        """The first inputs, the first states, and which rows are finished."""
        raise NotImplementedError(f"{type(self).__name__} must define initialize(inits)")

    def step(self, time: Any, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """The outputs, the next states, the next inputs, and which rows are finished."""
        raise NotImplementedError(f"{type(self).__name__} must define step(time, inputs, states)")

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Any) -> Any:
        """The results of decoding, computed from the outputs of all steps and the last states. A decoder need not
        define it.
        """
        raise NotImplementedError(f"{type(self).__name__} doesn't define finalize")


class BeamOutputs(NamedTuple):
    """The choices of a step of a beam search, each [batch, beams]."""

    scores: Any
    predicted_ids: Any
    parent_ids: Any


class BeamStates(NamedTuple):
    """The states that a beam search passes from step to step."""

    cell_states: Any
    log_probs: Any
    finished: Any
    lengths: Any


class BeamSearchDecoder(Decoder):
    """A search for the most probable sentences: each step keeps the best `beam_size` continuations of every row."""

    OutputWrapper = BeamOutputs
    StateWrapper = BeamStates

    def __init__(
        self,
        cell: Any,
        start_token: int,
        end_token: int,
        beam_size: int,
        embedding_fn: Callable[..., Any] | None = None,
        output_fn: Callable[..., Any] | None = None,
    ):
        self.cell, self.embedding_fn, self.output_fn = cell, embedding_fn, output_fn
        self.start_token, self.end_token, self.beam_size = start_token, end_token, beam_size

    @staticmethod
    def tile_beam_merge_with_batch(x: Any, beam_size: int) -> Any:
        """Every row [batch, ...] repeated for each beam, [batch * beams, ...]."""
        tiled = _repeat_for_beams(x, beam_size)
        rank = len(tiled.shape)
        moved = nn.transpose(tiled, [*range(2, rank), 0, 1])
        merged = nn.reshape(moved, shape=[0] * (rank - 2) + [-1])
        return nn.transpose(merged, [rank - 2, *range(rank - 2)])

    def _split(self, x: Any) -> Any:
        """Reshapes [batch * beams, ...] to [batch, beams, ...]."""
        return nn.reshape(x, shape=[-1, self.beam_size, *x.shape[1:]])

    def _merge(self, x: Any) -> Any:
        """Reshapes [batch, beams, ...] to [batch * beams, ...]."""
        return nn.reshape(x, shape=[-1, *x.shape[2:]])

    def _mask_finished(self, scores: Any, finished: Any, vocabulary: int, only_end: Any) -> Any:
        """The scores, which in finished beams allow nothing but another end token."""
        done = tensor.cast(finished, dtype=scores.dtype)
        wide = nn.expand(nn.unsqueeze(done, [2]), [1, 1, vocabulary])
        return nn.elementwise_mul(wide, only_end, axis=-1) - nn.elementwise_mul(scores, done - 1, axis=0)

    def _gather_beams(self, x: Any, indices: Any) -> Any:
        """For each row of the batch, the elements of x at the given beams."""
        rows = self.batch_size
        if rows.dtype != indices.dtype:
            rows = tensor.cast(rows, indices.dtype)
        rows.stop_gradient = True
        numbered = nn.unsqueeze(tensor.range(0, rows, 1, dtype=indices.dtype), [1])
        places = nn.stack([nn.expand(numbered, [1, self.beam_size]), indices], axis=2)
        places.stop_gradient = True
        return nn.gather_nd(x, places)

    def initialize(self, inits: Any) -> Any:
        """The first inputs and states: every beam begins with the start token, and all but the first beam of a row are
        excluded by their scores.
        """
        state = flatten(inits)[0]
        self.batch_size = nn.shape(state)[0]
        start = tensor.fill_constant(shape=[1], dtype="int64", value=self.start_token)
        self.end_token_tensor = tensor.fill_constant(shape=[1], dtype="int64", value=self.end_token)
        cell_states = map_leaves(lambda x: _repeat_for_beams(x, self.beam_size), inits)
        ids = nn.expand(nn.unsqueeze(nn.expand(start, [self.batch_size]), [1]), [1, self.beam_size])
        one_row = np.array([[0.0] + [-_LEAST] * (self.beam_size - 1)], dtype="float32")
        log_probs = nn.expand(tensor.assign(one_row), [self.batch_size, 1])
        finished = tensor.fill_constant_batch_size_like(
            input=state, shape=[-1, self.beam_size], dtype="bool", value=False, force_cpu=True
        )
        lengths = tensor.zeros_like(ids)
        return self._inputs(ids), BeamStates(cell_states, log_probs, finished, lengths), finished

    def _inputs(self, ids: Any) -> Any:
        return self.embedding_fn(ids) if self.embedding_fn else ids

    def _best_continuations(self, logits: Any, cell_states: Any, before: Any) -> tuple[BeamOutputs, BeamStates]:
        """The best continuations over all beams of a row, and the states after them."""
        vocabulary = int(logits.shape[-1])
        width = tensor.fill_constant(shape=[1], dtype="int64", value=vocabulary)
        only_end = np.full(vocabulary, -_LEAST, "float32")
        only_end[self.end_token] = 0
        end_scores = tensor.assign(only_end)
        step = self._mask_finished(ops.log(nn.softmax(logits)), before.finished, vocabulary, end_scores)
        whole = nn.elementwise_add(x=step, y=before.log_probs, axis=0)
        flat = [-1, self.beam_size * vocabulary]
        scores, places = nn.topk(input=nn.reshape(whole, flat), k=self.beam_size)
        beams, ids = nn.elementwise_floordiv(places, width), nn.elementwise_mod(places, width)
        log_probs = self._gather_beams(nn.reshape(whole, flat), places)
        kept = map_leaves(lambda x: self._gather_beams(x, beams), cell_states)
        finished = self._gather_beams(before.finished, beams)
        lengths = self._gather_beams(before.lengths, beams)
        lengths = lengths + tensor.cast(nn.logical_not(finished), before.lengths.dtype)
        finished = nn.logical_or(finished, control_flow.equal(ids, self.end_token_tensor))
        return BeamOutputs(scores, ids, beams), BeamStates(kept, log_probs, finished, lengths)

    def step(self, time: Any, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """Runs one step of the cell for all beams, and chooses the best continuations."""
        merged = map_leaves(self._merge, inputs)
        outputs, cell_states = self.cell(merged, map_leaves(self._merge, states.cell_states), **kwargs)
        outputs, cell_states = map_leaves(self._split, outputs), map_leaves(self._split, cell_states)
        if self.output_fn is not None:
            outputs = self.output_fn(outputs)
        chosen, after = self._best_continuations(outputs, cell_states, states)
        chosen.predicted_ids.stop_gradient = True
        return chosen, after, self._inputs(chosen.predicted_ids), after.finished

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Any) -> Any:
        """The sentences, traced back from their ends to the first step, and the last states."""
        return nn.gather_tree(outputs.predicted_ids, outputs.parent_ids), final_states


def _repeat_for_beams(x: Any, beam_size: int) -> Any:
    """Repeats the rows of [batch, ...] for every beam: [batch, beams, ...]."""
    wide = nn.unsqueeze(x, [1])
    return nn.expand(wide, [1, beam_size] + [1] * (len(wide.shape) - 2))


def _unless_finished(before: Any, after: Any, finished: Any) -> Any:
    """`before` in the rows that are finished, `after` in the other rows."""
    kind = before.dtype
    if numpy_name(kind) == "bool":
        before, after = tensor.cast(before, "float32"), tensor.cast(after, "float32")
    mask = finished
    if mask.dtype != before.dtype:
        mask = tensor.cast(mask, dtype=before.dtype)
        mask.stop_gradient = True
    made = nn.elementwise_mul(before, mask, axis=0) - nn.elementwise_mul(after, mask - 1, axis=0)
    return tensor.cast(made, dtype=kind) if numpy_name(kind) == "bool" else made


class _CarriedValues:
    """Values that a loop passes from step to step: overwritten in inference, kept for every step in training, where the
    gradient needs them.
    """

    def __init__(self, first: Any, time: Any, is_test: bool):
        self._first, self._time, self._is_test = first, time, is_test
        self._arrays = None if is_test else map_leaves(lambda x: control_flow.array_write(x, time), first)

    def current_values(self) -> Any:
        """The values in the present step; after the loop, the last values."""
        if self._is_test:
            return self._first
        return map_leaves(lambda array: control_flow.array_read(array, self._time), self._arrays)

    def hand_on(self, values: Any) -> None:
        """Sets the values of the step that the counter now has."""
        if self._is_test:
            pairwise(tensor.assign, values, self._first)
        else:
            write_all(values, self._arrays, self._time)


def write_all(values: Any, arrays: Any, index: Any) -> None:
    """Writes each value into its array."""
    pairwise(lambda x, array: control_flow.array_write(x, i=index, array=array), values, arrays)


def dynamic_decode(
    decoder: Any,
    inits: Any = None,
    max_step_num: int | None = None,
    output_time_major: bool = False,
    impute_finished: bool = False,
    is_test: bool = False,
    return_length: bool = False,
    **kwargs: Any,
) -> Any:
    """Repeats `decoder.step` until all rows are finished, or for `max_step_num` steps; returns the outputs and the last
    states.

    With `impute_finished` the states of finished rows stay unchanged; with `return_length` the lengths are returned
    too.
    """
    first_inputs, first_states, finished = decoder.initialize(inits)
    finished.stop_gradient = True
    time = tensor.fill_constant(shape=[1], dtype="int64", value=0)
    condition = nn.logical_not(nn.reduce_all(finished))
    limit = None if max_step_num is None else tensor.fill_constant(shape=[1], dtype="int64", value=max_step_num)
    loop = control_flow.While(condition, is_test=is_test)
    lengths = tensor.cast(tensor.zeros_like(finished), "int64")
    lengths.stop_gradient = True
    inputs, states = _CarriedValues(first_inputs, time, is_test), _CarriedValues(first_states, time, is_test)
    draft = live()
    outside = draft.current
    with loop.block():
        given, before = inputs.current_values(), states.current_values()
        outputs, after, next_inputs, done = decoder.step(time, given, before, **kwargs)
        done = nn.logical_or(done, finished)
        longer = nn.elementwise_add(lengths, tensor.cast(nn.logical_not(finished), lengths.dtype))
        if impute_finished:
            after = pairwise(lambda old, new: _unless_finished(old, new, finished), before, after)
        with draft.enter_block(outside):
            arrays = map_leaves(lambda x: control_flow.create_array(x.dtype), outputs)
        write_all(outputs, arrays, time)
        control_flow.increment(x=time, value=1.0, in_place=True)
        inputs.hand_on(next_inputs)
        states.hand_on(after)
        tensor.assign(done, finished)
        tensor.assign(longer, lengths)
        if limit is None:
            nn.logical_not(nn.reduce_all(finished), condition)
        else:
            going = nn.logical_not(nn.reduce_all(finished))
            nn.logical_and(going, control_flow.less_equal(time, limit), condition)
    made = map_leaves(lambda array: tensor.tensor_array_to_tensor(array, axis=0, use_stack=True)[0], arrays)
    last = states.current_values()
    with suppress(NotImplementedError):  # a decoder need not define it
        made, last = decoder.finalize(made, last, lengths)
    if not output_time_major:
        made = map_leaves(steps_first, made)
    return (made, last, lengths) if return_length else (made, last)


# Helpers choose the next input of a decoder's cell: the true one, the cell's own best guess, or a random draw.


class DecodeHelper:
    """A helper that `BasicDecoder` calls between steps; a script's own helpers define these methods."""

    def initialize(self) -> Any:
        """The first inputs, and which rows are finished."""

    def sample(self, time: Any, outputs: Any, states: Any) -> Any:
        """The ids chosen from the outputs."""

    def next_inputs(self, time: Any, outputs: Any, states: Any, sample_ids: Any) -> Any:
        """The rows that are finished, the next inputs, and the next states."""


class TrainingHelper(DecodeHelper):
    """Uses the true sequences [batch, steps, ...] as inputs (teacher forcing)."""

    def __init__(self, inputs: Any, sequence_length: Any, time_major: bool = False):
        self.inputs, self.sequence_length, self.time_major = inputs, sequence_length, time_major
        ahead = [] if time_major else [0, 0]

        def one_more(x: Any) -> Any:
            return nn.pad(x, paddings=[*ahead, 0, 1] + [0, 0] * (len(x.shape) - len(ahead) // 2 - 1))

        self.inputs_ = map_leaves(one_more, inputs)  # decoding reads the step after the last, and ignores it

    def initialize(self) -> Any:
        """The first step of every sequence; empty ones are finished."""
        none = tensor.fill_constant(shape=[1], dtype=self.sequence_length.dtype, value=0)
        finished = control_flow.equal(self.sequence_length, none)
        return map_leaves(lambda x: x[0] if self.time_major else x[:, 0], self.inputs), finished

    def sample(self, time: Any, outputs: Any, states: Any) -> Any:
        """The ids with the highest scores."""
        return tensor.argmax(outputs, axis=-1)

    def next_inputs(self, time: Any, outputs: Any, states: Any, sample_ids: Any) -> Any:
        """The next step of the sequences; those without another step are finished."""
        if numpy_name(time.dtype) != "int32":
            time = tensor.cast(time, "int32")
        if self.sequence_length.dtype != time.dtype:
            self.sequence_length = tensor.cast(self.sequence_length, time.dtype)
        following = time + 1
        finished = control_flow.less_equal(self.sequence_length, following)
        axes = [0 if self.time_major else 1]

        def part(x: Any) -> Any:
            return nn.squeeze(nn.slice(x, axes=axes, starts=[following], ends=[following + 1]), axes=axes)

        return finished, map_leaves(part, self.inputs_), states


class GreedyEmbeddingHelper(DecodeHelper):
    """Uses the embedding of the most probable id as the next input."""

    def __init__(self, embedding_fn: Callable[..., Any], start_tokens: Any, end_token: int):
        self.embedding_fn, self.start_tokens = embedding_fn, start_tokens
        self.end_token = tensor.fill_constant(shape=[1], dtype="int64", value=end_token)

    def initialize(self) -> Any:
        """The embeddings of the start tokens; no row is finished."""
        finished = tensor.fill_constant_batch_size_like(
            input=self.start_tokens, shape=[-1], dtype="bool", value=False, force_cpu=True
        )
        return self.embedding_fn(self.start_tokens), finished

    def sample(self, time: Any, outputs: Any, states: Any) -> Any:
        """The ids with the highest scores."""
        return tensor.argmax(outputs, axis=-1)

    def next_inputs(self, time: Any, outputs: Any, states: Any, sample_ids: Any) -> Any:
        """The embeddings of the ids; rows whose id is the end token are finished."""
        return control_flow.equal(sample_ids, self.end_token), self.embedding_fn(sample_ids), states


class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """Uses the embedding of an id drawn by its probability as the next input."""

    def __init__(
        self,
        embedding_fn: Callable[..., Any],
        start_tokens: Any,
        end_token: int,
        softmax_temperature: float | None = None,
        seed: int | None = None,
    ):
        super().__init__(embedding_fn, start_tokens, end_token)
        self.seed = seed
        self.softmax_temperature: Any = None
        if softmax_temperature is not None:
            self.softmax_temperature = tensor.fill_constant(shape=[1], dtype="float32", value=softmax_temperature)

    def sample(self, time: Any, outputs: Any, states: Any) -> Any:
        """Ids drawn by the softmax of the outputs divided by the temperature."""
        divided = outputs if self.softmax_temperature is None else outputs / self.softmax_temperature
        likely = nn.softmax(divided)
        likely.stop_gradient = True
        return nn.sampling_id(likely, seed=self.seed or 0, dtype=self.start_tokens.dtype)


class DecoderOutputs(NamedTuple):
    """The results of a step of a `BasicDecoder`."""

    cell_outputs: Any
    sample_ids: Any


class BasicDecoder(Decoder):
    """A cell, a helper that chooses its next input, and an optional layer between the two."""

    OutputWrapper = DecoderOutputs

    def __init__(self, cell: Any, helper: Any, output_fn: Callable[..., Any] | None = None):
        self.cell, self.helper, self.output_fn = cell, helper, output_fn

    def initialize(self, inits: Any) -> Any:
        """The helper's first inputs, and the cell's first states."""
        inputs, finished = self.helper.initialize()
        return inputs, inits, finished

    def step(self, time: Any, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """Runs one step of the cell, and lets the helper choose ids and the next inputs."""
        outputs, after = self.cell(inputs, states, **kwargs)
        if self.output_fn is not None:
            outputs = self.output_fn(outputs)
        ids = self.helper.sample(time=time, outputs=outputs, states=after)
        ids.stop_gradient = True
        finished, following, after = self.helper.next_inputs(time=time, outputs=outputs, states=after, sample_ids=ids)
        return DecoderOutputs(outputs, ids), after, following, finished


_GATES = "gate_activation='sigmoid', cell_activation='tanh', candidate_activation='tanh'"

dynamic_lstm = adapt(
    sequence.dynamic_lstm,
    "input, size, h_0=None, c_0=None, param_attr=None, bias_attr=None, use_peepholes=True, is_reverse=False, "
    f"{_GATES}, dtype='float32', name=None",
    x="input",
)
dynamic_gru = adapt(
    sequence.dynamic_gru,
    "input, size, param_attr=None, bias_attr=None, is_reverse=False, gate_activation='sigmoid', "
    "candidate_activation='tanh', h_0=None, origin_mode=False",
    x="input",
)
gru_unit = adapt(
    sequence.gru_unit,
    "input, hidden, size, param_attr=None, bias_attr=None, activation='tanh', gate_activation='sigmoid', "
    "origin_mode=False",
    x="input",
)
lstm_unit = adapt(
    sequence.lstm_unit,
    "x_t, hidden_t_prev, cell_t_prev, forget_bias=0.0, param_attr=None, bias_attr=None, name=None",
    x="x_t",
    hidden="hidden_t_prev",
    cell="cell_t_prev",
)
_dynamic_lstmp = adapt(
    sequence.dynamic_lstmp,
    "input, size, proj_size, param_attr=None, bias_attr=None, use_peepholes=True, is_reverse=False, "
    f"{_GATES}, proj_activation='tanh', dtype='float32', name=None, h_0=None, c_0=None, cell_clip=0.0, proj_clip=0.0",
    x="input",
)


def dynamic_lstmp(*args: Any, **options: Any) -> Any:
    """An LSTM over sequences with a projected output; returns the projection and the cell of every step."""
    for clip in ("cell_clip", "proj_clip"):
        if options.get(clip, 0.0) is None:
            options.pop(clip)
    return _dynamic_lstmp(*args, **options)


@with_argument_checks
def beam_search(
    pre_ids: Any,
    pre_scores: Any,
    ids: Any,
    scores: Any,
    beam_size: int,
    end_id: int,
    level: int = 0,
    is_accumulated: bool = True,
    name: str | None = None,
    return_parent_idx: bool = False,
) -> Any:
    """One step of a beam search: the best `beam_size` continuations, their scores, and with `return_parent_idx` the
    indices of the beams that they continue.
    """
    inputs = {"pre_ids": pre_ids, "pre_scores": pre_scores, "scores": scores, "ids": ids}
    # The scores have the first name, as in Fluid
    outputs = "selected_scores:pre_scores selected_ids:int64 parent_idx:int32"
    attrs = {"level": level, "beam_size": beam_size, "end_id": end_id, "is_accumulated": is_accumulated}
    best, chosen, parents = made_by("beam_search", inputs, outputs, attrs, name=name)
    for made in (best, chosen):
        made.redeclare(lod_level=0)  # as in Fluid; the op's results have two levels
    return (chosen, best, parents) if return_parent_idx else (chosen, best)


beam_search_decode = one_op(
    "beam_search_decode",
    "ids, scores, beam_size, end_id, name=None",
    "Ids=ids Scores=scores",
    "SentenceIds:int64 SentenceScores:Scores",
    "beam_size end_id",
    gives=every,
)


def _weights(width: int, hidden_size: int, num_layers: int, ways: int) -> int:
    """The number of weights and biases of stacked LSTMs, each with one direction or two (`ways`)."""
    widths = [width, *[hidden_size * ways] * (num_layers - 1)]
    return sum(ways * 4 * hidden_size * (inputs + hidden_size + 2) for inputs in widths)


@with_argument_checks
def lstm(
    input: Any,
    init_h: Any,
    init_c: Any,
    max_len: int,
    hidden_size: int,
    num_layers: int,
    dropout_prob: float = 0.0,
    is_bidirec: bool = False,
    is_test: bool = False,
    name: str | None = None,
    default_initializer: Any = None,
    seed: int = -1,
) -> Any:
    """Stacked LSTMs over sequences of one length; returns all outputs, and the last outputs and cells.

    Programs with it can be built and compiled, but not run: as in Fluid, its op is not computed on the CPU.
    """
    for parameter, given in (("max_len", max_len), ("hidden_size", hidden_size), ("num_layers", num_layers)):
        check_kind("lstm", parameter, given, ("int",))
    for parameter, given in (("input", input), ("init_h", init_h), ("init_c", init_c)):
        check_variable("lstm", parameter, given, ("float32", "float64"))
    helper, width = LayerHelper("cudnn_lstm", name=name), input.shape[-1]
    count = _weights(width, hidden_size, num_layers, 2 if is_bidirec else 1)
    weight = helper.create_parameter(None, [count], input.dtype, default_initializer=default_initializer)
    results = [helper.create_variable_for_type_inference(input.dtype) for _ in range(3)]
    cache = helper.create_variable(persistable=True, type=VarType.RAW, stop_gradient=True)
    attrs = {
        "max_len": max_len,
        "is_bidirec": is_bidirec,
        "input_size": width,
        "hidden_size": hidden_size,
        "num_layers": num_layers,
        "is_test": is_test,
        "dropout_prob": dropout_prob,
        "seed": seed,
    }
    inputs = {"Input": input, "InitH": init_h, "InitC": init_c, "W": weight, "Cache": cache}
    outputs = dict(zip(("Out", "last_h", "last_c"), results, strict=True))
    helper.append_op(type="cudnn_lstm", inputs=inputs, outputs=outputs, attrs=attrs)
    return tuple(results)


__getattr__ = names_of_fluid(__name__, globals())
