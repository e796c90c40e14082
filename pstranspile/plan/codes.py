"""Diagnostic codes of planning."""

from pstranspile.ir.codes import declare

DISPATCHER = declare(
    "dispatcher",
    "The dispatcher that the job names can't be loaded or does not give one known endpoint per slice.",
)
WHOLE_INITIALISER = declare(
    "whole-initialiser",
    "The start-up program initialises a parameter by an op that can't make a slice of it, so it stays whole "
    "(a warning), which a distributed lookup table can't.",
)
UNKNOWN_SHAPE = declare("parameter-shape", "A parameter has no static shape, so it can't be placed or sliced.")
SEED = declare(
    "shuffle-seed",
    "The job shuffles uncut parameters with the program's random seed, which is not between 0 and 2**32 - 1.",
)
RESERVED = declare(
    "reserved-name",
    "A variable has a name under which servers keep something of their own in the job's mode, and look for it.",
)
PLAN_SYNTAX = declare("plan-syntax", "A line of a plan file is not one of the forms that `pstranspile plan` prints.")
PLAN_MISMATCH = declare("plan-mismatch", "A plan file was made for another program or another job.")
PLAN_INVALID = declare(
    "plan-invalid",
    "A hand-edited plan leaves a part of a parameter without a server, gives it two, or parts what must stay together.",
)
