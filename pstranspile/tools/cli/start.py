"""`pstranspile start`: one machine of a compiled job as a process."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pstranspile.ir.diagnostics import DiagnosticError, Note, error, name_list
from pstranspile.ir.model import Location
from pstranspile.ir.startup_signals import freeze_modules
from pstranspile.tools.cli.blas import use_threads
from pstranspile.tools.cli.common import (
    INIT_HELP,
    add_arithmetic,
    add_checkpoints,
    add_table_folder,
    arithmetic_of,
    begun_with,
    check_checkpoints,
    count,
    files_read,
    load_input,
    make_parser,
    require_named,
    run_seed,
    seconds,
    table_memory_of,
)
from pstranspile.tools.cli.feed import add_feed, check_feed, dealing, dealt_feed, require_fed_inputs
from pstranspile.tools.cli.report import CommandFailure, status_of
from pstranspile.tools.cli.report import report as report_findings
from pstranspile.tools.cli.written_files import PENDING, saved_arrays_text, say, telling

if TYPE_CHECKING:
    from pstranspile.cluster.machines.cluster import Cluster
    from pstranspile.cluster.net.job import JobFolder
    from pstranspile.cluster.net.other_systems import ForeignSystem
    from pstranspile.cluster.net.server_checkpoints import CheckpointPlan
    from pstranspile.cluster.net.status import StatusPipe
    from pstranspile.cluster.net.tls import Credentials
    from pstranspile.ir.model import Module


# Checkpoints of servers in `pstranspile start`. They need the job, of which the folder has only the programs.

_PLAN = "plan.json"
_SETTINGS = ("slice_var_up", "min_block_size", "split_method")
"""Settings of a job that its plan contains."""


def add_server_checkpoints(parser: argparse.ArgumentParser) -> None:
    """The options of a server of Fluid's trainers that leaves checkpoints, or goes on from one."""
    add_checkpoints(parser)
    group = parser.add_argument_group("the job that checkpoints are of")
    group.add_argument("--program", metavar="INPUT", help="the program that the job was compiled from")
    group.add_argument("--startup", metavar="FILE", help="its start-up program, if INPUT is a main.pb")
    group.add_argument(
        "--config", metavar="JOB", help="the job file, if there is more to the job than DIR/plan.json says, or no plan"
    )


def check_server_checkpoints(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the command if options about checkpoints don't fit together."""
    check_checkpoints(parser, options)
    wanted = options.checkpoint or options.resume
    if wanted and not options.fluid:
        parser.error("--checkpoint and --resume are for servers with --fluid; `launch` has them for all machines")
    if wanted and not options.program:
        parser.error("--checkpoint and --resume need --program, the program that the job was compiled from")


def checkpoints_of(options: argparse.Namespace, folder: JobFolder) -> CheckpointPlan | None:
    """What checkpoints a server is to leave, and to begin with; None for none. Raises DiagnosticError."""
    if not (options.checkpoint or options.resume):
        return None
    from pstranspile.cluster.checkpoint.layout import layout_of
    from pstranspile.cluster.checkpoint.runs import Source
    from pstranspile.cluster.net.server_checkpoints import CheckpointPlan, of_servers, require_fits
    from pstranspile.compiler.compile import prepare
    from pstranspile.compiler.job.file import load_job

    module = load_input(options.program, options.startup)
    job = load_job(options.config, _settings_in_plan(Path(options.folder, _PLAN), options.config))
    layout = of_servers(layout_of(prepare(module, job)))
    require_fits(layout, folder.roles, options.folder)
    settings = {"arithmetic": str(options.arithmetic)}
    if options.resume:
        with closing(Source(options.resume)) as source:
            source.require_settings(settings)
            source.require_seed(options.seed)
            options.seed = source.manifest.seed
    return CheckpointPlan(
        layout, options.checkpoint or "", options.checkpoint_every or 0, options.resume or "", settings
    )


def _settings_in_plan(plan: Path, config: str | None) -> dict[str, Any]:
    """The job as the plan of a folder has it. Its settings are left out where there is a job file."""
    if not plan.is_file():
        if config:
            return {}
        message = "there is no plan.json, which `compile -o` writes; --config JOB has to say which job it is"
        raise DiagnosticError([error("checkpoint-model", message, Location(str(plan.parent)))])
    held: dict[str, Any] = json.loads(plan.read_bytes())
    settings: Any = held.get("settings", {}) if config is None else {}
    if not isinstance(settings, dict):
        message = "what it says of the job's settings is damaged; --config JOB has to say which job it is"
        raise DiagnosticError([error("checkpoint-model", message, Location(str(plan)))])
    machines = {key: held[key] for key in ("pservers", "trainers", "mode")}
    return {**machines, **{key: settings[key] for key in _SETTINGS if key in settings}}


DESCRIPTION = """\
Plays one machine of a compiled job: a parameter server until all trainers have left, or a trainer for so many steps.
DIR is what `compile -o` wrote; every process of the job is given the same one, and is found by the others at the
address that the job gives it, or that --servers, --listen or --address says.

Without --role the environment tells who this is, as Fluid's launchers set it: TRAINING_ROLE (PSERVER or TRAINER) with
PADDLE_TRAINER_ID, or with POD_IP and PADDLE_PORT; PADDLE_PSERVERS_IP_PORT_LIST then gives the servers' addresses. In a
job without servers it is PADDLE_TRAINER_ID, and PADDLE_TRAINER_ENDPOINTS gives the trainers'.

A server that is given --state keeps its state there. Started again after its process has ended, it goes on from it, and
the trainers send again what it had not kept. A trainer that is started again takes part from the next step on."""


_NAMING = (
    "role",
    "listen",
    "servers",
    "tls",
    "feed",
    "init",
    "save",
    "metrics",
    "checkpoint",
    "resume",
    "program",
    "table_folder",
    "saves",
)
"""Options whose value is never empty."""


def run(arguments: Sequence[str]) -> int:
    """Plays the machine until its part is done."""
    parser = make_options()
    options = parser.parse_args(arguments)
    use_threads(options.threads)
    require_named(parser, options, *_NAMING)
    table_memory = table_memory_of(parser, options)
    check_feed(parser, options)
    check_server_checkpoints(parser, options)
    chosen_arithmetic = arithmetic_of(options)
    if options.tls and (options.fluid or options.insecure):
        parser.error(f"--tls can't be combined with {'--fluid' if options.fluid else '--insecure'}")
    from pstranspile.cluster.net.findings import findings_to_json
    from pstranspile.cluster.net.job import load_job_folder
    from pstranspile.cluster.net.other_systems import grpc_library
    from pstranspile.cluster.net.status import STATUS, StatusPipe, end_with_parent
    from pstranspile.cluster.net.terms import require_apart, role_of_environment, token_of_environment
    from pstranspile.cluster.net.tls import read_credentials, require_guarded
    from pstranspile.runtime.arithmetic import arithmetic
    from pstranspile.runtime.large.table import rows_on_disk, tables_on_threads

    end_with_parent()
    token_of_environment(os.environ)  # refused before anything is read
    told = report_findings if STATUS not in os.environ else None  # whoever started this process has told it
    folder = load_job_folder(options.folder, options.push_every, told)
    role, role_addresses = options.role, {}
    if role is None:
        trainers = sum(name.startswith("trainer") for name in folder.roles)
        role, role_addresses = role_of_environment(os.environ, folder.addresses(), trainers)
    if role not in folder.roles:
        raise _unknown_role_error(role, folder)
    if options.fluid and role.startswith("trainer"):
        grpc_library()  # said before the trainer waits for its servers
    if (options.checkpoint or options.resume) and not role.startswith("pserver"):
        parser.error(f"--checkpoint and --resume are for servers, not for {role}")
    if options.save and not role.startswith("trainer"):
        parser.error(f"--save is for trainers, not for {role}")
    addresses = {**folder.addresses(), **role_addresses, **_given_addresses(parser, options, folder, role)}
    require_apart(addresses)
    credentials = read_credentials(options.tls) if options.tls else None
    if not (options.tls or options.insecure):
        require_guarded(addresses, [role] if role.startswith("pserver") else addresses)
    on_threads = tables_on_threads(options.threads or 1)
    with arithmetic(chosen_arithmetic), rows_on_disk(options.table_folder, table_memory), on_threads:
        pipe = StatusPipe()
        try:
            return _play(options, folder, role, addresses, pipe, credentials)
        except DiagnosticError as problem:
            pipe(findings=findings_to_json(problem.diagnostics))  # whoever has started this process tells of them
            raise


def make_options() -> argparse.ArgumentParser:
    """What the command takes."""
    parser = make_parser(
        "start",
        DESCRIPTION,
        ["out --role pserver_0 --state kept", "out --role trainer_1 --feed data.npz --steps 100 --fetch loss"],
    )
    parser.add_argument("folder", metavar="DIR", help="what `compile -o` wrote: the programs of all machines")
    parser.add_argument("--role", metavar="NAME", help="which machine: pserver_0, trainer_1, ...")
    parser.add_argument("--listen", metavar="HOST:PORT", help="where this machine listens, if not where the job says")
    parser.add_argument(
        "--servers", metavar="HOST:PORT,...", help="where all servers are, in order, if not where the job says"
    )
    parser.add_argument(
        "--address",
        action="append",
        default=[],
        metavar="ROLE=HOST:PORT",
        help="where one machine is, if not where the job says; may be repeated",
    )
    parser.add_argument(
        "--fluid", action="store_true", help="machines of Fluid 1.8 may take part, which bring neither token nor job"
    )
    add_run(parser)
    parser.add_argument(
        "--tls",
        metavar="DIR",
        help="talk to other machines with certificates that both sides show: ca.crt, tls.crt and tls.key",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="talk openly, also to machines that are not on this host"
    )
    parser.add_argument(
        "--save", metavar="FILE.npz", help="of a trainer: write what it fetched, and the parameters that it holds"
    )
    parser.add_argument("--record", metavar="FILE", default="", help="write what the machine does, for `launch`")
    parser.add_argument("--begin", metavar="FILE", default="", help="the part of a checkpoint to begin with, likewise")
    parser.add_argument("--parts", metavar="DIR", default="", help="where to write parts of checkpoints, likewise")
    parser.add_argument(
        "--parts-every", type=count, default=0, metavar="N", help="after how many steps parts are written, likewise"
    )
    parser.add_argument(
        "--dealt",
        type=dealing,
        default=(),
        metavar="STEP:N,...",
        help="since which step how many trainers rows were dealt to, likewise",
    )
    parser.add_argument("--carried", metavar="FILE", default="", help="what is fed, of a launch from Python, likewise")
    parser.add_argument("--trace", metavar="FILE", default="", help="write what the machine does when, likewise")
    parser.add_argument("--profile", action="store_true", help="print where the time goes, on stderr")
    parser.add_argument("--metrics", metavar="HOST:PORT", help="where Prometheus may ask how the machine goes")
    parser.add_argument("--result", metavar="FILE", help="write what the machine holds at the end, for `launch`")
    group = parser.add_argument_group("staying alive")
    group.add_argument("--state", metavar="DIR", default="", help="where a server keeps its state, to go on from it")
    add_saves(group)
    add_patience(group)
    add_server_checkpoints(parser)
    return parser


def add_run(parser: argparse.ArgumentParser) -> None:
    """The options of a run that every machine is given."""
    group = parser.add_argument_group("the run")
    group.add_argument("--steps", type=count, metavar="N", help="how many steps (default: as many as are fed, or 1)")
    add_feed(group)
    group.add_argument("--init", metavar="FILE.npz|DIR", help=INIT_HELP)
    group.add_argument(
        "--fetch", metavar="VAR", action="append", default=[], help="what to keep of every step (default: the loss)"
    )
    group.add_argument(
        "--seed", type=run_seed, metavar="N", help="the seed of random numbers, the same on all machines"
    )
    group.add_argument(
        "--push-every",
        type=count,
        metavar="N",
        help="after how many steps trainers of a geo job exchange, where DIR has no plan.json that says it, the same "
        "on all machines (default: 100)",
    )
    add_arithmetic(group)
    add_table_folder(group)
    group.add_argument(
        "--threads", type=count, metavar="N", help="threads of matrix products and of large tables (default: 1)"
    )


def add_saves(group: Any) -> None:
    """The option that says where servers save what trainers have them save."""
    group.add_argument(
        "--saves",
        metavar="DIR",
        help="below which folder a server saves what trainers tell it to (checkpoint_notify); without it, that is "
        "refused",
    )


def add_patience(group: Any) -> None:
    """The options that say how long machines wait for each other, and how often servers keep their state."""
    group.add_argument(
        "--state-every", type=count, default=20, metavar="N", help="after how many updates (default: 20)"
    )
    group.add_argument(
        "--lease",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="a trainer that was not heard for so long is given up (default: 30)",
    )
    group.add_argument(
        "--patience",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long a trainer waits for a server that is not there (default: 60)",
    )


def _given_addresses(
    parser: argparse.ArgumentParser, options: argparse.Namespace, folder: JobFolder, role: str
) -> dict[str, str]:
    """The addresses that the options give."""
    from pstranspile.cluster.net.terms import is_address

    result: dict[str, str] = {}
    if options.servers:
        servers = sorted((name for name in folder.roles if name.startswith("pserver")), key=lambda n: (len(n), n))
        given = [text.strip() for text in options.servers.split(",")]
        if len(given) != len(servers) or not all(map(is_address, given)):
            parser.error(f"--servers {options.servers}: give the {len(servers)} of the job as HOST:PORT,HOST:PORT")
        result.update(zip(servers, given, strict=True))
    stated: dict[str, str] = {}
    for text in options.address:
        name, _, address = text.partition("=")
        if not name or not is_address(address):
            parser.error(f"--address {text}: give it as ROLE=HOST:PORT")
        if name not in folder.roles:
            raise _unknown_role_error(name, folder)
        if stated.setdefault(name, address) != address:
            parser.error(f"--address: {name} is given twice, with different values: {stated[name]} and {address}")
        result[name] = address
    if options.listen:
        if not is_address(options.listen):
            parser.error(f"--listen {options.listen}: give it as HOST:PORT")
        result[role] = options.listen
    return result


def _require_way(cluster: Cluster, addresses: Mapping[str, str]) -> None:
    """Raises DiagnosticError if trainers that exchange values have no addresses of each other. (No trainer connects to
    the last one.)
    """
    missing = [trainer.name for trainer in cluster.trainers[:-1] if cluster.rings and trainer.name not in addresses]
    if missing:
        message = f"the job does not say where its trainers meet; give --address {missing[0]}=HOST:PORT"
        raise DiagnosticError([error("start-role", message)])


def _unknown_role_error(role: str, folder: JobFolder) -> DiagnosticError:
    from pstranspile.runtime.run.feeds import near

    notes = [Note(f"the machines of the job: {name_list(list(folder.roles))}")]
    return DiagnosticError(
        [error("start-role", f"the job has no machine {role}{near(role, folder.roles)}", notes=notes)]
    )


def _fluid_system() -> ForeignSystem:
    from pstranspile.fluid.net.system import FluidSystem

    return FluidSystem()


def _play(
    options: argparse.Namespace,
    folder: JobFolder,
    role: str,
    addresses: Mapping[str, str],
    report: StatusPipe,
    credentials: Credentials | None,
) -> int:
    from pstranspile.cluster.data.loader import LoaderRows
    from pstranspile.cluster.data.serialized_feeds import read_value
    from pstranspile.cluster.data.source import Data
    from pstranspile.cluster.machines.feeding import require_fed
    from pstranspile.cluster.net.findings import findings_to_json
    from pstranspile.cluster.net.parts import trainer_arrays
    from pstranspile.cluster.net.process import ProcessPlace, is_server, play
    from pstranspile.cluster.net.terms import PeerRefused, Terms, token_of_environment
    from pstranspile.runtime.files.outputs import require_writable
    from pstranspile.runtime.run.files import write_arrays

    freeze_modules()
    place = ProcessPlace(
        addresses,
        options.state,
        options.state_every,
        options.patience,
        _fluid_system() if options.fluid else None,
        credentials=credentials,
        record=options.record,
        trace=options.trace,
        begin=options.begin,
        parts=options.parts,
        parts_every=options.parts_every,
        checkpoints=checkpoints_of(options, folder),
        saves=options.saves or "",
    )
    terms = Terms(folder.hash, token_of_environment(os.environ), options.lease)
    cluster = _cluster(options, folder)
    cluster.require_sound()
    _require_way(cluster, addresses)
    if options.save:
        require_writable(options.save, files_read(options), "npz")
    if options.state and is_server(cluster, role):
        require_writable(Path(options.state, f"{role}.kept"))
    if not is_server(cluster, role):
        programs = cluster.trainers[0].role.programs
        feeds: Any = read_value(options.carried) if options.carried else dealt_feed(options, programs)
        cluster.feed(feeds)
        roles = [trainer.role for trainer in cluster.trainers]
        require_fed(feeds, roles, cluster.steps, options.steps or 0)
        if feeds is None or isinstance(feeds, Mapping):  # a script may carry other things
            require_fed_inputs(options, None, [folder.roles[role]], _of_one(feeds, role))
    if isinstance(cluster.source, LoaderRows):
        cluster.source.tell_of_batches(lambda name: report(left_of_batch=name), lambda row: report(odd_batch=row))
    if isinstance(cluster.source, Data):
        cluster.source.tell_of_rows(lambda row: report(left_out=row), lambda row: report(not_finite=row))
    if report.has_reader:
        PENDING.be_quiet()
    try:
        with (
            PENDING.lacking(lambda: "; ".join(report.waits())),
            _telling(options, report),
            _show_progress(options, role, report),
        ):
            play(cluster, role, terms, place, options.steps or cluster.steps or 1, report, options.result)
    except PeerRefused as problem:
        say(f"pstranspile start: {role}: {problem}")
        PENDING.tell_of_stop()
        return 1
    except DiagnosticError as problem:  # shown first, as what is lost is told below it
        report(findings=findings_to_json(problem.diagnostics))  # whoever has started this process tells of them
        report_findings(problem.diagnostics)
        PENDING.tell_of_stop()
        raise CommandFailure(status_of(problem), problem.diagnostics, ()) from problem
    finally:
        if cluster.source is not None and not report.has_reader:
            report_findings(cluster.source.warnings())
    if options.save:
        trainer = next(trainer for trainer in cluster.trainers if trainer.name == role)
        made = trainer_arrays(trainer)
        with telling(options.save, saved_arrays_text(made)):
            write_arrays(options.save, made)
    return 0


def _of_one(feeds: Any, role: str) -> Mapping[str, Any] | None:
    """What a trainer is fed of arrays for all, as if it were the first: those of other trainers need not be there."""
    own = f"{role}/"
    others = re.compile(r"trainer_[0-9]+/").match
    return feeds and {
        name.removeprefix(own): array for name, array in feeds.items() if name.startswith(own) or not others(name)
    }


@contextmanager
def _telling(options: argparse.Namespace, report: StatusPipe) -> Generator[None]:
    """Says on stderr which files the machine has written while it ran. `launch` has some written for itself, and says
    what came of them.
    """
    with ExitStack() as at_end:
        for path, what in (
            ()
            if report.has_reader
            else (
                (options.record, "what the machine did, for `launch`"),
                (options.trace, "what the machine did when, for `launch`"),
                (options.result, "what the machine holds at the end, for `launch`"),
            )
        ):
            at_end.enter_context(telling(path or None, what))
        yield


@contextmanager
def _show_progress(options: argparse.Namespace, role: str, report: StatusPipe) -> Generator[None]:
    """A context manager that shows the machine's progress, and at the end its times. Raises DiagnosticError."""
    with ExitStack() as at_end:
        if options.metrics:
            from pstranspile.cluster.net.metrics import Metrics, ProcessReports

            metrics = Metrics(options.metrics, lambda: [ProcessReports(role, True, 1, report.last_reports)])
            at_end.callback(metrics.close)
        if options.profile:
            from pstranspile.cluster.net.tracing import Profile, table

            profile = Profile()

            def show() -> None:
                seconds = profile.close()
                report(profile=seconds)
                print(table({role: seconds}), end="", file=sys.stderr)

            at_end.callback(show)
        yield


def fetches_of(given: Sequence[str], folder: JobFolder, source: Module | None = None) -> list[str]:
    """What is fetched of every step: what was asked for, else the `usual_fetches`. Raises DiagnosticError, at the
    `source` that the programs of the folder were made of.
    """
    from pstranspile.tools.cli.turns import require_fetches, usual_fetches

    first = next(role for name, role in folder.roles.items() if name.startswith("trainer"))
    require_fetches(first.main, given, None if source is None else source.main)
    return list(given) or list(usual_fetches(first.main))


def _cluster(options: argparse.Namespace, folder: JobFolder) -> Cluster:
    """The machines, none of which has begun."""

    first = next(role for name, role in folder.roles.items() if name.startswith("trainer"))
    resumed = bool(options.begin or options.resume)
    init = begun_with(options.init, first.main, first.startup, start=folder.values(), resumed=resumed)
    cluster: Cluster = folder.cluster(fetch=fetches_of(options.fetch, folder), seed=options.seed, init=init)
    return cluster
