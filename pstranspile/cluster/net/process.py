"""A machine of a job as a process, from its beginning to its end; how a trainer that was started again rejoins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.communicator import Companion
from pstranspile.cluster.machines.feeding import Shares
from pstranspile.cluster.machines.network import Machine, TurnHook, WaitReason, messages_sent, sentence
from pstranspile.cluster.machines.record import Turn, line_of, taken_of
from pstranspile.cluster.machines.rings import RingListener
from pstranspile.cluster.machines.server import Server, ServerListener
from pstranspile.cluster.machines.synchronous import SynchronousServer
from pstranspile.cluster.machines.trainer import Trainer, TrainerListener
from pstranspile.cluster.net.checks import Checks
from pstranspile.cluster.net.http2 import CallService
from pstranspile.cluster.net.loop import Loop
from pstranspile.cluster.net.other_systems import ForeignServer, ForeignSystem, ForeignTrainers, Journal
from pstranspile.cluster.net.parts import (
    Parts,
    ServerMeetings,
    TrainerMeetings,
    are_needed,
    read_part,
    take_server,
    take_trainer,
    write_server,
    write_trainer,
)
from pstranspile.cluster.net.peer import MESSAGE, Connection, Peer
from pstranspile.cluster.net.site import Site, SiteListener
from pstranspile.cluster.net.state import StateKeeper
from pstranspile.cluster.net.status import (
    DONE,
    SERVING,
    TRAINING,
    WAITING,
    RateLimitedPrinter,
    StatusPipe,
    displayed_value,
)
from pstranspile.cluster.net.terms import MOST_STEPS, PeerRefused, Terms, step_of
from pstranspile.cluster.net.tls import Credentials
from pstranspile.cluster.net.tracing import Tracing
from pstranspile.cluster.net.transport import Dialer, Listener, answers
from pstranspile.cluster.net.wire import bytes_of
from pstranspile.ir.diagnostics import lasting
from pstranspile.runtime.large.forms import is_table
from pstranspile.runtime.large.table import LargeTable, return_freed_arrays

if TYPE_CHECKING:
    from pstranspile.cluster.net.server_checkpoints import CheckpointPlan, ServerCheckpoints

# Running a machine of a job in this process, for `start` and for actors of Ray.


def is_server(cluster: Cluster, role: str) -> bool:
    """Whether a role is that of a server."""
    return any(server.name == role for server in cluster.servers)


def play(
    cluster: Cluster,
    role: str,
    terms: Terms,
    place: ProcessPlace,
    steps: int,
    report: StatusPipe,
    result: str | None = None,
    on_step: Callable[[Trainer], object] | None = None,
) -> None:
    """Runs a server until all trainers have left, or a trainer for so many steps.

    The outcome of the machine is written to the file `result`. `on_step` is called after each step of a trainer, before
    other listeners, and may lower the trainer's `limit`. Raises DiagnosticError, Refused.
    """

    def save(write: Callable[[str, Any], None], machine: Any) -> None:
        if result:
            write(result, machine)

    if is_server(cluster, role):
        play_server(cluster, role, terms, place, report, lambda server: save(write_server, server))
        return
    parts = None if are_needed(cluster) else place.parts_of(report)
    steps_told = _Steps(report, cluster.shares, parts, on_step)
    play_trainer(cluster, role, terms, place, steps, report, lambda trainer: save(write_trainer, trainer), steps_told)


class _Steps(TrainerListener):
    """Reports the steps of a trainer, and writes the parts of checkpoints after them, if there are any."""

    def __init__(
        self,
        report: StatusPipe,
        shares: Shares | None,
        parts: Parts | None,
        on_step: Callable[[Trainer], object] | None,
    ):
        self._report, self._shares, self._parts, self._on_step = report, shares, parts, on_step
        self._rows: int | None = None
        """The number of rows in the share that was last reported."""
        if shares is not None:
            shares.tell_of_end(lambda batches: report(batches=batches))

    def step_done(self, trainer: Trainer, step: int) -> None:
        """Reports the step, and writes the part of a checkpoint if one is due."""
        if self._on_step is not None:
            self._on_step(trainer)
        values = {name: displayed_value(value) for name, value in trainer.results[-1].values.items()}
        self._report(step=step + 1, values=values, **self._changed_rows(trainer, step))
        if self._parts is not None:
            self._parts.save_if_due(trainer, step + 1)

    def _changed_rows(self, trainer: Trainer, step: int) -> dict[str, int]:
        """The number of rows in the trainer's share of the batch as a field of a report; empty if it is the same as in
        the step before.
        """
        rows = None if self._shares is None else self._shares.take_rows(trainer.index, step)
        if rows is None or rows == self._rows:
            return {}
        self._rows = rows
        return {"rows": rows}


# Recording of the turns of a process's machines, for repetition in a simulation.


class TurnRecorder(TurnHook):
    """Writes every turn of the process's machines to a file. It must be made before the first turn."""

    def __init__(self, site: Site, path: str):
        self._file: TextIO = open(path, "w", 1, encoding="utf-8")  # noqa: SIM115 (closed by `close`)
        # line by line, so that a killed process has written all its turns
        for name in site.local_names:
            site.cluster.machines[name].hook(self)

    def take(self, machine: Machine, turn: Callable[[], object]) -> None:
        """Takes a turn of a machine and records it, unless the machine had to wait and did nothing."""
        taken = tuple(map(taken_of, machine.inbox))
        idle = isinstance(machine, Trainer) and machine.between_steps and not taken
        turn()
        if not (idle and isinstance(machine, Trainer) and machine.waits_for_listener):
            self._file.write(line_of(Turn(machine.name, taken)))

    def end(self, machine: Machine) -> None:
        """Records that the trainer's data have ended."""
        self._file.write(line_of(Turn(machine.name, None)))

    def close(self) -> None:
        """Closes the file; no more turns are recorded."""
        self._file.close()


# A trainer whose process was restarted rejoins at a step that all servers agree to.
#
# A server may be restarted meanwhile, and forget the request. So every later greeting has the step, and a
# server that does not know it admits the trainer again.


class Readmission(SiteListener):
    """A server's side of rejoining: it admits trainers again. As it answers every question, it must be the last
    listener.
    """

    def __init__(self, site: Site, server: Server):
        self.site = site
        self.server = server

    def answer(self, peer: Peer, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a trainer that asks for the server's progress, or for admission at a step."""
        step = step_of(question, "rejoin")
        if step is None:
            return {"updates": self.server.updates, "step": peer.last_step}
        if peer.index < 0 or (peer.left and peer.given_up) or self._late(peer, step):
            return {"joined": False}
        self._let_in(peer, step)
        return {"joined": True}

    def _late(self, peer: Peer, step: int) -> bool:
        """Whether the server has begun a step in which other trainers take part."""
        server = self.server
        if server.mode or all(other.left for other in self.site.peers.values() if other.index >= 0 and other != peer):
            return False
        return step < server.updates or (step == server.updates and getattr(server, "sending", False))

    def peer_admitted(self, peer: Peer, fields: Mapping[str, Any]) -> None:
        """Admits a trainer that other servers have admitted and this one may have forgotten."""
        step = step_of(fields, "joins")
        if step is not None and peer.index >= 0 and not peer.announced:
            self._let_in(peer, step)

    def _let_in(self, peer: Peer, step: int) -> None:
        """Announces a trainer to the server.

        A trainer that counts as taking part is removed first: the server has admitted it at an earlier step, which
        another server had begun, or has not noticed that its former process is gone.
        """
        waited = self.server.withdraw(peer.index)
        if not waited and (peer.announced or not peer.life):
            self.site.local_machines.take_out(peer)
            self.site.run_machines()
        peer.come_back()
        self.server.announce(peer.index, step)


def rejoin(site: Site, servers: Sequence[str], patience: float) -> int:
    """Lets this trainer, which took part before, rejoin; returns the first step in which it takes part.

    No server has begun to serve that step. Raises Refused.
    """
    ahead = 1
    while True:
        asked = [site.peers[server].incarnation for server in servers]
        answers = [(server, site.ask(server, {"rejoin": None}, patience)) for server in servers]
        if any(server.mode == 0 for server in site.cluster.servers):
            step = max(_number(server, answer, "updates") for server, answer in answers) + ahead
        else:
            step = max(_number(server, answer, "step") for server, answer in answers) + 1
        joined = all(site.ask(server, {"rejoin": step}, patience).get("joined") is True for server in servers)
        if joined and asked == [site.peers[server].incarnation for server in servers]:
            site.come_back_at(step)
            return step
        ahead *= 2


def _number(server: str, answer: Mapping[str, Any], name: str) -> int:
    """The step or number of updates in a server's answer; -1: it has not begun. Raises Refused if the answer has no
    such number.
    """
    value = answer.get(name)
    if type(value) is not int or not -1 <= value < MOST_STEPS:
        raise PeerRefused(f"{server} answers what it was not asked: {name} is no number of a step")
    return value


# Reports of a process to a parent that watches it: messages sent, and the machines that it has waited for.

EVERY = 0.25
"""The least seconds between two reports."""


class ActivityReports(SiteListener):
    """Reports a few times a second the number of messages sent, the last wait, and for each machine the share of the
    time since the last report in which it was waited for.
    """

    def __init__(self, site: Site, report: StatusPipe):
        self._site = site
        self._report = report
        self._last_sent = self._pause_time = site.now()
        self._current_wait: WaitReason | None = None
        self._last_wait: WaitReason | None = None
        self._waited_seconds: dict[str, float] = {}

    def pausing(self) -> None:
        """Notes the beginning of a wait, when the machines can't continue without others."""
        self._pause_time = self._site.now()
        self._current_wait = next(iter(self._site.waiting()), None)

    def resumed(self) -> None:
        """Notes the end of a wait, and reports."""
        now = self._site.now()
        if self._current_wait is not None:
            self._last_wait = self._current_wait
            for name in self._current_wait.missing_machines:
                self._waited_seconds[name] = self._waited_seconds.get(name, 0.0) + now - self._pause_time
        if now - self._last_sent < EVERY:
            return
        past = now - self._last_sent
        shares = {
            name: round(seconds / past, 2) for name, seconds in self._waited_seconds.items() if seconds > past / 20
        }
        waits = (
            {"what": self._last_wait.awaited_event, "missing": shares} if self._last_wait is not None and shares else {}
        )
        machines = [self._site.cluster.machines[name] for name in sorted(self._site.local_names)]
        self._report(messages=messages_sent(machines), waits=waits)
        self._last_sent, self._last_wait, self._waited_seconds = now, None, {}


class ProcessPlace(NamedTuple):
    """The place of a process: addresses (host:port) by role; `state`, the folder in which a server keeps its state ("":
    none), and `every`, the number of updates after which it does. `patience`: how many seconds a trainer waits for an
    absent server. `foreign_system`: another system whose machines may take part (None: there is none). `record` and
    `trace`: files for the turns of the machines, to repeat or to look at ("": none). `credentials`: certificates; None
    for connections without TLS. `begin`: the file of the part of a checkpoint to begin with ("": none); `parts`: a
    folder for parts of checkpoints, one after every `parts_every` steps (0: none). `checkpoints`: those that a server
    with `foreign_system` saves and begins with, together with the other servers. `saves`: the folder below which a
    server saves what others have it save ("": none). `trainers_ended`: whether it is known that the processes of all
    trainers have ended.
    """

    addresses: Mapping[str, str]
    state: str = ""
    every: int = 20
    patience: float = 60.0
    foreign_system: ForeignSystem | None = None
    record: str = ""
    trace: str = ""
    credentials: Credentials | None = None
    begin: str = ""
    parts: str = ""
    parts_every: int = 0
    checkpoints: CheckpointPlan | None = None
    saves: str = ""
    trainers_ended: Callable[[], bool] = lambda: False

    def tls_context_factory(self, tell: Callable[[str], object], *, listening: bool) -> Callable[[], SSLContext] | None:
        """A function that returns the TLS context of a new connection, with the certificates that are in their folder
        then; None without TLS. `tell` is called with a sentence where they were replaced.
        """
        credentials = self.credentials
        if credentials is None:
            return None

        def context() -> SSLContext:
            credentials.renew(tell)
            return credentials.listening if listening else credentials.calling

        return context

    def parts_of(self, report: StatusPipe) -> Parts | None:
        """A writer of the parts of checkpoints; None if there are none."""
        return Parts(self.parts, self.parts_every, report) if self.parts_every else None


def play_server(
    cluster: Cluster, role: str, terms: Terms, place: ProcessPlace, report: StatusPipe, save: Callable[[Server], object]
) -> None:
    """Runs a server until all trainers have left, and then calls `save`. Raises DiagnosticError, Refused.

    If the process ends before that, its last saved state remains; if it ends later, nothing is left to do.
    """
    from pstranspile.cluster.net.server_checkpoints import SaveFolder, ServerCheckpoints

    server = next(server for server in cluster.servers if server.name == role)
    site = Site(cluster, role, terms, keeps=bool(place.state), trainers_ended=place.trainers_ended)
    server.place_files(SaveFolder(place.saves, server.folder, _telling_of_saves(role, site, report)).place)
    journal = Journal(place.state, role) if place.foreign_system and place.state else None
    foreign = place.foreign_system.trainers(site, server, journal) if place.foreign_system else None
    keeper: StateKeeper | None = None
    if place.state:
        keeper = StateKeeper(
            site, server, place.state, place.every, foreign, on_failure=lambda reason: report(unkept=reason)
        )
    checkpoints = ServerCheckpoints(site, server, place.checkpoints) if place.checkpoints else None
    recording = TurnRecorder(site, place.record) if place.record else None
    tracing = Tracing(site, place.trace) if place.trace else None
    parts = place.parts_of(report)
    meetings = ServerMeetings(site, server, parts) if parts is not None and are_needed(cluster) else None
    watching = ActivityReports(site, report) if report.watched else None
    waits = _Waits(site, report)
    told = _Load(server), _News(report), watching, waits
    for listener in (*told, foreign, keeper, meetings, checkpoints, Readmission(site, server)):
        if listener is not None:
            site.listen(listener)
    server.listen(_Updates(report, None if meetings is not None else parts, checkpoints))
    cluster.begin([server], [])
    _check_messages(site, server, foreign)
    if any(map(is_table, server.scope.values())):
        return_freed_arrays()
    if place.begin:
        take_server(server, read_part(Path(place.begin), role))
    if checkpoints is not None:
        checkpoints.begin(keeper is not None and keeper.file.exists())
    if keeper is not None:
        keeper.begin()
    listener = _listen(site, place, None if foreign is None else foreign.service())
    report(state=SERVING, port=listener.port)
    site.show_signs_of_life()
    done = False
    try:
        with waits.told_at_end():
            _serve(
                site,
                server,
                keeper,
                report,
                lambda server: (checkpoints.end() if checkpoints is not None else None, save(server)),
            )
            done = True
    finally:
        site.send_bye(done)
        for closing in (foreign, recording, tracing, site.events):
            if closing is not None:
                closing.close()
        for writing in (parts, checkpoints):
            if writing is not None:
                writing.finish()
        if keeper is not None:
            keeper.let_go()


def _check_messages(site: Site, server: Server, foreign: ForeignTrainers | None) -> None:
    """Makes the server refuse messages of trainers that don't fit its program."""
    trainers = {peer.index: peer for peer in site.peers.values() if peer.index >= 0}

    def refuse(index: int, reason: str) -> None:
        peer = trainers[index]
        if foreign is not None and peer.receive_messages is not None:
            foreign.end_part(peer, reason)
        else:
            site.refuse(peer, reason)

    Checks(server, site.cluster.trainers, lambda index: trainers[index].receive_messages is not None, refuse)


class _Load(SiteListener):
    """The memory that a server uses, from which the limit of waiting messages follows."""

    def __init__(self, server: Server):
        self._server = server

    def variable_bytes(self) -> int | None:
        """The bytes of the server's variables; for a large table, of all rows that it may have."""
        held = self._server.scope.values()
        return sum(v.height * v.width * v.dtype.itemsize if isinstance(v, LargeTable) else bytes_of(v) for v in held)

    def waiting_bytes(self, trainer: int) -> int | None:
        """The bytes of a trainer's messages that the server can't take yet."""
        server = self._server
        early = server.round.waiting_messages if isinstance(server, SynchronousServer) else ()
        waiting = (message for message in (*server.inbox, *early) if message.trainer == trainer)
        return sum(bytes_of(message.payload) + MESSAGE for message in waiting)


class _Updates(ServerListener):
    """Reports the updates of a server, and writes the parts of checkpoints after them, if there are any."""

    def __init__(self, report: StatusPipe, parts: Parts | None, checkpoints: ServerCheckpoints | None):
        self._report, self._parts, self._checkpoints = report, parts, checkpoints

    def updated(self, server: Server, update: int) -> None:
        """Reports the update, and writes the part of a checkpoint if one is due."""
        self._report(step=update + 1)
        if self._parts is not None:
            self._parts.save_if_due(server, update + 1)
        if self._checkpoints is not None:
            self._checkpoints.save_after_update()


def _serve(
    site: Site, server: Server, keeper: StateKeeper | None, report: StatusPipe, save: Callable[[Server], object]
) -> None:
    """Serves until all trainers have left, calls `save`, and confirms to the trainers that all messages have come."""
    site.run(lambda: server.ended and all(peer.left for peer in site.peers.values() if peer.index >= 0))
    if keeper is not None:
        keeper.finish()
    save(server)
    report(state=DONE, refused=site.refused_connections)
    site.stop_keeping()
    if keeper is not None and keeper.went_back:  # trainers may connect again to get a confirmation
        trainers = {peer.role for peer in site.peers.values() if peer.index >= 0 and peer.receive_messages is None}
        site.run(lambda: trainers <= site.greeted_roles, timeout=min(site.terms.lease, 5.0))
    for peer in site.peers.values():
        peer.sign_of_life(site.now())
    site.run(lambda: not any(peer.connection for peer in site.peers.values()), timeout=site.terms.lease)
    if keeper is not None:
        keeper.end()


def _listen(site: Site, place: ProcessPlace, service: CallService | None = None) -> Listener:
    address, told = place.addresses[site.role], RateLimitedPrinter(site.role, site.now)
    try:
        if answers(address):
            raise PeerRefused(f"it can't listen at {address}: somebody does already")
        return Listener(
            address, site.events, place.tls_context_factory(site.report_problem, listening=True), service, told
        )
    except OSError as problem:
        raise PeerRefused(f"it can't listen at {address}: {problem.strerror or problem}") from None


class _News(SiteListener):
    """Prints, and reports to the parent, which trainers take no part any more, or take part again."""

    def __init__(self, report: StatusPipe):
        self._report = report

    def news(self, text: str, role: str, gone: bool) -> None:
        """Prints and reports that a trainer takes no part any more (`gone`), or takes part again."""
        print(text, file=sys.stderr, flush=True)
        self._report(news=[text, role])


def _telling_of_saves(role: str, site: Site, report: StatusPipe) -> Callable[[str], object]:
    """A function that prints, and reports to the parent, the path of a file that the server has saved at a trainer's
    request.
    """
    told = RateLimitedPrinter(role, site.now)

    def report_saved_file(path: str) -> None:
        told(f"saved {path}, as a trainer has asked")
        report(saved_file=path)

    return report_saved_file


class _Waits(SiteListener):
    """Reports to the parent what the machines wait for, when they are idle and when the process is ended."""

    def __init__(self, site: Site, report: StatusPipe):
        self._site, self._report = site, report
        report.ask_for_waits(self.sentences)

    def sentences(self) -> list[str]:
        """A sentence for each machine that waits; if none waits yet, for each process that has not come."""
        named = [sentence(waiting) for waiting in self._site.waiting()]
        return named or [f"{self._site.role} waits for {who}" for who in self._site.unmet()]

    def idle(self) -> None:
        """Reports the waits when nothing has come for some time."""
        missing = sorted({name for waiting in self._site.waiting() for name in waiting.missing_machines})
        self._report(waiting=self.sentences(), waits_for=missing, idle=round(self._site.idle_seconds))

    @contextmanager
    def told_at_end(self) -> Generator[None]:
        """Reports the waits if a signal ends the process in this context."""
        try:
            yield
        except SystemExit:
            self.idle()
            raise


def play_trainer(
    cluster: Cluster,
    role: str,
    terms: Terms,
    place: ProcessPlace,
    steps: int,
    report: StatusPipe,
    save: Callable[[Trainer], object],
    steps_told: TrainerListener | None = None,
) -> None:
    """Runs a trainer for `steps` steps, or up to its lowered `limit`; calls `save`. `steps_told` is called after its
    steps.

    Raises DiagnosticError, Refused.
    """
    trainer = next(trainer for trainer in cluster.trainers if trainer.name == role)
    events = Loop()
    ways = _TrainerConnections(cluster, role, place, events)
    site = Site(cluster, role, terms, events=events, ways=ways.dialers, patience=place.patience)
    foreign_servers = ways.foreign_servers
    waits = _Waits(site, report)
    watching = ActivityReports(site, report) if report.watched else None
    for listener in (_News(report), watching, waits, ways):
        if listener is not None:
            site.listen(listener)
    parts = place.parts_of(report)
    recording = TurnRecorder(site, place.record) if place.record else None
    tracing = Tracing(site, place.trace) if place.trace else None
    if steps_told is not None:
        trainer.listen(steps_told)
    for name, ring in cluster.rings.items():
        if name in site.local_names:
            ring.listen(_SumChecks(site))
    if cluster.rings and any(peer.index > trainer.index for peer in site.peers.values()):
        _listen(site, place)
    report(state=WAITING)
    site.show_signs_of_life()
    done = False
    try:
        with waits.told_at_end():
            life = ways.greet(site)
            no_return = "" if cluster.servers else "without servers"
            if place.foreign_system is not None and foreign_servers:
                no_return = f"with servers of {place.foreign_system.name}"
            _begin(site, trainer, place, life, no_return)
            trainer.limit_to(steps)
            meetings: TrainerMeetings | None = None
            if parts is not None and are_needed(cluster):
                meetings = TrainerMeetings(site, trainer, parts, trainer.first_step)
                site.listen(meetings)
                trainer.listen(meetings)
            report(state=TRAINING)
            site.run(lambda: trainer.gone or trainer.step >= trainer.limit)
            if meetings is not None:
                meetings.end()
            save(trainer)
            report(state=DONE)
            trainer.end_feed()
            if recording is not None:
                recording.end(trainer)
            cluster.scheduler.wake(trainer)
            site.run(lambda: trainer.has_left)
            rings = [ring for name, ring in cluster.rings.items() if name in site.local_names]
            if rings:  # other trainers may still need sums from this one
                site.run(lambda: not any(ring.live for ring in rings))
                for peer in site.peers.values():
                    peer.sign_of_life(site.now())
            if role in cluster.communicators:  # the communicator may have changed variables since the first save
                save(trainer)
            site.run(lambda: all(foreign_server.idle for foreign_server in foreign_servers))
            site.run(lambda: site.all_confirmed, place.patience)
            done = True
    finally:
        site.send_bye(done)
        for closing in (*foreign_servers, recording, tracing, site.events):
            if closing is not None:
                closing.close()
        if parts is not None:
            parts.finish()


class _SumChecks(RingListener):
    """Refuses trainers whose parts of sums belong to other operations."""

    refuses = True

    def __init__(self, site: Site):
        self._site = site

    def wrong(self, trainer: int, reason: str) -> None:
        """Refuses a trainer that has sent a part of another operation."""
        peer = next(peer for peer in self._site.peers.values() if peer.index == trainer)
        self._site.refuse(peer, reason)


class _TrainerConnections(SiteListener):
    """The connections of the trainer `role`: to which processes it connects, and which of them have admitted it.

    It connects to the servers, some of which may be of another system. In a job with rings it connects to the trainers
    before it; the trainers after it connect to it.
    """

    def __init__(self, cluster: Cluster, role: str, place: ProcessPlace, events: Loop):
        self._cluster, self._place = cluster, place
        self.targets = [server.name for server in cluster.servers]
        if cluster.rings:
            trainers = [trainer.name for trainer in cluster.trainers]
            self.targets += trainers[: trainers.index(role)]
        shown = place.tls_context_factory(RateLimitedPrinter(role, events.now), listening=False)
        self.dialers: dict[str, Callable[[], Connection]] = {
            target: Dialer(place.addresses[target], events, shown).dial for target in self.targets
        }
        """For each role to connect to, the function that opens a connection."""
        self.foreign_servers: list[ForeignServer] = []
        """The servers of another system that have been found so far."""
        self._lives: dict[str, int] = {}
        """For each process that has admitted this one, how many earlier processes it knew in this one's role."""
        self._site: Site | None = None
        """The site, once connecting has begun."""
        self._met_all = False
        """Whether all processes have admitted this one, or have connected to it."""

    def admitted_by(self, peer: Peer, fields: Mapping[str, Any]) -> None:
        """Records that a process has admitted this one."""
        self._lives.setdefault(peer.role, int(fields.get("life", 0)))

    def met_foreign(self, peer: Peer) -> bool | None:
        """Adds a server that speaks the protocol of the other system, if there is one; None if there is none. Raises
        Refused.
        """
        if self._place.foreign_system is None or self._site is None:
            return None
        self.foreign_servers.append(
            self._place.foreign_system.server(self._site, peer, self._place.addresses[peer.role])
        )
        return True

    def unmet(self) -> Sequence[str] | None:
        """The processes that have not admitted this one, or have not connected to it."""
        return () if self._met_all or self._site is None else self._refusals(self._site) or self._missing(self._site)

    def _missing(self, site: Site) -> list[str]:
        coming = [peer.role for peer in site.peers.values() if site.among_trainers and peer.role not in self.targets]
        met = {
            *self._lives,
            *site.greeted_roles,
            *(foreign_server.peer.role for foreign_server in self.foreign_servers),
        }
        return [role for role in (*self.targets, *coming) if role not in met and not site.peers[role].given_up]

    def _refusals(self, site: Site) -> list[str]:
        missing = [role for role in self._missing(site) if role in self.targets]
        return [f"{role} at {self._place.addresses[role]}{_why(site, role)}" for role in missing]

    def greet(self, site: Site) -> int:
        """Connects to all processes, and waits until they have admitted this one and all others have connected to it.

        Returns how many processes had its role before. Raises Refused.
        """
        self._site = site
        for target in self.targets:
            site.go_to(target)
        patience = self._place.patience
        if not site.run(lambda: not self._missing(site), patience):
            if refusals := self._refusals(site):
                raise PeerRefused(f"nobody answers for {lasting(patience)}: {', '.join(refusals)}")
            raise PeerRefused(f"not come for {lasting(patience)}: {', '.join(self._missing(site))}")
        self._met_all = True
        return max(self._lives.values(), default=0)


def _why(site: Site, role: str) -> str:
    reason = site.unreached.get(role)
    return f" ({reason})" if reason else ""


def _begin(site: Site, trainer: Trainer, place: ProcessPlace, life: int, no_return: str) -> None:
    """Starts the trainer: at the beginning, after a checkpoint, or, if an earlier process had its role, at the step
    where it is admitted again.

    `no_return` is the reason why no process of the job could admit it again ("": one can). Raises Refused.
    """
    cluster = site.cluster
    if life and no_return:
        raise PeerRefused(f"the others go on without {site.role}, which can't take part again in a job {no_return}")
    first = rejoin(site, [server.name for server in cluster.servers], place.patience) if life else 0
    if place.begin:
        take_trainer(trainer, read_part(Path(place.begin), site.role))
    cluster.begin([], [trainer])
    if life:
        trainer.restart(first, life)
        if isinstance(trainer.communicator, Companion):
            trainer.communicator.restart()
