"""Recurrent units take sequences together, of all lengths: each must fare as it does alone, also backwards."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pstranspile.runtime.values import LoDTensor
from tests.ops.computing import compute

WIDTH, STATE = 3, 2
GATES = {"gru": 3, "lstm": 4, "lstmp": 4}
VALUES = {
    "gru": ("Hidden", "BatchGate", "BatchResetHiddenPrev", "BatchHidden"),
    "lstm": ("Hidden", "Cell", "BatchGate", "BatchCellPreAct"),
    "lstmp": ("Projection", "Cell", "BatchGate", "BatchCellPreAct", "BatchHidden"),
}
"""What each unit gives; the first is what layers use."""
LENGTHS = {
    "ragged": [2, 5, 1, 5],
    "empty among others": [0, 3, 0, 1],
    "one step": [1, 1, 1],
    "one row": [1],
    "none": [0],
}


def parameters(unit: str, random: np.random.Generator) -> dict[str, Any]:
    state = STATE if unit == "lstmp" else WIDTH
    values = {"Weight": random.normal(size=(state, GATES[unit] * WIDTH))}
    values["Bias"] = random.normal(size=(1, (7 if unit.startswith("lstm") else 3) * WIDTH))
    return values | ({"ProjWeight": random.normal(size=(WIDTH, STATE))} if unit == "lstmp" else {})


def both_ways(unit: str, inputs: dict[str, Any], grad: np.ndarray, attrs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What the unit gives, and the gradients of its inputs."""
    slots = VALUES[unit]
    values = compute(unit, inputs, {slot: slot for slot in slots}, attrs)
    given = inputs | {slot: values.find(slot) for slot in slots}
    given[f"{slots[0]}@GRAD"] = LoDTensor(grad, inputs["Input"].lod)
    gradients = compute(f"{unit}_grad", given, {f"{slot}@GRAD": slot for slot in inputs}, attrs)
    return values.find(slots[0]).data, {slot: gradients.find(slot) for slot in inputs}


def plain(value: Any) -> np.ndarray:
    return value.data if isinstance(value, LoDTensor) else value


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("unit", VALUES)
def test_a_batch_of_sequences_gives_the_results_of_single_sequences(unit: str, reverse: bool, lengths: list[int]):
    random, attrs = np.random.default_rng(1), {"is_reverse": reverse}
    held, offsets = parameters(unit, random), [0, *np.cumsum(lengths).tolist()]
    state = STATE if unit == "lstmp" else WIDTH
    x, grad = random.normal(size=(offsets[-1], GATES[unit] * WIDTH)), random.normal(size=(offsets[-1], state))
    hidden, gradients = both_ways(unit, {"Input": LoDTensor(x, [offsets]), **held}, grad, attrs)
    totals = {slot: np.zeros_like(value) for slot, value in held.items()}
    for start, stop in pairwise(offsets):
        inputs = {"Input": LoDTensor(x[start:stop], [[0, stop - start]]), **held}
        alone, of_alone = both_ways(unit, inputs, grad[start:stop], attrs)
        np.testing.assert_allclose(hidden[start:stop], alone, rtol=1e-12)
        np.testing.assert_allclose(
            plain(gradients["Input"])[start:stop], plain(of_alone["Input"]), rtol=1e-9, atol=1e-14
        )
        for slot, total in totals.items():
            total += plain(of_alone[slot])
    for slot, total in totals.items():
        np.testing.assert_allclose(plain(gradients[slot]), total, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("unit", VALUES)
def test_a_reversed_unit_is_one_on_reversed_rows(unit: str):
    random = np.random.default_rng(2)
    held, offsets = parameters(unit, random), [0, 4, 4, 6]
    x = random.normal(size=(6, GATES[unit] * WIDTH))
    order = np.array([3, 2, 1, 0, 5, 4])
    slot = VALUES[unit][0]
    there, back = (
        compute(unit, {"Input": LoDTensor(rows, [offsets]), **held}, {slot: slot}, {"is_reverse": reverse}).find(slot)
        for rows, reverse in ((x, True), (x[order], False))
    )
    np.testing.assert_allclose(there.data, back.data[order], rtol=1e-12)


@pytest.mark.parametrize("unit", ["gru", "lstm"])
def test_wide_units_of_many_sequences_give_the_results_of_single_sequences(unit: str):
    random, width = np.random.default_rng(0), 128
    held = {"Weight": random.normal(size=(width, GATES[unit] * width)) / width}
    held["Bias"] = random.normal(size=(1, (7 if unit == "lstm" else 3) * width))
    x, grad = random.normal(size=(60, GATES[unit] * width)), random.normal(size=(60, width))
    hidden, gradients = both_ways(unit, {"Input": LoDTensor(x, [[*range(0, 61, 5)]]), **held}, grad, {})
    for start in range(0, 60, 5):
        inputs = {"Input": LoDTensor(x[start : start + 5], [[0, 5]]), **held}
        alone, of_alone = both_ways(unit, inputs, grad[start : start + 5], {})
        np.testing.assert_allclose(hidden[start : start + 5], alone, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(
            plain(gradients["Input"])[start : start + 5], plain(of_alone["Input"]), rtol=1e-9, atol=1e-12
        )
