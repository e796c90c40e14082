"""How functions of one tensor are declared that go element by element."""

from __future__ import annotations

from collections.abc import Mapping

from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import outputs_like, shape_rule


def declare_function(op_type: str, doc: str, attrs: Mapping[str, object] | None = None, *, reads: str = "X") -> None:
    """Declares `Out`, of the type of X and made of it element by element, and its gradient op.

    The gradient op reads, beside Out@GRAD, `reads`: "X", "Out", or neither ("").
    """
    declare(op_type, "X -> Out", attrs, row_wise=True, doc=doc)
    declare_gradient(op_type, f"{reads} Out@GRAD -> X@GRAD", row_wise=True)
    shape_rule(op_type)(outputs_like(Out="X"))
