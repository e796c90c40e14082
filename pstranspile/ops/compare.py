"""Comparisons and logic."""

from __future__ import annotations

from pstranspile.ops.schema import declare

_COMPARE = {"axis": -1, "force_cpu": False}

declare("equal", "X Y -> Out", _COMPARE, row_wise=True, doc="Out = X == Y, broadcast as elementwise ops are")
declare("not_equal", "X Y -> Out", _COMPARE, row_wise=True, doc="Out = X != Y")
declare("less_than", "X Y -> Out", _COMPARE, row_wise=True, doc="Out = X < Y")
declare("less_equal", "X Y -> Out", _COMPARE, row_wise=True, doc="Out = X <= Y")
declare("greater_than", "X Y -> Out", _COMPARE, row_wise=True, doc="Out = X > Y")
declare("greater_equal", "X Y -> Out", _COMPARE, row_wise=True, doc="Out = X >= Y")
declare("logical_and", "X Y -> Out", row_wise=True, doc="Out = X and Y")
declare("logical_or", "X Y -> Out", row_wise=True, doc="Out = X or Y")
declare("logical_xor", "X Y -> Out", row_wise=True, doc="Out = X or Y, not both")
declare("logical_not", "X -> Out", row_wise=True, doc="Out = not X")
