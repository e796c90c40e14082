"""Codes of findings about gradients."""

from __future__ import annotations

from pstranspile.ir.codes import declare

GRADIENT_OF_ANOTHER = declare(
    "gradient-of-another-value",
    "A variable has several values (a loop, a branch or a second op overwrites it), and a gradient op takes one of "
    "them, or its gradient, for that of another.",
)
