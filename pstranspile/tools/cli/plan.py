"""`pstranspile plan`: the distribution plan: what is sliced, and which server holds what."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pstranspile.ir.json_text import json_text
from pstranspile.tools.cli.common import add_input, add_job, load_with_job, make_parser
from pstranspile.tools.cli.report import quoting, report
from pstranspile.tools.cli.written import folder_name


def run(arguments: Sequence[str]) -> int:
    """Prints the plan as text, or as the JSON that `compile -o` writes to plan.json; or what it would change."""
    parser = make_parser(
        "plan",
        "Prints how a job distributes a program: the slices of every parameter, their names, and the server "
        "that holds each.",
        [
            "net.ir --pservers 2 --trainers 2",
            "net.ir --config job.toml --json",
            "net.ir --config job.toml --against out",
        ],
    )
    add_input(parser)
    add_job(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON, as in plan.json, instead of text")
    form.add_argument(
        "--against",
        metavar="DIR",
        type=folder_name,
        help="print what changes of the plan in a folder that `compile -o` wrote, and exit with status 1 if anything "
        "does",
    )
    options = parser.parse_args(arguments)
    against = None
    if options.against is not None:
        from pstranspile.compiler.explain.folder import read_plan_json

        against = read_plan_json(options.against)
    module, job = load_with_job(options)
    from pstranspile.compiler.compile import prepare
    from pstranspile.compiler.plan.plan import plan_json, plan_text

    with quoting(module.source):
        result = prepare(module, job)
    report(result.warnings, [module.source])
    if against is not None:
        from pstranspile.compiler.plan.edited import changes_text, plan_changes

        changes = plan_changes(against, plan_json(result.plan, result.fingerprint, result.distributed_vars))
        sys.stdout.write(changes_text(changes))
        return 1 if changes else 0
    if options.json:
        sys.stdout.write(json_text(plan_json(result.plan, result.fingerprint, result.distributed_vars)))
    else:
        sys.stdout.write(plan_text(result.plan, result.fingerprint))
    return 0
