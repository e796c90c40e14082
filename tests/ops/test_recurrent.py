"""Recurrent units take sequences together, of all lengths: each must fare as it does alone, also backwards."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pstranspile.runtime.arithmetic import loops
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


@pytest.mark.parametrize("lengths", [*LENGTHS.values(), [3] * 64], ids=[*LENGTHS, "many"])
@pytest.mark.parametrize("width", [1, 3, 32, 136])
@pytest.mark.parametrize(
    ("unit", "attrs"),
    [
        ("gru", {"is_reverse": False}),
        ("gru", {"is_reverse": True, "origin_mode": True}),
        ("gru", {"activation": "relu"}),
        ("lstm", {"use_peepholes": True}),
        ("lstm", {"use_peepholes": False, "is_reverse": True}),
        ("lstmp", {"use_peepholes": True}),
        ("lstmp", {"use_peepholes": False, "proj_activation": "identity"}),
        ("lstmp", {"proj_clip": 0.3, "cell_clip": 0.2}),
    ],
)
def test_compiled_steps_have_the_bits_of_numpys(
    unit: str, attrs: dict[str, Any], width: int, lengths: list[int], monkeypatch: pytest.MonkeyPatch
):
    random, offsets, state = np.random.default_rng(3), [0, *np.cumsum(lengths).tolist()], width
    if unit == "lstmp":
        state = width // 2 + 1

    def normal(*dims: int) -> Any:
        return random.normal(size=dims).astype("float32")

    inputs = {"Input": LoDTensor(normal(offsets[-1], GATES[unit] * width), [offsets])}
    inputs["Weight"] = normal(state, GATES[unit] * width) / np.float32(np.sqrt(width))
    inputs["Bias"] = normal(1, (GATES[unit] + 3 * attrs.get("use_peepholes", unit != "gru")) * width)
    inputs["H0"] = normal(len(lengths), state)
    if unit != "gru":
        inputs["C0"] = normal(len(lengths), width)
    if unit == "lstmp":
        inputs["ProjWeight"] = normal(width, state)
    grad = normal(offsets[-1], state)
    hidden, gradients = both_ways(unit, inputs, grad, attrs)
    monkeypatch.setattr(loops, "CALLS_NUMPY", False)
    monkeypatch.setattr(loops, "lstm_bias_grad", lambda *_: False)
    other, others = both_ways(unit, inputs, grad, attrs)
    assert hidden.tobytes() == other.tobytes()
    for slot, gradient in gradients.items():
        assert plain(gradient).tobytes() == plain(others[slot]).tobytes(), slot


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 1), (2, 5), (16, 32), (0, 4)])
def test_a_compiled_single_step_has_the_bits_of_numpys(rows: int, width: int, monkeypatch: pytest.MonkeyPatch):
    random, attrs = np.random.default_rng(5), {"forget_bias": 0.7}
    given = {
        slot: random.normal(size=(rows, size * width)).astype("float32")
        for slot, size in {"X": 4, "C_prev": 1, "C@GRAD": 1, "H@GRAD": 1}.items()
    }

    def found() -> list[bytes]:
        inputs = {slot: given[slot] for slot in ("X", "C_prev")}
        values = compute("lstm_unit", inputs, {"C": "C", "H": "H"}, attrs)
        slots = {"X@GRAD": "x", "C_prev@GRAD": "before"}
        grads = compute("lstm_unit_grad", given | {"C": values.find("C"), "H": values.find("H")}, slots, attrs)
        return [values.find(name).tobytes() for name in "CH"] + [grads.find(name).tobytes() for name in slots.values()]

    compiled = found()
    monkeypatch.setattr(loops, "CALLS_NUMPY", False)
    assert compiled == found()
