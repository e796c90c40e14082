"""Gradients of random models that overwrite variables equal central differences, or are refused with the op's name.

`PSTRANSPILE_LOOPS=2000 pytest tests/frontends/autodiff/test_loops_fuzz.py` tries more of them.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.frontends.autodiff import SGD, append_backward, train
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ops.textual import print_module
from tests.frontends.autodiff.loop_programs import SIZE, WEIGHTS, Model

COUNT = int(os.environ.get("PSTRANSPILE_LOOPS", "60"))
STEP = 1e-6


def run(main: ps.Program, values: dict[str, Any], fetch: list[str]) -> dict[str, Any]:
    scope = ps.Scope()
    scope.update(values)
    return ps.run(main, {}, fetch, scope)


def holds_to_differences(main: ps.Program, loss: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    start = {name: random.uniform(0.2, 0.9, (SIZE, SIZE)) for name in WEIGHTS}
    for name in WEIGHTS:
        known = f"{name}@GRAD" in main.main_block.vars
        found = run(main, start, [f"{name}@GRAD"])[f"{name}@GRAD"] if known else np.zeros((SIZE, SIZE))
        for place in np.ndindex(SIZE, SIZE):
            ends: list[float] = []
            for sign in (1, -1):
                moved = start[name].copy()
                moved[place] += sign * STEP
                ends.append(run(main, {**start, name: moved}, [loss])[loss].item())
            slope = (ends[0] - ends[1]) / (2 * STEP)
            noise = 1e-6 + 1e-9 * abs(ends[0])
            assert found[place] == pytest.approx(slope, rel=1e-5, abs=noise), (seed, name, place)


def refused(problem: DiagnosticError) -> str:
    """The code of a refusal, which names an op and a variable."""
    first = problem.diagnostics[0]
    assert re.match(r"\w+: ", first.message), first
    assert "@" in first.message or "%" in first.message, first
    return first.code


def test_models_made_by_layers():
    seen = Counter[str]()
    for seed in range(COUNT):
        model = Model(seed)
        try:
            append_backward(model.draft, model.loss)
            holds_to_differences(model.draft.main(), model.loss, seed)
            seen["equal"] += 1
        except DiagnosticError as problem:
            seen[refused(problem)] += 1
    print(dict(seen))
    assert seen["equal"] > COUNT * 3 // 4
    assert seen.keys() <= {"equal", "gradient-of-another-value", "run-uninitialised"}


def test_models_written_as_text():
    seen = Counter[str]()
    for seed in range(COUNT, COUNT + COUNT // 2):
        model = Model(seed)
        text = print_module(model.draft.module())
        try:
            made = train(ps.loads(text), model.loss, SGD(0.1))
        except DiagnosticError as problem:
            if problem.diagnostics[0].code == "no-trainable-parameters":
                holds_to_differences(model.draft.main(), model.loss, seed)  # all slopes are 0
                seen["equal"] += 1
            else:
                seen[refused(problem)] += 1
            continue
        main = made.main
        ops = tuple(op for op in main.main_block.ops if op.type != "sgd")
        main = main._replace(blocks=(main.main_block._replace(ops=ops), *main.blocks[1:]))
        try:
            holds_to_differences(main, model.loss, seed)
            seen["equal"] += 1
        except DiagnosticError as problem:
            seen[refused(problem)] += 1
    print(dict(seen))
    assert seen["equal"] > COUNT // 3
