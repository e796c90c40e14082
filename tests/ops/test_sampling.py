"""Trees of items: what Fluid 1.8.5 gave for a tree of 25 nodes and 13 leaves, one of which lies a level higher."""

from itertools import pairwise

import numpy as np
import pytest

from pstranspile.ir.attributes import Ints
from pstranspile.ir.diagnostics import DiagnosticError
from tests.ops.computing import compute

TRAVEL = [[1, 3, 7, 14], [1, 3, 7, 15], [1, 3, 8, 16], [1, 3, 8, 17], [1, 4, 9, 18], [1, 4, 9, 19], [1, 4, 10, 20]]
TRAVEL += [[1, 4, 10, 21], [2, 5, 11, 22], [2, 5, 11, 23], [2, 5, 12, 24], [2, 5, 12, 25], [2, 6, 13, 0]]
LEVELS = (0, 2, 6, 13, 25)
INFO = [
    [0, 0, 0, 1, 2],
    [0, 1, 0, 3, 4],
    [0, 1, 0, 5, 6],
    [0, 2, 1, 0, 0],
    [1, 2, 1, 0, 0],
    [2, 2, 2, 0, 0],
    [3, 2, 2, 0, 0],
]


def sampled(counts: tuple[int, ...], seed: int, *, positive: bool = True) -> list[list[list[int]]]:
    inputs = {"X": [[10], [12], [0]], "Travel": TRAVEL, "Layer": np.arange(1, 26)[:, None]}
    attrs = {"neg_samples_num_list": Ints(counts), "layer_offset_lod": Ints(LEVELS), "seed": seed}
    held = {slot: np.array(value, "int32") for slot, value in inputs.items()}
    names = {"Out": "out", "Labels": "labels", "Mask": "mask"}
    found = compute("tdm_sampler", held, names, {**attrs, "output_positive": positive})
    return [found.find(name).tolist() for name in names.values()]


def test_samples_of_a_seed_are_those_of_fluid():
    out, labels, mask = sampled((1, 2, 3, 4), 3)
    assert out == [
        [2, 1, 5, 3, 4, 12, 10, 8, 11, 24, 20, 16, 21, 18],
        [2, 1, 6, 5, 4, 13, 9, 10, 12, 0, 0, 0, 0, 0],
        [1, 2, 3, 5, 4, 7, 9, 11, 8, 14, 20, 18, 22, 19],
    ]
    assert labels[1] == [1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert mask == [[1] * 14, [1] * 9 + [0] * 5, [1] * 14]
    assert sampled((1, 2, 3, 4), 3, positive=False)[0] == [
        [1, 3, 4, 10, 8, 11, 20, 16, 21, 18],
        [1, 5, 4, 9, 10, 12, 0, 0, 0, 0],
        [2, 5, 4, 9, 11, 8, 20, 18, 22, 19],
    ]


def test_samples_without_a_seed_are_different_nodes_of_the_level():
    out, labels, mask = sampled((1, 3, 6, 11), 0)
    assert (labels, mask) == tuple(sampled((1, 3, 6, 11), 5)[1:])
    for row, path in zip(out, (TRAVEL[10], TRAVEL[12], TRAVEL[0]), strict=True):
        for (start, stop), node in zip(pairwise(LEVELS), path, strict=True):
            assert sorted(row[start:stop]) == (list(range(start + 1, stop + 1)) if node else [0] * (stop - start))
            assert row[start] == node


def test_a_level_that_has_too_few_nodes():
    with pytest.raises(DiagnosticError, match="a level of 2 nodes can't give 2 that are not the positive one"):
        sampled((2, 1, 1, 1), 1)


def test_children_of_nodes():
    inputs = {"X": np.array([[2, 1], [3, 0]]), "TreeInfo": np.array(INFO, "int32")}
    found = compute("tdm_child", inputs, {"Child": "child", "LeafMask": "mask"}, {"child_nums": 2})
    assert found.find("child").tolist() == [[[5, 6], [3, 4]], [[0, 0], [0, 0]]]
    assert found.find("mask").tolist() == [[[1, 1], [0, 1]], [[0, 0], [0, 0]]]
    assert found.find("child").dtype == "int32"
