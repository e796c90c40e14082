"""`pstranspile explain`: the origin and the reason of an op or a variable of the compiled programs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pstranspile.tools.cli.common import add_input, add_job, load_compiled, make_parser, refuse_with_folder
from pstranspile.tools.cli.findings import errors_as_json
from pstranspile.tools.cli.report import report

if TYPE_CHECKING:
    from pstranspile.compiler.explain import Answer, ExplainedJob

DESCRIPTION = """\
Says of an op of the compiled programs which rule put it there, for which op and line of the source, what it
pairs with on the other machines, and what its attributes say; of a variable, what it is a part of, where it lies
and why, and who writes and reads it; of a line of the source, which ops it has become on which machines. Without
--op, --var and --line, counts the ops of every machine by rule; with --role alone, lists the ops of that machine
which rules made.

Ops are numbered from 0 in their block: 17 is an op of the main block of @main, ^2#0 the first of block 2,
@startup^0#3 one of the start-up program. docs/reference/explain.md lists the rules."""


def run(arguments: Sequence[str]) -> int:
    """Prints the answer; wrong usage when there is no such op, variable or machine."""
    parser = _parser()
    options = parser.parse_args(arguments)
    with errors_as_json(options.json):
        job = job_of(parser, options)
    from pstranspile.compiler.explain import UnknownNameError, answer_json, answer_text

    try:
        answer = _answer(job, options)
    except UnknownNameError as problem:
        parser.error(str(problem))
    if options.json:
        import json

        sys.stdout.write(json.dumps(answer_json(answer), indent=2) + "\n")
    else:
        sys.stdout.write(answer_text(answer, full=options.all))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "explain",
        DESCRIPTION,
        [
            "out",
            "out --op 17",
            "out --role pserver_0 --op ^1#0",
            "out --var fc_0.w_0",
            "net.ir --pservers 2 --trainers 2 --var fc_0.w_0 --json",
            "train.py:training --mode ddp --trainers 2 --line 22",
        ],
    )
    what = "a folder that `compile -o` wrote, or a training program, which is compiled for the job given"
    add_input(parser, "DIR|INPUT", what)
    add_job(parser)
    group = parser.add_argument_group("the question")
    subject = group.add_mutually_exclusive_group()
    subject.add_argument("--op", metavar="N", help="an op by its number")
    subject.add_argument("--var", metavar="NAME", help="a variable by its name on any machine")
    subject.add_argument(
        "--line",
        metavar="LINE",
        help="a line of the program's text, or of the Python script that made it: 22, or train.py:22",
    )
    group.add_argument(
        "--role",
        metavar="ROLE",
        help="the machine: trainer_0, pserver_1, or a server's endpoint; by default trainer_0 for --op, "
        "all machines for --var and --line",
    )
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print JSON instead of text")
    group.add_argument("--all", action="store_true", help="print long lists in full")
    return parser


def job_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> ExplainedJob:
    """The job of a folder, or of an input and job options. Raises DiagnosticError or CommandFailure."""
    if os.path.isdir(options.input):
        refuse_with_folder(parser, options)
        from pstranspile.compiler.explain import read_folder

        return read_folder(options.input, report)
    compiled = load_compiled(options)
    from pstranspile.compiler.explain import of_compiled

    return of_compiled(compiled)


def _answer(job: ExplainedJob, options: argparse.Namespace) -> Answer:
    """The answer to what the options ask. Raises UnknownNameError."""
    from pstranspile.compiler.explain import explain_job, explain_line, explain_op, explain_role, explain_variable

    if options.op is not None:
        return explain_op(job, options.role or "trainer_0", options.op)
    if options.var is not None:
        return explain_variable(job, options.var, options.role)
    if options.line is not None:
        return explain_line(job, options.line, options.role)
    return explain_role(job, options.role) if options.role else explain_job(job)
