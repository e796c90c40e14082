"""What the decoder of a cell takes for its next input: the true one, its own best guess, or a draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pstranspile.fluid.graph.vartype import numpy_name
from pstranspile.fluid.layers import control_flow, nn, tensor
from pstranspile.fluid.layers.decoding import Decoder
from pstranspile.fluid.layers.utils import each


class DecodeHelper:
    """What `BasicDecoder` asks between steps; helpers of a script's own define these methods."""

    def initialize(self) -> Any:
        """The first inputs, and which rows are finished."""

    def sample(self, time: Any, outputs: Any, states: Any) -> Any:
        """The ids that follow from the outputs."""

    def next_inputs(self, time: Any, outputs: Any, states: Any, sample_ids: Any) -> Any:
        """Which rows are finished, the next inputs, and the states to go on with."""


class TrainingHelper(DecodeHelper):
    """Takes the true sequences [batch, steps, ...] as inputs (teacher forcing)."""

    def __init__(self, inputs: Any, sequence_length: Any, time_major: bool = False):
        self.inputs, self.sequence_length, self.time_major = inputs, sequence_length, time_major
        ahead = [] if time_major else [0, 0]

        def one_more(x: Any) -> Any:
            return nn.pad(x, paddings=[*ahead, 0, 1] + [0, 0] * (len(x.shape) - len(ahead) // 2 - 1))

        self.inputs_ = each(one_more, inputs)  # the step after the last is read, and not used

    def initialize(self) -> Any:
        """The first step of every sequence; empty ones are finished."""
        none = tensor.fill_constant(shape=[1], dtype=self.sequence_length.dtype, value=0)
        finished = control_flow.equal(self.sequence_length, none)
        return each(lambda x: x[0] if self.time_major else x[:, 0], self.inputs), finished

    def sample(self, time: Any, outputs: Any, states: Any) -> Any:
        """The likeliest ids."""
        return tensor.argmax(outputs, axis=-1)

    def next_inputs(self, time: Any, outputs: Any, states: Any, sample_ids: Any) -> Any:
        """The next step of the sequences; those that have none are finished."""
        if numpy_name(time.dtype) != "int32":
            time = tensor.cast(time, "int32")
        if self.sequence_length.dtype != time.dtype:
            self.sequence_length = tensor.cast(self.sequence_length, time.dtype)
        following = time + 1
        finished = control_flow.less_equal(self.sequence_length, following)
        axes = [0 if self.time_major else 1]

        def part(x: Any) -> Any:
            return nn.squeeze(nn.slice(x, axes=axes, starts=[following], ends=[following + 1]), axes=axes)

        return finished, each(part, self.inputs_), states


class GreedyEmbeddingHelper(DecodeHelper):
    """Takes the embedding of the likeliest id as the next input."""

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
        """The likeliest ids."""
        return tensor.argmax(outputs, axis=-1)

    def next_inputs(self, time: Any, outputs: Any, states: Any, sample_ids: Any) -> Any:
        """The embeddings of the ids; rows whose id is the end token are finished."""
        return control_flow.equal(sample_ids, self.end_token), self.embedding_fn(sample_ids), states


class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """Takes the embedding of an id drawn by its probability as the next input."""

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
        """Ids drawn by the softmax of the outputs, which the temperature divides."""
        divided = outputs if self.softmax_temperature is None else outputs / self.softmax_temperature
        likely = nn.softmax(divided)
        likely.stop_gradient = True
        return nn.sampling_id(likely, seed=self.seed or 0, dtype=self.start_tokens.dtype)


class DecoderOutputs(NamedTuple):
    """What a step of a `BasicDecoder` gives."""

    cell_outputs: Any
    sample_ids: Any


class BasicDecoder(Decoder):
    """A cell, a helper that says what its next input is, and a layer between them."""

    OutputWrapper = DecoderOutputs

    def __init__(self, cell: Any, helper: Any, output_fn: Callable[..., Any] | None = None):
        self.cell, self.helper, self.output_fn = cell, helper, output_fn

    def initialize(self, inits: Any) -> Any:
        """The helper's first inputs, and the cell's first states."""
        inputs, finished = self.helper.initialize()
        return inputs, inits, finished

    def step(self, time: Any, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """One step of the cell, and what the helper makes of it."""
        outputs, after = self.cell(inputs, states, **kwargs)
        if self.output_fn is not None:
            outputs = self.output_fn(outputs)
        ids = self.helper.sample(time=time, outputs=outputs, states=after)
        ids.stop_gradient = True
        finished, following, after = self.helper.next_inputs(time=time, outputs=outputs, states=after, sample_ids=ids)
        return DecoderOutputs(outputs, ids), after, following, finished
