"""Code that the commands share: parsers, options for inputs and jobs, and loading with verification."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from math import isnan, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeVar, cast

import pstranspile
from pstranspile.ir.argument_checks import MOST_STEPS
from pstranspile.ir.diagnostics import (
    Diagnostic,
    DiagnosticError,
    Note,
    did_you_mean,
    error,
    in_one_line,
    name_list,
    nearest,
    raise_errors,
    warning,
    wrong_codes,
)
from pstranspile.ir.model import EMPTY, Location, SourceText
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.reading import is_address
from pstranspile.tools.cli.blas import use_rounded_products
from pstranspile.tools.cli.report import quoting, report
from pstranspile.tools.cli.written_files import MOST_NAMED, PENDING, clash, say, telling

if TYPE_CHECKING:
    from pstranspile.compiler.compile import Compiled
    from pstranspile.compiler.cost.jobs import PlanCost
    from pstranspile.compiler.job import Job
    from pstranspile.compiler.plan.plan_file import PlanFile
    from pstranspile.ir.model import Module, Program, Role
    from pstranspile.ir.passes import Observer


# Numbers as values of options.


def number(least: int, most: int) -> Callable[[str], int]:
    """The type of options that take a whole number from `least` to `most`."""

    def read(text: str) -> int:
        if not re.fullmatch("[0-9]+", text) or (text.strip("0") == "" and least > 0):
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number of at least {least}")
        if len(text.lstrip("0")) > 18 or int(text) > most:
            raise argparse.ArgumentTypeError(f"{text[:40]} is more than {most:,}, the most that is taken")
        return int(text)

    return read


count = number(1, MOST_STEPS)
"""The type of options that take a number of things, at least one."""


def whole(text: str) -> int:
    """The type of options that take a whole number, such as a seed."""
    return _whole(text, 18)


def run_seed(text: str) -> int:
    """The type of options that take the seed of a run, also one that a run has drawn, which is longer than others."""
    return _whole(text, 20)


def _whole(text: str, digits: int) -> int:
    if not re.fullmatch(f"-?[0-9]{{1,{digits}}}", text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number (of {digits} digits at most)")
    return int(text)


def above_zero(what: str) -> Callable[[str], float]:
    """The type of options that take a positive number."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is no number of {what} above 0")
        return value

    return read


seconds = above_zero("seconds")
"""The type of options that take a time."""

cpus = above_zero("CPUs")
"""The type of options that take an amount of CPUs, such as a half."""


STDIN = "<stdin>"
"""What messages call the input that is read from stdin."""


class Version(argparse.Action):
    """`--version`: looks the version up only when asked."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Prints the version and ends the command."""

        print(f"pstranspile {pstranspile.__version__}")
        parser.exit()


class _LastValueAction(argparse._StoreAction):  # pyright: ignore[reportPrivateUsage]
    """An option with one value, of which the last counts, so that a script can change what a variable holds. That
    another one was given before is said.
    """

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """Takes the value."""
        if option is not None and isinstance(parser, Parser):
            before = parser.values_given.setdefault(self.dest, values)
            if before is not values and before != values:  # NaN is not equal to itself
                counts = f"{str(values)[:_SHOWN]} counts, not {str(before)[:_SHOWN]}"
                say(f"{parser.prog}: warning: {option} is given twice; {counts}")
                parser.values_given[self.dest] = values
        super().__call__(parser, namespace, values, option)


_SHOWN = 60
"""The most characters of a value that a message quotes."""


class Parser(argparse.ArgumentParser):
    """A parser that first refuses an option it does not have, and suggests a similar one; and says which value of an
    option counts that is given two.
    """

    _as_json = False
    """Whether the arguments ask for JSON."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.values_given: dict[str, object] = {}
        """The values of options that take one, as they come, by the names of their attributes."""
        for name in (None, "store"):
            self.register("action", name, _LastValueAction)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Prints a help text; argparse itself keeps quiet where stdout can't be written."""
        if file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)

    def parse_args(  # pyright: ignore[reportIncompatibleMethodOverride]  # one signature for three overloads
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> Any:
        """The options of some arguments (default: the process's); ends the command if they are wrong."""
        words = list(sys.argv[1:] if args is None else args)
        self.values_given.clear()
        options = words[: words.index("--")] if "--" in words else words
        self._as_json = "--json" in options and "--json" in self._option_string_actions
        for word in options:
            name = word.partition("=")[0]
            if not _AN_OPTION.match(word) or name in self._option_string_actions:
                continue
            if word[1] == "-" or word[:2] not in self._option_string_actions:
                self.error(f"there is no option {name}{self._hint(name.lstrip('-'))}")
        options = super().parse_args(words, namespace)
        for action in self._actions:
            self._require_local(action, getattr(options, action.dest, None))
            self._require_name(action, getattr(options, action.dest, None))
        called = {action.dest: action.option_strings[-1] for action in self._actions if action.option_strings}
        clashing = clash(vars(options), called)
        if clashing:
            self.error(clashing)
        PENDING.expect(vars(options))
        return options

    def _require_local(self, action: argparse.Action, value: object) -> None:
        """Ends the command for an address where a file or folder is needed: it would name a folder called `hdfs:`."""
        named = action.metavar if isinstance(action.metavar, str) else ""
        if not _A_PATH.search(named) or "URI" in named:
            return
        for given in cast("list[object]", value) if isinstance(value, list) else [value]:
            if isinstance(given, str) and is_address(given):
                name = action.option_strings[-1] if action.option_strings else named
                self.error(
                    f"{name}: {given} is an address; files and folders are of this file system, rows of --feed "
                    "alone may be of others"
                )

    def _require_name(self, action: argparse.Action, value: object) -> None:
        """Ends the command for an empty name of a variable, a machine or the like, as of an unset shell variable."""
        named = action.metavar if isinstance(action.metavar, str) else ""
        given = cast("list[object]", value) if isinstance(value, list) else [value]
        if _A_NAME.fullmatch(named) and "" in given:
            self.error(f"{action.option_strings[-1] if action.option_strings else named}: the name is empty")

    def error(self, message: str) -> NoReturn:
        """Ends the command with status 2 and a sentence, which also is the JSON on stdout where that is asked for; the
        options are listed by `--help` alone.
        """
        if self._as_json:
            from pstranspile.tools.cli.findings import print_errors

            print_errors([error("usage", message)])
        self.exit(2, f"{self.prog}: error: {in_one_line(message)}\n`{self.prog} --help` explains the options\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Ends the command, by an error of argparse, for a value that is none of the choices."""
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            hint = did_you_mean(str(value), known) or f"; it takes {', '.join(known)}"
            raise argparse.ArgumentError(action, f"there is no {str(value)[:40]!r}{hint}")

    def _hint(self, given: str) -> str:
        known = {option[2:]: option[2:] for option in self._option_string_actions if option.startswith("--")}
        known |= {other: own for other, own in _OTHER_WORDS.items() if own in known and other not in known}
        name = given.replace("_", "-")
        if name in _OF_COMMANDS and name not in known:
            return f"; {_OF_COMMANDS[name]}"
        near = next((option for option in known if option.startswith(name)), None) or nearest(name, known)
        return f"; did you mean --{known[near]}?" if near else ""


_OTHER_WORDS = {
    **dict.fromkeys(("servers", "server-num", "pserver-num", "endpoints"), "pservers"),
    **dict.fromkeys(("workers", "worker-num", "trainer-num", "nproc-per-node", "nranks"), "trainers"),
    **dict.fromkeys(("job", "job-file", "cluster"), "config"),
    **dict.fromkeys(("data", "dataset", "inputs"), "feed"),
    **dict.fromkeys(("batch-size", "rows"), "batch"),
    **dict.fromkeys(("iterations", "max-steps", "num-steps"), "steps"),
    **dict.fromkeys(("weights", "params", "from"), "init"),
    "learning-rate": "lr",
}
"""Options of the launchers of Fluid and Paddle, and words that others use, and the corresponding options here."""

_OF_COMMANDS = {
    "role": "`pstranspile start DIR --role NAME` runs one machine of a compiled job",
}
"""Options of one command, for the messages of others."""


_A_PATH = Pattern(r"FILE|DIR|INPUT|MAIN|JOB|^[AB]$")
"""Matches how options and arguments that name files are shown."""

_A_NAME = Pattern("VAR|NAME|ROLE|TABLE|MODE|CODE")
"""Matches how options and arguments that name a variable, a machine, or something else by one word are shown."""

_AN_OPTION = Pattern(r"--?[A-Za-z][^ ]*$")
"""Matches options, but no values: values may be negative numbers, and `-` is a file."""


def make_parser(verb: str, description: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    """A parser for one command, with `--traceback`; the examples end its help."""
    lines = "\n".join(f"  pstranspile {verb} {example}".rstrip() for example in examples)
    parser = Parser(
        prog=f"pstranspile {verb}",
        description=description,
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--traceback",
        action="store_true",
        help="when pstranspile itself fails, print where, for a bug report",
    )
    return parser


def add_checkpoints(parser: argparse.ArgumentParser) -> None:
    """The options that save a run as it goes, and have one go on."""
    group = parser.add_argument_group("stopping and going on")
    group.add_argument(
        "--checkpoint", metavar="DIR", help="save all that training keeps, at the end, as DIR/step_<steps done>"
    )
    group.add_argument(
        "--checkpoint-every", type=count, metavar="N", help="save after every N steps as well; the last two stay"
    )
    group.add_argument(
        "--resume",
        metavar="DIR",
        help="go on from a checkpoint (the newest in DIR), on any number of servers; --steps counts from the beginning",
    )


def check_checkpoints(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the command if checkpoints are to be kept and no folder for them is named, or values are given twice."""
    if options.checkpoint_every and not options.checkpoint:
        parser.error("--checkpoint-every needs --checkpoint, which says where to")
    if options.resume and options.init:
        parser.error("--init can't be combined with --resume: the checkpoint says what all variables begin with")


def deciding(options: argparse.Namespace, *, cluster: bool) -> dict[str, str]:
    """The settings that decide a run's numbers, as a checkpoint records them; `cluster`: of several machines."""
    from pstranspile.cluster.checkpoint.manifest import GIVEN, turns

    result = {"arithmetic": str(options.arithmetic), "program": turns(getattr(options, "program", None))}
    result["no-dropout"] = GIVEN if getattr(options, "no_dropout", False) else ""
    if cluster:
        result["shares"] = str(getattr(options, "shares", "equal"))
        if hasattr(options, "schedule"):
            result["schedule"] = "" if options.schedule is None else str(options.schedule)
    if options.batch:  # rows are fed
        result["columns"] = " ".join(sorted(options.columns))
        result["names"] = options.names or ""
    return result


INIT_HELP = (
    "persistable variables by name, set after the startup program; or a checkpoint, the parameters that --save wrote, "
    "or a folder of Fluid's save_persistables, with a file for each variable"
)
"""The help of `--init`."""


def begun_with(
    path: str | None,
    program: Program,
    startup: Program | None,
    *,
    start: Mapping[str, Any] = EMPTY,
    resumed: bool = False,
) -> dict[str, Any]:
    """The values that `--init` names, in place of those that come with the program (`start`); what is to be told of
    them is printed, and which parameters have no value.

    `resumed`: the run goes on from a checkpoint, which has all values. Raises DiagnosticError.
    """
    loaded_values: Mapping[str, Any] = {}
    if path:
        from pstranspile.cluster.checkpoint.inference import starting_values

        starting = starting_values(path, program, startup)
        report(starting.warnings)
        loaded_values = starting.values
    values = {**start, **loaded_values}
    if values and not resumed:
        from pstranspile.runtime.run.files import not_finite

        others = {name: value for name, value in start.items() if name not in loaded_values}
        report([*not_finite(loaded_values, program, path or ""), *not_finite(others, program, "")])
    unset = [] if resumed or startup is None else _unset(startup, values)
    if unset:
        shown = name_list([f"%{name}" for name in unset], MOST_NAMED)
        begin = "begins" if len(unset) == 1 else "begin"
        message = f"{shown} {begin} as NaN, since the start-up program only marks that values are given"
        note = Note("--init FILE.npz gives them; `pstranspile import --params FILE.npz` writes those of an ONNX model")
        told = warning("run-uninitialised", message, Location(path) if path else None)
        report([told._replace(notes=(note,))])
    return values


def _unset(startup: Program, values: Container[str]) -> list[str]:
    """The variables that a start-up program fills with NaN, and that are not among the values to start from.

    `import` writes it so for parameters of a model, whose values lie in a file of their own.
    """
    filling = (op for op in startup.main_block.ops if op.type == "fill_constant")
    marked = (op for op in filling if isinstance(value := op.attrs.get("value"), float) and isnan(value))
    return [name for op in marked for name in op.output_names if name not in values]


def begun_on_machines(
    path: str | None,
    trainer: Role,
    source: Module | None,
    *,
    start: Mapping[str, Any] = EMPTY,
    resumed: bool = False,
) -> dict[str, Any]:
    """The values for machines that are processes: those that come with the program (`start`), also of variables that
    only servers have, and of those that `--init` names the ones that trainers declare.

    What `--init` has for servers only (moments of optimizers) is told to begin as the start-up program says, where the
    job's `source` is known. Raises DiagnosticError.
    """
    given: Mapping[str, Any] = EMPTY
    if path and source is not None:
        from pstranspile.cluster.checkpoint.inference import starting_values

        given = starting_values(path, source.main, source.startup).values
    values = begun_with(path, trainer.main, trainer.startup, start=start, resumed=resumed)
    left = sorted(given.keys() - values.keys())
    if path and left:
        held = name_list(left, MOST_NAMED)
        message = f"not taken over, since only servers have them: {held}; --resume goes on with all"
        report([warning("checkpoint-variable", message, Location(path))])
    return values


_MOST_MEMORY = 1 << 30
"""The most MB of memory that rows on disk can be limited to."""


def add_table_folder(group: Any) -> None:
    """`--table-folder`, where large tables have their rows, and `--table-memory`."""
    group.add_argument(
        "--table-folder",
        metavar="DIR",
        help="a folder on a disk for the rows of large tables, of which those in use stay in memory (default: all are "
        "in memory); the results are the same",
    )
    group.add_argument(
        "--table-memory",
        type=number(1, _MOST_MEMORY),
        metavar="MB",
        help="with --table-folder: the most memory for these rows in each process (default: what the system has)",
    )


def table_memory_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int | None:
    """The bytes that `--table-memory` gives, None without it. Without `--table-folder` the command ends."""
    if options.table_memory is None:
        return None
    if options.table_folder is None:
        parser.error("--table-memory is for rows on disk; give --table-folder")
    return options.table_memory << 20


def add_arithmetic(group: Any) -> None:
    """`--arithmetic`, the rounding of numbers."""
    group.add_argument(
        "--arithmetic",
        choices=("numpy", "fluid"),
        default="numpy",
        help="how f32 values are rounded, above all in sums of products: numpy (default), as numpy does; fluid: as "
        "Fluid does on a CPU, which gives the losses and parameters of real runs and the same bits on every x86-64 "
        "machine, and takes longer",
    )


def arithmetic_of(options: argparse.Namespace) -> str:
    """The module whose functions round numbers, "" for numpy's; where it is Fluid's, matrix products of this process
    are rounded likewise from now on.
    """
    if options.arithmetic != "fluid":
        return ""
    use_rounded_products()
    return "pstranspile.fluid.arithmetic"


def add_unreached(group: Any) -> None:
    """`--allow-unreached`, for faults that need not happen."""
    group.add_argument(
        "--allow-unreached",
        action="store_true",
        help="lines of --faults of which nothing came are only named; without it, the exit status is 1 then",
    )


def check_unreached(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the command if `--allow-unreached` is given without faults."""
    if options.allow_unreached and not options.faults:
        parser.error("--allow-unreached is about the lines of --faults FILE")


def add_shares(group: Any) -> None:
    """Adds `--shares`, the weights of the trainers' shares of a batch."""
    group.add_argument(
        "--shares",
        choices=("equal", "weighted"),
        default="equal",
        help="in a cluster: how much a trainer's share of a batch counts if shares have different numbers of rows; "
        "equal (default): as much as any other, as in Fluid; weighted: by its rows, so that the cluster trains as one "
        "machine does",
    )


def require_named(parser: argparse.ArgumentParser, options: argparse.Namespace, *names: str) -> None:
    """Ends the command if an option that names a file or folder is given an empty name (of an unset shell variable), or
    `-`, which stands for stdin and stdout where a command takes those.
    """
    for name in names:
        option = f"--{name.replace('_', '-')}"
        if getattr(options, name) == "":
            parser.error(f"{option}: the name is empty")
        if getattr(options, name) == "-":
            parser.error(f"{option} takes the name of a file or folder, not - (./- is a file of that name)")


INPUT_HELP = (
    "the training program: an .ir file, a serialized ProgramDesc, FILE.py:NAME (a function of a Python file that gives "
    "a model traced by pstranspile.torch), or - for text on stdin"
)


def add_input(parser: argparse.ArgumentParser, metavar: str = "INPUT", what: str = INPUT_HELP) -> None:
    """INPUT, `--startup`, `--meta` and `--pass`; `what` is the help of INPUT."""
    parser.add_argument("input", metavar=metavar, help=what)
    add_companions(parser)
    add_severity(parser)
    parser.add_argument(
        "--pass",
        metavar="NAME",
        action="append",
        default=[],
        dest="passes",
        help="a pass of another installed package to run on the input first (`pstranspile passes` lists them); "
        "may be repeated",
    )


def add_companions(parser: argparse.ArgumentParser) -> None:
    """Adds `--startup` and `--meta`, for data that a serialized ProgramDesc does not contain."""
    parser.add_argument(
        "--startup",
        metavar="FILE",
        help="the serialized startup program that goes with a serialized INPUT",
    )
    parser.add_argument(
        "--meta",
        metavar="FILE",
        help="JSON with what a serialized program does not carry: random_seed, params "
        "(trainable, is_distributed, learning_rate, regularizer), startup_parameter_order",
    )


def add_severity(parser: argparse.ArgumentParser) -> None:
    """`--strict` and `--allow`: how bad findings are."""
    parser.add_argument(
        "--strict", action="store_true", help="errors are also what Fluid runs although declarations say otherwise"
    )
    parser.add_argument(
        "--allow",
        metavar="CODE",
        action="append",
        default=[],
        help="findings with this code are no errors but warnings, and warnings are left out; may be repeated",
    )


def allowed_codes(options: argparse.Namespace) -> tuple[str, ...]:
    """The codes of `--allow`. Raises JobError for one that can't be allowed."""
    from pstranspile.compiler.job import JobError

    wrong = wrong_codes(options.allow, "allow")
    if wrong:
        raise JobError(wrong)
    return tuple(options.allow)


def add_time(group: Any, option: str) -> None:
    """`--link`, `--slow` and `--crash`, which go with the profile that `option` names."""
    group.add_argument(
        "--link",
        metavar="RATE[,LATENCY][,tls]",
        help="the link of each machine, such as 1Gb,200us or 125MB,tls (default: the profile's, within a host, without "
        "TLS)",
    )
    group.add_argument(
        "--slow",
        metavar="MACHINE=Nx",
        action="append",
        default=[],
        help=f"with {option}: a machine is N times slower than its profile, such as trainer_3=2x or pserver_0=1.5x, or "
        "its link, trainer_3:link=10x; says what this costs; may be repeated",
    )
    group.add_argument(
        "--crash",
        metavar="MACHINE[,KEY=VALUE...]",
        help=f"with {option}: what it costs if a machine crashes, such as pserver_0 or trainer_1,restart=2s,lease=10s; "
        "restart is the time until its process runs again (5s), lease that until a trainer is given up (30s), "
        "state_every the updates between two states of a server (20), checkpoint_every the steps between two "
        "checkpoints of a job without servers (0: none)",
    )


def check_time(parser: argparse.ArgumentParser, options: argparse.Namespace, option: str, profile: str | None) -> None:
    """Wrong usage for `--link`, `--slow` and `--crash` without the profile that `option` names, and for values that are
    none.
    """
    require_named(parser, options, option.removeprefix("--"))
    for name, value in (("--link", options.link), ("--slow", options.slow), ("--crash", options.crash)):
        if value and profile is None:
            parser.error(f"{name} needs {option}, which has the seconds of ops and messages")
    if profile is not None:
        from pstranspile.compiler.cost.profile import parse_crash, parse_link, parse_slow, profile_files

        try:
            profile_files(profile)
            parse_slow(options.slow)
            if options.crash is not None:
                parse_crash(options.crash)
            if options.link is not None:
                parse_link(options.link)
        except ValueError as problem:
            parser.error(str(problem))


_NUMBERS = Pattern(r"([1-9][0-9]{0,5})(?:\.\.([1-9][0-9]{0,5}))?")


def parse_sweep(parser: argparse.ArgumentParser, options: argparse.Namespace) -> dict[str, list[int]]:
    """The numbers of `--sweep` by key. Wrong usage for anything else."""
    result: dict[str, list[int]] = {}
    for word in options.sweep:
        key, equals, text = word.partition("=")
        if key not in ("pservers", "trainers") or not equals or key in result:
            parser.error(f"--sweep {word}: give pservers=1..8 or trainers=2,4,8, each once")
        numbers: list[int] = []
        for part in text.split(","):
            match = _NUMBERS.fullmatch(part)
            least, most = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
            if least > most:
                parser.error(f"--sweep {word}: {part!r} is no number or range of numbers, such as 4 or 1..8")
            numbers += range(least, most + 1)
        result[key] = numbers
    if result:
        from pstranspile.compiler.cost.jobs import MOST

        combinations = prod(len({*numbers}) for numbers in result.values())
        if combinations > MOST:
            parser.error(f"--sweep: {combinations:,} combinations; at most {MOST:,} are compared")
    return result


def cost_with_profile(
    parser: argparse.ArgumentParser, options: argparse.Namespace, result: Compiled, profile: str | None, **more: Any
) -> PlanCost:
    """The cost of a job with the profile and the options of `add_time`; wrong usage for a machine that the job does not
    have. Raises DiagnosticError.
    """
    from pstranspile.compiler.cost.jobs import cost
    from pstranspile.compiler.cost.profile import parse_crash, parse_slow
    from pstranspile.compiler.cost.seconds import require_slow

    slow = parse_slow(options.slow)
    crashed = {parse_crash(options.crash).machine: 1.0} if options.crash and profile is not None else {}
    for name, machines in (("--slow", slow), ("--crash", crashed)):
        try:
            require_slow(machines, result.plan.trainers, len(result.plan.pservers))
        except ValueError as problem:
            parser.error(f"{name}: {problem}")
    return cost(result, profile=profile, link=options.link, slow=slow, crash=options.crash, **more)


def add_job(parser: argparse.ArgumentParser) -> None:
    """The options that describe the cluster."""
    group = parser.add_argument_group("the job", "Options override the job file.")
    group.add_argument("--config", metavar="JOB", help="a TOML or JSON file that describes the job")
    group.add_argument(
        "--trust-code",
        action="store_true",
        help="let the job file name code to run (split_method = module:Class); only for a file that you trust",
    )
    group.add_argument(
        "--pservers",
        metavar="EP,EP|N",
        help="the parameter servers, as host:port,host:port; a number N means 127.0.0.1:6174, 6175, ...",
    )
    group.add_argument(
        "--trainers",
        metavar="N|EP,EP",
        help="the number of trainers (default: 1), or their endpoints; in the modes without servers a number N means "
        "127.0.0.1:6174, 6175, ...",
    )
    group.add_argument(
        "--mode",
        metavar="MODE",
        help="how the machines work together: sync (default), async, half-async, geo, nccl2, "
        "grad-allreduce, ddp, local-sgd, ...; see docs/reference/job.md",
    )
    group.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="settings",
        help="any key of a job file, such as slice_var_up=false or min_block_size=1024; may be repeated",
    )
    group.add_argument(
        "--plan",
        metavar="FILE|DIR",
        type=_plan_name,
        help="use this plan, printed by `pstranspile plan` for the same input and job and edited by hand (- for "
        "stdin), or that of a folder that `compile -o` wrote",
    )


def job_words(options: argparse.Namespace) -> list[str]:
    """The options of a command about its input and job as they are given, without `--plan`, for another command."""
    words: list[str] = []
    for name in ("startup", "meta", "config", "pservers", "trainers", "mode"):
        value = getattr(options, name)
        words += [] if value is None else [f"--{name}", str(value)]
    words += ["--trust-code"] if options.trust_code else []
    return words + [word for setting in options.settings for word in ("--set", setting)]


def _plan_name(name: str) -> str:
    """The type of `--plan`: the empty name, of an unset shell variable, is refused."""
    if not name:
        raise argparse.ArgumentTypeError("the name is empty")
    return name


def read_plan(options: argparse.Namespace) -> PlanFile | None:
    """The plan that `--plan` names; None without it. Raises DiagnosticError or CommandFailure."""
    if options.plan is None:
        return None
    from pstranspile.compiler.plan.plan_file import plan_bytes, plan_of_bytes

    if options.plan != "-":
        data, file = plan_bytes(options.plan)
    elif options.input == "-":
        raise DiagnosticError([error("input-unreadable", "INPUT and --plan can't both be read from stdin")])
    else:
        from pstranspile.frontends.loading import read_stdin

        data, file = read_stdin(), STDIN
    with quoting(SourceText(file, data.decode("utf-8-sig", errors="replace").replace("\r\n", "\n"))):
        return plan_of_bytes(data, file)


def refuse_with_folder(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the command if options about a program or its job are given with a folder, which has them already."""
    named = ("startup", "meta", "config", "trust_code", "pservers", "trainers", "mode", "settings", "plan", "passes")
    spelled = {"settings": "set", "passes": "pass"}
    given = [spelled.get(name, name) for name in (*named, "strict", "allow") if getattr(options, name)]
    if given:
        name = given[0].replace("_", "-")
        parser.error(f"--{name} goes with a program; {options.input} is a folder of compiled programs")


def _refuse_folder(path: str) -> None:
    """Raises DiagnosticError where a folder is given in place of a program: the job's options are not at fault then."""
    if path != "-" and os.path.isdir(path):
        compiled = os.path.exists(os.path.join(path, "plan.json"))
        notes = [Note("compiled programs are for launch, explain, report and verify; here, name their source")]
        notes = notes if compiled else []
        if os.path.isfile(model := os.path.join(path, "__model__")):
            notes.append(Note(f"it holds an inference model: the program is {model}, with --init {path}"))
        message = "this is a folder, a program is needed"
        raise DiagnosticError([error("input-unreadable", message, Location(path), notes=notes)])


def read_job(options: argparse.Namespace) -> Job:
    """The job of the options of a command that takes a program. Its warnings are printed.

    Raises JobError.
    """
    from pstranspile.compiler.job import JobError, job_warnings
    from pstranspile.compiler.job.file import load_job, parse_setting

    overrides: dict[str, object] = {"strict": options.strict or None, "allow": list(allowed_codes(options)) or None}
    named = [(key, getattr(options, key)) for key in ("pservers", "trainers", "mode")]
    for key, value in [*map(parse_setting, options.settings), *((k, v) for k, v in named if v is not None)]:
        if overrides.get(key, value) != value:
            raise JobError([error("job-conflict", f"{key} is given twice, with different values", focus=key)])
        overrides[key] = value
    if options.trust_code and options.config is None:
        raise JobError([error("job-unused", "--trust-code is about a job file, and no --config names one")])
    job = load_job(options.config, overrides, trust_code=options.trust_code)
    report(job_warnings(job))
    if ":" in job.split_method and "" not in sys.path:
        sys.path.insert(0, "")  # a dispatcher of the user's own may lie in the folder they work in
    return job


def load_input(path: str, startup: str | None = None, meta: str | None = None, *, call_stacks: bool = False) -> Module:
    """The module of an INPUT argument; `-` is stdin. Its warnings are printed.

    Raises DiagnosticError, or CommandFailure for what came from stdin.
    """
    from pstranspile.frontends.loading import load, load_bytes, read_stdin

    if path != "-":
        return load(path, startup, meta, call_stacks=call_stacks, report=report)
    data = read_stdin()
    with quoting(SourceText(STDIN, data.decode("utf-8", errors="replace"))):
        return load_bytes(data, STDIN, startup, meta, call_stacks=call_stacks, report=report)


_AnyJob = TypeVar("_AnyJob", "Job", "Job | None")


class LoadedInput(NamedTuple, Generic[_AnyJob]):
    """The module of INPUT, the job, and warnings of the verifier, which are not printed yet: where the job can't be
    compiled, some of them are the errors that say why.
    """

    module: Module
    job: _AnyJob
    warnings: tuple[Diagnostic, ...]


def load_with_job(options: argparse.Namespace) -> LoadedInput[Job]:
    """The module of INPUT, verified before and after the passes of `--pass`, and the job; an INPUT that is no program
    is told before the job.

    Raises DiagnosticError or CommandFailure.
    """
    return load_for(options, read_job)


def load_for(options: argparse.Namespace, read: Callable[[argparse.Namespace], _AnyJob]) -> LoadedInput[_AnyJob]:
    """The module and the job, as `load_with_job` gives them, with the job that `read` makes of the options.

    Raises DiagnosticError or CommandFailure, also where the program is a folder.
    """
    _refuse_folder(options.input)
    module = load_input(options.input, options.startup, options.meta)
    job = read(options)
    module, warnings = _verified_module(module, options, job)
    return LoadedInput(module, job, warnings)


def load_verified(options: argparse.Namespace, job: Job | None = None) -> Module:
    """The module of INPUT after the passes of `--pass`, verified before and after; its warnings are printed.

    The job, or else the options, set how strictly. Raises DiagnosticError or CommandFailure when it can't be read or
    has errors.
    """
    module, warnings = _verified_module(load_input(options.input, options.startup, options.meta), options, job)
    report(warnings, [module.source])
    return module


def _verified_module(
    module: Module, options: argparse.Namespace, job: Job | None
) -> tuple[Module, tuple[Diagnostic, ...]]:
    """The module after the passes of `--pass`, and the warnings of the verifier, each once. Raises DiagnosticError or
    CommandFailure.
    """
    warnings = dict.fromkeys(_verify(module, options, job))
    if options.passes:
        from pstranspile.compiler.pipeline import run_passes

        with quoting(module.source):
            module = run_passes(module, options.passes)
        warnings |= dict.fromkeys(_verify(module, options, job))
    return module, tuple(warnings)


def _verify(module: Module, options: argparse.Namespace, job: Job | None) -> list[Diagnostic]:
    """The warnings of a module. Raises CommandFailure for its errors."""
    from pstranspile.compiler.verify import verify

    strict, allow = (options.strict, allowed_codes(options)) if job is None else (job.strict, job.allow)
    findings = verify(module, strict=strict, allow=allow)
    with quoting(module.source):
        raise_errors(findings)
    return [*findings]


def compile_loaded(
    options: argparse.Namespace,
    loaded: LoadedInput[Job],
    *,
    on_pass: Observer | None = None,
    at_end: Callable[[], object] = lambda: None,
    link: bool = True,
) -> Compiled:
    """What was loaded, compiled for its job, with the plan of `--plan`; all warnings are printed.

    `on_pass` is told of every pass, `at_end` is called before anything is printed. Without `link` no program is made
    yet. Raises DiagnosticError or CommandFailure.
    """
    from pstranspile.compiler.compile import compile, prepare

    module, job, warnings = loaded
    plan = read_plan(options)
    with quoting(module.source, plan and plan.text, warnings=warnings):
        try:
            result = (compile if link else prepare)(module, job, plan=plan, on_pass=on_pass)
        finally:
            at_end()
    report(result.warnings, [module.source])
    return result


def load_compiled(options: argparse.Namespace) -> Compiled:
    """INPUT, verified and compiled for the job of the options. Raises DiagnosticError or CommandFailure."""
    return compile_loaded(options, load_with_job(options))


def file_of_start(module: Module) -> dict[str, bytes]:
    """The file of the values that a module starts with, by name, for the folder of its compiled job; none without."""
    if not module.start:
        return {}
    from pstranspile.runtime.files.outputs import START_FILE
    from pstranspile.runtime.run.files import arrays_as_bytes

    return {START_FILE: arrays_as_bytes(module.start, START_FILE)}


_READ = ("input", "startup", "meta", "config", "feed", "init", "trained", "faults", "replay", "plan")
"""Options that name files to read."""


def files_read(options: argparse.Namespace) -> list[str | None]:
    """The files that the options of a command name to be read."""
    given: list[object] = [getattr(options, name, None) for name in _READ]
    return [path for path in given if isinstance(path, str) and path != "-"]


def require_page(path: str, inputs: Iterable[str | None]) -> None:
    """Raises DiagnosticError where a page could not be written, or would take the place of an input (None: not given).

    `-` is stdout.
    """
    from pstranspile.runtime.files.outputs import require_writable

    if path != "-":
        require_writable(path, inputs, "html")


def write_page(path: str, data: bytes, what: str, *then: str) -> None:
    """Writes a page to a file, and tells what it is and what to do next; or writes it to stdout (`-`).

    Raises DiagnosticError.
    """
    from pstranspile.runtime.files.outputs import write_output

    if path == "-":
        sys.stdout.buffer.write(data)
    else:
        with telling(path, what, *then):
            write_output(path, data)


def require_text(path: str | None, inputs: Iterable[str | None], kind: str) -> None:
    """Raises DiagnosticError where a text could not be written, would take the place of one of the `inputs` (None: not
    given), or of a file that is not of its `kind`. `-` and None are stdout.
    """
    if path is not None and path != "-":
        from pstranspile.runtime.files.outputs import require_writable

        require_writable(path, inputs, kind)


def write_text(path: str | None, text: str, inputs: Iterable[str | None], kind: str, what: str, *then: str) -> None:
    """Writes the text of a program or a plan to a file, and tells what it is, whether another was there, and what to
    do next; or writes it to stdout (`-`, None). Raises DiagnosticError, also where `require_text` does.
    """
    if path is None or path == "-":
        sys.stdout.write(text)
        return
    from pstranspile.runtime.files.outputs import write_output

    require_text(path, inputs, kind)
    data = text.encode("utf-8")
    with telling(path, f"{what}{_replacement_clause(path, data)}", *then):
        write_output(path, data)


def _replacement_clause(path: str, data: bytes) -> str:
    """A clause that says that a file with other content is replaced, which may be written by hand; "" if there is
    none.
    """
    try:
        if not Path(path).is_file():  # a device has no end, and nothing in it is lost
            return ""
        held = Path(path).read_bytes()
    except OSError:
        return ""
    return ", in place of another that was there" if held.strip() and held != data else ""
