"""Products, norms and distances that are less often used."""

from __future__ import annotations

from pstranspile.ir.model import Op
from pstranspile.ops.gradient import Wanted, gradient, output_gradients, scaled
from pstranspile.ops.schema import INT, UNSCOPED, declare, declare_gradient, ints

declare(
    "addmm",
    "Input X Y -> Out",
    {"use_mkldnn": False, "Alpha": 1.0, "Beta": 1.0},
    doc="Out = Beta * Input + Alpha * X @ Y",
)
declare_gradient("addmm", "Input X Y Out@GRAD -> Input@GRAD X@GRAD Y@GRAD")
declare("bmm", "X Y -> Out", doc="Out = X @ Y for each of a batch")
declare_gradient("bmm", "X Y Out@GRAD -> X@GRAD Y@GRAD", UNSCOPED)
declare("dot", "X Y -> Out", doc="Out = the inner product of each row of X with that row of Y")
declare_gradient("dot", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("kron", "X Y -> Out", doc="Out = the Kronecker product of X and Y")
declare_gradient("kron", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("cross", "X Y -> Out", {"dim": 9}, doc="Out = the cross product of X and Y along `dim`")
declare_gradient("cross", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("minus", "X Y -> Out", row_wise=True, doc="Out = X - Y")
declare("dist", "X Y -> Out", {"p": 2.0}, doc="Out = the p-norm of X - Y")
declare_gradient("dist", "X Y Out Out@GRAD -> X@GRAD Y@GRAD")
declare("norm", "X -> Norm Out", {"axis": INT, "epsilon": 1e-10}, doc="Out = X divided by its L2 norm along `axis`")
declare_gradient("norm", "X Norm Out@GRAD -> X@GRAD")
declare(
    "p_norm",
    "X -> Out",
    {"porder": 2.0, "axis": -1, "epsilon": 1e-12, "keepdim": False},
    doc="Out = the p-norm of X along `axis`",
)
declare_gradient("p_norm", "X Out Out@GRAD -> X@GRAD")
declare("l1_norm", "X -> Out", doc="Out = the sum of the absolute values of X")
declare_gradient("l1_norm", "X Out@GRAD -> X@GRAD")
declare(
    "frobenius_norm",
    "X -> Out",
    {"dim": ints(0), "keep_dim": False, "reduce_all": False, "in_dtype": -1, "out_dtype": -1},
    doc="Out = the square root of the sum of squares over `dim`",
)
declare_gradient("frobenius_norm", "X Out Out@GRAD -> X@GRAD")
declare(
    "bilinear_tensor_product",
    "X Y Weight Bias? -> Out",
    doc="Out = X * Weight * Y for each of Weight's slices, plus Bias",
)
declare_gradient("bilinear_tensor_product", "X Y Weight Out@GRAD -> X@GRAD Y@GRAD Weight@GRAD Bias@GRAD?")
declare("trace", "Input -> Out", {"offset": 0, "dim1": -2, "dim2": -1}, doc="Out = the sum along the diagonal of X")
declare_gradient("trace", "Input Out@GRAD -> Input@GRAD")


@gradient("minus")
def _minus_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    (out,) = output_gradients(op, "Out")
    signs = (("X", 1.0), ("Y", -1.0))
    return tuple(scaled(out, name, sign) for slot, sign in signs for name in wanted.kept(op, slot))
