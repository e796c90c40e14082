"""What the shape rules say of inputs that don't fit together."""

import pytest

from pstranspile.ir.attributes import Ints
from pstranspile.ir.model import TensorType
from pstranspile.ir.types import DType
from tests.ops.typed import check_types, op_and_types

SGD = {"Param": "f32[1000, 100]", "Grad": "f32[1000, 100]", "LearningRate": "f32[1]"}


@pytest.mark.parametrize(
    ("op_type", "inputs", "attrs", "message"),
    [
        ("sgd", {**SGD, "Grad": "f32[1000, 10]"}, {}, "Grad is f32[1000, 10], Param is f32[1000, 100]"),
        ("sgd", {**SGD, "LearningRate": "f32[2]"}, {}, "LearningRate is f32[2], it must have one element"),
        ("momentum", {**SGD, "Velocity": "f32[10]"}, {"mu": 0.9}, "Velocity is f32[10], Param is f32[1000, 100]"),
        (
            "elementwise_add",
            {"X": "f32[2, 3]", "Y": "f32[2]"},
            {},
            "Y is f32[2], which does not fit X, f32[2, 3], from dim 1 on",
        ),
        ("elementwise_add", {"X": "f32[2, 3]", "Y": "f64[3]"}, {}, "Y is f64[3], X is f32[2, 3]"),
        (
            "elementwise_add",
            {"X": "f32[2, 3]", "Y": "f32[3]"},
            {"axis": 2},
            "axis is 2, but Y is f32[3] and X is f32[2, 3]",
        ),
        (
            "elementwise_add",
            {"X": "f32[2, 3]", "Y": "f32[3]"},
            {"axis": -9},
            "axis is -9; the least is -1, which lays Y on the last dims of X",
        ),
        (
            "elementwise_mul",
            {"X": "f32[2, 3]", "Y": "f32[2, 3]"},
            {"axis": -2},
            "axis is -2; the least is -1, which lays Y on the last dims of X",
        ),
        (
            "less_than",
            {"X": "f32[2, 3]", "Y": "f32[3]"},
            {"axis": -2},
            "axis is -2; the least is -1, which lays Y on the last dims of X",
        ),
        ("mul", {"X": "f32[2, 3]", "Y": "f32[4, 5]"}, {}, "X is f32[2, 3] with 3 columns, Y is f32[4, 5] with 4 rows"),
        (
            "matmul",
            {"X": "f32[2, 3]", "Y": "f32[4, 5]"},
            {},
            "X is f32[2, 3] with 3 columns, Y is f32[4, 5] with 4 rows",
        ),
        ("matmul", {"X": "f32[2, 3, 4]", "Y": "f32[3, 4, 5]"}, {}, "Y is f32[3, 4, 5], X is f32[2, 3, 4]"),
        ("sum", {"X": ["f32[2]", "f32[3]"]}, {}, "X is f32[3], the first term is f32[2]"),
        ("mul", {"X": "f32[2, 3]", "Y": "i64[3, 5]"}, {}, "Y is i64[3, 5], X is f32[2, 3]"),
        ("mul", {"X": "i64[2, 3]", "Y": "f32[3, 5]"}, {}, "Y is f32[3, 5], X is i64[2, 3]"),
        ("matmul", {"X": "f32[2, 3]", "Y": "f64[3, 5]"}, {}, "Y is f64[3, 5], X is f32[2, 3]"),
        ("bmm", {"X": "f64[1, 2, 3]", "Y": "f32[1, 3, 5]"}, {}, "Y is f32[1, 3, 5], X is f64[1, 2, 3]"),
        ("kron", {"X": "f64[2, 3]", "Y": "f32[3, 5]"}, {}, "Y is f32[3, 5], X is f64[2, 3]"),
        (
            "addmm",
            {"Input": "f64[1]", "X": "f32[2, 3]", "Y": "f32[3, 5]"},
            {},
            "Input is f64[1], X is f32[2, 3]",
        ),
        (
            "conv2d",
            {"Input": "f32[1, 1, 4, 4]", "Filter": "f64[1, 1, 2, 2]"},
            {},
            "Filter is f64[1, 1, 2, 2], Input is f32[1, 1, 4, 4]",
        ),
        (
            "conv2d_transpose",
            {"Input": "f32[1, 1, 4, 4]", "Filter": "f64[1, 1, 2, 2]"},
            {},
            "Filter is f64[1, 1, 2, 2], Input is f32[1, 1, 4, 4]",
        ),
        ("cos_sim", {"X": "f32[4, 2]", "Y": "f32[3, 2]"}, {}, "Y is f32[3, 2], X is f32[4, 2]"),
        ("reduce_sum", {"X": "f32[4, 2]"}, {"dim": Ints([2])}, "dim 2 is not a dim of X, which is f32[4, 2]"),
        ("logical_and", {"X": "bool[1]", "Y": "bool[2]"}, {}, "Y is bool[2], X is bool[1]"),
        (
            "cross_entropy",
            {"X": "f32[4, 5]", "Label": "i64[3, 1]"},
            {},
            "Label is i64[3, 1], which is not one label for each row of f32[4, 5]",
        ),
        (
            "cross_entropy",
            {"X": "f32[4, 5]", "Label": "f32[4, 1]"},
            {"soft_label": True},
            "Label is f32[4, 1], X is f32[4, 5]",
        ),
        (
            "softmax_with_cross_entropy",
            {"Logits": "f32[4, 5]", "Label": "i64[4, 5]"},
            {},
            "Label is i64[4, 5], Logits is f32[4, 5]",
        ),
        ("huber_loss", {"X": "f32[4, 1]", "Y": "f32[4, 2]"}, {"delta": 1.0}, "Y is f32[4, 2], X is f32[4, 1]"),
        (
            "nce",
            {"Input": "f32[4, 8]", "Label": "i64[4, 1]", "Weight": "f32[10, 9]"},
            {},
            "Weight is f32[10, 9], Input is f32[4, 8]",
        ),
        ("hierarchical_sigmoid", {"X": "f32[4, 8]", "W": "f32[5, 9]"}, {}, "W is f32[5, 9], X is f32[4, 8]"),
        ("batch_norm", {"X": "f32[4, 8, 2, 2]", "Scale": "f32[4]"}, {}, "Scale is f32[4], X is f32[4, 8, 2, 2]"),
        ("layer_norm", {"X": "f32[4, 8]", "Bias": "f32[4]"}, {}, "Bias is f32[4], X is f32[4, 8]"),
        ("lookup_table", {"W": "f32[9, 4]", "Ids": "f32[4, 1]"}, {}, "Ids is f32[4, 1], ids are i64"),
        ("lookup_table", {"W": "f32[9, 4]", "Ids": "i64[4, 3]"}, {}, "Ids is i64[4, 3], its last dim must be 1"),
        ("lookup_table", {"W": "f32[9]", "Ids": "i64[4, 1]"}, {}, "W is f32[9], a table has two dims"),
        (
            "accuracy",
            {"Out": "f32[4, 2]", "Indices": "i64[4, 1]", "Label": "i64[4, 1]"},
            {},
            "Indices is i64[4, 1], Out is f32[4, 2]",
        ),
        ("auc", {"Predict": "f32[4, 2]", "Label": "i64[3, 1]"}, {}, "Label is i64[3, 1], Predict is f32[4, 2]"),
        (
            "reshape2",
            {"X": "f32[5, 2]"},
            {"shape": Ints([4, -1])},
            "X is f32[5, 2], which cannot have the dims [4, -1]",
        ),
        ("reshape2", {"X": "f32[5, 2]"}, {"shape": Ints([9])}, "X is f32[5, 2], which cannot have the dims [9]"),
        ("reshape2", {"X": "f32[5]"}, {"shape": Ints([5, 0])}, "shape is [5, 0], but X is f32[5]"),
        (
            "transpose2",
            {"X": "f32[5, 2]"},
            {"axis": Ints([0])},
            "axis [0] is not an order of the dims of X, which is f32[5, 2]",
        ),
        (
            "squeeze2",
            {"X": "f32[5, 2]"},
            {"axes": Ints([1])},
            "axes has 1, which is not a dim of size 1 of X, f32[5, 2]",
        ),
        ("unsqueeze2", {"X": "f32[5]"}, {"axes": Ints([3])}, "axes has 3, but X is f32[5]"),
        ("concat", {"X": ["f32[5, 2]", "f32[5]"]}, {}, "X is f32[5], the first part is f32[5, 2]"),
        ("concat", {"X": ["f32[5, 2]", "f32[5, 3]"]}, {}, "X is f32[5, 3], the first part is f32[5, 2]"),
        ("concat", {"X": ["f32[5, 2]"]}, {"axis": 2}, "axis is 2, but X is f32[5, 2]"),
        ("split", {"X": "f32[5]"}, {"num": 2}, "X is f32[5], dim 0 cannot be cut into 2 equal parts"),
        ("split", {"X": "f32[5]"}, {"sections": Ints([2, 2])}, "X is f32[5], dim 0 cannot be cut into [2, 2]"),
        (
            "split_byref",
            {"X": "f32[5]"},
            {"sections": Ints([2, 2])},
            "X is f32[5], which cannot be cut into [2, 2] rows",
        ),
        ("stack", {"X": ["f32[5]", "f32[4]"]}, {}, "X is f32[4], the first part is f32[5]"),
        (
            "slice",
            {"Input": "f32[5]"},
            {"axes": Ints([1]), "starts": Ints([0]), "ends": Ints([1])},
            "axes has 1, but Input is f32[5]",
        ),
        ("expand", {"X": "f32[5]"}, {"expand_times": Ints([1, 2])}, "expand_times is [1, 2], but X is f32[5]"),
        ("top_k", {"X": "f32[4, 5]"}, {"k": 6}, "k is 6, but X is f32[4, 5]"),
        ("cast", {"X": "i64[4]"}, {"in_dtype": 5, "out_dtype": 6}, "X is i64[4], but in_dtype says f32"),
        (
            "fill_constant_batch_size_like",
            {"Input": "f32[4]"},
            {"shape": Ints([1]), "input_dim_idx": 1},
            "dim 1 of Input, f32[4], cannot be dim 0 of [1]",
        ),
        (
            "conv2d",
            {"Input": "f32[4, 3, 8, 8]", "Filter": "f32[6, 1, 3, 3]"},
            {},
            "Filter is f32[6, 1, 3, 3], which takes 1 channels; Input is f32[4, 3, 8, 8]",
        ),
        ("pool2d", {"X": "f32[4, 3]"}, {"ksize": Ints([2, 2])}, "X is f32[4, 3], images have four dims"),
        ("sequence_pool", {"X": "f32[4, 3]"}, {}, "X is f32[4, 3] without LoD, a ragged sequence is needed"),
        (
            "sequence_conv",
            {"X": TensorType(DType.FP32, (-1, 3), 1), "Filter": "f32[6, 5]"},
            {"contextLength": 3},
            "Filter is f32[6, 5], it needs 9 rows for X, f32[-1, 3]",
        ),
        ("c_reducescatter", {"X": "f32[5]"}, {"nranks": 2}, "X is f32[5], its rows cannot be divided among 2 trainers"),
        ("mean_grad", {"X": "f32[5]", "Out@GRAD": "f32[1]", "Out": "f64[1]"}, {}, "Out@GRAD is f32[1], Out is f64[1]"),
    ],
)
def test_what_does_not_fit(op_type: str, inputs: dict, attrs: dict, message: str):
    op, types = op_and_types(op_type, inputs, attrs)
    (problem,) = check_types(op, types.get)
    assert problem.message == message
    assert problem.slot in inputs
    assert problem.variable == f"{problem.slot}.0"
