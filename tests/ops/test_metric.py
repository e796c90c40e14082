"""Accuracy, and the area under the curve against counting pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.compiler.verify import verify
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ops.textual import parse
from pstranspile.runtime.run.prepared import run
from pstranspile.runtime.run.scope import Scope
from tests.ops.computing import compute
from tests.ops.differences import quick, seeds

BUCKETS = 8
OUTPUTS = {"AUC": "auc", "StatPosOut": "StatPos", "StatNegOut": "StatNeg"}


@quick
@given(rows=st.integers(1, 6), k=st.integers(1, 3), seed=seeds)
def test_accuracy(rows, k, seed):
    rng = np.random.default_rng(seed)
    indices, label = rng.integers(0, 4, (rows, k)), rng.integers(0, 4, (rows, 1))
    frame = compute(
        "accuracy",
        {"Out": indices * 1.0, "Indices": indices, "Label": label},
        {"Accuracy": "a", "Correct": "c", "Total": "t"},
    )
    right = sum(label[row, 0] in indices[row] for row in range(rows))
    assert (frame.find("c").tolist(), frame.find("t").tolist()) == ([right], [rows])
    assert frame.find("a").tolist() == [pytest.approx(right / rows)]
    assert [frame.find(name).dtype for name in "act"] == ["float32", "int32", "int32"]


def pairs(predicted, label):
    """The share of pairs of a positive and a negative that are in the right order; equal ones count half."""
    bins = np.floor(predicted * np.float32(BUCKETS - 1))
    positive, negative = bins[label == 1], bins[label == 0]
    right = sum((a > b) + (a == b) / 2 for a in positive for b in negative)
    return right / (len(positive) * len(negative) or 1)


@quick
@given(rows=st.integers(1, 8), batches=st.integers(1, 5), steps=st.integers(0, 3), seed=seeds)
def test_auc_over_the_last_steps(rows, batches, steps, seed):
    rng = np.random.default_rng(seed)
    size = (1, BUCKETS) if steps == 0 else (BUCKETS * (steps + 1) + 1,)
    stats = [np.zeros(size, "int64"), np.zeros(size, "int64")]
    seen = []
    for _ in range(batches):
        predicted, label = rng.random((rows, 2)).astype("float32"), rng.integers(0, 2, (rows, 1))
        inputs = {"Predict": predicted, "Label": label, "StatPos": stats[0], "StatNeg": stats[1]}
        frame = compute("auc", inputs, OUTPUTS, {"num_thresholds": BUCKETS - 1, "slide_steps": steps})
        stats = [frame.find("StatPos"), frame.find("StatNeg")]
        seen.append((predicted[:, 1], label[:, 0]))
        window = seen[-steps:] if steps else seen
        expected = pairs(*(np.concatenate(parts) for parts in zip(*window, strict=True)))
        assert frame.find("auc").dtype == "float64"
        assert frame.find("auc").tolist() == [pytest.approx(expected)]
        assert stats[0].shape == size


def test_what_is_no_probability_is_refused():
    inputs = {
        "Predict": np.array([[1.5]], "float32"),
        "Label": np.array([[1]]),
        "StatPos": np.zeros((1, BUCKETS), "int64"),
        "StatNeg": np.zeros((1, BUCKETS), "int64"),
    }
    with pytest.raises(DiagnosticError, match="no probabilities"):
        compute("auc", inputs, OUTPUTS, {"num_thresholds": BUCKETS - 1, "slide_steps": 0})


ALL_STEPS = """ir 1
program @main {
  block ^0 {
    state %pos : i64[1, 8]
    state %neg : i64[1, 8]
    temp %p : f32[-1, 2] feed
    temp %l : i64[-1, 1] feed
    temp %auc : f64[1]
    auc(Predict=%p, Label=%l, StatPos=%pos, StatNeg=%neg) -> AUC=%auc, StatPosOut=%pos, StatNegOut=%neg {
      num_thresholds=7, slide_steps=0
    }
  }
}
program @startup {
  block ^0 {
    state %pos : i64[9]
    state %neg : i64[9]
    fill_constant -> Out=%pos {shape=[9], dtype=3}
    fill_constant -> Out=%neg {shape=[9], dtype=3}
  }
}
"""


def test_auc_over_all_steps_as_fluid_declares_it():
    """Its start-up program makes one element too many; the numbers are those that Fluid gave."""
    module, scope = parse(ALL_STEPS), Scope()
    assert [found.severity.value for found in verify(module)] == ["warning"] * 2
    run(module["startup"], scope=scope)
    areas = [1 / 3, 0.54, 0.46296296]
    for step, area in enumerate(areas):
        draw = np.random.RandomState(step)
        chance = draw.rand(5).astype("float32")
        feed = {"p": np.stack([1 - chance, chance], 1), "l": draw.randint(0, 2, (5, 1))}
        out = run(module.main, feed, ["auc", "pos", "neg"], scope)
        assert out["auc"] == pytest.approx(area)
    assert out["pos"].tolist() == [[1, 1, 2, 4, 0, 1, 0, 0]]
    assert out["neg"].tolist() == [[1, 0, 2, 1, 1, 1, 0, 0]]
