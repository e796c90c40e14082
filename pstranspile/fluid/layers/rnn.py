"""Fluid's `layers.rnn`: recurrent layers over sequences, and search by beams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pstranspile.fluid.graph.vartype import VarType, dtype_of, numpy_name
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.layers import control_flow, nn, tensor
from pstranspile.fluid.layers.adapt import (
    adapt,
    check_kind,
    check_variable,
    checked_all,
    named,
    renamed_all,
    to_core,
    wrap,
)
from pstranspile.fluid.layers.cells import GRUCell as GRUCell
from pstranspile.fluid.layers.cells import LSTMCell as LSTMCell
from pstranspile.fluid.layers.cells import RNNCell as RNNCell
from pstranspile.fluid.layers.cells import rnn as rnn
from pstranspile.fluid.layers.decoding import BeamSearchDecoder as BeamSearchDecoder
from pstranspile.fluid.layers.decoding import Decoder
from pstranspile.fluid.layers.decoding import dynamic_decode as dynamic_decode
from pstranspile.fluid.layers.utils import each
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.layers import basic, sequence

# What the decoder of a cell takes for its next input: the true one, its own best guess, or a draw.


class DecodeHelper:
    """What `BasicDecoder` asks between steps; helpers of a script's own define these methods."""

    def initialize(self) -> Any:
        """The first inputs, and which rows are finished."""

    def sample(self, time: Any, outputs: Any, states: Any) -> Any:
        """The ids that follow from the outputs."""

    def next_inputs(self, time: Any, outputs: Any, states: Any, sample_ids: Any) -> Any:
        """The rows that are finished, the next inputs, and the states to go on with."""


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
    """An LSTM over sequences whose output is projected: the projection and the cell of every step."""
    for clip in ("cell_clip", "proj_clip"):
        if options.get(clip, 0.0) is None:
            options.pop(clip)
    return _dynamic_lstmp(*args, **options)


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
    """One step of a search: the best `beam_size` continuations, their scores, and with `return_parent_idx` of whom."""
    value = to_core(pre_scores)
    inputs = {"pre_ids": to_core(pre_ids), "pre_scores": value, "scores": to_core(scores)}
    if ids is not None:
        inputs["ids"] = to_core(ids)
    # The scores have the first name, as in Fluid
    outputs = {"selected_scores": value.dtype, "selected_ids": dtype_of("int64"), "parent_idx": dtype_of("int32")}
    attrs = {"level": level, "beam_size": beam_size, "end_id": end_id, "is_accumulated": is_accumulated}
    with named(name):
        best, chosen, parents = wrap(basic.layer_outputs("beam_search", inputs, outputs, attrs))
    for made in (best, chosen):
        made.redeclare(lod_level=0)  # as in Fluid; the op gives two levels
    return (chosen, best, parents) if return_parent_idx else (chosen, best)


def beam_search_decode(ids: Any, scores: Any, beam_size: int, end_id: int, name: str | None = None) -> Any:
    """The sentences of a search, and their scores, from what its steps have left in arrays."""
    inputs = {"Ids": to_core(ids), "Scores": to_core(scores)}
    outputs = {"SentenceIds": dtype_of("int64"), "SentenceScores": inputs["Scores"].dtype}
    with named(name):
        attrs = {"beam_size": beam_size, "end_id": end_id}
        return tuple(wrap(basic.layer_outputs("beam_search_decode", inputs, outputs, attrs)))


def _weights(width: int, hidden_size: int, num_layers: int, ways: int) -> int:
    """The number of weights and biases of LSTMs upon one another, each in one direction or in two (`ways`)."""
    widths = [width, *[hidden_size * ways] * (num_layers - 1)]
    return sum(ways * 4 * hidden_size * (inputs + hidden_size + 2) for inputs in widths)


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
    """LSTMs upon one another over sequences of one length: all outputs, and the last outputs and cells.

    Programs with it are built and compiled, but not run: as in Fluid, no CPU computes its op.
    """
    for parameter, given in (("max_len", max_len), ("hidden_size", hidden_size), ("num_layers", num_layers)):
        check_kind("lstm", parameter, given, ("int",))
    for parameter, given in (("input", input), ("init_h", init_h), ("init_c", init_c)):
        check_variable("lstm", parameter, given, ("float32", "float64"))
    helper, width = LayerHelper("cudnn_lstm", name=name), input.shape[-1]
    count = _weights(width, hidden_size, num_layers, 2 if is_bidirec else 1)
    weight = helper.create_parameter(None, [count], input.dtype, default_initializer=default_initializer)
    made = [helper.create_variable_for_type_inference(input.dtype) for _ in range(3)]
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
    outputs = dict(zip(("Out", "last_h", "last_c"), made, strict=True))
    helper.append_op(type="cudnn_lstm", inputs=inputs, outputs=outputs, attrs=attrs)
    return tuple(made)


__getattr__ = names_of_fluid(__name__, globals())
renamed_all({name: value for name, value in globals().items() if getattr(value, "__signature__", None) is not None})
checked_all(globals())
