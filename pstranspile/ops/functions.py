"""The declaration of elementwise functions of one tensor."""

from __future__ import annotations

from collections.abc import Mapping

from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import outputs_like, shape_rule


def declare_function(op_type: str, doc: str, attrs: Mapping[str, object] | None = None, *, reads: str = "X") -> None:
    """Declares an op whose `Out` is an elementwise function of X, with X's type, and its gradient op.

    The gradient op reads `reads` ("X", "Out", or "" for neither) in addition to Out@GRAD.
    """
    declare(op_type, "X -> Out", attrs, row_wise=True, doc=doc)
    declare_gradient(op_type, f"{reads} Out@GRAD -> X@GRAD", row_wise=True)
    shape_rule(op_type)(outputs_like(Out="X"))
