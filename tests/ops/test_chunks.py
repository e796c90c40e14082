"""Chunks of labels: what begins and ends one in each scheme, and that none reaches from a sequence into the next."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pstranspile.ir.attributes import Ints
from pstranspile.runtime.values import LoDTensor
from tests.ops.computing import compute

COUNTS = ("NumInferChunks", "NumLabelChunks", "NumCorrectChunks")
TAGS = {"IOB": 2, "IOE": 2, "IOBES": 4, "plain": 1}


def counts(guess: Any, label: Any, attrs: dict[str, Any], **more: Any) -> list[int]:
    inputs = {"Inference": guess, "Label": label, **more}
    frame = compute("chunk_eval", inputs, {slot: slot for slot in COUNTS}, attrs)
    values: list[Any] = [frame.find(slot) for slot in COUNTS]
    return [value.item() for value in values]


def ragged(*pieces: list[int]) -> LoDTensor:
    labels = np.array([label for piece in pieces for label in piece], np.int64)
    return LoDTensor(labels.reshape(-1, 1), [[0, *np.cumsum([len(piece) for piece in pieces]).tolist()]])


@pytest.mark.parametrize(
    ("scheme", "labels", "chunks"),
    [
        ("IOB", [0, 1, 4, 2, 3, 3], 2),
        ("IOB", [1, 1, 0, 1, 3], 3),  # one begins by itself, at its tag, and where the type changes
        ("IOB", [4, 4], 0),
        ("IOE", [0, 0, 1, 0, 1], 2),
        ("IOE", [1, 1, 2, 3, 4], 3),
        ("IOBES", [0, 1, 2, 3, 3, 8, 5, 6], 4),
        ("plain", [0, 0, 1, 2, 1], 3),
    ],
)
def test_what_a_chunk_is(scheme: str, labels: list[int], chunks: int):
    attrs = {"num_chunk_types": 2, "chunk_scheme": scheme}
    assert counts(ragged(labels), ragged(labels), attrs) == [chunks] * 3


def test_a_chunk_is_right_only_as_a_whole_and_of_its_type():
    attrs = {"num_chunk_types": 2, "chunk_scheme": "IOB"}
    assert counts(ragged([0, 1, 4, 0]), ragged([0, 1, 1, 0]), attrs) == [2, 2, 1]
    assert counts(ragged([0, 1]), ragged([2, 3]), attrs) == [1, 1, 0]
    assert counts(ragged([0, 2]), ragged([0, 2]), {**attrs, "excluded_chunk_types": Ints([0])}) == [1, 1, 1]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("scheme", TAGS)
def test_no_chunk_reaches_into_the_next_sequence(scheme: str, padded: bool):
    random, offsets = np.random.default_rng(0), [0, 4, 4, 5, 11, 11]
    attrs = {"num_chunk_types": 2, "chunk_scheme": scheme}
    guess, label = random.integers(0, 2 * TAGS[scheme] + 1, (2, 11)).tolist()
    pieces = [(guess[start:stop], label[start:stop]) for start, stop in pairwise(offsets)]
    alone = [counts(ragged(a), ragged(b), attrs) for a, b in pieces]
    if padded:
        rows = [[[*piece, *[0] * (7 - len(piece))] for piece in column] for column in zip(*pieces, strict=True)]
        lengths = np.diff(offsets).reshape(-1, 1)
        together = counts(np.array(rows[0]), np.array(rows[1]), attrs, SeqLength=lengths)
    else:
        together = counts(ragged(*(a for a, _ in pieces)), ragged(*(b for _, b in pieces)), attrs)
    assert together == np.sum(alone, axis=0).tolist()
