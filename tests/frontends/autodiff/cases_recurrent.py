"""What is drawn for recurrent units and for chains of labels; importing it adds to `CASES`."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import pstranspile as ps
from tests.frontends.autodiff.cases import Draw, case, distinct, smooth
from tests.frontends.autodiff.numeric import Case

SMOOTH = st.sampled_from(["sigmoid", "tanh", "identity"])


def sequences(draw: Draw, random: np.random.Generator, width: int) -> ps.LoDTensor:
    """Ragged rows, some sequences of the same length."""
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    ends = [0, *map(int, np.cumsum(lengths))]
    return ps.LoDTensor(smooth(random, (ends[-1], width)), [ends])


@case("lstm", "lstmp")
def _lstm(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    width = draw(st.integers(1, 3))
    state = draw(st.integers(1, 3)) if op_type == "lstmp" else width
    x = sequences(draw, random, 4 * width)
    count, peepholes = len(x.lod[0]) - 1, draw(st.booleans())
    inputs = {
        "Input": x,
        "Weight": smooth(random, (state, 4 * width)),
        "Bias": smooth(random, (1, (7 if peepholes else 4) * width)),
    }
    if draw(st.booleans()):
        inputs |= {"H0": smooth(random, (count, state)), "C0": smooth(random, (count, width))}
    attrs: dict[str, object] = {"use_peepholes": peepholes, "is_reverse": draw(st.booleans())}
    for name in ("gate", "cell", "candidate"):
        attrs[f"{name}_activation"] = draw(SMOOTH)
    others = ("Cell", "BatchGate", "BatchCellPreAct")
    if op_type == "lstm":
        return Case(op_type, inputs, attrs, wrt=tuple(inputs), outputs={"Hidden": 1}, others=others)
    inputs["ProjWeight"] = smooth(random, (width, state))
    attrs |= {"proj_activation": draw(SMOOTH), "proj_clip": draw(st.sampled_from([0.0, 50.0]))}
    return Case(op_type, inputs, attrs, wrt=tuple(inputs), outputs={"Projection": 1}, others=(*others, "BatchHidden"))


@case("gru")
def _gru(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    width = draw(st.integers(1, 3))
    x = sequences(draw, random, 3 * width)
    inputs = {"Input": x, "Weight": smooth(random, (width, 3 * width))}
    if draw(st.booleans()):
        inputs["Bias"] = smooth(random, (1, 3 * width))
    if draw(st.booleans()):
        inputs["H0"] = smooth(random, (len(x.lod[0]) - 1, width))
    attrs = {"is_reverse": draw(st.booleans()), "origin_mode": draw(st.booleans())}
    attrs |= {"activation": draw(SMOOTH), "gate_activation": draw(SMOOTH)}
    held = draw(st.booleans())  # whether the gradient of H0 is wanted does not change the others
    wrt = tuple(slot for slot in inputs if slot != "H0" or held)
    others = ("BatchGate", "BatchResetHiddenPrev", "BatchHidden")
    return Case(op_type, inputs, attrs, wrt=wrt, outputs={"Hidden": 1}, others=others)


@case("gru_unit")
def _gru_unit(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows, width = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    inputs = {
        "Input": smooth(random, (rows, 3 * width)),
        "HiddenPrev": smooth(random, (rows, width)),
        "Weight": smooth(random, (width, 3 * width)),
    }
    if draw(st.booleans()):
        inputs["Bias"] = smooth(random, (1, 3 * width))
    numbers = st.integers(0, 2)
    attrs = {"origin_mode": draw(st.booleans()), "activation": draw(numbers), "gate_activation": draw(numbers)}
    others = ("Gate", "ResetHiddenPrev")
    return Case(op_type, inputs, attrs, wrt=tuple(inputs), outputs={"Hidden": 1}, others=others)


@case("lstm_unit")
def _lstm_unit(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows, width = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    inputs = {"X": smooth(random, (rows, 4 * width)), "C_prev": smooth(random, (rows, width))}
    return Case(op_type, inputs, {"forget_bias": 0.5}, wrt=("X", "C_prev"), outputs={"C": 1, "H": 1})


@case("linear_chain_crf")
def _linear_chain_crf(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    width = draw(st.integers(1, 4))
    x = sequences(draw, random, width)
    inputs: dict[str, object] = {"Transition": smooth(random, (width + 2, width))}
    if draw(st.booleans()):
        labels = ps.LoDTensor(random.integers(0, width, (len(x.data), 1)), x.lod)
        inputs |= {"Emission": x, "Label": labels}
    else:
        dims = (draw(st.integers(1, 3)), draw(st.integers(1, 4)))
        inputs |= {"Emission": smooth(random, (*dims, width)), "Label": random.integers(0, width, dims)}
        inputs["Length"] = random.integers(0, dims[1] + 1, (dims[0], 1))
    others = ("Alpha", "EmissionExps", "TransitionExps")
    return Case(op_type, inputs, wrt=("Emission", "Transition"), outputs={"LogLikelihood": 1}, others=others)


@case("warpctc")
def _warpctc(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    classes, blank = 4, draw(st.sampled_from([0, 3]))
    counts = np.array(draw(st.lists(st.integers(1, 2), min_size=1, max_size=3)))
    frames = 2 * counts + draw(st.integers(0, 2))
    flat = random.integers(0, classes - 1, counts.sum()).astype(np.int32)
    flat += flat >= blank
    attrs = {"blank": blank, "norm_by_times": False}  # which scales the gradient, but not the loss
    if draw(st.booleans()):
        ends, label_ends = ([0, *map(int, np.cumsum(lengths))] for lengths in (frames, counts))
        x = ps.LoDTensor(smooth(random, (ends[-1], classes)), [ends])
        inputs: dict[str, object] = {"Logits": x, "Label": ps.LoDTensor(flat[:, None], [label_ends])}
    else:
        labels = np.zeros((len(counts), counts.max()), np.int32)
        labels[np.arange(counts.max()) < counts[:, None]] = flat
        x = smooth(random, (frames.max(), len(counts), classes))
        inputs = {"Logits": x, "Label": labels, "LogitsLength": frames, "LabelLength": counts}
    return Case(op_type, inputs, attrs, wrt=("Logits",), outputs={"Loss": 1}, others=("WarpCTCGrad",))


@case("conv_shift")
def _conv_shift(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows, width = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    taps = draw(st.sampled_from([taps for taps in (1, 3, 5) if taps <= width]))
    inputs = {"X": smooth(random, (rows, width)), "Y": smooth(random, (rows, taps))}
    return Case(op_type, inputs, wrt=("X", "Y"))


@case("sequence_topk_avg_pooling")
def _topk_pooling(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    sizes = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=3))
    channels = draw(st.integers(1, 2))
    lengths = ([channels * r * c for r, c in sizes], [r for r, _ in sizes], [c for _, c in sizes])
    x, row, column = ([0, *map(int, np.cumsum(counts))] for counts in lengths)
    inputs = {
        "X": ps.LoDTensor(distinct(random, (x[-1], 1)), [x]),
        "ROW": ps.LoDTensor(smooth(random, (row[-1], 2)), [row]),
        "COLUMN": ps.LoDTensor(smooth(random, (column[-1], 2)), [column]),
    }
    attrs = {"topks": [1, 3], "channel_num": channels}
    return Case(op_type, inputs, attrs, others=("pos",))
