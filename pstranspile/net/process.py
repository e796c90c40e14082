"""A machine of a job as a process: it begins, takes part until the job is over, and ends."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pstranspile.net.calls import CallService
from pstranspile.net.fluid.checkpoints import CheckpointPlan, ServerCheckpoints
from pstranspile.net.fluid.journal import Journal
from pstranspile.net.fluid.service import FluidService
from pstranspile.net.joining import Doorkeeper, rejoin
from pstranspile.net.meetings import ServerMeetings, TrainerMeetings, are_needed
from pstranspile.net.parts import Parts, read_part, take_server, take_trainer
from pstranspile.net.recording import Recording
from pstranspile.net.site import Site
from pstranspile.net.state import StateKeeper
from pstranspile.net.status import DONE, SERVING, TRAINING, WAITING, StatusPipe
from pstranspile.net.terms import Refused, Terms
from pstranspile.net.tls import Credentials
from pstranspile.net.tracing import Tracing
from pstranspile.net.transport import Dialer, Listener, is_taken
from pstranspile.net.watching import Watching
from pstranspile.run.cluster.cluster import Cluster
from pstranspile.run.cluster.communicators.companion import Companion
from pstranspile.run.cluster.report import sentence
from pstranspile.run.cluster.server import Server
from pstranspile.run.cluster.trainer import Trainer

if TYPE_CHECKING:
    from pstranspile.net.fluid.client import FluidClient


class Place(NamedTuple):
    """Where a process listens and finds the others: addresses (host:port) by role; `state` is the folder in which a
    server keeps its state, "" for none, `every` after how many updates. `patience`: how many seconds a trainer
    waits for a server that is not there. `fluid`: whether machines of Fluid may take part. `record` and `trace`:
    files for what the machines do, to be done again or to be looked at, "" for none. `credentials`: certificates,
    None for talking openly. `begin`: the part of a checkpoint to begin with, "" for none; `parts`: a folder for parts
    of checkpoints, one after every `parts_every` steps (0: none). `checkpoints`: those that a server with `fluid`
    leaves and begins with, together with the other servers.
    """

    addresses: Mapping[str, str]
    state: str = ""
    every: int = 20
    patience: float = 60.0
    fluid: bool = False
    record: str = ""
    trace: str = ""
    credentials: Credentials | None = None
    begin: str = ""
    parts: str = ""
    parts_every: int = 0
    checkpoints: CheckpointPlan | None = None

    def parts_of(self, tell: StatusPipe) -> Parts | None:
        """What writes the parts of checkpoints."""
        return Parts(self.parts, self.parts_every, tell) if self.parts_every else None


def play_server(
    cluster: Cluster, role: str, terms: Terms, place: Place, tell: StatusPipe, save: Callable[[Server], object]
) -> None:
    """Plays a server until all trainers have left; `save` is called then. Raises DiagnosticError, Refused.

    If the process ends before that, the state that was kept is there; if later, nothing is left to do.
    """
    server = next(server for server in cluster.servers if server.name == role)
    site = Site(cluster, role, terms)
    if tell.watched:
        Watching(site, tell)
    journal = Journal(place.state, role) if place.fluid and place.state else None
    fluid = FluidService(site, server, journal) if place.fluid else None
    keeper = StateKeeper(site, server, place.state, place.every, fluid) if place.state else None
    kept = ServerCheckpoints(site, server, place.checkpoints) if place.checkpoints else None
    Doorkeeper(site, server)
    recording = Recording(site, place.record) if place.record else None
    tracing = Tracing(site, place.trace) if place.trace else None
    parts = place.parts_of(tell)
    meetings = ServerMeetings(site, server, parts) if parts is not None and are_needed(cluster) else None

    def updated(server: Server, update: int) -> None:
        tell(step=update + 1)
        if parts is not None and meetings is None:
            parts.done(server, update + 1)
        if kept is not None:
            kept.updated()

    server.on_update = updated
    looking = [one.look for one in (fluid, keeper, meetings, kept) if one is not None]
    if looking:
        site.on_turn = lambda: [look() for look in looking]
    cluster.begin([server], [])
    if place.begin:
        take_server(server, read_part(Path(place.begin), role))
    if kept is not None:
        kept.begin(keeper is not None and keeper.file.exists())
    if keeper is not None:
        keeper.begin()
        site.on_event, site.keeps = keeper.written, True
    listener = _listen(site, place, None if fluid is None else fluid.service())
    tell(state=SERVING, port=listener.port)
    site.show_signs_of_life()
    done = False
    try:
        with _last_words(site, tell):
            _serve(site, server, keeper, tell, lambda server: (kept.end() if kept is not None else None, save(server)))
            done = True
    finally:
        site.say_goodbye(done)
        for closing in (fluid, recording, tracing, site.events):
            if closing is not None:
                closing.close()
        for writing in (parts, kept):
            if writing is not None:
                writing.finish()


def _serve(
    site: Site, server: Server, keeper: StateKeeper | None, tell: StatusPipe, save: Callable[[Server], object]
) -> None:
    """Serves until all trainers have left, calls `save`, and sees to it that they know that all has come."""
    site.run(lambda: server.ended and all(peer.left for peer in site.peers.values() if peer.index >= 0))
    if keeper is not None:
        keeper.finish()
    save(server)
    tell(state=DONE, refused=site.refused)
    site.keeps = False
    for peer in site.peers.values():
        peer.durable = peer.received
    if keeper is not None and keeper.went_back:  # trainers may want to be told
        trainers = {peer.role for peer in site.peers.values() if peer.index >= 0 and peer.takes is None}
        site.run(lambda: trainers <= site.greeted, timeout=min(site.terms.lease, 5.0))
    for peer in site.peers.values():
        peer.sign_of_life(site.now())
    site.run(lambda: not any(peer.connection for peer in site.peers.values()), timeout=site.terms.lease)
    if keeper is not None:
        keeper.end()


def _listen(site: Site, place: Place, service: CallService | None = None) -> Listener:
    address = place.addresses[site.role]
    if is_taken(address):
        raise Refused(f"it can't listen at {address}: somebody does already")
    shown = None if place.credentials is None else place.credentials.listening
    try:
        return Listener(address, site.events, shown, service)
    except OSError as problem:
        raise Refused(f"it can't listen at {address}: {problem}") from None


@contextmanager
def _last_words(site: Site, tell: StatusPipe) -> Generator[None]:
    """Tells the parent what the machines wait for, when nothing happens for a while and when the process is ended."""

    def tell_waiting() -> None:
        found = site.waiting()
        missing = sorted({name for waiting in found for name in waiting.missing})
        tell(waiting=[sentence(waiting) for waiting in found], waits_for=missing)

    site.on_idle = tell_waiting
    try:
        yield
    except SystemExit:
        tell_waiting()
        raise


def play_trainer(
    cluster: Cluster,
    role: str,
    terms: Terms,
    place: Place,
    steps: int,
    tell: StatusPipe,
    save: Callable[[Trainer], object],
) -> None:
    """Plays a trainer for so many steps, or up to its `limit` if that is lowered, and calls `save`.

    Raises DiagnosticError, Refused.
    """
    trainer = next(trainer for trainer in cluster.trainers if trainer.name == role)
    site = Site(cluster, role, terms)
    if tell.watched:
        Watching(site, tell)
    parts = place.parts_of(tell)
    recording = Recording(site, place.record) if place.record else None
    tracing = Tracing(site, place.trace) if place.trace else None
    targets, strangers = _find_ways(site, place)
    site.patience = place.patience
    tell(state=WAITING)
    site.show_signs_of_life()
    done = False
    try:
        with _last_words(site, tell):
            life = _greet(site, targets, place, strangers)
            alone = "with servers of Fluid" if strangers else "" if cluster.servers else "without servers"
            _begin(site, trainer, place, life, alone)
            trainer.limit = steps
            meetings = TrainerMeetings(site, trainer, parts) if parts is not None and are_needed(cluster) else None
            if meetings is not None:
                meetings.begin(trainer.first_step)
            tell(state=TRAINING)
            site.run(lambda: trainer.gone or trainer.step >= trainer.limit)
            if meetings is not None:
                meetings.end()
            save(trainer)
            tell(state=DONE)
            trainer.feed = lambda step: None
            trainer.limit = max(trainer.limit, trainer.step + 1)
            if recording is not None:
                recording.end(trainer)
            cluster.scheduler.wake(trainer)
            site.run(lambda: trainer.left)
            _sum_on(site)
            if role in cluster.communicators:  # which may have had something left to do
                save(trainer)
            site.run(lambda: all(stranger.idle for stranger in strangers))
            site.run(lambda: site.confirmed, place.patience)
            done = True
    finally:
        site.say_goodbye(done)
        for closing in (*strangers, recording, tracing, site.events):
            if closing is not None:
                closing.close()
        if parts is not None:
            parts.finish()


def _sum_on(site: Site) -> None:
    """Takes part in what the trainers do among themselves until all have left."""
    sides = [side for name, side in site.cluster.rings.items() if name in site.own]
    if sides:
        site.run(lambda: not any(side.live for side in sides))
        for peer in site.peers.values():
            peer.sign_of_life(site.now())


def _find_ways(site: Site, place: Place) -> tuple[list[str], list[FluidClient]]:
    """Makes a trainer ready to talk: whom it goes to, and a list that those are put into if they turn out to be servers
    of Fluid. Where trainers talk among themselves it goes to those before it, and those after it come.
    """
    cluster = site.cluster
    targets = [server.name for server in cluster.servers]
    strangers: list[FluidClient] = []
    if cluster.rings:
        trainers = [trainer.name for trainer in cluster.trainers]
        order = trainers.index(site.role)
        targets += trainers[:order]
        if trainers[order + 1 :]:
            _listen(site, place)
    shown = None if place.credentials is None else place.credentials.calling
    dialers = {target: Dialer(place.addresses[target], site.events, shown) for target in targets}
    site.dial = lambda target: dialers[target].dial()
    if place.fluid:
        from pstranspile.net.fluid.client import FluidClient

        site.on_foreign = lambda peer: strangers.append(FluidClient(site, peer, place.addresses[peer.role]))
    return targets, strangers


def _greet(site: Site, targets: Sequence[str], place: Place, strangers: Sequence[FluidClient]) -> int:
    """Waits until all that this process goes to have let it in, and those that are to come have come; gives how often
    its role was played before.
    """
    lives: dict[str, int] = {}
    site.on_welcome = lambda peer, fields: lives.setdefault(peer.role, int(fields.get("life", 0)))
    for target in targets:
        site.go_to(target)
    coming = [peer.role for peer in site.peers.values() if site.among_trainers and peer.role not in targets]

    def missing() -> list[str]:
        met = {*lives, *site.greeted, *(stranger.peer.role for stranger in strangers)}
        return [role for role in (*targets, *coming) if role not in met and not site.peers[role].given_up]

    if not site.run(lambda: not missing(), place.patience):
        told = [f"{role} at {place.addresses[role]}{_why(site, role)}" for role in missing() if role in targets]
        if told:
            raise Refused(f"nobody answers for {place.patience:g} seconds: {', '.join(told)}")
        raise Refused(f"not come for {place.patience:g} seconds: {', '.join(missing())}")
    return max(lives.values(), default=0)


def _why(site: Site, role: str) -> str:
    reason = site.unreached.get(role)
    return f" ({reason})" if reason else ""


def _begin(site: Site, trainer: Trainer, place: Place, life: int, alone: str) -> None:
    """Makes the trainer ready: at the beginning, after a checkpoint, or at a step where it is let in again if its role
    was played before. It can't be in a job that is `alone`, with nobody who would let it in. Raises Refused.
    """
    cluster = site.cluster
    if life and alone:
        raise Refused(f"the others go on without {site.role}, which can't take part again in a job {alone}")
    first = rejoin(site, [server.name for server in cluster.servers], place.patience) if life else 0
    if place.begin:
        take_trainer(trainer, read_part(Path(place.begin), site.role))
    cluster.begin([], [trainer])
    if life:
        trainer.restart(first, life)
        if isinstance(trainer.communicator, Companion):
            trainer.communicator.restart()
