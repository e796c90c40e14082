"""Values out of nothing, copies and conversions."""

from __future__ import annotations

from pstranspile.ops.schema import INT, INTS, declare, floats, ints, longs

declare(
    "fill_constant",
    "ValueTensor? ShapeTensor? ShapeTensorList*? -> Out",
    {"shape": longs(), "value": 0.0, "str_value": "", "force_cpu": False, "dtype": 5},
    doc="Out = a tensor of dims `shape`, all elements `value`",
)
declare(
    "fill_constant_batch_size_like",
    "Input -> Out",
    {
        "shape": INTS,
        "input_dim_idx": 0,
        "output_dim_idx": 0,
        "value": 0.0,
        "str_value": "",
        "force_cpu": False,
        "dtype": 5,
    },
    doc="as fill_constant, one dim taken from Input",
)
declare(
    "fill_any_like",
    "X -> Out",
    {"value": 0.0, "dtype": -1},
    row_wise=True,
    doc="Out = a tensor as X, all elements `value`",
)
declare("fill_zeros_like", "X -> Out", row_wise=True, doc="Out = zeros, as X")
declare("assign", "X? -> Out", row_wise=True, doc="Out = X")
declare(
    "assign_value",
    "-> Out",
    {
        "shape": INTS,
        "bool_values": ints(),
        "fp32_values": floats(),
        "int32_values": ints(),
        "int64_values": longs(),
        "dtype": INT,
    },
    doc="Out = the listed values",
)
declare("cast", "X -> Out", {"out_dtype": INT, "in_dtype": INT}, row_wise=True, doc="Out = X converted to out_dtype")
declare(
    "coalesce_tensor",
    "Input* -> Output* FusedOutput",
    {"copy_data": False, "set_constant": False, "constant": 0.0, "check_name": False, "dtype": INT},
    doc="Output = Input, laid one after another in the memory of FusedOutput",
)
