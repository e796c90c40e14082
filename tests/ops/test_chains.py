"""Long chains of labels, whose weights would leave the range of numbers, beside sums of logarithms in f64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pstranspile.runtime.arithmetic import loops
from pstranspile.runtime.values import LoDTensor
from tests.ops.computing import compute

FORWARD = ("Alpha", "EmissionExps", "TransitionExps", "LogLikelihood")
LENGTHS = [[150, 3, 0, 150, 60], [1, 1], [400], [0, 0], [7]]
SCALES = {"alike": 0.1, "strong": 6.0, "one way is barred": -200.0}


def chains(lengths: list[int], scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
    random, offsets = np.random.default_rng(4), [0, *np.cumsum(lengths).tolist()]
    w = random.normal(size=(6, 4)) * max(scale, 1.0)
    if scale < 0:
        w[3, 2] = scale  # its exp is 0 in f32
    labels = random.integers(0, 2, (offsets[-1], 1))
    return random.normal(size=(offsets[-1], 4)) * 3, w, labels, offsets


def log_sum(x: np.ndarray, axis: int | None = None) -> Any:
    return np.logaddexp.reduce(x, axis=axis) if axis is not None else np.logaddexp.reduce(x.reshape(-1))


def shares(x: np.ndarray, w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The logarithm of what all paths of a chain weigh, and how often each label and each pair of labels comes."""
    ahead, behind = np.empty_like(x), np.empty_like(x)
    ahead[0], behind[-1] = w[0] + x[0], w[1]
    for at in range(1, len(x)):
        ahead[at] = log_sum(ahead[at - 1][:, None] + w[2:], axis=0) + x[at]
    for at in range(len(x) - 2, -1, -1):
        behind[at] = log_sum(w[2:] + x[at + 1] + behind[at + 1], axis=1)
    total = log_sum(ahead[-1] + w[1])
    pairs = np.zeros_like(w[2:])
    for at in range(1, len(x)):
        pairs += np.exp(ahead[at - 1][:, None] + w[2:] + x[at] + behind[at] - total)
    return total, np.exp(ahead + behind - total), pairs


def path_weight(x: np.ndarray, w: np.ndarray, path: list[int]) -> float:
    steps = sum(w[2 + a, b] for a, b in pairwise(path))
    return w[0, path[0]] + w[1, path[-1]] + steps + x[np.arange(len(path)), path].sum()


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_chains_of_any_length_and_weights(lengths: list[int], scale: float):
    x, w, labels, offsets = chains(lengths, scale)
    label = LoDTensor(labels, [offsets])
    inputs = {"Emission": LoDTensor(x.astype("f"), [offsets]), "Transition": w.astype("f"), "Label": label}
    values = compute("linear_chain_crf", inputs, {slot: slot for slot in FORWARD})
    loss = values.find("LogLikelihood")
    given = inputs | {slot: values.find(slot) for slot in FORWARD} | {"LogLikelihood@GRAD": np.ones_like(loss)}
    slots = ("Emission", "Transition")
    gradients = compute("linear_chain_crf_grad", given, {f"{slot}@GRAD": slot for slot in slots})
    of_x, of_w = gradients.find("Emission").data, np.zeros_like(w)
    for number, (start, stop) in enumerate(pairwise(offsets)):
        if start == stop:
            assert loss[number] == 0
            continue
        path = labels[start:stop, 0].tolist()
        total, of_labels, pairs = shares(x[start:stop], w)
        np.testing.assert_allclose(loss[number, 0], total - path_weight(x[start:stop], w, path), rtol=1e-4, atol=1e-3)
        of_labels[np.arange(len(path)), path] -= 1
        np.testing.assert_allclose(of_x[start:stop], of_labels, atol=2e-4)
        of_w[0] += of_labels[0]
        of_w[1] += of_labels[-1]
        of_w[2:] += pairs
        for a, b in pairwise(path):
            of_w[2 + a, b] -= 1
    np.testing.assert_allclose(gradients.find("Transition"), of_w, atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_best_paths_of_a_batch_are_those_of_single_sequences(lengths: list[int]):
    x, w, _, offsets = chains(lengths, 1.0)

    def best(rows: np.ndarray, ends: list[int]) -> np.ndarray:
        inputs = {"Emission": LoDTensor(rows, [ends]), "Transition": w}
        return compute("crf_decoding", inputs, {"ViterbiPath": "path"}).find("path").data

    together = best(x, offsets)
    for start, stop in pairwise(offsets):
        rows = x[start:stop]
        np.testing.assert_array_equal(together[start:stop], best(rows, [0, len(rows)]))
        if len(rows):
            score = w[0] + rows[0]
            for row in rows[1:]:
                score = (score[:, None] + w[2:]).max(axis=0) + row
            weight = path_weight(rows, w, together[start:stop, 0].tolist())
            np.testing.assert_allclose(weight, (score + w[1]).max(), rtol=1e-12)


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("lengths", [*LENGTHS, [3, 3, 9, 1]], ids=str)
def test_compiled_chains_have_the_bits_of_numpys(lengths: list[int], scale: float, monkeypatch: pytest.MonkeyPatch):
    x, w, labels, offsets = chains(lengths, scale)
    inputs = {"Emission": LoDTensor(x.astype("f"), [offsets]), "Transition": w.astype("f")}
    labelled = inputs | {"Label": LoDTensor(labels, [offsets])}

    def found() -> list[bytes]:
        values = compute("linear_chain_crf", labelled, {slot: slot for slot in FORWARD})
        given = labelled | {slot: values.find(slot) for slot in FORWARD}
        given["LogLikelihood@GRAD"] = np.ones_like(values.find("LogLikelihood"))
        slots = ("Emission@GRAD", "Transition@GRAD")
        grads = compute("linear_chain_crf_grad", given, {slot: slot for slot in slots})
        path = compute("crf_decoding", inputs, {"ViterbiPath": "path"}).find("path")
        results = [*(values.find(slot) for slot in FORWARD), *(grads.find(slot) for slot in slots), path]
        return [(value.data if isinstance(value, LoDTensor) else value).tobytes() for value in results]

    compiled = found()
    monkeypatch.setattr(loops, "COMPILED", False)
    monkeypatch.setattr(loops, "CALLS_NUMPY", False)
    assert compiled == found()
