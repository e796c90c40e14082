"""Decoders that share a cell for training and for search by beams (`contrib.decoder`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid.contrib.decoder import BeamSearchDecoder, InitState, StateCell, TrainingDecoder
from tests.fluid.running import fresh

layers = fluid.layers
WORDS, WIDTH = 6, 4


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    with fresh():
        yield


def cell(first: Any) -> StateCell:
    """A cell with one state, which the word of each step moves."""
    made = StateCell({"x": None}, {"h": InitState(init=first, need_reorder=True)}, "h")

    @made.state_updater
    def update(state_cell: StateCell) -> None:
        word, before = state_cell.get_input("x"), state_cell.get_state("h")
        state_cell.set_state("h", layers.fc(input=[before, word], size=WIDTH, act="tanh"))

    with pytest.raises(TypeError, match="its own cell"):
        update(made)
    return made


def encoded() -> Any:
    source = fluid.data("source", [None, 1], "int64", lod_level=1)
    return layers.sequence_pool(layers.embedding(source, [WORDS, WIDTH]), "last")


def rows(values: list[int], *lengths: list[int], kind: str = "int64") -> Any:
    return fluid.create_lod_tensor(np.array(values, kind).reshape(-1, 1), list(lengths), fluid.CPUPlace())


def test_a_decoder_is_trained_on_known_sequences():
    decoder = TrainingDecoder(cell(encoded()))
    target = fluid.data("target", [None, 1], "int64", lod_level=1)
    with pytest.raises(ValueError, match=r"TrainingDecoder.step_input must be called within its block"):
        decoder.step_input(target)
    embedded = layers.embedding(target, [WORDS, WIDTH])
    with decoder.block():
        decoder.state_cell.compute_state(inputs={"x": decoder.step_input(embedded)})
        chances = layers.fc(decoder.state_cell.get_state("h"), WORDS, act="softmax")
        decoder.state_cell.update_states()
        decoder.output(chances)
    loss = layers.mean(layers.cross_entropy(decoder(), target))
    fluid.optimizer.Adam(0.1).minimize(loss)
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    feed = {"source": rows([1, 2, 3], [1, 2]), "target": rows([2, 3, 4, 5, 1], [3, 2])}
    losses = [float(executor.run(feed=feed, fetch_list=[loss])[0][0]) for _ in range(5)]
    assert losses[-1] < losses[0]
    with pytest.raises(ValueError, match="has one block"), decoder.block():
        pass


def test_beams_find_sequences():
    ids, scores = fluid.data("ids", [None, 1], "int64", lod_level=2), fluid.data("scores", [None, 1], lod_level=2)
    decoder = BeamSearchDecoder(
        cell(encoded()), ids, scores, WORDS, WIDTH, topk_size=4, max_len=3, beam_size=2, end_id=1
    )
    with pytest.raises(ValueError, match="are there after its block"):
        decoder()
    decoder.decode()
    found, likely = decoder()
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    feed = {"source": rows([1, 2, 3], [1, 2]), "ids": rows([0, 0], [1, 1], [1, 1])}
    feed["scores"] = rows([1, 1], [1, 1], [1, 1], kind="float32")
    words, chances = executor.run(feed=feed, fetch_list=[found, likely], return_numpy=False)
    beams, lengths = words.recursive_sequence_lengths()
    assert beams == [2, 2]
    assert all(1 <= length <= 4 for length in lengths)
    assert words.recursive_sequence_lengths() == chances.recursive_sequence_lengths()


def test_what_a_cell_refuses():
    first = fluid.data("first", [None, WIDTH])
    with pytest.raises(ValueError, match="needs init, or init_boot"):
        InitState()
    assert InitState(init_boot=first, shape=[-1, 2], value=1.0).value.shape == (-1, 2)
    with pytest.raises(ValueError, match="must be an InitState"):
        StateCell({}, {"h": first}, "h")  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="the states are h"):
        StateCell({}, {"h": InitState(init=first)}, "c")
    made = cell(first)
    with pytest.raises(ValueError, match="has no input 'y'"):
        made.compute_state({"y": first})
    with pytest.raises(ValueError, match="no input 'x' in this step"):
        made.get_input("x")
    TrainingDecoder(made)
    with pytest.raises(ValueError, match="in a decoder already"):
        TrainingDecoder(made)
