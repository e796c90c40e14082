"""`pstranspile compile`: the programs of every trainer and parameter server of a cluster."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pstranspile.compiler.diff import diff_modules, render
from pstranspile.frontends.loading import is_text, load_bytes, read_bytes
from pstranspile.ir.diagnostics import cluster_of, did_you_mean, in_one_line, shell_line
from pstranspile.ir.model import Program
from pstranspile.ops.programs.modules import STEP
from pstranspile.runtime.files.outputs import PLAN_FILE, START_FILE, superfluous_files
from pstranspile.tools.cli.common import (
    add_input,
    add_job,
    compile_loaded,
    file_of_start,
    files_read,
    job_words,
    load_with_job,
    make_parser,
)
from pstranspile.tools.cli.progress import Status, status
from pstranspile.tools.cli.report import report
from pstranspile.tools.cli.written_files import (
    PENDING,
    folder_name,
    output_folder,
    say,
    telling_of_folder,
)

if TYPE_CHECKING:
    from pstranspile.compiler.compile import Compiled
    from pstranspile.ir.model import Role


def differing(folder: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """The difference of every file that is missing, superfluous, or has other contents.

    Text is shown as a unified diff, serialized programs by what they mean. Raises DiagnosticError.
    """
    for name, made in files.items():
        path = os.path.join(folder, name)
        if not os.path.lexists(path):
            yield f"{in_one_line(path)}: is missing\n"
            continue
        held = read_bytes(path)
        if held != made:
            yield _unified_diff(path, held, made) if is_text(held) and is_text(made) else _programs(path, made)
    for name in superfluous_files(Path(folder), files) if os.path.isdir(folder) else ():
        yield f"{in_one_line(os.path.join(folder, name))}: no machine of the job has these programs\n"


def _unified_diff(path: str, held: bytes, new_data: bytes) -> str:
    before, after = (data.decode("utf-8", "backslashreplace").splitlines() for data in (held, new_data))
    shown = in_one_line(path)
    lines = difflib.unified_diff(before, after, shown, f"{shown} (compiled)", lineterm="")
    return "\n".join([*lines, ""]) or f"{shown}: only line ends differ\n"


def _programs(path: str, data: bytes) -> str:
    def ignore_warning(_: object) -> None:
        """Drops warnings: they are for readers of the file, not for a comparison."""

    first = load_bytes(read_bytes(path), path, report=ignore_warning)
    second = load_bytes(data, path, report=ignore_warning)
    name = in_one_line(path)
    shown = render(diff_modules(first, second), names=(name, f"{name} (compiled)"))
    return shown or f"{name}: written otherwise, and means the same\n"


# What `--print-after` and `--timing` show of a compile while it runs.


class Watch:
    """An observer of passes: prints some results on stderr, measures the time, and reports the progress."""

    def __init__(self, print_after: frozenset[str], tell: Callable[[str, int, int], object] | None = None):
        self._print_after = print_after
        self._tell = None if print_after else tell
        self._trainers = self._servers = 0
        self._seconds: dict[str, float] = {}
        self._calls: dict[str, int] = {}

    def __call__(self, name: str, result: object, seconds: float) -> None:
        """Told by the compiler that the pass `name` gave `result` after `seconds`."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self._calls[name] = self._calls.get(name, 0) + 1
        if self._tell is not None:
            self._count(name, result, self._tell)
        if name in self._print_after:
            print(f"# after {name}\n{result_text(result)}", file=sys.stderr)

    def _count(self, name: str, result: object, tell: Callable[[str, int, int], object]) -> None:
        """Reports how many machines' programs are made, once the plan has the number of machines."""
        from pstranspile.compiler.plan.plan import Plan

        if isinstance(result, Plan):
            self._trainers, self._servers = result.trainers, len(result.pservers)
        if name == "emit-trainers":
            tell("programs of trainers", self._calls[name], self._trainers)
        elif name == "emit-pservers":
            tell("programs of servers", self._calls[name], self._servers)

    def table(self) -> str:
        """Seconds and calls of every pass, in the order in which they first ran, and the sum."""
        width = max(map(len, [*self._seconds, "total"]))
        rows = [(name, seconds, f"{self._calls[name]:>7}") for name, seconds in self._seconds.items()]
        rows.append(("total", sum(self._seconds.values()), ""))
        lines = [f"{name:<{width}}  {seconds:>10.6f}{calls}".rstrip() for name, seconds, calls in rows]
        return "\n".join([f"{'pass':<{width}}  {'seconds':>10}  calls", *lines])


def result_text(result: object) -> str:
    """The result of a pass as text: programs as they are written, other values field by field."""
    if isinstance(result, Program):
        from pstranspile.ops.textual import print_program

        return print_program(result)
    programs = [part for part in _parts(result) if isinstance(part, Program)]
    if programs:
        return "\n".join(map(result_text, programs))
    from pprint import pformat

    return pformat(result, width=110, sort_dicts=False)


def _parts(result: object) -> Iterable[object]:
    fields = getattr(result, "_fields", None) or getattr(result, "__dataclass_fields__", ())
    return [getattr(result, name) for name in fields]


DESCRIPTION = """\
Compiles a training program for one machine into the programs of a cluster: main and startup program of
every trainer and every parameter server, all at once.

The input is verified first; errors stop the command, warnings are printed. The compiled programs are checked
together (every value sent has a receiver, every slice an owner, every barrier its count) before anything is
written. Output appears whole or not at all; with -o a summary follows on stderr."""


def run(arguments: Sequence[str]) -> int:
    """Compiles and writes to `-o`, or prints every role's text."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.emit == "pb" and options.output is None and options.check is None:
        parser.error("--emit pb writes files; name their folder with -o DIR")
    after = _pass_names(parser, options.print_after)
    with PENDING.lacking(lambda: "" if options.check is None else "nothing was compared"):
        return _compile(options, after)


def _compile(options: argparse.Namespace, after: frozenset[str]) -> int:
    """Compiles, and writes, prints or compares. Raises DiagnosticError or CommandFailure."""
    loaded = load_with_job(options)
    module = loaded.module
    tell = Status("compile")
    watch = Watch(after, tell)
    result = compile_loaded(options, loaded, on_pass=watch, at_end=tell.clear)
    if options.emit == "pb":
        from pstranspile.frontends.meta import newer_ops

        report(newer_ops(module.programs.values()), [module.source])
    code = 0
    if options.output is None and options.check is None:
        _print_roles(result.roles())
    else:
        from pstranspile.compiler.folders import files_of
        from pstranspile.runtime.files.outputs import require_own, stale_files, write_outputs

        with status("compile") as tell:
            files = {**dict(files_of(result, options.emit, tell)), **file_of_start(result.source)}
        if options.output is None:
            code = _check(options.check, files)
        else:
            require_own(options.output, files, files_read(options))
            stale = stale_files(Path(options.output), files)
            with telling_of_folder(options.output, files, *_summary(result, options)):
                write_outputs(options.output, files)
                if stale:
                    told = f"removed, of the earlier compile: {', '.join(stale)}"
                    say(f"pstranspile compile: {options.output}: {told}")
    if options.timing:
        print(watch.table(), file=sys.stderr)
    return code


def _summary(result: Compiled, options: argparse.Namespace) -> list[str]:
    """What is in the folder, then what each server holds, and the command that proves the job."""
    plan = result.plan
    machines = cluster_of(plan.trainers, len(plan.pservers))
    values = f", {START_FILE} with the values that it starts with" if result.source.start else ""
    lines = [f"the programs of {machines} ({plan.mode}){values}, and {PLAN_FILE}"]
    sources = dict.fromkeys(str(op.attrs["source"]) for op in result.source.main.main_block.ops if op.type == STEP)
    lines += [f"  every trainer calls {source}, a file that it needs beside the folder" for source in sources]
    for endpoint in plan.pservers[:_SHOWN]:
        lines.append(f"  {endpoint} holds {plan.load_of(endpoint)}")
    if len(plan.pservers) > _SHOWN:
        lines.append(f"  and {len(plan.pservers) - _SHOWN} more; `pstranspile plan` shows them all")
    if "-" not in (options.input, options.plan) and not options.passes:
        lines.append(f"does it train as one machine does?  {_check_command(options)}")
    return lines


_SHOWN = 8
"""How many servers a summary names."""


def _check_command(options: argparse.Namespace) -> str:
    """`pstranspile check` for the same input and job."""
    words = ["pstranspile", "check", options.input, *job_words(options)]
    return shell_line([*words, *(["--plan", options.plan] if options.plan else [])])


def _check(folder: str, files: Mapping[str, bytes]) -> int:
    """Prints how the files of a folder differ from those of the compile; 1 if any does."""

    count = 0
    for text in differing(folder, files):
        sys.stdout.write(text)
        count += 1
    if count:
        say(f"{folder}: {count} {'file differs' if count == 1 else 'files differ'}")
    return 1 if count else 0


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "compile",
        DESCRIPTION,
        [
            "net.ir --pservers ps0:6174,ps1:6174 --trainers 2 -o out",
            "net.ir --pservers 2 --trainers 4 --set slice_var_up=false",
            "main.pb --startup startup.pb --config job.toml --emit pb -o out",
            "net.ir --config job.toml --check out",
            "net.ir --config job.toml --plan edited.plan -o out",
        ],
    )
    add_input(parser)
    add_job(parser)
    group = parser.add_argument_group("output")
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "--check",
        metavar="DIR",
        type=folder_name,
        help="write nothing; print how the files in DIR differ from what would be written there, and exit with "
        "status 1 if any does",
    )
    where.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=output_folder,
        help="the folder to write to: trainer_<i>.ir, pserver_<j>.ir and plan.json; "
        "without it, every role's text goes to stdout",
    )
    group.add_argument(
        "--emit",
        choices=["ir", "pb"],
        default="ir",
        help="text (default), or serialized ProgramDescs <role>.main.pb and <role>.startup.pb, and what these do "
        "not carry in <role>.meta.json",
    )
    group = parser.add_argument_group("the compiler")
    group.add_argument(
        "--print-after",
        metavar="NAME",
        action="append",
        default=[],
        help="print what the pass NAME made, on stderr (`pstranspile passes` lists them); may be repeated",
    )
    group.add_argument("--timing", action="store_true", help="print the seconds of each pass, on stderr")
    return parser


def _pass_names(parser: argparse.ArgumentParser, names: Sequence[str]) -> frozenset[str]:
    """The passes to print after; one that does not exist is a usage error."""
    from pstranspile.compiler.pipeline import NAMES

    for name in names:
        if name not in NAMES:
            hint = did_you_mean(name, NAMES) or f"; the passes are {', '.join(NAMES)}"
            parser.error(f"--print-after: there is no pass {name!r}{hint}")
    return frozenset(names)


def _print_roles(roles: Mapping[str, Role]) -> None:
    """Prints role by role, so that a reader sees the first one before the last one is made."""
    from pstranspile.ops.textual import print_module

    for index, (name, role) in enumerate(roles.items()):
        sys.stdout.write(f"{'' if index == 0 else chr(10)}# {name}\n{print_module(role.module)}")
