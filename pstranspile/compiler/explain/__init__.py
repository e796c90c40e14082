"""Why is this here? Answers about the ops and variables of a compiled job.

    job = of_compiled(compiled)             # or read_folder("out"), what `compile -o out` wrote
    explain_op(job, "trainer_0", "17")      # a frozen answer; answer_text prints it, answer_json gives plain values
    explain_variable(job, "fc_0.w_0")
    explain_line(job, "train.py:22")        # the ops that a line of the source has made, on all machines
    explain_job(job)

Answers are read off the emitted programs and the origins of their ops, so that they hold for what runs.
"""

from __future__ import annotations

from pstranspile.compiler.explain.answers import (
    Answer,
    LineAnswer,
    Link,
    OpAnswer,
    Overview,
    VariableAnswer,
    answer_json,
    answer_text,
)
from pstranspile.compiler.explain.folder import read_folder
from pstranspile.compiler.explain.job import ExplainedJob, UnknownNameError, of_compiled
from pstranspile.compiler.explain.questions import explain_job, explain_line, explain_op, explain_role, explain_variable

__all__ = [
    "Answer",
    "ExplainedJob",
    "LineAnswer",
    "Link",
    "OpAnswer",
    "Overview",
    "UnknownNameError",
    "VariableAnswer",
    "answer_json",
    "answer_text",
    "explain_job",
    "explain_line",
    "explain_op",
    "explain_role",
    "explain_variable",
    "of_compiled",
    "read_folder",
]
