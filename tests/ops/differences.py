"""Gradient ops held against central differences of their forward ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from pstranspile.ops import schema_of
from tests.ops.computing import compute

quick = settings(max_examples=25, deadline=None)

seeds = st.integers(0, 2**32 - 1)


def dims(low: int = 1, high: int = 3, size: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of `low` to `high` dims of up to `size` elements."""
    return st.lists(st.integers(1, size), min_size=low, max_size=high).map(tuple)


def values(seed: int, *shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Float64 numbers drawn evenly, the same for the same seed and shape."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape)


def one_output(op_type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None, slot: str = "Out"):
    """The value of one output slot."""
    with np.errstate(all="ignore"):
        return compute(op_type, inputs, {slot: "result"}, attrs).find("result")


def _loss(frame: Any, weights: Mapping[str, np.ndarray]) -> float:
    return float(sum(np.sum(frame.find(name) * weight) for name, weight in weights.items()))


def check_gradients(
    op_type: str,
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    attrs: Mapping[str, Any] | None = None,
    *,
    of: Sequence[str] = ("X",),
    through: Sequence[str] = ("Out",),
    gradient: str = "",
    step: float = 1e-6,
    tolerance: float = 1e-5,
) -> None:
    """Asserts that the gradient op gives what moving every element of the inputs `of` a little shows.

    The loss is the sum of the outputs `through`, weighted by random numbers. Inputs must be float64.
    """
    names = {slot: slot for slot in outputs}
    forward = compute(op_type, inputs, names, attrs)
    rng = np.random.default_rng(7)
    weights = {slot: rng.uniform(0.5, 1.5, forward.find(slot).shape) for slot in through}
    schema = schema_of(gradient or f"{op_type}_grad")
    assert schema is not None
    given: dict[str, Any] = {}
    for slot in schema.inputs:
        if slot in inputs:
            given[slot] = inputs[slot]
        elif slot in outputs:
            given[slot] = forward.find(slot)
        elif slot.removesuffix("@GRAD") in weights:
            given[slot] = weights[slot.removesuffix("@GRAD")]
    listed = {slot: [f"{slot}@GRAD{at}" for at in range(len(inputs[slot]))] for slot in of if _is_list(inputs[slot])}
    results = {f"{slot}@GRAD": listed.get(slot, f"{slot}@GRAD0") for slot in of}
    found = compute(schema.type, given, results, attrs)
    for slot in of:
        parts = inputs[slot] if _is_list(inputs[slot]) else [inputs[slot]]
        for at, part in enumerate(parts):
            expected = np.zeros_like(part)
            for place in np.ndindex(part.shape):
                moved = []
                for change in (step, -step):
                    changed = part.copy()
                    changed[place] += change
                    replaced = [*parts[:at], changed, *parts[at + 1 :]] if slot in listed else changed
                    moved.append(_loss(compute(op_type, {**inputs, slot: replaced}, names, attrs), weights))
                expected[place] = (moved[0] - moved[1]) / (2 * step)
            got = found.find(f"{slot}@GRAD{at}")
            assert got.dtype == part.dtype
            np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)
