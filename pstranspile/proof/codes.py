"""Diagnostic codes of checks."""

from pstranspile.ir.codes import declare

NO_DATA = declare("check-no-data", "Data for a check can't be made for an input of the program; it has to be given.")
SHARES = declare(
    "check-shares", "The batch of a check can't be divided evenly over the trainers, so means over it would differ."
)
