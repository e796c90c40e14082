"""What is drawn for sampled logits and encoded positions (registered with the other cases)."""

import numpy as np
from hypothesis import strategies as st

from tests.frontends.autodiff.cases import NOT_CHECKED, Draw, case, dims, ragged, smooth
from tests.frontends.autodiff.numeric import Case

NOT_CHECKED["cvm"] = "its gradient hands counts of shows and clicks on, it is no derivative of them"


@case("sample_logits")
def _sample_logits(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows, true = dims(draw, 2, 2)
    labels = np.stack([random.permutation(7)[:true] for _ in range(rows)])
    inputs = {"Logits": smooth(random, (rows, 7)), "Labels": labels}
    attrs = {"num_samples": draw(st.integers(1, 4)), "seed": draw(st.integers(1, 99)), "remove_accidental_hits": False}
    others = ("Samples", "Probabilities", "LogitsDim", "LabelsDim", "SampledLabels")
    return Case(op_type, inputs, attrs, wrt=("Logits",), outputs={"SampledLogits": 1}, others=others)


@case("add_position_encoding")
def _add_position_encoding(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    width = 2 * draw(st.integers(1, 3))
    x = ragged(draw, random, width) if draw(st.booleans()) else smooth(random, (*dims(draw, 2, 2), width))
    return Case(op_type, {"X": x}, {"alpha": 0.5, "beta": 2.0})
