"""Expressions that stand for kernels in generated code give bitwise what the kernels give."""

import math

import numpy as np
import pytest

from pstranspile.ir.attributes import AttrKind, Ints
from pstranspile.ops import all_schemas
from pstranspile.runtime.arithmetic import FUNCTIONS, NUMBERS
from pstranspile.runtime.kernels.kernel import kernel_of
from tests.ops.computing import compute

ATTRS = {
    "cast": {"in_dtype": 5, "out_dtype": 3},
    "leaky_relu": {"alpha": 0.1},
    "leaky_relu_grad": {"alpha": 0.1},
    "increment": {"step": 0.7},
    "reshape": {"shape": Ints((3, -1))},
    "reshape2": {"shape": Ints((3, -1))},
    "transpose": {"axis": Ints((1, 0))},
    "transpose2": {"axis": Ints((1, 0))},
}


def floats_of(op_type):
    """The FLOAT attributes of an op."""
    return [name for name, spec in all_schemas()[op_type].attrs.items() if spec.kind is AttrKind.FLOAT]


SCALES = [{"scale": 0.1}, {"scale": -1.0, "bias": 0.3}, {"scale": 2.9, "bias": 1.7, "bias_after_scale": False}]
INLINED = [
    name for name in sorted(all_schemas()) if (kernel := kernel_of(name)) is not None and kernel.inline is not None
]
CASES = [(name, attrs) for name in INLINED for attrs in (SCALES if name == "scale" else [ATTRS.get(name, {})])]
NOT_FINITE = [
    (name, dict.fromkeys(floats, number), kind)
    for name in INLINED
    if name != "fill_constant" and (floats := floats_of(name))
    for number in (math.inf, -math.inf, math.nan)
    for kind in ("float32", "float64")
]


def expression(op_type, frame):
    """The expression of an op that ran, or None."""
    kernel, op = kernel_of(op_type), frame.block.ops[0]
    defaults = all_schemas()[op_type].defaults
    inline = kernel.inline
    return inline(op._replace(attrs={**defaults, **op.attrs})) if callable(inline) else inline


INTEGERS = ("elementwise_", "scale", "sum", "increment", "less", "equal", "bitwise_")
ONLY_INTEGERS = ("bitwise_",)


@pytest.mark.parametrize(
    ("op_type", "attrs", "kind"),
    [
        (op_type, attrs, kind)
        for op_type, attrs in CASES
        for kind in ("float32", "float64", "int64")
        if (op_type.startswith(INTEGERS) if kind == "int64" else not op_type.startswith(ONLY_INTEGERS))
    ]
    + NOT_FINITE,
)
def test_an_expression_gives_bitwise_what_its_kernel_gives(op_type, attrs, kind):
    schema = all_schemas()[op_type]
    rng = np.random.default_rng(3)
    inputs = {}
    for name, slot in schema.inputs.items():
        if not slot.dispensable:
            values = [(rng.uniform(0.3, 3, (2, 3))).astype(kind) for _ in "ab"]
            inputs[name] = values if slot.duplicable else values[0]
    if "Out@GRAD" in inputs and op_type in ("mean_grad", "squared_l2_norm_grad"):
        inputs["Out@GRAD"] = np.ones(1, kind)
    kernel = kernel_of(op_type)
    output, *others = kernel.outputs
    assert kernel.spares.issuperset(others)
    with np.errstate(all="ignore"):
        frame = compute(op_type, inputs, {output: "result"}, attrs)
        text = expression(op_type, frame)
        assert text is not None
        names = {
            slot.replace("@", "_"): [f"values[{slot!r}][{at}]" for at in range(len(value))]
            if isinstance(value, list)
            else f"values[{slot!r}]"
            for slot, value in inputs.items()
        }
        found = eval(text.format_map(names), {"np": np, **FUNCTIONS, **NUMBERS, "values": inputs})
    expected = frame.find("result")
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("op_type", ["elementwise_add", "elementwise_mul", "less_than"])
@pytest.mark.parametrize(("axis", "dims", "calls"), [(0, (2,), True), (1, (3,), False), (0, (2, 3), False)])
def test_an_expression_calls_the_kernel_where_numpy_does_not_align_by_the_axis(op_type, axis, dims, calls):
    x, y = np.arange(6.0).reshape(2, 3), np.ones(dims) * 2
    frame = compute(op_type, {"X": x, "Y": y}, {"Out": "out"}, {"axis": axis})
    text = expression(op_type, frame).format(X="x", Y="y", call="call()")
    called = []
    found = eval(text, {"np": np, "x": x, "y": y, "call": lambda: called.append(True)})
    assert bool(called) == calls
    if not calls:
        assert found.tobytes() == frame.find("out").tobytes()


@pytest.mark.parametrize(
    ("op_type", "attrs"), [("reshape2", {"shape": Ints((3, 2))}), ("transpose2", {"axis": Ints((1, 0))})]
)
def test_an_op_whose_second_result_is_read_has_no_expression(op_type, attrs):
    frame = compute(op_type, {"X": np.ones((2, 3))}, {"Out": "out", "XShape": "shape"}, attrs)
    assert expression(op_type, frame) is None


def test_dims_that_are_those_of_the_input_have_no_expression():
    frame = compute("reshape2", {"X": np.ones((2, 3))}, {"Out": "out"}, {"shape": Ints((0, 3, 1))})
    assert expression("reshape2", frame) is None
