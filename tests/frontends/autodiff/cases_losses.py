"""What is drawn for the losses, products and norms that are less often used (registered with the other cases)."""

import numpy as np
from hypothesis import strategies as st

from tests.frontends.autodiff.cases import Draw, case, dims, off_zero, smooth
from tests.frontends.autodiff.numeric import Case


def column(draw: Draw) -> tuple[int, int]:
    return draw(st.integers(1, 5)), 1


@case("label_smooth")
def _label_smooth(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw, 2, 3)
    inputs = {"X": smooth(random, shape)}
    if draw(st.booleans()):
        inputs["PriorDist"] = random.uniform(0, 1, size=(1, shape[-1]))
    return Case(op_type, inputs, {"epsilon": 0.1})


@case("smooth_l1_loss")
def _smooth_l1(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw, 2, 3)
    y = smooth(random, shape)
    inputs = {"X": y + random.choice([-2.0, -0.2, 0.1, 1.7], size=shape), "Y": y}
    if draw(st.booleans()):
        inputs["InsideWeight"] = random.uniform(0.8, 1.0, size=shape)
        inputs["OutsideWeight"] = random.uniform(0.5, 2.0, size=shape)
    return Case(op_type, inputs, {"sigma": draw(st.sampled_from([1.0, 1.5]))}, wrt=("X", "Y"), others=("Diff",))


@case("bpr_loss")
def _bpr(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    leading, classes = dims(draw, 1, 2), draw(st.integers(2, 5))
    inputs = {"X": smooth(random, (*leading, classes)), "Label": random.integers(classes, size=(*leading, 1))}
    return Case(op_type, inputs, outputs={"Y": 1})


@case("kldiv_loss")
def _kldiv(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    inputs = {"X": smooth(random, shape), "Target": random.uniform(-0.3, 1, size=shape)}
    reduction = draw(st.sampled_from(["none", "sum", "mean", "batchmean"]))
    return Case(op_type, inputs, {"reduction": reduction}, outputs={"Loss": 1})


@case("nll_loss")
def _nll(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows, classes = dims(draw, 2, 2)
    image = draw(st.sampled_from([(), (2, 3)]))
    inputs = {"X": smooth(random, (rows, classes, *image)), "Label": random.integers(classes, size=(rows, *image))}
    if draw(st.booleans()):
        inputs["Weight"] = random.uniform(0.2, 2.0, size=(classes,))
    attrs = {"reduction": draw(st.sampled_from(["none", "sum", "mean"])), "ignore_index": -100}
    return Case(op_type, inputs, attrs, others=("Total_weight",))


@case("center_loss")
def _center(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows, width = dims(draw, 2, 2)
    inputs = {
        "X": smooth(random, (rows, width)),
        "Label": random.integers(3, size=(rows, 1)),
        "Centers": smooth(random, (3, width)),
        "CenterUpdateRate": np.array([0.1]),
    }
    attrs = {"cluster_num": 3, "need_update": draw(st.booleans())}
    return Case(op_type, inputs, attrs, outputs={"Loss": 1}, others=("CentersOut", "SampleCenterDiff"))


@case("bce_loss")
def _bce(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    return Case(op_type, {"X": random.uniform(0.2, 0.8, size=shape), "Label": random.uniform(0, 1, size=shape)})


@case("hinge_loss")
def _hinge(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = column(draw)
    inputs = {
        "Logits": random.choice([-1.7, -0.4, 0.3, 2.2], size=shape),
        "Labels": random.integers(2, size=shape).astype("float64"),
    }
    return Case(op_type, inputs, wrt=("Logits",), outputs={"Loss": 1})


@case("modified_huber_loss")
def _modified_huber(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = column(draw)
    y = random.integers(2, size=shape).astype("float64")
    return Case(op_type, {"X": random.choice([-1.7, -0.4, 0.3, 2.2], size=shape), "Y": y}, others=("IntermediateVal",))


@case("margin_rank_loss")
def _margin_rank(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = column(draw)
    label, right = random.choice([-1.0, 1.0], size=shape), smooth(random, shape)
    inputs = {"X1": right + random.choice([-0.7, -0.3, 0.2, 1.1], size=shape), "X2": right, "Label": label}
    return Case(op_type, inputs, {"margin": 0.5}, wrt=("X1", "X2"), others=("Activated",))


@case("rank_loss")
def _rank(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = column(draw)
    inputs = {
        "Left": smooth(random, shape),
        "Right": smooth(random, shape),
        "Label": random.choice([0.0, 0.5, 1.0], size=shape),
    }
    flat = draw(st.sets(st.sampled_from(sorted(inputs))))  # a number for each row may have its dim of 1 or not
    inputs = {slot: value.ravel() if slot in flat else value for slot, value in inputs.items()}
    return Case(op_type, inputs, wrt=("Left", "Right"))


@case("sigmoid_focal_loss")
def _focal(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows, classes = dims(draw, 2, 2)
    inputs = {
        "X": smooth(random, (rows, classes)),
        "Label": random.integers(-1, classes + 1, size=(rows, 1)).astype("int32"),
        "FgNum": np.array([draw(st.integers(0, 4))], "int32"),
    }
    return Case(op_type, inputs, {"gamma": draw(st.sampled_from([0.0, 1.5, 2.0])), "alpha": 0.25})


@case("teacher_student_sigmoid_loss")
def _teacher(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = column(draw)
    label = random.choice([-2.0, -1.0, -0.5, 0.0, 0.7, 1.0, 1.4], size=shape)
    return Case(op_type, {"X": off_zero(random, shape), "Label": label}, outputs={"Y": 1})
