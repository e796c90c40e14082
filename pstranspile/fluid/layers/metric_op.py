"""Fluid's `layers.metric_op`."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.graph.vartype import dtype_of
from pstranspile.fluid.layers.adapt import checked_all, to_core, wrap
from pstranspile.fluid.layers.nn import topk
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.layers import basic, loss


def accuracy(input: Any, label: Any, k: Any = 1, correct: Any = None, total: Any = None) -> Any:
    """The share of rows whose label is among the k largest; how many there were goes into `correct` and `total`."""
    value = to_core(input)
    draft = value.draft
    layer = draft.names.mint("accuracy")
    top, places = to_core(topk(input, k))
    written = {
        "Accuracy": dtype_of("float32"),
        "Correct": dtype_of("int32") if correct is None else to_core(correct),
        "Total": dtype_of("int32") if total is None else to_core(total),
    }
    inputs = {"Out": top, "Indices": places, "Label": to_core(label)}
    return wrap(basic.layer_outputs("accuracy", inputs, written, name=layer)[0])


def auc(
    input: Any,
    label: Any,
    curve: str = "ROC",
    num_thresholds: int = 4095,
    topk: int = 1,
    slide_steps: int = 1,
) -> Any:
    """The area under the curve since the start, over the last steps, and the four variables of counts."""
    draft = to_core(input).draft
    made = loss.auc(to_core(input), to_core(label), curve=curve, num_thresholds=num_thresholds, slide_steps=slide_steps)
    ops = draft.block.ops[-2:]
    counts = [op.inputs[slot][0] for op in ops for slot in ("StatPos", "StatNeg")]
    total, batch = wrap(list(made))
    return total, batch, [draft.program.global_block().var(name) for name in counts]


__getattr__ = names_of_fluid(__name__, globals())
checked_all(globals())
