"""Sentences of beams: what Fluid 1.8.5 decodes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import TensorType, Var
from pstranspile.ir.types import DType, VarKind
from tests.ops.computing import compute

RECORDED = json.loads((Path(__file__).parent.parent / "data" / "fluid" / "sentences.json").read_text())


def decode(case: dict[str, Any]) -> dict[str, ps.LoDTensor]:
    """What a program gives that writes the steps into arrays and decodes them."""
    draft, feed = L.Draft(seed=1), {}
    kinds = {"ids": DType.INT64, "scores": DType.FP32}
    arrays: dict[str, L.Value] = {}
    for number, step in enumerate(case["steps"]):
        place = L.fill_constant(draft, [1], DType.INT64, number)
        for what, kind in kinds.items():
            name = f"{what}{number}"
            feed[name] = ps.LoDTensor(
                np.array(step[what], kind.name.lower().replace("fp", "float"))[:, None], step["lod"]
            )
            value = L.data(draft, name, [-1, 1], kind.text, lod_level=2)
            if what not in arrays:
                var = Var(f"all_{what}", VarKind.LOD_TENSOR_ARRAY, TensorType(kind, (-1, 1)))
                arrays[what] = draft.declare(var)
            L.array_write(value, place, arrays[what])
    results = {
        "SentenceIds": draft.declare(Var("words", VarKind.LOD_TENSOR, TensorType(DType.INT64, (-1,), 2))),
        "SentenceScores": draft.declare(Var("totals", VarKind.LOD_TENSOR, TensorType(DType.FP32, (-1,), 2))),
    }
    attrs = {"beam_size": case["beam_size"], "end_id": case["end_id"]}
    draft.op("beam_search_decode", {"Ids": arrays["ids"], "Scores": arrays["scores"]}, results, attrs)
    return ps.run(draft.main(), feed=feed, fetch=["words", "totals"])


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_sentences_are_those_of_fluid(number: int):
    case = RECORDED[number]
    found = decode(case)
    assert found["words"].lod == found["totals"].lod == case["lod"]
    assert found["words"].data.tolist() == case["ids"]
    np.testing.assert_allclose(found["totals"].data, case["scores"], rtol=1e-5, atol=1e-5)


def test_more_sentences_than_the_beam_is_wide_are_refused():
    case = next(case for case in RECORDED if case["beam_size"] > 1 and case["lod"][0][-1] > 1)
    with pytest.raises(DiagnosticError, match=r"source 0 has \d sentences, beam_size is 1"):
        decode({**case, "beam_size": 1})


@pytest.mark.parametrize(
    ("words", "size", "chosen", "parents"),
    [([[5, 6], [7, 8]], 3, [5, 7, 8], [0, 1, 1]), ([[5, 6, 7]], 2, [5, 7], [0, 0])],
)
def test_equal_scores(words: list[list[int]], size: int, chosen: list[int], parents: list[int]):
    count = len(words)
    lod = [[0, count], list(range(count + 1))]
    inputs = {
        "pre_ids": ps.LoDTensor(np.full((count, 1), 3), lod),
        "pre_scores": ps.LoDTensor(np.zeros((count, 1), "float32"), lod),
        "ids": np.array(words),
        "scores": ps.LoDTensor(np.zeros(np.shape(words), "float32"), lod),
    }
    outputs = {"selected_ids": "words", "selected_scores": "totals", "parent_idx": "parents"}
    attrs = {"level": 0, "beam_size": size, "end_id": 1, "is_accumulated": True}
    found = compute("beam_search", inputs, outputs, attrs)
    assert found.find("words").data.ravel().tolist() == chosen
    assert found.find("words").lod == [[0, count], [0, *np.cumsum(np.bincount(parents)).tolist()]]
    assert found.find("parents").tolist() == parents


def test_parents_out_of_range_are_refused():
    ids = np.zeros((2, 1, 2), "int64")
    with pytest.raises(DiagnosticError, match="Parents 2 is not in 0 to 1"):
        compute("gather_tree", {"Ids": ids, "Parents": ids + 2}, {"Out": "out"})
