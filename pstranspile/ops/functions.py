"""The declaration of elementwise functions of one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import outputs_like, shape_rule

if TYPE_CHECKING:
    from pstranspile.ops.facts import Domain, LodOfResult


def declare_function(
    op_type: str,
    doc: str,
    attrs: Mapping[str, object] | None = None,
    *,
    reads: str = "X",
    positive: bool = False,
    typed_by: str = "X",
    gradient_lod: LodOfResult | None = None,
) -> None:
    """Declares an op whose `Out` is an elementwise function of X, with X's type, and its gradient op.

    The gradient op reads `reads` ("X", "Out", or "" for neither) in addition to Out@GRAD. If X is read, Fluid declares
    X@GRAD with the LoD of Out@GRAD, unless `gradient_lod` says otherwise. `positive`: X must be above 0.
    """
    domains: Mapping[str, Domain] = {"X": "positive"} if positive else {}
    declare(op_type, "X -> Out", attrs, row_wise=True, typed_by=typed_by, domains=domains, doc=doc)
    lod = gradient_lod or ("of_gradient" if reads == "X" else "inferred")
    declare_gradient(op_type, f"{reads} Out@GRAD -> X@GRAD", row_wise=True, result_lod=lod)
    shape_rule(op_type)(outputs_like(Out="X"))
