"""Fluid's `contrib.layers.metric_op`: metrics of click models, summed over all steps and trainers."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.initializer import Constant
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.missing import names_of_fluid

_SUMS = ("abserr", "sqrerr", "prob", "q", "pos", "total")


class _Bundle:
    """The sums of the metrics, each with that of a step, which is added to it."""

    def __init__(self, helper: LayerHelper):
        self._helper = helper
        self._sums = {name: self._variable([1], persistable=True) for name in _SUMS}
        self._steps: dict[str, Any] = {}

    def _variable(self, dims: list[int], *, persistable: bool = False) -> Any:
        return self._helper.create_global_variable(persistable=persistable, dtype="float32", shape=dims)

    def temporaries(self) -> list[Any]:
        """Variables for what is computed of each row: three of them."""
        rows = [self._variable([-1]) for _ in range(3)]
        self._steps = {name: self._variable([1]) for name in ("prob", "abserr", "sqrerr", "q", "pos", "total")}
        for name in ("abserr", "sqrerr", "prob", "q"):
            self._start(self._sums[name], self._steps[name])
        self._start(self._steps["pos"], self._steps["total"], self._sums["pos"], self._sums["total"])
        return rows

    def _start(self, *variables: Any) -> None:
        for variable in variables:
            self._helper.set_variable_initializer(variable, Constant(0.0, force_cpu=True))

    def add(self, name: str, op_type: str, x: Any) -> None:
        """Adds what an op makes of x in each step to a sum."""
        step, total = self._steps[name], self._sums[name]
        self._helper.append_op(type=op_type, inputs={"X": [x]}, outputs={"Out": [step]})
        inputs = {"X": [step], "Y": [total]}
        self._helper.append_op(type="elementwise_add", inputs=inputs, outputs={"Out": [total]})

    def result(self) -> tuple[Any, ...]:
        """The sums."""
        return tuple(self._sums[name] for name in ("sqrerr", "abserr", "prob", "q", "pos", "total"))


def ctr_metric_bundle(input: Any, label: Any) -> tuple[Any, ...]:
    """Sums over all rows so far, each float32 [1], of probabilities `input` and clicks `label`, both [rows, 1].

    They are: squared errors, absolute errors, probabilities, sigmoids of probabilities, clicks, and how many rows there
    were. Raises AssertionError for different dims.
    """
    if tuple(input.shape) != tuple(label.shape):
        raise AssertionError(f"input has the dims {list(input.shape)}, label {list(label.shape)}")
    helper = LayerHelper("ctr_metric_bundle")
    bundle = _Bundle(helper)
    error, sigmoid, ones = bundle.temporaries()
    helper.append_op(type="elementwise_sub", inputs={"X": [input], "Y": [label]}, outputs={"Out": [error]})
    bundle.add("sqrerr", "squared_l2_norm", error)
    bundle.add("abserr", "l1_norm", error)
    bundle.add("prob", "reduce_sum", input)
    helper.append_op(type="sigmoid", inputs={"X": [input]}, outputs={"Out": [sigmoid]})
    bundle.add("q", "reduce_sum", sigmoid)
    bundle.add("pos", "reduce_sum", label)
    attrs = {"shape": [-1, 1], "dtype": ones.dtype, "value": 1.0}
    helper.append_op(
        type="fill_constant_batch_size_like", inputs={"Input": label}, outputs={"Out": [ones]}, attrs=attrs
    )
    bundle.add("total", "reduce_sum", ones)
    return bundle.result()


__getattr__ = names_of_fluid(__name__, globals())
