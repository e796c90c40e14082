"""Diagnostic codes of checkpoints."""

from __future__ import annotations

from pstranspile.ir.codes import declare

MANIFEST = declare(
    "checkpoint-manifest", "The manifest of a checkpoint is missing, damaged, or of a version that is not known."
)
FILE = declare("checkpoint-file", "A file of a checkpoint is missing, or it is not the one that the manifest lists.")
NAME = declare(
    "checkpoint-name",
    "A variable or a manifest names a file that lies outside the checkpoint, or that something else needs.",
)
MODEL = declare("checkpoint-model", "A checkpoint was made for another program, or of a run with another random seed.")
VARIABLE = declare(
    "checkpoint-variable",
    "A checkpoint lacks a variable of the job, or has it with other dims or element type.",
)
STATE = declare(
    "checkpoint-state", "A variable of a running job has no value, or one that does not fit what its machine declares."
)
PLACE = declare("checkpoint-place", "The machines do not hold what the job is to keep, or are not those of the job.")
TARGET = declare("checkpoint-target", "A checkpoint can't be written to the folder it is to be written to.")
TABLE = declare("checkpoint-table", "The parts of a lookup table do not fit together.")
INFERENCE = declare("inference-program", "A program can't be cut down to the targets asked for.")
