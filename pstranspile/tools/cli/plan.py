"""`pstranspile plan`: the distribution plan: what is sliced, and which server holds what."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pstranspile.ir.diagnostics import DiagnosticError, cluster_of, error, quantity, shell_line
from pstranspile.ir.json_text import json_text
from pstranspile.ir.model import Location
from pstranspile.tools.cli.common import (
    add_input,
    add_job,
    add_time,
    check_time,
    compile_loaded,
    cost_with_profile,
    count,
    files_read,
    job_words,
    load_with_job,
    make_parser,
    parse_sweep,
    require_text,
    write_text,
)
from pstranspile.tools.cli.findings import errors_as_json
from pstranspile.tools.cli.report import report
from pstranspile.tools.cli.written_files import folder_name

if TYPE_CHECKING:
    from pstranspile.compiler.compile import Compiled
    from pstranspile.compiler.plan.plan import Plan

DESCRIPTION = """\
Prints how a job distributes a program: the slices of every parameter, their names, and the server that holds each;
with --cost, the bytes that each server moves in a step, and the operations, bytes and memory of each machine.
Commands that take a job take the text back with --plan, edited by hand."""


def run(arguments: Sequence[str]) -> int:
    """Prints or writes the plan as text, or as the JSON of plan.json; or prints what it would change."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.cost and options.output is not None:
        parser.error("-o is for a plan; what --cost prints is no plan")
    if options.sweep and (options.output is not None or options.against is not None or options.cost or options.plan):
        parser.error("--sweep is for a job whose numbers of machines vary, and prints no plan")
    if options.why is not None and (options.output or options.against or options.cost or options.sweep):
        parser.error("--why asks for one variable; what it prints goes with no -o, --against, --cost or --sweep")
    others = (options.output, options.against, options.cost, options.sweep, options.why, options.plan)
    if options.suggest and any(others):
        parser.error("--suggest is for a job whose settings vary; no -o, --against, --cost, --sweep, --why or --plan")
    numbers = parse_sweep(parser, options)
    _require_timing(parser, options)
    if options.against is not None and options.output is not None:
        parser.error("-o is for a plan; what --against prints is no plan")
    with errors_as_json(options.json):
        if options.why is not None:
            return _why(parser, options)
        if options.suggest:
            return _suggest(options)
        return _sweep(options, numbers) if numbers else _plan(parser, options)


def _why(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Prints the reasons for the place of a variable; wrong usage for one that is on no server. Raises DiagnosticError
    or CommandFailure.
    """
    result = compile_loaded(options, load_with_job(options), link=False)
    from pstranspile.compiler.explain import UnknownNameError
    from pstranspile.compiler.explain.placement import placement_json, why

    try:
        found = why(result, options.why)
    except UnknownNameError as problem:
        parser.error(f"--why: {problem}")
    sys.stdout.write(json_text(placement_json(found)) if options.json else f"{found}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "plan",
        DESCRIPTION,
        [
            "net.ir --pservers 2 --trainers 2",
            "net.ir --pservers 2 --trainers 2 -o net.plan",
            "net.ir --config job.toml --json",
            "net.ir --config job.toml --set split_method=cost --set id_counts=ids.json --cost",
            "net.ir --pservers 2 --trainers 2 --why fc_0.w_0",
            "net.ir --config job.toml --against out --cost",
            "net.ir --config job.toml --suggest",
            "net.ir --mode sync --sweep pservers=1..8 trainers=4,8,16",
            "net.ir --config job.toml --cost --profile host.json --link 1Gb,200us",
            "net.ir --config job.toml --cost --profile host.json --slow trainer_3=2x",
        ],
    )
    add_input(parser)
    add_job(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="JSON, as in plan.json, instead of text")
    group.add_argument(
        "--against",
        metavar="DIR",
        type=folder_name,
        help="print what changes of the plan in a folder that `compile -o` wrote, and exit with status 1 if anything "
        "does; with --cost also what changes in the cost of a step",
    )
    group.add_argument(
        "--cost",
        action="store_true",
        help="print what a step costs instead of the plan: the bytes that each server moves, and the operations, bytes "
        "and memory of each machine; --set batch_rows=N says how many rows a trainer's batch has (default: 512), "
        "--set id_counts=FILE how often ids come",
    )
    group.add_argument(
        "--sweep",
        metavar="KEY=N..M",
        nargs="+",
        default=[],
        help="print what a step costs with other numbers of machines instead of the plan: pservers=1..8 trainers=2,4,8",
    )
    group.add_argument(
        "--profile",
        metavar="FILE",
        help="with --cost or --sweep: how long a step takes on machines with the profile that `calibrate` has written, "
        "its critical path, and what each machine waits for; trainers=FILE,servers=FILE for two kinds of machines",
    )
    add_time(group, "--cost and --profile")
    group.add_argument(
        "--on-one-host",
        metavar="N",
        type=count,
        help="all machines run on one host with N processors (default: each has a host of its own)",
    )
    group.add_argument(
        "--why",
        metavar="VAR",
        help="print why a parameter, slice, gradient or optimizer state is where it is, and what it would cost "
        "on other servers, instead of the plan",
    )
    group.add_argument(
        "--suggest",
        action="store_true",
        help="print the settings that lower the bytes of the busiest machine or the most memory of a machine by more "
        "than 5 %%, and what they change in the results, instead of the plan",
    )
    group.add_argument("-o", "--output", metavar="FILE", help="where to write the plan, - for stdout (default)")
    return parser


def _plan(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Prints or writes what is asked for. Raises DiagnosticError or CommandFailure."""
    against = None
    if options.against is not None:
        from pstranspile.compiler.explain.folder import read_plan_json

        against = read_plan_json(options.against)
    kind = "plan.json" if options.json else "plan"
    require_text(options.output, files_read(options), kind)
    result = compile_loaded(options, load_with_job(options), link=False)
    from pstranspile.compiler.plan.plan import plan_json, plan_text

    if against is not None:
        return _print_changes(result, against, options)
    if options.cost:
        return _print_cost(parser, result, options)
    if options.json:
        text = json_text(plan_json(result.plan, result.fingerprint, result.distributed_vars))
    else:
        text = plan_text(result.plan)
    _require_no_other(options.output, text)
    write_text(options.output, text, files_read(options), kind, _what(result.plan), *_then(options))
    return 0


def _print_changes(result: Compiled, against: Mapping[str, Any], options: argparse.Namespace) -> int:
    """Prints what a plan changes of the one in a folder, with `--cost` also in cost. Raises DiagnosticError."""
    from pstranspile.compiler.plan.plan import plan_json
    from pstranspile.compiler.plan.plan_file import changes_text, load_plan, plan_changes

    changes = plan_changes(against, plan_json(result.plan, result.fingerprint, result.distributed_vars))
    text = changes_text(changes)
    data: dict[str, Any] = {"version": 1, "changes": [change._asdict() for change in changes]}
    if options.cost:
        from pstranspile.compiler.cost.jobs import cost, cost_changes, cost_changes_text, cost_json, cost_under

        by_id = against.get("distributed_lookup_table") is not None
        before = cost_under(result, load_plan(options.against), by_id=by_id)
        after = cost(result)
        if before is None:
            text += (
                f"\nthe programs differ, so that costs can't be compared: {options.against} does not have its source\n"
            )
            data["cost"] = {"before": None, "after": cost_json(after), "changes": None}
        else:
            found = cost_changes(before, after)
            text += f"\n{cost_changes_text(found)}"
            told = [change._asdict() for change in found]
            data["cost"] = {"before": cost_json(before), "after": cost_json(after), "changes": told}
    sys.stdout.write(json_text(data) if options.json else text)
    return 1 if changes else 0


def _print_cost(parser: argparse.ArgumentParser, result: Compiled, options: argparse.Namespace) -> int:
    """Prints what the plan of a job costs; wrong usage for a slow machine that it does not have. Raises
    DiagnosticError.
    """
    from pstranspile.compiler.cost.jobs import cost_json

    found = cost_with_profile(parser, options, result, options.profile, processors=options.on_one_host)
    sys.stdout.write(json_text(cost_json(found)) if options.json else f"{found}\n")
    return 0


def _require_timing(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Wrong usage for options about time where none is asked for, and for a link or profiles that are none."""
    if options.slow and not options.cost:
        parser.error("--slow needs --cost, which prints what a step costs")
    if options.crash and not options.cost:
        parser.error("--crash needs --cost, which prints what a step costs")
    if options.against is not None and options.profile is not None:
        parser.error("--against compares what plans move and store; --profile says how long a step of one plan takes")
    given = {"--profile": options.profile, "--link": options.link, "--on-one-host": options.on_one_host}
    for name, value in given.items():
        if value is not None and not (options.cost or options.sweep):
            parser.error(f"{name} needs --cost or --sweep, which print what a step costs")
        if value is not None and options.profile is None:
            parser.error(f"{name} needs --profile, which has the seconds of ops and messages")
    check_time(parser, options, "--profile", options.profile)


def _timing(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `cost` and `sweep` for the seconds of a step."""
    return {"profile": options.profile, "link": options.link, "processors": options.on_one_host}


def _sweep(options: argparse.Namespace, numbers: dict[str, list[int]]) -> int:
    """Prints the costs with these numbers of machines, with the first of which the job is read. Raises DiagnosticError
    or CommandFailure.
    """
    first = {key: str(held[0]) for key, held in numbers.items()}
    loaded = load_with_job(argparse.Namespace(**{**vars(options), **first}))
    report(loaded.warnings, [loaded.module.source])
    from pstranspile.compiler.cost.jobs import sweep, sweep_json

    found = sweep(loaded.module, loaded.job, **numbers, **_timing(options))
    sys.stdout.write(json_text(sweep_json(found)) if options.json else f"{found}\n")
    return 0


def _suggest(options: argparse.Namespace) -> int:
    """Prints the settings that lower the cost of the job. Raises DiagnosticError or CommandFailure."""
    loaded = load_with_job(options)
    report(loaded.warnings, [loaded.module.source])
    from pstranspile.compiler.cost.jobs import suggest, suggestions_json

    found = suggest(loaded.module, loaded.job)
    sys.stdout.write(json_text(suggestions_json(found)) if options.json else f"{found}\n")
    return 0


def _require_no_other(path: str | None, text: str) -> None:
    """Raises DiagnosticError for a file that holds another plan: somebody may have edited it."""
    if path in (None, "-") or not os.path.isfile(path):
        return
    with suppress(OSError, UnicodeDecodeError), open(path, encoding="utf-8") as file:
        held = file.read()
        if held.strip() and held != text:
            message = "it holds another plan, which may be edited; move it away, or name another file"
            raise DiagnosticError([error("output-foreign", message, Location(path))])


def _what(plan: Plan) -> str:
    """`the plan of 2 trainers, 2 servers (sync), which places 7 parameters in 9 slices`."""
    slices = sum(len(parameter.slices) for parameter in plan.parameters)
    placed = f"{quantity(len(plan.parameters), 'parameter')} in {quantity(slices, 'slice')}"
    machines = cluster_of(plan.trainers, len(plan.pservers))
    return f"the plan of {machines} ({plan.mode}){f', which places {placed}' if plan.parameters else ''}"


def _then(options: argparse.Namespace) -> list[str]:
    """The command that proves the job with the plan, once it is edited."""
    if "-" in (options.input, options.plan, options.output) or options.output is None or options.passes:
        return []
    words = ["pstranspile", "check", options.input, *job_words(options), "--plan", options.output]
    return [f"does it train as one machine does, once it is edited?  {shell_line(words)}"]
