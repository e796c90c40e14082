"""`pstranspile.cluster.ray.launch`: a compiled job on Ray's cluster, where Ray is installed."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any, TypeAlias

from pstranspile.cluster.checkpoint.layout import layout_of
from pstranspile.cluster.checkpoint.runs import Source, Target
from pstranspile.cluster.machines.simulate import Simulated
from pstranspile.cluster.net.launch import require_limit
from pstranspile.compiler.compile import Compiled
from pstranspile.ir.argument_checks import names_of, wrong_type
from pstranspile.ir.diagnostics import DiagnosticError, error, installing
from pstranspile.runtime.arithmetic import arithmetic_name
from pstranspile.runtime.files.outputs import work_folder

if TYPE_CHECKING:
    from pstranspile.cluster.ray.session import Session


def require_ray() -> None:
    """Raises DiagnosticError if Ray is not installed."""
    if find_spec("ray") is None:
        message = f"Ray is not installed; get it with: {installing('ray')}"
        raise DiagnosticError([error("ray-library", message)])


EVERY = 20
"""The default number of steps between two cuts."""


def launch(
    job: Compiled,
    feeds: Any = None,
    *,
    steps: int | None = None,
    fetch: Sequence[str] = (),
    init: Mapping[str, Any] | None = None,
    seed: int | None = None,
    address: str | None = None,
    cpus: float | None = None,
    trainers: tuple[int, int] | None = None,
    servers: tuple[int, int] | None = None,
    restarts: int = 10,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: str | os.PathLike[str] | None = None,
    patience: float = 60.0,
    arithmetic: str = "",
    tls: str | os.PathLike[str] = "",
    table_folder: str | os.PathLike[str] | None = None,
    table_memory: int | None = None,
    environment: Mapping[str, str] | None = None,
    prepare: Callable[[Session], object] | None = None,
) -> Simulated:
    """Runs a compiled job on a cluster of Ray's: an actor for each machine. The machines talk on their own wire.

    `feeds` are arrays with a leading step axis, or rows (`Data`, `Rows`, `DatasetRows`) that every node can read.
    `steps`, `fetch`, `init` and `seed` are those of `simulate`; the values that come with the job's source are there
    where `init` has no others. `address` is the cluster's, as `ray.init` takes it
    (None: this process's, that of RAY_ADDRESS, this host's, or else one that starts here, with the CPUs that the job
    needs). Each machine has `cpus` (None: 1, or equal shares of what the cluster has, if that is less). If they have no
    place within `patience` seconds, the job ends. When a machine is gone, Ray starts it elsewhere, and the job goes
    back to its last cut, at most `restarts` times. Cuts are taken every `checkpoint_every` steps (20) and kept
    in `checkpoint`; `resume` is one to start from. Trainers of asynchronous and geo jobs meet for a cut. With
    `trainers` (fewest, most), as many take part as have a place; with `servers` (fewest, most), servers grow and shrink
    with them. `tls` and `table_folder` are folders on every node: of certificates, and for rows of large tables, which
    take at most `table_memory` MB of memory in each machine.
    `environment` are variables of the actors' processes. `prepare` is called with the session before it runs, which
    then calls `on_report` after steps; its method `resize` changes the numbers of machines.
    Raises DiagnosticError; ValueError for wrong ranges, for `init` beside `resume`, which holds all variables, and for
    `table_memory` without `table_folder`.
    """
    require_ray()
    if init and resume is not None:
        raise ValueError("init and resume can't both say what variables begin with")
    if not isinstance(job, Compiled):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise wrong_type("launch", "what a compile gives", job, "Compiled")
    from pstranspile.cluster.ray.cuts import Cuts
    from pstranspile.cluster.ray.hosts import Hosts, share_for
    from pstranspile.cluster.ray.session import Session, Settings

    _require_ranges(job, trainers, servers)
    require_limit(table_memory, table_folder)
    certificates = os.path.abspath(tls) if tls else ""
    rows = os.path.abspath(table_folder) if table_folder else None
    with ExitStack() as at_end:
        place = work_folder(Path(tempfile.gettempdir()), "pstranspile-ray-", mode=0o700)
        folder = str(at_end.enter_context(place))
        origin = None if resume is None else at_end.enter_context(closing(Source(resume)))
        settings = {"arithmetic": arithmetic_name(arithmetic), "program": "", "shares": "equal"}
        if origin is not None:
            origin.require_settings(settings)
            origin.require_seed(seed)
            seed = origin.manifest.seed
        standing = None if origin is None or checkpoint is None else origin.standing
        own = checkpoint if checkpoint is not None else Path(folder, "cuts")
        target = at_end.enter_context(closing(Target(own, layout_of(job), standing)))
        every = checkpoint_every or (EVERY if restarts else None)
        cuts = Cuts(origin, target, every, Path(folder), settings, at_end=checkpoint is not None)
        at_end.callback(cuts.close)
        machines = job.plan.trainers + len(job.plan.pservers)
        at_end.enter_context(_ray_connection(address, ceil((cpus or 1.0) * machines)))
        chosen = Settings(
            steps,
            names_of(fetch, "launch"),
            seed,
            restarts,
            patience,
            arithmetic,
            trainers,
            servers,
            certificates,
            rows,
            table_memory,
        )
        hosts = Hosts(share_for(machines) if cpus is None else cpus, environment or {}, patience)
        session = Session(job, feeds, {**job.source.start, **(init or {})}, chosen, hosts, cuts)
        if prepare is not None:
            prepare(session)
        return session.run()


def _require_ranges(job: Compiled, trainers: tuple[int, int] | None, servers: tuple[int, int] | None) -> None:
    """Raises ValueError for invalid ranges of numbers, DiagnosticError if the job can't have other numbers of
    machines.
    """
    from pstranspile.cluster.ray.session import resized_job

    for name, given in (("trainers", trainers), ("servers", servers)):
        if given is not None and not 1 <= given[0] <= given[1]:
            raise ValueError(f"{name} is {given!r}; it must be (fewest, most), from 1 on")
    if servers is not None and trainers is None:
        raise ValueError("servers grow and shrink with trainers, which have no range")
    if trainers is not None:
        resized_job(job, trainers[1], servers[1] if servers is not None else len(job.plan.pservers))


@contextmanager
def _ray_connection(address: str | None, needed: int) -> Generator[None]:
    """A context in which this process is connected to a cluster; a connection that existed before is kept.

    A cluster that is started here has the CPUs that are needed. Raises DiagnosticError.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    handlers = _handlers()
    try:
        _connect(address, needed)
    except SystemExit as stop:  # Ray's handler raises it while Ray starts, with the signal's number
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if stop.code in handlers:
            handlers[stop.code](stop.code, None)
        raise
    try:
        with _ended_by_signals(handlers):
            yield
    finally:
        ray.shutdown()


_Handler: TypeAlias = Callable[[int, Any], object]


def _handlers() -> dict[int, _Handler]:
    """The functions that signals call which tell this process to end; Ray puts others in their place when it starts."""
    if current_thread() is not main_thread():
        return {}
    numbers = [number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None]
    return {number: handler for number in numbers if callable(handler := signal.getsignal(number))}


@contextmanager
def _ended_by_signals(handlers: Mapping[int, _Handler]) -> Generator[None]:
    """Has the block end by these signals as their functions say, which are called after it.

    In the block a signal raises KeyboardInterrupt, the only exception that Ray's calls let through.
    """
    received_signals: list[int] = []

    def raise_interrupt(number: int, _frame: object) -> None:
        received_signals.append(number)
        raise KeyboardInterrupt

    for number in handlers:
        signal.signal(number, raise_interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if received_signals:
            handlers[received_signals[0]](received_signals[0], None)
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _connect(address: str | None, needed: int) -> None:
    """Connects this process to a cluster. Raises DiagnosticError."""
    from pstranspile.cluster.ray.hosts import first_line

    options: dict[str, Any] = {"logging_level": "error"}
    named = address or os.environ.get("RAY_ADDRESS")
    if named == "local":
        _start("local", needed, options)
        return
    if named:
        _require_listener(named)
    try:
        if named or not _start(None, needed, options):
            _init(address, options)
            _tell_of_joined(named)
    except ConnectionError as problem:
        if named:
            raise _no_cluster(f"no cluster answers at {named}: {first_line(problem)}") from None
        _start("local", needed, options)  # the cluster that `ray start` has recorded on this host is gone
    except DiagnosticError:
        raise
    except Exception as problem:  # Ray raises plain exceptions, too
        failed = f"the cluster at {named} can't be joined" if named else _NONE_HERE
        raise _no_cluster(f"{failed}: {first_line(problem)}") from None


def _require_listener(named: str) -> None:
    """Raises DiagnosticError if nothing takes connections where the head of a cluster should be: Ray would try for a
    quarter of an hour.

    The address of a client server, and what is no address, are left to Ray, which tells of them sooner.
    """
    import ray

    host, _, port = named.rpartition(":")
    if "/" in host or not host or not port.isdecimal():
        return
    hosts = [host.strip("[]")]
    if hosts[0] in ("localhost", "127.0.0.1", "::1"):
        hosts.append(ray.util.get_node_ip_address())  # Ray takes a name of this host for the host's address
    failed: OSError | OverflowError | None = None
    for name in hosts:
        try:
            socket.create_connection((name, int(port)), _ANSWERS_WITHIN).close()
            return
        except (OSError, OverflowError) as problem:
            failed = problem
    raise _no_cluster(f"no cluster answers at {named}: {getattr(failed, 'strerror', None) or failed}")


_ANSWERS_WITHIN = 10.0
"""Seconds in which the host of a cluster's head takes a connection."""


def _tell_of_joined(named: str | None) -> None:
    """Says on stderr which cluster this process has joined: `named` is the address that was given for it."""
    import ray

    place = named
    if not named:
        found = ray.get_runtime_context().gcs_address
        place = f"{found}, which `ray start` has recorded on this host; RAY_ADDRESS=local starts one for this job alone"
    print(f"pstranspile launch: joined the cluster of Ray's at {place}", file=sys.stderr, flush=True)


def _start(address: str | None, needed: int, options: Mapping[str, Any]) -> bool:
    """Starts a cluster on this host with as many CPUs as are needed, whether the host has them or not. Returns False if
    a cluster exists already, unless the address is `local`.

    Raises DiagnosticError, ConnectionError.
    """
    import ray

    from pstranspile.cluster.ray.hosts import first_line

    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        ray.init(address=address, num_cpus=max(here, needed), **options)
    except ConnectionError:
        raise
    except ValueError as problem:
        if address is None and "existing cluster" in str(problem):
            return False
        raise _no_cluster(f"{_NONE_HERE}: {first_line(problem)}") from None
    except Exception as problem:
        raise _no_cluster(f"{_NONE_HERE}: {first_line(problem)}") from None
    shared = f", which share the {here} of this host" if needed > here else ""
    text = f"a cluster of Ray's has started on this host, with {max(here, needed)} CPUs{shared}"
    print(f"pstranspile launch: {text}", file=sys.stderr, flush=True)
    return True


def _init(address: str | None, options: Mapping[str, Any]) -> None:
    """Calls `ray.init`, repeatedly if the head of a busy cluster is too slow to start a process for this client."""
    import ray

    for tries_left in (2, 1, 0):
        try:
            with _few_tries():
                ray.init(address=address, **options)
            return
        except ConnectionError as problem:
            if not tries_left or "Initialization failure" not in str(problem):
                raise


@contextmanager
def _few_tries() -> Generator[None]:
    """A context in which Ray asks a silent head for its cluster three times, which takes two minutes, not 20 times; as
    often as the environment says, where it does.
    """
    if _TRIES in os.environ:
        yield
        return
    os.environ[_TRIES] = "3"
    try:
        yield
    finally:
        os.environ.pop(_TRIES, None)


_TRIES = "RAY_gcs_server_port_wait_time_s"
"""The environment variable of Ray's that says how often it tries to reach the head of a cluster, once a second where
connections are refused.
"""

_NONE_HERE = "Ray neither joins a cluster nor starts one on this host"


def _no_cluster(message: str) -> DiagnosticError:
    return DiagnosticError([error("ray-lost", message)])
