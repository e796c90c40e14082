"""Products, sums, scalings and norms of whole tensors."""

from __future__ import annotations

from pstranspile.ops.schema import declare, declare_gradient, floats, ints

declare(
    "mul",
    "X Y -> Out",
    {
        "use_mkldnn": False,
        "x_num_col_dims": 1,
        "y_num_col_dims": 1,
        "scale_x": 1.0,
        "scale_y": floats(1.0),
        "scale_out": 1.0,
        "force_fp32_output": False,
    },
    doc="Out = X @ Y, X made a matrix at x_num_col_dims and Y at y_num_col_dims",
)
declare_gradient("mul", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare(
    "matmul",
    "X Y -> Out",
    {
        "transpose_X": False,
        "transpose_Y": False,
        "alpha": 1.0,
        "use_mkldnn": False,
        "fused_reshape_Out": ints(),
        "fused_transpose_Out": ints(),
        "use_quantizer": False,
        "Scale_x": 1.0,
        "Scale_y": 1.0,
        "Scale_out": 1.0,
        "force_fp32_output": False,
        "head_number": 1,
    },
    doc="Out = alpha * X @ Y over the last two dims, each transposed first if asked, leading dims broadcast",
)
declare_gradient("matmul", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare(
    "sum",
    "X* -> Out",
    {"use_mkldnn": False},
    row_wise=True,
    doc="Out = the sum of all X; dense, SelectedRows, or mixed",
)
declare(
    "scale",
    "X ScaleTensor? -> Out",
    {"scale": 1.0, "bias": 0.0, "bias_after_scale": True},
    row_wise=True,
    doc="Out = scale * X + bias, or scale * (X + bias)",
)
declare("mean", "X -> Out", doc="Out = the mean of all elements of X")
declare_gradient("mean", "X Out@GRAD -> X@GRAD")
declare("increment", "X -> Out", {"step": 1.0}, doc="Out = X + step; X has one element")
declare("squared_l2_norm", "X -> Out", doc="Out = the sum of the squares of X")
declare_gradient("squared_l2_norm", "X Out@GRAD -> X@GRAD")
declare(
    "squared_l2_distance",
    "X Y -> sub_result Out",
    doc="Out = the sum of (X - Y) squared of each row; sub_result = X - Y",
)
declare_gradient("squared_l2_distance", "X Y sub_result Out@GRAD -> X@GRAD Y@GRAD")
declare(
    "cos_sim",
    "X Y -> Out XNorm YNorm",
    {"@ALL_KERNELS_MUST_COMPUTE_RUNTIME_SHAPE@": True},
    doc="Out = the cosine of each row of X with that row of Y (or the only row of Y)",
)
declare_gradient("cos_sim", "X Y Out XNorm YNorm Out@GRAD -> X@GRAD Y@GRAD")
