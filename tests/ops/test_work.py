"""Work rules: the operations of an op, and the bytes that it touches."""

import pytest

from pstranspile.ir.attributes import Ints
from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops import all_schemas, facts_of, schema_of
from pstranspile.ops.build import make_op
from pstranspile.ops.shapes import infer_types
from pstranspile.ops.work import FAMILIES, family_of, memory_traffic, operations, work_rule

ONE, TWO = Ints((1, 1)), Ints((2, 2))


def cost(op: Op, **dims: tuple[int, ...]) -> tuple[float, float]:
    """The operations and the bytes of an op whose variables, named as their slots, have these dims."""
    types = {name: TensorType(DType.INT64 if name == "Ids" else DType.FP32, shape) for name, shape in dims.items()}
    inputs = {slot: tuple(types[name] for name in names) for slot, names in op.inputs.items() if names}
    outputs = {slot: tuple(types.get(name) for name in names) for slot, names in op.outputs.items()}
    outputs = {**outputs, **infer_types(op, types.get)}
    return operations(op, inputs, outputs), memory_traffic(op, inputs, outputs)


def op(op_type: str, inputs: str, outputs: str, **attrs: object) -> Op:
    """An op whose variables are named as its slots."""
    return make_op(op_type, {n: [n] for n in inputs.split()}, {n: [n] for n in outputs.split()}, attrs)


@pytest.mark.parametrize(
    ("made", "dims", "expected"),
    [
        (op("mul", "X Y", "Out"), {"X": (4, 5), "Y": (5, 7)}, 2 * 4 * 5 * 7),
        (op("mul", "X Y", "Out", x_num_col_dims=2), {"X": (4, 3, 5), "Y": (5, 7)}, 2 * 4 * 3 * 5 * 7),
        (op("matmul", "X Y", "Out"), {"X": (9, 4, 5), "Y": (9, 5, 7)}, 2 * 9 * 4 * 5 * 7),
        (op("matmul", "X Y", "Out", transpose_X=True), {"X": (5, 4), "Y": (5, 7)}, 2 * 4 * 5 * 7),
        (op("matmul", "X Y", "Out", transpose_Y=True), {"X": (4, 5), "Y": (7, 5)}, 2 * 4 * 5 * 7),
        (op("bmm", "X Y", "Out"), {"X": (9, 4, 5), "Y": (9, 5, 7)}, 2 * 9 * 4 * 5 * 7),
        (
            op("conv2d", "Input Filter", "Output", strides=ONE, paddings=ONE, dilations=ONE, groups=2),
            {"Input": (2, 4, 8, 8), "Filter": (6, 2, 3, 3)},
            2 * (2 * 6 * 8 * 8) * (2 * 3 * 3),
        ),
        (
            op(
                "conv2d_transpose", "Input Filter", "Output", strides=Ints((2, 2)), paddings=Ints((0, 0)), dilations=ONE
            ),
            {"Input": (2, 4, 8, 8), "Filter": (4, 6, 2, 2)},
            2 * (2 * 4 * 8 * 8) * (6 * 2 * 2),
        ),
        (op("relu", "X", "Out"), {"X": (4, 5)}, 20),
        (op("reduce_sum", "X", "Out", dim=Ints((1,))), {"X": (4, 5)}, 20),
        (op("reshape2", "X", "Out XShape", shape=Ints((2, 10))), {"X": (4, 5)}, 0),
        (op("lookup_table_v2", "W Ids", "Out"), {"W": (1000, 8), "Ids": (3, 2)}, 0),
        (op("sgd", "Param Grad LearningRate", "ParamOut"), {"Param": (9, 5), "Grad": (9, 5), "LearningRate": (1,)}, 90),
    ],
    ids=lambda value: value.type if isinstance(value, Op) else None,
)
def test_operations(made: Op, dims: dict[str, tuple[int, ...]], expected: float):
    assert cost(made, **dims)[0] == expected


@pytest.mark.parametrize("made", ["X", "Y", "X Y"])
def test_a_gradient_costs_as_much_as_the_product_for_each_factor(made: str):
    outputs = {f"{slot}@GRAD": [f"{slot}@GRAD" if slot in made.split() else "@EMPTY@"] for slot in ("X", "Y")}
    gradient = make_op("mul_grad", {"X": ["X"], "Y": ["Y"], "Out@GRAD": ["Out@GRAD"]}, outputs)
    dims = {"X": (4, 5), "Y": (5, 7), "Out@GRAD": (4, 7)}
    assert cost(gradient, **dims)[0] == len(made.split()) * 2 * 4 * 5 * 7


def test_bytes():
    assert cost(op("relu", "X", "Out"), X=(4, 5))[1] == 2 * 80
    assert cost(op("reshape2", "X", "Out XShape", shape=Ints((2, 10))), X=(4, 5))[1] == 0
    gradient = op("lookup_table_v2_grad", "W Ids Out@GRAD", "W@GRAD", is_sparse=True)
    assert cost(gradient, W=(1000, 8), Ids=(3, 2), **{"Out@GRAD": (3, 2, 8)})[1] < 1000 * 8 * 4 + 1000
    rows = 6 * 8 * 4  # read from the table, and written
    for sparse in (True, False):
        made = op("lookup_table_v2", "W Ids", "Out", is_sparse=sparse)
        assert cost(made, W=(1000, 8), Ids=(3, 2))[1] == 2 * rows + 6 * 8


def test_every_optimizer_has_a_rule():
    from pstranspile.ops.work import _RULES

    updates = {each for each in all_schemas() if schema_of(each).is_optimizer}
    assert not updates - _RULES.keys() - {"average_accumulates"}


def test_a_second_rule_is_refused():
    with pytest.raises(ValueError, match="op type mul has two work rules"):
        work_rule("mul")(lambda _op, _types: 1.0)


def test_every_op_type_has_a_family():
    found = {op_type: family_of(op_type) for op_type in all_schemas()}
    assert {*found.values()} == {*FAMILIES} - {"sparse_updates", "reductions"}  # by the types of values
    for op_type, family in {
        "mul": "products",
        "mul_grad": "products",
        "conv2d_grad": "convolutions",
        "lstm": "recurrent",
        "lookup_table_grad": "lookups",
        "adam": "updates",
        "reshape2_grad": "moved",
        "send": "messages",
        "relu": "elementwise",
        "softmax_with_cross_entropy": "passes",
    }.items():
        assert found[op_type] == family


def test_ops_write_over_their_input_as_their_kernels_do():
    from pstranspile.runtime.kernels.kernel import kernel_of

    for op_type in all_schemas():
        if (kernel := kernel_of(op_type)) is None:
            continue
        memory = facts_of(op_type).memory
        if memory == "over":
            assert kernel.over is not None or kernel.reuses
        if memory:
            assert kernel.new
