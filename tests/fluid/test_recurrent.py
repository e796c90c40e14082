"""Cells, networks of cells, and decoders of Fluid's interface."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from tests.fluid.running import fresh

layers: Any = fluid.layers
WORDS, END = 4, 1


def _fetched(*wanted: Any, feed: Any = None) -> list[np.ndarray]:
    made = fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=list(wanted))
    return [np.asarray(item) for item in made]


def _started() -> None:
    fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())


def _value(name: str) -> np.ndarray:
    return np.array(fluid.global_scope().find_var(name).get_tensor())


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def test_an_lstm_stops_where_its_sequences_end() -> None:
    with fresh():
        x, length = fluid.data("x", [None, None, 3]), fluid.data("length", [None], "int64")
        outputs, (hidden, cell) = layers.rnn(layers.LSTMCell(2, name="a"), x, sequence_length=length)
        _started()
        weight = _value("a/BasicLSTMUnit_0.w_0")
        rows = np.random.default_rng(0).standard_normal((2, 3, 3), "float32")
        got = _fetched(outputs, hidden, cell, feed={"x": rows, "length": np.array([3, 1])})
        for row, steps in enumerate((3, 1)):
            h = c = np.zeros(2, "float32")
            for step in range(steps):
                enter, new, forget, leave = np.split(np.concatenate([rows[row, step], h]) @ weight, 4)
                c = c * _sigmoid(forget + 1) + _sigmoid(enter) * np.tanh(new)
                h = np.tanh(c) * _sigmoid(leave)
                assert np.allclose(got[0][row, step], h, atol=1e-5)
            assert np.allclose(got[1][row], h, atol=1e-5)
            assert np.allclose(got[2][row], c, atol=1e-5)


class _Both(layers.RNNCell):
    """A GRU on an LSTM, whose states nest."""

    def __init__(self) -> None:
        self.cells = layers.LSTMCell(4), layers.GRUCell(4)

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
        out, first = self.cells[0](inputs, states[0])
        out, second = self.cells[1](out, states[1])
        return out, [first, second]

    @property
    def state_shape(self) -> Any:
        return [cell.state_shape for cell in self.cells]


@pytest.mark.parametrize("options", [{}, {"is_reverse": True}])
def test_cells_of_cells_learn(options: dict[str, bool]) -> None:
    with fresh():
        fluid.default_startup_program().random_seed = 1
        x, length = fluid.data("x", [None, 4, 3]), fluid.data("length", [None], "int64")
        outputs, states = layers.rnn(_Both(), x, sequence_length=length, **options)
        assert [len(part) if isinstance(part, list) else 1 for part in states] == [2, 1]
        loss = layers.reduce_mean(layers.square(outputs - 0.5))
        fluid.optimizer.Adam(0.1).minimize(loss)
        _started()
        feed = {"x": np.ones((2, 4, 3), "float32"), "length": np.array([4, 2])}
        losses = [_fetched(loss, feed=feed)[0].item() for _ in range(12)]
        assert losses[-1] < losses[0] / 2


def test_cells_say_what_they_take() -> None:
    with fresh():
        cell = layers.GRUCell(2)
        state = fluid.data("state", [None, 2])
        with pytest.raises(TypeError, match="GRUCell: inputs must be of float32 or float64, not of int64"):
            cell(fluid.data("ids", [None, 2], "int64"), state)
        with pytest.raises(TypeError, match="dtype must be float32 or float64, not int32"):
            layers.LSTMCell(2, dtype="int32")
        with pytest.raises(NotImplementedError, match="must define state_shape"):
            layers.RNNCell().get_initial_states(state)


class _Table(layers.RNNCell):
    """A cell that looks up what follows a word in a table; its state counts the steps."""

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
        return inputs, states + 1.0

    @property
    def state_shape(self) -> Any:
        return [1]


def _lookup(table: np.ndarray) -> Callable[[Any], Any]:
    attr = fluid.ParamAttr("table", initializer=fluid.initializer.NumpyArrayInitializer(table))
    return lambda ids: fluid.embedding(ids, list(table.shape), param_attr=attr)


def _best(scores: np.ndarray, steps: int) -> list[int]:
    """The sentence of the highest score among all."""

    def score(words: tuple[int, ...]) -> float:
        total, last = 0.0, 0
        for word in words:
            if last == END:
                return total if word == END else -np.inf
            total, last = total + scores[last, word], word
        return total

    return list(max(product(range(WORDS), repeat=steps), key=score))


def test_a_search_by_beams_finds_the_best_sentence() -> None:
    table = np.random.default_rng(3).standard_normal((WORDS, WORDS)).astype("float32")
    with fresh():
        like = fluid.data("like", [None, 1])
        decoder = layers.BeamSearchDecoder(_Table(), 0, END, WORDS**2, embedding_fn=_lookup(table))
        starts = _Table().get_initial_states(like)
        ids, last, lengths = layers.dynamic_decode(decoder, starts, max_step_num=2, is_test=True, return_length=True)
        _started()
        found, states, _ = _fetched(ids, last.cell_states, lengths, feed={"like": np.zeros((2, 1), "float32")})
        scores = table - np.log(np.exp(table).sum(1, keepdims=True))
        wanted = _best(scores, found.shape[1])
        assert [sentence.tolist() for sentence in found[:, :, 0]] == [wanted, wanted]
        assert states.shape == (2, WORDS**2, 1)


def test_decoding_greedily_stops_at_the_end_and_learns() -> None:
    table = np.eye(WORDS, dtype="float32")[[2, END, 3, END]]
    with fresh():
        start = fluid.data("start", [None], "int64")
        helper = layers.GreedyEmbeddingHelper(_lookup(table), start, END)
        states = layers.fill_constant_batch_size_like(start, [-1, 1], "float32", 0)
        outputs, last, lengths = layers.dynamic_decode(
            layers.BasicDecoder(_Table(), helper), states, impute_finished=True, return_length=True
        )
        loss = layers.reduce_mean(outputs.cell_outputs)
        fluid.optimizer.SGD(1.0).minimize(loss)
        _started()
        ids, counted, steps = _fetched(outputs.sample_ids, last, lengths, feed={"start": np.array([0, 3])})
        assert ids.tolist() == [[2, 3, 1], [1, 1, 1]]
        assert (steps.tolist(), counted.ravel().tolist()) == ([3, 1], [3, 1])
        assert not np.array_equal(_value("table"), table)


def test_teachers_give_the_true_inputs() -> None:
    with fresh():
        x, length = fluid.data("x", [None, None, 1]), fluid.data("length", [None], "int64")
        decoder = layers.BasicDecoder(_Table(), layers.TrainingHelper(x, length))
        states = layers.fill_constant_batch_size_like(x, [-1, 1], "float32", 0)
        outputs, _ = layers.dynamic_decode(decoder, states)
        rows = np.arange(6, dtype="float32").reshape(2, 3, 1)
        got = _fetched(outputs.cell_outputs, feed={"x": rows, "length": np.array([2, 3])})[0]
        assert got[1].tolist() == rows[1].tolist()
        assert got[0, :2].tolist() == rows[0, :2].tolist()


def test_dims_and_indices_may_be_variables() -> None:
    with fresh():
        x = fluid.data("x", [None, 4])
        batch, two = layers.shape(x)[0], layers.fill_constant([1], "int32", 2)
        made = [
            layers.reshape(x, [batch, 2, -1]),
            layers.expand(layers.slice(x, [0], [0], [1]), [batch, 1]),
            layers.slice(x, [1], [two], [4]),
            x[two],
            x[two - 1 : 3, ::-1],
        ]
        rows = np.arange(12, dtype="float32").reshape(3, 4)
        got = _fetched(*made, feed={"x": rows})
        wanted = [rows.reshape(3, 2, 2), np.tile(rows[:1], (3, 1)), rows[:, 2:], rows[2], rows[1:3, ::-1]]
        assert [item.tolist() for item in got] == [item.tolist() for item in wanted]


def test_rnn_is_the_layer_however_the_module_is_imported(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from paddle.fluid.layers.rnn import RNNCell\n"
        "import paddle.fluid.layers.utils as utils\n"
        "from paddle.fluid.layers import rnn\n"
        "import paddle.fluid as fluid\n"
        "print(callable(rnn), fluid.layers.rnn is rnn, fluid.layers.RNNCell is RNNCell, utils.flatten([1, [2]]))\n",
        encoding="utf-8",
    )
    ran = subprocess.run(
        [sys.executable, "-m", "pstranspile.fluid", str(script)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split("\n")[0] == "True True True [1, 2]"


def test_noise_has_as_many_rows_as_the_batch() -> None:
    with fresh():
        batch = layers.shape(fluid.data("x", [None, 4]))[0]
        both = layers.stack([batch, layers.fill_constant([1], "int32", 3)], axis=0)
        noises = [draw([batch, 3]) for draw in (layers.uniform_random, layers.gaussian_random)]
        noises.append(layers.uniform_random(layers.reshape(both, [2])))
        assert [noise.shape for noise in noises] == [(-1, -1), (-1, 3), (-1, -1)]  # as Fluid declares them
        drawn = _fetched(*noises, feed={"x": np.zeros((5, 4), "float32")})
        assert [noise.shape for noise in drawn] == [(5, 3)] * 3
