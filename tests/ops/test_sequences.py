"""What recurrent units and kernels of label sequences refuse, and edges that recordings don't show."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pstranspile.ir.attributes import Ints
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.values import LoDTensor
from tests.ops.computing import compute

RANDOM = np.random.default_rng(3)
LSTM = ("Hidden", "Cell", "BatchGate", "BatchCellPreAct")
CRF = ("Alpha", "EmissionExps", "TransitionExps", "LogLikelihood")
CHUNKS = ("Precision", "Recall", "F1-Score", "NumInferChunks", "NumLabelChunks", "NumCorrectChunks")


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.uniform(-1, 1, size=shape)


def run(op_type: str, inputs: dict[str, Any], outputs: tuple[str, ...], attrs: dict[str, Any] | None = None) -> Any:
    return compute(op_type, inputs, {slot: f"out_{slot}" for slot in outputs}, attrs)


def lstm(**changed: Any) -> dict[str, Any]:
    x = LoDTensor(drawn(5, 8), [[0, 2, 5]])
    return {"Input": x, "Weight": drawn(2, 8), "Bias": drawn(1, 14)} | changed


@pytest.mark.parametrize(
    ("inputs", "attrs", "message"),
    [
        (lstm(Input=drawn(5, 8)), {}, "Input has no LoD"),
        (lstm(Input=LoDTensor(drawn(5, 8), [[0, 1, 2], [0, 2, 5]])), {}, "Input has 2 levels of LoD"),
        (lstm(Input=LoDTensor(drawn(5, 4), [[0, 2, 5]])), {}, "the last must be 8"),
        (lstm(Bias=drawn(1, 8)), {}, "Bias has 8 numbers, it must have 14"),
        (lstm(H0=drawn(3, 2), C0=drawn(2, 2)), {}, "H0 has the dims .3, 2., it must have .2, 2."),
        (lstm(), {"cell_activation": "softplus"}, "cell_activation is 'softplus', it must be one of"),
    ],
)
def test_lstm_refuses(inputs: dict[str, Any], attrs: dict[str, Any], message: str):
    with pytest.raises(DiagnosticError, match=message):
        run("lstm", inputs, LSTM, attrs)


def test_gru_refuses_a_weight_of_other_dims():
    inputs = {"Input": LoDTensor(drawn(3, 6), [[0, 3]]), "Weight": drawn(2, 5)}
    with pytest.raises(DiagnosticError, match="3 times as wide as high"):
        run("gru", inputs, ("BatchGate", "BatchResetHiddenPrev", "BatchHidden", "Hidden"))


def test_gru_unit_refuses_an_unknown_activation():
    inputs = {"Input": drawn(3, 6), "HiddenPrev": drawn(3, 2), "Weight": drawn(2, 6)}
    with pytest.raises(DiagnosticError, match="activation is 4, it must be from 0 to 3"):
        run("gru_unit", inputs, ("Gate", "ResetHiddenPrev", "Hidden"), {"activation": 4})


def test_sequences_of_an_lstm_are_independent():
    given = lstm()
    x, lod = given["Input"]
    whole = run("lstm", given, LSTM).find("out_Hidden").data
    for start, stop in pairwise(lod[0]):
        alone = {**given, "Input": LoDTensor(x[start:stop], [[0, stop - start]])}
        assert np.allclose(run("lstm", alone, LSTM).find("out_Hidden").data, whole[start:stop], rtol=1e-12)


@pytest.mark.parametrize("label", [-1, 3])
def test_labels_of_a_chain_must_be_in_range(label: int):
    inputs = {
        "Emission": LoDTensor(drawn(2, 3), [[0, 2]]),
        "Transition": drawn(5, 3),
        "Label": LoDTensor(np.array([[0], [label]]), [[0, 2]]),
    }
    with pytest.raises(DiagnosticError, match=f"the label {label} is not in 0 to 2"):
        run("linear_chain_crf", inputs, CRF)


def test_the_best_path_is_the_best_of_all():
    x, w = drawn(3, 2), drawn(4, 2)
    inputs = {"Emission": LoDTensor(x, [[0, 3]]), "Transition": w}
    found = run("crf_decoding", inputs, ("ViterbiPath",)).find("out_ViterbiPath").data.reshape(-1)
    paths = [(a, b, c) for a in range(2) for b in range(2) for c in range(2)]

    def weight(path: tuple[int, ...]) -> float:
        steps = sum(w[2 + a, b] for a, b in pairwise(path))
        return w[0, path[0]] + w[1, path[-1]] + steps + sum(x[at, label] for at, label in enumerate(path))

    assert tuple(found) == max(paths, key=weight)
    labelled = {**inputs, "Label": LoDTensor(np.array([[0], [1], [1]]), [[0, 3]])}
    loss = run("linear_chain_crf", labelled, CRF).find("out_LogLikelihood").item()
    assert loss == pytest.approx(np.log(sum(np.exp(weight(path)) for path in paths)) - weight((0, 1, 1)))


@pytest.mark.parametrize("label", [-1, 5])
def test_labels_of_chunks_must_be_in_range(label: int):
    held = LoDTensor(np.array([[0], [label]]), [[0, 2]])
    with pytest.raises(DiagnosticError, match=f"the label {label} is not in 0 to 4"):
        run("chunk_eval", {"Inference": held, "Label": held}, CHUNKS, {"num_chunk_types": 2})


def test_chunk_eval_refuses_an_unknown_scheme():
    held = LoDTensor(np.array([[0]]), [[0, 1]])
    attrs = {"num_chunk_types": 2, "chunk_scheme": "BIO"}
    with pytest.raises(
        DiagnosticError, match="chunk_scheme is 'BIO', it must be one of 'IOB', 'IOE', 'IOBES', 'plain'"
    ):
        run("chunk_eval", {"Inference": held, "Label": held}, CHUNKS, attrs)


def test_a_distance_can_not_be_divided_by_the_length_of_nothing():
    inputs = {"Hyps": LoDTensor(np.array([[1]]), [[0, 1, 1]]), "Refs": LoDTensor(np.array([[1]]), [[0, 0, 1]])}
    with pytest.raises(DiagnosticError, match="a sequence of Refs is empty"):
        run("edit_distance", inputs, ("SequenceNum", "Out"), {"normalized": True})
    found = run("edit_distance", inputs, ("SequenceNum", "Out")).find("out_Out")
    assert found.tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize(
    ("label", "blank", "message"),
    [(3, 0, "the label 3 is not in 0 to 2"), (1, 3, "blank is 3, it must be a class, 0 to 2")],
)
def test_warpctc_refuses(label: int, blank: int, message: str):
    inputs = {
        "Logits": LoDTensor(drawn(3, 3), [[0, 3]]),
        "Label": LoDTensor(np.array([[label]], np.int32), [[0, 1]]),
    }
    with pytest.raises(DiagnosticError, match=message):
        run("warpctc", inputs, ("WarpCTCGrad", "Loss"), {"blank": blank})


def test_conv_shift_refuses_an_even_filter():
    with pytest.raises(DiagnosticError, match="an odd number of columns"):
        run("conv_shift", {"X": drawn(2, 4), "Y": drawn(2, 2)}, ("Out",))


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"topks": Ints((2, 1)), "channel_num": 1}, "topks is .2, 1., it must be positive numbers in ascending order"),
        ({"topks": Ints((1,)), "channel_num": 0}, "channel_num is 0, it must be at least 1"),
        (
            {"topks": Ints((1,)), "channel_num": 2},
            "the sequences of X are .6. long: they must be channel_num 2 times .2. rows",
        ),
    ],
)
def test_topk_pooling_refuses(attrs: dict[str, Any], message: str):
    sizes = {"X": 6, "ROW": 2, "COLUMN": 3}
    inputs = {slot: LoDTensor(drawn(size, 1), [[0, size]]) for slot, size in sizes.items()}
    with pytest.raises(DiagnosticError, match=message):
        run("sequence_topk_avg_pooling", inputs, ("Out", "pos"), attrs)
