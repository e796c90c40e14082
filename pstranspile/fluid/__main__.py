"""`python -m pstranspile.fluid SCRIPT`: runs a Fluid script unchanged, with the actions of `--ir`, `--check` and
`--explain`.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import select
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from math import prod
from pathlib import Path
from traceback import extract_tb
from typing import Any, NamedTuple, TextIO

from pstranspile.compiler.compile import Compiled, compile
from pstranspile.compiler.job import Job, JobError
from pstranspile.fluid.aliases import install_for_children, ours
from pstranspile.fluid.communicator import idle_server, listen
from pstranspile.fluid.framework import default_main_program, default_startup_program
from pstranspile.fluid.missing import module_here
from pstranspile.fluid.running import watchers as hooks
from pstranspile.fluid.running.failures import STATUS as INTERRUPTED
from pstranspile.fluid.running.failures import interrupt_message, render_diagnostics, traceback_of
from pstranspile.fluid.running.large_tables import open_tables, with_dims
from pstranspile.ir.diagnostics import DiagnosticError, cluster_of, did_you_mean, error, in_one_line
from pstranspile.ir.model import MAIN, STARTUP, FrozenMap, Module
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.reading import SCRIPT, beginning, kind_of, misspelt
from pstranspile.ir.startup_signals import freeze_modules, restore
from pstranspile.ir.table_rules import most_rows

# A run of a script, with the actions of `--ir`, `--check` and `--explain`.


MOST_COMPARED = 1 << 32
"""The greatest number of elements of a parameter that is compared whole."""

MOST_ROWS = 1 << 14
"""The greatest number of rows that are compared of a table with a row for every id."""

_USAGE = """\
usage: COMMAND [--ir DIR] SCRIPT | -m MODULE [ARGS]
       COMMAND --check | --explain [--all] [--pservers N|EP,EP] [--trainers N] [--ir DIR] SCRIPT [ARGS]
       COMMAND --compat [--json] SCRIPT

Runs a script written for Fluid 1.8, with `import paddle` and `import paddle.fluid` meaning this package, in this
process and in the Python processes that it starts.

  -m MODULE       in place of a script: run a module, such as paddle.distributed.launch
  --ir DIR        write what the script has built, and what it has transpiled
  --check         instead of training: does the cluster train as the single machine does? (see `pstranspile check`)
  --explain       instead of training: say what the machines of the cluster hold and send (see `pstranspile explain`)
  --all           list everything that --check and --explain otherwise count
  --compat        instead of running it: list the names of Fluid and Paddle that the script, and modules in its folder,
                  use: which are here, which do something else, which are missing (exit status 1); --json for programs
  --pservers, --trainers
                  the cluster for --check and --explain, if neither the script nor the environment names one (default: 2
                  and 2)

examples:
  COMMAND train.py --epochs 3
  COMMAND --check --pservers 2 --trainers 2 train.py
  COMMAND --compat train.py
  COMMAND -m paddle.distributed.launch --server_num 2 --trainer_num 2 train.py"""


def usage(command: str) -> str:
    """The text that explains how to call the command."""
    return _USAGE.replace("COMMAND", command)


def show(text: str) -> int:
    """Writes text to stdout; returns the exit status: 0, or the one that shells report if the reader of stdout has
    gone.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        return unread()
    return 0


def print_to_stderr(text: str) -> None:
    """Writes a line to stderr; a reader that has gone is ignored, and does not change the exit status."""
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        _silence(sys.stderr)


def is_unread() -> bool:
    """Whether stdout or stderr is a pipe whose reader has gone."""
    if not hasattr(select, "poll"):
        return True  # on Windows there is no way to ask
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def unread() -> int:
    """Points stdout at the null device, so that the interpreter's last flush does not fail again; returns the exit
    status that shells report for a program whose reader has gone.
    """
    _silence(sys.stdout)
    return 128 + signal.SIGPIPE


def _silence(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Options(NamedTuple):
    """The options before the script, the script, and its own arguments. `pservers` and `trainers` are "" if not given;
    then 2 of each are assumed.
    """

    script: str
    script_arguments: list[str]
    ir: str = ""
    check: bool = False
    explain: bool = False
    compat: bool = False
    json: bool = False
    all: bool = False
    pservers: str = ""
    trainers: str = ""
    module: str = ""
    """The name of the module that is run as the script, "" if the script is a file."""


class ScriptStop(BaseException):
    """Raised to end the script, when it has reached the point that the options ask about."""


OF_CLUSTER = ("--pservers", "--trainers", "--all")
"""The options that say something where a script is checked or explained."""

_FLAGS, _VALUES = ("--check", "--explain", "--compat", "--json", "--all"), ("--ir", "--pservers", "--trainers")


def parse_options(arguments: list[str]) -> Options | str:
    """The options of a command line, or a text that says what is wrong with it."""
    options, waiting = Options("", []), list(arguments)
    while waiting and waiting[0].startswith("-") and waiting[0] != "-m":
        name, equals, value = waiting.pop(0).partition("=")
        if name in _FLAGS and not equals:
            options = options._replace(**{name[2:]: True})
        elif name in _FLAGS:
            return f"{name} takes no value"
        elif name in _VALUES:
            if not equals and not waiting:
                return f"{name} takes a value"
            before, argument = getattr(options, name[2:]), value if equals else waiting.pop(0)
            if not argument:
                return f"{name} takes a value, and is given an empty one"
            if before and before != argument:
                told = f"{name} is given twice; {argument[:60]} counts, not {before[:60]}"
                print_to_stderr(in_one_line(f"pstranspile fluid: warning: {told}"))
            options = options._replace(**{name[2:]: argument})
        else:
            return f"there is no option {name}{did_you_mean(name, (*_FLAGS, *_VALUES, '--help'))}"
    asks = options.check or options.explain
    cluster_options = [name for name in OF_CLUSTER if getattr(options, name[2:])]
    if options.check and options.explain:
        return "--check can't be combined with --explain"
    if options.compat and (asks or options.ir):
        return "--compat reads the script without running it, and can't be combined with --check, --explain and --ir"
    if options.json and not options.compat:
        return "--json is for --compat"
    if cluster_options and not asks:
        return (
            f"{' and '.join(cluster_options)} {'is' if len(cluster_options) == 1 else 'are'} for --check and --explain"
        )
    if waiting[:1] == ["-m"]:
        file = file_of_module(waiting[1]) if len(waiting) > 1 else ""
        if not file:
            return f"there is no module {waiting[1]}{_like_module(waiting[1])}" if waiting[1:] else "-m takes a module"
        options, waiting = options._replace(module=waiting[1]), [file, *waiting[2:]]
    if not waiting:
        return "name a script"
    if not Path(waiting[0]).is_file():
        if os.path.isdir(waiting[0]):
            return f"{waiting[0]} is a folder; name a script"
        if os.path.exists(waiting[0]):
            return f"{waiting[0]} is no regular file (it is a device, a pipe or the like); name a script"
        return f"there is no file {waiting[0]}{misspelt(waiting[0])}"
    kind = None if waiting[0].endswith(".py") else kind_of(beginning(waiting[0]), waiting[0])
    if kind is not None and kind != SCRIPT:
        return f"{waiting[0]}: {kind}; a script is needed"
    late = [word for word in waiting[1:] if word.partition("=")[0] in (*_FLAGS, *_VALUES)]
    if options.compat and late:
        return f"{late[0]} comes after the script, which --compat does not run: options stand before it"
    if options.trainers and not (options.trainers.isdecimal() and int(options.trainers)):
        return f"--trainers takes a number from 1 on, not {options.trainers!r}"
    try:
        _job(options)
    except JobError as problem:
        return "; ".join(_OF_OPTION.sub(r"--\1 ", found.message, count=1) for found in problem.diagnostics)
    return options._replace(script=waiting[0], script_arguments=waiting[1:])


_OF_OPTION = Pattern("^(pservers|trainers):? ")
"""Matches the beginning of a message about a key of a job that is also an option of the command."""


def _job(options: Options) -> Job:
    """The job that the options describe. Raises JobError."""
    pservers = options.pservers or "2"
    return Job(int(pservers) if pservers.isdecimal() else pservers, int(options.trainers or 2))


def file_of_module(name: str) -> str:
    """The file that `-m` runs for a module, of Paddle or in the working folder; "" if there is none."""
    found = module_here(ours(name)) if name.partition(".")[0] == "paddle" else name
    before = [*sys.path]
    sys.path.insert(0, os.getcwd())
    try:
        spec = find_spec(found) if found else None
        if spec is None or spec.submodule_search_locations is None:
            files = [spec.origin or ""] if spec is not None else []
        else:
            files = [os.path.join(folder, "__main__.py") for folder in spec.submodule_search_locations]
        return next((file for file in files if file.endswith(".py") and os.path.isfile(file)), "")
    except (ImportError, ValueError, AttributeError):  # no such package, or its import fails
        return ""
    finally:
        sys.path[:] = before


def _like_module(name: str) -> str:
    launchers = ("launch", "launch_ps", "fleet.launch")
    return did_you_mean(name, [f"paddle.distributed.{launcher}" for launcher in launchers])


def _comparable(compiled: Compiled) -> Compiled:
    """The job, with as many rows in tables with a row for every id as the script has declared, at most `MOST_ROWS`.

    The made-up data have ids in these rows only, so training is the same. The change is reported on stderr. Raises
    DiagnosticError for a table that can't be held whole.
    """
    tables = open_tables(compiled.source[STARTUP])
    heights: dict[int, int] = {}
    for rows, width in tables.values():
        heights[width] = max(heights.get(width, 0), min(rows or MOST_ROWS, MOST_ROWS))
    if tables:
        for name, (_, width) in tables.items():
            print(f"%{name} has a row for every id: {heights[width]} rows of it are compared", file=sys.stderr)
        assert compiled.job is not None
        compiled = compile(
            with_dims(compiled.source, {(most_rows(w), w): (rows, w) for w, rows in heights.items()}), compiled.job
        )
    for var in compiled.source.main.parameters():
        shape: tuple[int, ...] = var.tensor.shape if var.tensor is not None else ()
        if shape and prod(shape) > MOST_COMPARED:
            message = f"%{var.name} has {shape[0]} rows: it can't be held whole, as --check compares it"
            raise DiagnosticError([error("table-large", message, focus=f"%{var.name}")])
    return compiled


def assumed_cluster(pservers: str, trainers: int) -> dict[str, str]:
    """The cluster that is assumed for a Fleet script, as the variables that Fleet's launcher would set
    for trainer 0.
    """
    servers = [f"127.0.0.1:{6174 + number}" for number in range(int(pservers))] if pservers.isdigit() else [pservers]
    workers = [f"127.0.0.1:{7164 + number}" for number in range(trainers)]
    return {
        "TRAINING_ROLE": "TRAINER",
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(servers),
        "PADDLE_TRAINERS_NUM": str(trainers),
        "PADDLE_TRAINER_ID": "0",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(workers),
        "PADDLE_CURRENT_ENDPOINT": workers[0] if workers else "",
    }


class ScriptRun:
    """Watches a script, and carries out the options."""

    def __init__(self, options: Options, command: str = "python -m pstranspile.fluid"):
        self.options = options
        self._command = command
        self._compiled: list[Compiled] = []
        self._status = 0
        self._unbuilt = False

    @contextmanager
    def watching(self) -> Generator[None]:
        """A context manager in which the session watches the script; at the end it writes the files that `--ir` asks
        for.
        """
        if self.options.ir:
            from pstranspile.runtime.files.outputs import require_writable

            require_writable(Path(self.options.ir, "script.ir"), kind="ir")
        hooks.WATCHERS.append(self)
        if self.options.check or self.options.explain:
            hooks.ASSUMED.update(assumed_cluster(self.options.pservers or "2", int(self.options.trainers or 2)))
        try:
            yield
        finally:
            hooks.WATCHERS.remove(self)
            hooks.ASSUMED.clear()
            if self.options.ir:
                self._write(Path(self.options.ir))

    def program_transpiled(self, compiled: Compiled, turns: str | None = None) -> None:
        """Called when a program was compiled for a cluster. `turns` says which program each step runs, if it is not the
        main one.
        """
        self._compiled.append(compiled)
        self._answer(compiled, turns)

    def running(self, program: Any) -> None:
        """Called when a program is about to be run on one machine; a program that trains is compiled for `--check` and
        `--explain`.
        """
        if (self.options.check or self.options.explain) and hooks.trains(program):
            self.program_transpiled(compile(program.live().module(), _job(self.options)))

    def _other_cluster(self, compiled: Compiled) -> str:
        """The options that contradict the cluster which the script itself names, as a message; "" if none does."""
        plan, given = compiled.plan, self.options
        listed = len(given.pservers.split(","))
        servers = int(given.pservers) if given.pservers.isdigit() else listed
        wrong = [f"--pservers {given.pservers}"] if given.pservers and servers != len(plan.pservers) else []
        wrong += [f"--trainers {given.trainers}"] if given.trainers and int(given.trainers) != plan.trainers else []
        if not wrong:
            return ""
        there = cluster_of(plan.trainers, len(plan.pservers), " and ")
        return f"the script, or the environment, names a cluster of {there}: leave out {' and '.join(wrong)}"

    def _answer(self, compiled: Compiled, turns: str | None) -> None:
        other = self._other_cluster(compiled)
        if other:
            print(f"{self._command}: {other}", file=sys.stderr)
            self._status = 2
            raise ScriptStop
        if self.options.explain:
            from pstranspile.compiler.explain import answer_text, explain_job, of_compiled

            self._status = show(answer_text(explain_job(of_compiled(compiled)), full=self.options.all))
            raise ScriptStop
        if self.options.check:
            from pstranspile.proof.check import check
            from pstranspile.proof.report import report_text

            compiled = _comparable(compiled)
            assert compiled.job is not None
            made = check(compiled.source, compiled.job, result=compiled, programs=turns)
            self._status = show(report_text(made, every=self.options.all)) or (0 if made.holds else 1)
            raise ScriptStop

    def _write(self, folder: Path) -> None:
        from pstranspile.compiler.folders import files_of
        from pstranspile.frontends.python_places import with_script_places
        from pstranspile.ops.textual import print_module
        from pstranspile.runtime.files.outputs import require_own, write_output, write_outputs

        module = Module(FrozenMap({MAIN: default_main_program().freeze(), STARTUP: default_startup_program().freeze()}))
        if self._compiled:
            module = self._compiled[0].source
        elif not any(block.ops or block.vars for program in module.programs.values() for block in program.blocks):
            self._unbuilt = True
            return
        folder.mkdir(parents=True, exist_ok=True)
        for number, compiled in enumerate(self._compiled):
            files, place = dict(files_of(compiled)), folder / f"job_{number}"
            require_own(place, files)
            write_outputs(place, files)
            print(f"{place}: the programs of the machines that the script has transpiled a job for", file=sys.stderr)
        write_output(folder / "script.ir", print_module(with_script_places(module)).encode())
        print(f"{folder / 'script.ir'}: what the script has built", file=sys.stderr)

    def asks(self) -> bool:
        """Whether the command asks for an answer about a training program, in place of training."""
        return self.options.check or self.options.explain

    def lacks(self) -> bool:
        """Whether the command asks for something that the script has not given by its end."""
        return self.asks() or self._unbuilt

    def end(self, place: str = "", status: object = None) -> int:
        """The exit status of the actions. `place` is where the script has ended itself with `status`, "" if it has run
        to its end.
        """
        if self._unbuilt:
            ended = f"{place}: the script ends here, and" if place else "the script"
            message = f"{ended} has built nothing in its default programs: nothing is written to {self.options.ir}"
            print(f"{self._command}: {message}", file=sys.stderr)
            if not self.asks():
                return 1
        if self.asks() and not self._compiled:
            nothing = f"nothing is {'checked' if self.options.check else 'explained'}"
            if place:
                shown = status if isinstance(status, int) else 1 if status else 0
                message = f"{place}: the script ends here with status {shown}, before it has trained: {nothing}"
            else:
                message = f"the script trains nothing: {nothing}"
            print(f"{self._command}: {message}", file=sys.stderr)
            return 1
        return self._status


# The command `python -m pstranspile.fluid`.


def main(arguments: list[str], command: str = "python -m pstranspile.fluid") -> int:
    """Runs a script; returns the exit status: the script's own, 1 for findings, 2 for wrong usage.

    `command` is the command that the user called, for messages.
    """
    try:
        session = _prepare_session(arguments, command)
    except KeyboardInterrupt:
        print_to_stderr("interrupted before the script began")
        return INTERRUPTED
    return session if isinstance(session, int) else _run(session)


def _prepare_session(arguments: list[str], command: str) -> ScriptRun | int:
    """The session that runs the script of a command line, after preparing the script's environment; or an exit status
    if there is no script to run.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        if arguments:
            return show(f"{usage(command)}\n")
        print_to_stderr(usage(command))
        return 2
    options = parse_options(arguments)
    if isinstance(options, str):
        print_to_stderr(f"{command}: {options}")
        return 2
    if options.compat:
        from pstranspile.fluid.names_used import report

        text, status = report(options.script, as_json=options.json)
        return show(text) or status
    own = ("--check", "--explain", "--compat", *(OF_CLUSTER if options.check or options.explain else ()))
    late = next((word for word in options.script_arguments if word.partition("=")[0] in own), None)
    if late is not None:
        told = f"{late} comes after the script, so it is the script's own; options of this command stand before it"
        print_to_stderr(f"{command}: {told}")
    listen()
    install_for_children()
    session = ScriptRun(options, command)
    script = options.script
    sys.argv = [script, *options.script_arguments]
    folder = os.getcwd() if options.module else str(Path(script).resolve().parent)
    sys.path[: 0 if getattr(sys.flags, "safe_path", False) else 1] = [folder]
    return session


def _run(session: ScriptRun) -> int:
    """Runs the script of a session; returns the exit status."""
    options = session.options
    try:
        with session.watching():
            if options.module:
                runpy.run_module(options.module, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(options.script, run_name="__main__")
    except ScriptStop:
        pass
    except SystemExit as stop:
        if not stop.code:
            _tell_idle_server()
        if session.lacks():
            status = session.end(_line_of(stop, options.script), stop.code)
            if not stop.code:
                return status
        raise
    except DiagnosticError as problem:
        print_to_stderr(render_diagnostics(problem))
        return 1
    except KeyboardInterrupt as stop:
        if sys.excepthook is not sys.__excepthook__:
            raise
        print_to_stderr(interrupt_message(stop))
        return INTERRUPTED
    except Exception as problem:
        if isinstance(problem, BrokenPipeError) and is_unread():  # else a connection of the script itself has broken
            return unread()
        if sys.excepthook is not sys.__excepthook__:
            raise
        print_to_stderr(traceback_of(problem).removesuffix("\n"))
        return 1
    _tell_idle_server()
    return session.end()


def _line_of(stop: SystemExit, script: str) -> str:
    """The place in a script, as file:line, at which it has ended itself; the script alone if it is not known."""
    own = Path(script).resolve()
    lines = [frame.lineno for frame in extract_tb(stop.__traceback__) if Path(frame.filename).resolve() == own]
    return f"{script}:{lines[-1]}" if lines else script


def _tell_idle_server() -> None:
    told = idle_server()
    if told:
        print_to_stderr(told)


if __name__ == "__main__":
    restore()
    freeze_modules()
    status, gone = 0, 0
    try:
        status = main(sys.argv[1:])
    finally:
        with suppress(ValueError, AttributeError):  # the script may have closed it
            gone = show("")
    sys.exit(gone or status)
