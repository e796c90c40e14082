"""Gradients of loops as `fluid.layers.while_loop` and `append_backward` make them, against central differences.

Fluid itself computes other gradients for these programs, or stops: its gradient ops read what the loop has overwritten.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps

PROGRAMS = sorted((Path(__file__).parents[2] / "data" / "while_loop").glob("*.ir"))
STEP = 1e-2


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_gradients_are_those_of_differences(path: Path):
    main = ps.load(str(path)).main
    random = np.random.default_rng(1)
    start = {var.name: random.uniform(0.1, 0.7, var.shape).astype("float32") for var in main.parameters()}
    x = random.uniform(0, 1, (3, 4)).astype("float32")
    loss = next(op.output("Out") for op in main.main_block.ops if op.type == "reduce_sum")
    assert loss is not None

    def run(values: dict[str, Any], fetch: list[str]) -> dict[str, Any]:
        scope = ps.Scope()
        scope.update(values)
        found = [ps.run(main, {"x": x}, fetch, scope) for _ in range(2)]  # op by op, then prepared
        for name in fetch:
            np.testing.assert_array_equal(found[0][name], found[1][name])
        return found[0]

    gradients = run(start, [f"{name}@GRAD" for name in start])
    for name, value in start.items():
        for place in np.ndindex(value.shape):
            ends: list[float] = []
            for sign in (1, -1):
                moved = value.copy()
                moved[place] += sign * STEP
                ends.append(run({**start, name: moved}, [loss])[loss].item())
            slope = (ends[0] - ends[1]) / (2 * STEP)
            assert gradients[f"{name}@GRAD"][place] == pytest.approx(slope, rel=1e-2, abs=2e-3), name
