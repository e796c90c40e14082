"""Decoders: step by step a network says what comes next, until every row is finished (`layers.dynamic_decode`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from pstranspile.fluid.graph.vartype import numpy_name
from pstranspile.fluid.layers import control_flow, nn, ops, tensor
from pstranspile.fluid.layers.adapt import live
from pstranspile.fluid.layers.cells import steps_first
from pstranspile.fluid.layers.utils import each, flatten, pairwise

_LEAST = 1e9
"""The negative of the score of what must not be chosen."""


class Decoder:
    """What `dynamic_decode` repeats; decoders of a script's own define these methods."""

    def initialize(self, inits: Any) -> Any:
        """The first inputs, the first states, and which rows are finished."""
        raise NotImplementedError(f"{type(self).__name__} must define initialize(inits)")

    def step(self, time: Any, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """The outputs, the next states, the next inputs, and which rows are finished."""
        raise NotImplementedError(f"{type(self).__name__} must define step(time, inputs, states)")

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Any) -> Any:
        """What is given of the outputs over all steps and the last states; need not be defined."""
        raise NotImplementedError(f"{type(self).__name__} doesn't define finalize")


class BeamOutputs(NamedTuple):
    """What a step of a beam search chose, each [batch, beams]."""

    scores: Any
    predicted_ids: Any
    parent_ids: Any


class BeamStates(NamedTuple):
    """What a beam search hands from step to step."""

    cell_states: Any
    log_probs: Any
    finished: Any
    lengths: Any


class BeamSearchDecoder(Decoder):
    """A search for the likeliest sentences: in each step the best `beam_size` continuations of every row are kept."""

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
        tiled = _repeated(x, beam_size)
        rank = len(tiled.shape)
        moved = nn.transpose(tiled, [*range(2, rank), 0, 1])
        merged = nn.reshape(moved, shape=[0] * (rank - 2) + [-1])
        return nn.transpose(merged, [rank - 2, *range(rank - 2)])

    def _split(self, x: Any) -> Any:
        """[batch * beams, ...] as [batch, beams, ...]."""
        return nn.reshape(x, shape=[-1, self.beam_size, *x.shape[1:]])

    def _merge(self, x: Any) -> Any:
        """[batch, beams, ...] as [batch * beams, ...]."""
        return nn.reshape(x, shape=[-1, *x.shape[2:]])

    def _masked(self, scores: Any, finished: Any, vocabulary: int, only_end: Any) -> Any:
        """The scores, where a finished beam can only end again."""
        done = tensor.cast(finished, dtype=scores.dtype)
        wide = nn.expand(nn.unsqueeze(done, [2]), [1, 1, vocabulary])
        return nn.elementwise_mul(wide, only_end, axis=-1) - nn.elementwise_mul(scores, done - 1, axis=0)

    def _gathered(self, x: Any, indices: Any) -> Any:
        """For each row of the batch what x has at these beams."""
        rows = self.batch_size
        if rows.dtype != indices.dtype:
            rows = tensor.cast(rows, indices.dtype)
        rows.stop_gradient = True
        numbered = nn.unsqueeze(tensor.range(0, rows, 1, dtype=indices.dtype), [1])
        places = nn.stack([nn.expand(numbered, [1, self.beam_size]), indices], axis=2)
        places.stop_gradient = True
        return nn.gather_nd(x, places)

    def initialize(self, inits: Any) -> Any:
        """Every beam begins with the start token; all but the first of a row are out of the race."""
        state = flatten(inits)[0]
        self.batch_size = nn.shape(state)[0]
        start = tensor.fill_constant(shape=[1], dtype="int64", value=self.start_token)
        self.end_token_tensor = tensor.fill_constant(shape=[1], dtype="int64", value=self.end_token)
        cell_states = each(lambda x: _repeated(x, self.beam_size), inits)
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

    def _chosen(self, logits: Any, cell_states: Any, before: Any) -> tuple[BeamOutputs, BeamStates]:
        """The best continuations of all beams of a row."""
        vocabulary = int(logits.shape[-1])
        width = tensor.fill_constant(shape=[1], dtype="int64", value=vocabulary)
        only_end = np.full(vocabulary, -_LEAST, "float32")
        only_end[self.end_token] = 0
        end_scores = tensor.assign(only_end)
        step = self._masked(ops.log(nn.softmax(logits)), before.finished, vocabulary, end_scores)
        whole = nn.elementwise_add(x=step, y=before.log_probs, axis=0)
        flat = [-1, self.beam_size * vocabulary]
        scores, places = nn.topk(input=nn.reshape(whole, flat), k=self.beam_size)
        beams, ids = nn.elementwise_floordiv(places, width), nn.elementwise_mod(places, width)
        log_probs = self._gathered(nn.reshape(whole, flat), places)
        kept = each(lambda x: self._gathered(x, beams), cell_states)
        finished = self._gathered(before.finished, beams)
        lengths = self._gathered(before.lengths, beams)
        lengths = lengths + tensor.cast(nn.logical_not(finished), before.lengths.dtype)
        finished = nn.logical_or(finished, control_flow.equal(ids, self.end_token_tensor))
        return BeamOutputs(scores, ids, beams), BeamStates(kept, log_probs, finished, lengths)

    def step(self, time: Any, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """One step of the cell for all beams, and the choice of the best."""
        merged = each(self._merge, inputs)
        outputs, cell_states = self.cell(merged, each(self._merge, states.cell_states), **kwargs)
        outputs, cell_states = each(self._split, outputs), each(self._split, cell_states)
        if self.output_fn is not None:
            outputs = self.output_fn(outputs)
        chosen, after = self._chosen(outputs, cell_states, states)
        chosen.predicted_ids.stop_gradient = True
        return chosen, after, self._inputs(chosen.predicted_ids), after.finished

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Any) -> Any:
        """The sentences, read from their ends back to the first step, and the last states."""
        return nn.gather_tree(outputs.predicted_ids, outputs.parent_ids), final_states


def _repeated(x: Any, beam_size: int) -> Any:
    """[batch, ...] as [batch, beams, ...]."""
    wide = nn.unsqueeze(x, [1])
    return nn.expand(wide, [1, beam_size] + [1] * (len(wide.shape) - 2))


def _unless_finished(before: Any, after: Any, finished: Any) -> Any:
    """`before` in the rows that are finished, `after` in the others."""
    kind = before.dtype
    if numpy_name(kind) == "bool":
        before, after = tensor.cast(before, "float32"), tensor.cast(after, "float32")
    mask = finished
    if mask.dtype != before.dtype:
        mask = tensor.cast(mask, dtype=before.dtype)
        mask.stop_gradient = True
    made = nn.elementwise_mul(before, mask, axis=0) - nn.elementwise_mul(after, mask - 1, axis=0)
    return tensor.cast(made, dtype=kind) if numpy_name(kind) == "bool" else made


class _Carried:
    """Values that a loop hands on: overwritten in inference; in training kept step by step, for the gradient."""

    def __init__(self, first: Any, time: Any, is_test: bool):
        self._first, self._time, self._is_test = first, time, is_test
        self._arrays = None if is_test else each(lambda x: control_flow.array_write(x, time), first)

    def now(self) -> Any:
        """The values in this step; after the loop, the last ones."""
        if self._is_test:
            return self._first
        return each(lambda array: control_flow.array_read(array, self._time), self._arrays)

    def hand_on(self, values: Any) -> None:
        """Makes these the values of the step that the counter has gone on to."""
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
    """Repeats `decoder.step` until all rows are finished, or for `max_step_num` steps: the outputs and the last states.

    With `impute_finished` the states of finished rows stay as they are; with `return_length` the lengths are given too.
    """
    first_inputs, first_states, finished = decoder.initialize(inits)
    finished.stop_gradient = True
    time = tensor.fill_constant(shape=[1], dtype="int64", value=0)
    condition = nn.logical_not(nn.reduce_all(finished))
    limit = None if max_step_num is None else tensor.fill_constant(shape=[1], dtype="int64", value=max_step_num)
    loop = control_flow.While(condition, is_test=is_test)
    lengths = tensor.cast(tensor.zeros_like(finished), "int64")
    lengths.stop_gradient = True
    inputs, states = _Carried(first_inputs, time, is_test), _Carried(first_states, time, is_test)
    draft = live()
    outside = draft.current
    with loop.block():
        given, before = inputs.now(), states.now()
        outputs, after, next_inputs, done = decoder.step(time, given, before, **kwargs)
        done = nn.logical_or(done, finished)
        longer = nn.elementwise_add(lengths, tensor.cast(nn.logical_not(finished), lengths.dtype))
        if impute_finished:
            after = pairwise(lambda old, new: _unless_finished(old, new, finished), before, after)
        with draft.inside(outside):
            arrays = each(lambda x: control_flow.create_array(x.dtype), outputs)
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
    made = each(lambda array: tensor.tensor_array_to_tensor(array, axis=0, use_stack=True)[0], arrays)
    last = states.now()
    with suppress(NotImplementedError):  # a decoder need not define it
        made, last = decoder.finalize(made, last, lengths)
    if not output_time_major:
        made = each(steps_first, made)
    return (made, last, lengths) if return_length else (made, last)
