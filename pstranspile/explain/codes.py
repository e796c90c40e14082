"""Diagnostic codes of `explain`."""

from pstranspile.ir.codes import declare

NO_RECORD = declare(
    "explain-record",
    "A folder has no plan.json that says where the ops of its programs come from, or a damaged one.",
)
OTHER_PROGRAMS = declare(
    "explain-programs", "The programs in a folder are not those that its plan.json was written with."
)
