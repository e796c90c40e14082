"""Diagnostic codes of checks."""

from pstranspile.ir.codes import declare

NO_DATA = declare("check-no-data", "Data for a check can't be made for an input of the program; it has to be given.")
