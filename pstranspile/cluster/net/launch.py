"""`pstranspile.cluster.net.launch`: a compiled job as processes on this host, from Python."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, cast

from pstranspile.cluster.checkpoint.inference import resolve_checkpoint
from pstranspile.cluster.checkpoint.layout import layout_of
from pstranspile.cluster.checkpoint.runs import Source, Target
from pstranspile.cluster.data.loader import LoaderRows, OddBatch
from pstranspile.cluster.data.serialized_feeds import serialize_value
from pstranspile.cluster.data.source import Data, NotFinite
from pstranspile.cluster.machines.feeding import ReportedShares, meeting_of, require_fed
from pstranspile.cluster.machines.simulate import Simulated
from pstranspile.cluster.net.checkpoints import Checkpoints
from pstranspile.cluster.net.findings import read_findings, relocate_findings, to_sources, told_once
from pstranspile.cluster.net.job import JobFolder, load_job_folder
from pstranspile.cluster.net.parts import are_needed, gather
from pstranspile.cluster.net.status import PARENT, STATUS
from pstranspile.cluster.net.supervisor import (
    LogFolderInUse,
    Member,
    Ports,
    Supervisor,
    command_of,
    how_it_ended,
    log_folder,
)
from pstranspile.cluster.net.terms import TOKEN
from pstranspile.compiler.compile import Compiled
from pstranspile.compiler.folders import files_of
from pstranspile.ir.argument_checks import check_arguments, expect_number, names_of, wrong_type
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, error, raise_errors, visible
from pstranspile.ir.model import Location, Role
from pstranspile.ir.patterns import Pattern
from pstranspile.runtime.arithmetic import arithmetic_name
from pstranspile.runtime.files.outputs import START_FILE, require_writable_folder, work_folder, write_outputs
from pstranspile.runtime.run.files import arrays_as_bytes
from pstranspile.runtime.run.step_feeds import (
    WANTED,
    LeftOut,
    RowSource,
    batches_of,
    feed_arrays,
    require_inputs,
    require_steps,
)

OnReport = Callable[[str, Mapping[str, Any]], object]
"""Called with the role of a machine and what it reports: the `step` that it has done, the `values` that it has fetched,
or its `state`."""


def _carriable(feeds: Any) -> Any:
    """The feeds in a form that can be handed to processes: one mapping of arrays per step, or rows.

    Raises TypeError for a function.
    """
    if feeds is None or isinstance(feeds, Mapping | RowSource):
        return cast("Any", feeds)
    batches = batches_of(feeds, "launch", f"{WANTED}, or rows (Data, Rows)")
    return feed_arrays(batches) if batches else None


@check_arguments
def launch(
    job: Compiled,
    feeds: Any = None,
    *,
    steps: int | None = None,
    fetch: Sequence[str] = (),
    init: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    seed: int | None = None,
    restarts: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: str | os.PathLike[str] | None = None,
    patience: float = 60.0,
    lease: float = 30.0,
    state: str | os.PathLike[str] | None = None,
    state_every: int = 20,
    threads: int | None = None,
    arithmetic: str = "",
    table_folder: str | os.PathLike[str] | None = None,
    table_memory: int | None = None,
    logs: str | os.PathLike[str] | None = None,
    on_report: OnReport | None = None,
) -> Simulated:
    """Runs a compiled job as processes on this host, one for each machine, on ports that are free.

    `feeds` are arrays with a leading step axis, a mapping per step, or rows (`Data`, `Rows`, what a loader gives),
    which every process is given for itself. `steps`, `fetch`, `init` and `seed` are those of `simulate`; `init` may
    also be a file or a checkpoint. A process that ends before its part is done is started again, each `restarts` times;
    in jobs without servers all begin again from the last checkpoint. Checkpoints are kept in `checkpoint`, at the end
    and after every `checkpoint_every` steps; `resume` is one to go on from. A trainer that was not heard for `lease`
    seconds is given up; a trainer waits `patience` seconds for a server. `state` is where servers keep their state
    every `state_every` updates (None: with `restarts`, a folder for the run). Each process has `threads` threads for
    products of matrices and large tables. `table_folder` is for the rows of large tables, which take at most
    `table_memory` MB of memory in each process; `logs` is for the output of the processes.
    `on_report` is called with what they report.

    Raises DiagnosticError, also for a job that does not come to its end; ValueError for `init` beside `resume`, for
    `checkpoint_every` without `checkpoint`, and for `table_memory` without `table_folder`.
    """
    if not isinstance(job, Compiled):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise wrong_type("launch", "what a compile gives", job, "Compiled")
    if init is not None and resume is not None:
        raise ValueError("init and resume can't both say what variables begin with")
    if checkpoint_every and checkpoint is None:
        raise ValueError("checkpoint_every needs checkpoint, which says where to")
    expect_number(restarts, "launch", "a number of restarts", least=0)
    expect_number(state_every, "launch", "a number of updates as state_every", least=1)
    counts = (
        ("a number of steps", steps),
        ("a number of steps as checkpoint_every", checkpoint_every),
        ("a number of threads", threads),
    )
    for wanted, number in counts:
        if number is not None:
            expect_number(number, "launch", wanted, least=1)
    require_limit(table_memory, table_folder)
    for name, seconds in (("patience", patience), ("lease", lease)):
        if seconds <= 0:
            raise ValueError(f"launch takes a number of seconds above 0 as {name}, not {seconds}")
    require_no_machine()
    feeds = _carriable(feeds)
    with ExitStack() as at_end:
        work = at_end.enter_context(work_folder(Path(tempfile.gettempdir()), "pstranspile-launch-", mode=0o700))
        folder = work / "compiled" / "job"
        start = {START_FILE: arrays_as_bytes(job.source.start, START_FILE)} if job.source.start else {}
        write_outputs(folder, {**dict(files_of(job, "ir")), **start})
        programs = load_job_folder(folder)
        settings = {"arithmetic": arithmetic_name(arithmetic), "program": "", "shares": "equal"}
        checkpoints: Checkpoints | None = None
        if checkpoint is not None or resume is not None:
            source = None if resume is None else at_end.enter_context(closing(Source(resume)))
            if source is not None:
                source.require_settings(settings)
                source.require_program(job.fingerprint)
                source.require_seed(seed)
                seed = source.manifest.seed
            standing = None if source is None else source.standing
            target: Target | None = None
            if checkpoint is not None:
                target = at_end.enter_context(closing(Target(checkpoint, layout_of(job), standing)))
            checkpoints = Checkpoints(job, source, target, checkpoint_every, work, settings)
            at_end.enter_context(closing(checkpoints))
        fetched = names_of(fetch, "launch")
        cluster = programs.cluster(fetch=fetched, seed=seed)
        cluster.require_sound()
        if checkpoints is not None and isinstance(feeds, RowSource):
            feeds = checkpoints.deal(feeds, len(cluster.trainers))
        cluster.feed(feeds)
        require_fed(feeds, [trainer.role for trainer in cluster.trainers], cluster.steps, steps or 0)
        count = steps or cluster.steps or 1
        if checkpoints is not None and checkpoints.source is not None:
            checkpoints.source.require_steps(count, known=bool(steps or cluster.steps))
        if not isinstance(feeds, RowSource):
            given = cast("Mapping[str, Any]", feeds) if isinstance(feeds, Mapping) else None
            require_inputs([programs.roles[trainer.name] for trainer in cluster.trainers], given, job.source)
        every = checkpoint_every
        if checkpoint is not None and are_needed(cluster):  # so that the end is a meeting, before trainers leave
            every = every or count
        own_state = os.fspath(state) if state is not None else str(work / "state") if restarts else ""
        if own_state:
            require_writable_folder(own_state)
            Path(own_state).mkdir(parents=True, exist_ok=True)
            require_no_state(own_state, [server.name for server in cluster.servers])
        options: dict[str, object] = {
            "steps": count,
            "init": _init_file(init, work),
            "seed": seed,
            "patience": patience,
            "lease": lease,
            "state": os.path.abspath(own_state) if own_state else None,
            "state-every": state_every,
            "threads": threads,
            "arithmetic": arithmetic_name(arithmetic) if arithmetic else None,
            "table-folder": None if table_folder is None else os.path.abspath(table_folder),
            "table-memory": table_memory,
            "parts": str(work) if every else None,
            "parts-every": every,
        }
        words = [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
        words += [word for name in fetched for word in ("--fetch", name)]
        if feeds is not None:
            place = work / "fed"
            place.write_bytes(serialize_value(feeds))
            words += ["--carried", str(place)]
        if logs is not None:
            at_end.enter_context(logs_of(logs))
        run = _Run(job, programs, checkpoints, cluster.seed, cluster.source, on_report)
        results = run.to_the_end(str(folder), words, work, Path(logs or work / "logs"), restarts)
        there = run.all_ended(len(cluster.trainers))
        if checkpoints is not None and checkpoints.target:
            checkpoints.end(cluster.seed, results, count if there is None else min(there, count))
        if there is not None and cluster.source is not None:
            require_steps(there, count, cluster.source)
        done = gather(programs.cluster(fetch=fetched, seed=seed), results)
        return done._replace(warnings=run.warnings())


def require_limit(table_memory: int | None, table_folder: str | os.PathLike[str] | None) -> None:
    """Raises ValueError for a limit of memory below 1 MB, or without a folder for the rows beyond it."""
    if table_memory is None:
        return
    expect_number(table_memory, "launch", "a number of MB as table_memory", least=1)
    if table_folder is None:
        raise ValueError("table_memory is for rows on disk, and needs table_folder, which says where to")


def require_no_machine() -> None:
    """Raises DiagnosticError in a process of a job, which is to import a file and not to launch what is launched there.

    Without this every machine would start a job of its own.
    """
    if STATUS in os.environ and PARENT in os.environ:
        message = (
            "a job is launched while its own machines import the file: what launches it stands under "
            '`if __name__ == "__main__":`'
        )
        raise DiagnosticError([error("launch-again", message)])


def _init_file(init: Mapping[str, Any] | str | os.PathLike[str] | None, work: Path) -> str | None:
    """The file of the values to begin with, for every process. Raises DiagnosticError."""
    if init is None:
        return None
    if not isinstance(init, Mapping):
        return os.path.abspath(resolve_checkpoint(os.fspath(init)))
    path = work / "init.npz"
    path.write_bytes(arrays_as_bytes(init, "init"))
    return str(path)


class _Run:
    """The processes of a job while they run, as who launched them sees them."""

    def __init__(
        self,
        job: Compiled,
        programs: JobFolder,
        kept: Checkpoints | None,
        seed: int | None,
        source: RowSource | None,
        on_report: OnReport | None,
    ):
        self._job, self._programs = job, programs
        self._checkpoints, self._seed, self._source, self._on_report = kept, seed, source, on_report
        self._shares = ReportedShares(meeting_of(job.plan.mode))
        self._news = News(_print_message)

    def to_the_end(self, folder: str, words: Sequence[str], work: Path, logs: Path, restarts: int) -> dict[str, str]:
        """Runs all machines; gives the files of what they have left, by role. Raises DiagnosticError."""
        names = sorted(self._programs.roles, key=lambda name: (not name.startswith("pserver"), len(name), name))
        results = {name: str(work / f"{name}.result") for name in names}
        ports = Ports(len(names))
        try:
            addresses = dict(zip(names, ports.addresses, strict=True))
            members = {
                name: Member(
                    name, command_of(name, folder, addresses, ["--result", results[name], *words]), logs / f"{name}.log"
                )
                for name in names
            }
            with token_of_job():
                supervisor, done = supervise_job(
                    restarts, members, self._checkpoints, self._seed, self._take, _print_message
                )
        finally:
            ports.close()
        if not done:
            raise failure_of(supervisor, self._programs, self._job.roles())
        return results

    def _take(self, member: Member, fields: Mapping[str, Any]) -> None:
        """A machine reports something."""
        self._shares.take(member.role, fields)
        if self._checkpoints is not None and "saved" in fields:
            self._checkpoints.part_saved(self._seed, member.role, fields["saved"])
        take_rows(self._source, fields)
        self._news.take(member.role, fields)
        if self._on_report is not None:
            self._on_report(member.role, fields)

    def all_ended(self, trainers: int) -> int | None:
        """The steps for which any trainer had a batch, once the batches of all have ended; None before."""
        return self._shares.all_ended(trainers)

    def warnings(self) -> tuple[Diagnostic, ...]:
        """Warnings about shares of other numbers of rows, and rows that could not be fed."""
        return (*self._shares.warnings(), *(self._source.warnings() if self._source is not None else ()))


def _print_message(what: str) -> None:
    print(f"pstranspile launch: {what}", file=sys.stderr, flush=True)


# What the command `launch` does as well.


@contextmanager
def token_of_job() -> Generator[None]:
    """Gives the processes that are started meanwhile a token of their own, unless the environment has one. An empty one
    would let in anybody.
    """
    before = os.environ.get(TOKEN)
    if before:
        yield
        return
    os.environ[TOKEN] = secrets.token_hex(16)
    try:
        yield
    finally:
        os.environ.pop(TOKEN, None)
        if before is not None:
            os.environ[TOKEN] = before


_LOGS = Pattern(r"(pserver|trainer)_[0-9]+\.log")


@contextmanager
def logs_of(folder: str | os.PathLike[str]) -> Generator[Path | None]:
    """Keeps other launches out of a folder for logs; gives the folder of the logs of an earlier one. Raises
    DiagnosticError.
    """
    with ExitStack() as at_end:
        try:
            earlier = at_end.enter_context(log_folder(Path(folder), _LOGS))
        except LogFolderInUse:
            message = "another launch writes its logs there; give this one another folder"
            raise DiagnosticError([error("output-unwritable", message, Location(os.fspath(folder)))]) from None
        yield earlier


def require_no_state(folder: str, servers: Sequence[str]) -> None:
    """Raises DiagnosticError for states that servers of an earlier run have left: trainers would begin anew."""
    left = [path for name in servers if (path := Path(folder, f"{name}.kept")).exists()]
    message = "an earlier run has left it, from which trainers can't go on: move it away, or name another folder"
    raise_errors(error("cluster-kept", message, Location(str(path))) for path in left)


def take_rows(source: object, fields: Mapping[str, Any]) -> None:
    """Notes what a machine reports of rows that it could not be fed, and of what batches hold beside what is fed."""
    if "left_out" in fields and isinstance(source, Data):
        source.left_out(LeftOut(*fields["left_out"]))
    if "not_finite" in fields and isinstance(source, Data):
        source.holds_odd(NotFinite(*fields["not_finite"]))
    if "left_of_batch" in fields and isinstance(source, LoaderRows):
        source.record_unfed_value(fields["left_of_batch"])
    if "odd_batch" in fields and isinstance(source, LoaderRows):
        source.holds_odd(OddBatch(*fields["odd_batch"]))


class News:
    """What machines report of themselves and of others while a job runs, told once by `tell`.

    All machines report that a trainer was given up, and that it has come back; of one after the other, only the first
    machine that reports it so often is heard.
    """

    def __init__(self, tell: Callable[[str], object]):
        self._tell = tell
        self._report_counts: Counter[tuple[str, str]] = Counter()
        """(Who reports, of whom) -> the number of reports."""
        self._told_counts: Counter[str] = Counter()
        """Trainer -> the number of reports that were told of it."""

    def take(self, role: str, fields: Mapping[str, Any]) -> None:
        """Tells what the machine `role` reports, if no other one has reported it before."""
        if "unsaved" in fields:
            self._tell(f"{role} could not write its part: {visible(fields['unsaved'])}")
        if "unkept" in fields:
            reason = visible(fields["unkept"])
            self._tell(f"{role} can't keep its state, so it could not go on if it ended: {reason}")
        if "news" in fields:
            news, about = fields["news"]
            self._report_counts[role, about] += 1
            if self._report_counts[role, about] > self._told_counts[about]:
                self._told_counts[about] += 1
                self._tell(visible(news))


def supervise_job(
    restarts: int,
    members: Mapping[str, Member],
    checkpoints: Checkpoints | None,
    seed: int | None,
    on_report: Callable[[Member, dict[str, Any]], object],
    tell: Callable[[str], object],
    on_look: Callable[[], object] | None = None,
    on_begin: Callable[[], object] = lambda: None,
) -> tuple[Supervisor, bool]:
    """Runs the job to its end, and gives what became of it, and whether all machines have done their work.

    A single machine is started again where servers can let it in; else all begin again, of which `on_begin` is told.
    """
    together = not any(name.startswith("pserver") for name in members)
    restarts_of_one, again = (0, restarts) if together else (restarts, 0)
    while True:
        begin = checkpoints.begin(seed) if checkpoints is not None and checkpoints.source else {}
        for name, member in members.items():
            member.begin_with(begin.get(name))
        supervisor = Supervisor(
            members, restarts=restarts_of_one, on_report=on_report, on_look=on_look, on_restart=tell
        )
        done = supervisor.run()
        if done or not again:
            return supervisor, done
        again -= 1
        tell(_go_back(supervisor, checkpoints))
        on_begin()


def _go_back(supervisor: Supervisor, kept: Checkpoints | None) -> str:
    """Goes back to the last checkpoint; says that all trainers of a job without servers begin again, since one of them
    has ended.
    """
    if kept is not None:
        kept.go_back()
    ended = [f"{member.role} has ended {how_it_ended(code)}" for member, code in supervisor.failed]
    ended += [f"{member.role} was given up" for member in supervisor.left_out]
    place = f"from step {kept.first_step + 1}" if kept is not None and kept.source else "from the beginning"
    return f"{'; '.join(ended)}: all begin again {place}"


def failure_of(supervisor: Supervisor, job: JobFolder, sources: Mapping[str, Role]) -> DiagnosticError:
    """The error of a job that did not come to its end: the findings by which machines have ended, each once, at its
    place in the user's files; the machines that ended; and what the others waited for.

    `sources` are the machines' programs as they were compiled, where the user has the source.
    """
    return DiagnosticError([*_findings(supervisor, job, sources), *_ended_machine_errors(supervisor)])


def _findings(supervisor: Supervisor, job: JobFolder, sources: Mapping[str, Role]) -> list[Diagnostic]:
    """The findings that machines have reported as they ended."""
    found: dict[str, list[Diagnostic]] = {}
    for name, member in supervisor.members.items():
        if "findings" in member.last_reports:
            moved = to_sources(job.roles[name], sources.get(name))
            found[name] = relocate_findings(read_findings(member.last_reports["findings"]), moved)
    return told_once(found)


def _ended_machine_errors(supervisor: Supervisor) -> list[Diagnostic]:
    """The machines that have ended, with the end of the log of those without findings, and those that were given up."""
    result: list[Diagnostic] = []
    for member, code in supervisor.failed:
        how = how_it_ended(code)
        log = "" if "findings" in member.last_reports else member.log_tail()
        notes = (Note(line.removeprefix("note: ")) for line in log.splitlines())
        result.append(error("launch-ended", f"{member.role} has ended {how}", notes=tuple(notes)))
    result += [
        error("launch-ended", f"{member.role} was given up, and the servers are done without it")
        for member in supervisor.left_out
    ]
    ended = {member.role for member in (*supervisor.left_out, *(member for member, _ in supervisor.failed))}
    waiting = [
        line
        for member in supervisor.members.values()
        if member.role not in ended
        for line in member.last_reports.get("waiting", ())
    ]
    return [*result[:-1], result[-1]._replace(notes=(*result[-1].notes, *map(Note, waiting)))]
