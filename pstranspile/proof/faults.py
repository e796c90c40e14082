"""Whether a cluster still keeps its promise when things go wrong: `check --faults`.

A synchronous cluster that lost no trainer must end, bit for bit, as without faults. Where trainers were away, updates
are of what the others sent: then it must end, within rounding, as a single machine that is fed the rest of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import STARTUP, Module
from pstranspile.lazy import lazy_import
from pstranspile.proof.compare import (
    AMPLIFIED_TOLERANCE,
    LINEAR_TOLERANCE,
    NOISE_ALLOWED,
    Allowed,
    Snapshot,
    differ,
    linear_parameters,
    plain,
)
from pstranspile.proof.course import Course
from pstranspile.proof.report import BITWISE, DIFFERENT, ROUNDING, Away, Faulty
from pstranspile.run.api import run
from pstranspile.run.batch import joined, reordered
from pstranspile.run.cluster.cluster import Cluster
from pstranspile.run.cluster.codes import STUCK
from pstranspile.run.cluster.feeding import divided
from pstranspile.run.cluster.ledger import UpdateLedger
from pstranspile.run.cluster.message import COLLECTIVE, SEND, Message, step_told
from pstranspile.run.scope import Scope, own_copy

np = lazy_import("numpy")

FeedOf: TypeAlias = "Callable[[int], Mapping[str, Any] | None]"


class Sound(NamedTuple):
    """The run without faults: its parameters at the end, what each trainer was fed, and whether it was as promised."""

    parameters: Snapshot
    feeds: Sequence[FeedOf]
    holds: bool


def check_faults(
    cluster: Cluster, module: Module, course: Course, sound: Sound | None, init: Mapping[str, Any], seed: int
) -> Faulty:
    """Runs a cluster that has not started yet, with the faults that it was made with, and says what came of it.

    `sound` is None for modes that promise no equality. Raises DiagnosticError, but not for a cluster that gets stuck.
    """
    assert cluster.injector is not None
    books = UpdateLedger(cluster)
    rings = _Rings()
    gradients = _Gradients()
    cluster.network.observers += [rings, gradients]
    scenario = str(cluster.injector.scenario)
    stuck: tuple[str, ...] = ()
    ends: Snapshot = {}
    try:
        cluster.run_to(course.steps)
        ends = _parameters(cluster)
        cluster.finish()
    except DiagnosticError as problem:
        if [finding.code for finding in problem.diagnostics] != [STUCK]:
            raise
        stuck = tuple(note.message for finding in problem.diagnostics for note in finding.notes)
    told = tuple(f"tick {tick}: {text}" for tick, text in cluster.injector.told)
    wrong = tuple(books.problems(ended=not stuck))
    if sound is None:
        wrong += () if stuck else tuple(gradients.problems(restarts=cluster.injector.scenario.restarts))
    found = Faulty(scenario, told, stuck, wrong)
    if stuck or sound is None:
        return found
    counted = _counted(books, rings, cluster, course.steps)
    if isinstance(counted, str):
        return found._replace(not_compared=counted)
    everybody = frozenset(range(len(cluster.trainers)))
    away = tuple(_away(counted, cluster))
    if all(names == everybody for names in counted):
        return _compared(found, ends, sound.parameters, {}, course, exactly=True)
    found = found._replace(away=away)
    if not sound.holds:
        return found._replace(not_compared="without faults, too, it is not what a single machine gives")
    alone = _train(module, course, sound.feeds, counted, init, seed)
    again = _train(module, course, sound.feeds, counted, init, seed, backwards=True)
    noise = {name: differ(plain(again[name]), plain(value), by_element=True)[1] for name, value in alone.items()}
    return _compared(found, ends, alone, noise, course, exactly=False)


def _parameters(cluster: Cluster) -> Snapshot:
    """The parameters: the servers', else those of the first trainer that is still there."""
    found = cluster.parameters()
    if cluster.servers:
        return found
    trainer = next((trainer for trainer in cluster.trainers if not trainer.gone), cluster.trainers[0])
    return {name: own_copy(trainer.scope[name]) for name in found}


def _compared(
    found: Faulty, ours: Snapshot, wanted: Snapshot, noise: Mapping[str, float], course: Course, *, exactly: bool
) -> Faulty:
    """With the worst verdict on the parameters at the end."""
    linear = linear_parameters(course.whole)
    equality, worst, variable = BITWISE, 0.0, ""
    for name in sorted(set(ours) & set(wanted)):
        same, difference = differ(plain(ours[name]), plain(wanted[name]), by_element=True)
        least = LINEAR_TOLERANCE if name in linear else AMPLIFIED_TOLERANCE
        allowed = Allowed(least, NOISE_ALLOWED * noise.get(name, 0.0))
        fits = not exactly and allowed.covers(difference, plain(ours[name]), plain(wanted[name]), None)
        if not same and equality != DIFFERENT:
            equality = ROUNDING if fits else DIFFERENT
            variable = variable if fits else name
        worst = max(worst, difference)
    return found._replace(equality=equality, worst=worst, variable=variable)


# What counted


class _Rings:
    """An observer: how many parts of collective operations each trainer sent in each step."""

    def __init__(self) -> None:
        self.parts: dict[int, dict[int, int]] = {}

    def __call__(self, event: str, message: Message) -> None:
        if event == "post" and message.kind == COLLECTIVE:
            by_trainer = self.parts.setdefault(message.step, {})
            by_trainer[message.trainer] = by_trainer.get(message.trainer, 0) + 1


class _Gradients:
    """An observer: which values that trainers sent came to their servers, and how often."""

    def __init__(self) -> None:
        self.posted: dict[tuple[str, str, int], Message] = {}
        self.taken: dict[tuple[str, str, int], int] = {}

    def __call__(self, event: str, message: Message) -> None:
        key = message.source, message.target, message.sequence
        if message.kind != SEND:
            return
        if event == "post":
            self.posted[key] = message
        elif event == "deliver":
            self.taken[key] = self.taken.get(key, 0) + 1

    def problems(self, *, restarts: bool) -> Iterable[str]:
        """What was lost or doubled. With `restarts` servers go back, and take again what came after; each time counts
        on a state without it.
        """
        for key, message in self.posted.items():
            count = self.taken.get(key, 0)
            if not count:
                yield f"{message} was lost"
            elif count > 1 and not restarts:
                yield f"{message} was applied {count} times"


def _counted(books: UpdateLedger, rings: _Rings, cluster: Cluster, steps: int) -> list[frozenset[int]] | str:
    """The trainers whose shares went into the update of each step; a sentence if they are not the same everywhere."""
    found: list[frozenset[int]] = []
    for step in range(steps):
        if cluster.servers:
            by_server = {
                server.name: frozenset(trainer for _, trainer, _ in books.applied[server.name, step])
                for server in cluster.servers
                if books.applied.get((server.name, step))
            }
            if len(set(by_server.values())) > 1:
                return f"a trainer crashed half-way through {step_told(step)}: some servers counted it, others did not"
            found.append(next(iter(by_server.values()), frozenset[int]()))
        else:
            parts = rings.parts.get(step, {})
            if len(set(parts.values())) > 1:
                return f"a trainer crashed half-way through {step_told(step)}: it took part in some operations only"
            found.append(frozenset(parts))
    return found


def _away(counted: Sequence[frozenset[int]], cluster: Cluster) -> Iterable[Away]:
    """Every trainer that did not count, with the first and the last step of each time."""
    for trainer in cluster.trainers:
        begun = 0
        for step, names in enumerate([*counted, frozenset({trainer.index})], start=1):
            if trainer.index not in names and not begun:
                begun = step
            elif trainer.index in names and begun:
                yield Away(trainer.name, begun, step - 1)
                begun = 0


# The single machine on the rows that counted


def _train(
    module: Module,
    course: Course,
    feeds: Sequence[FeedOf],
    counted: Sequence[frozenset[int]],
    init: Mapping[str, Any],
    seed: int,
    *,
    backwards: bool = False,
) -> Snapshot:
    """The parameters of a single machine that is fed, in each step, the shares that counted; with `backwards`, their
    rows in the other order, which changes nothing but rounding. Steps of nobody are left out.
    """
    scope = Scope()
    run(module[STARTUP], scope=scope, seed=seed)
    for name, value in init.items():
        scope[name] = value
    for step, trainers in enumerate(counted):
        shares = [share for trainer in sorted(trainers) if (share := feeds[trainer](step)) is not None]
        if not shares:
            continue
        program = course.programs[course.turns.program(step)]
        names = [name for name in shares[0] if divided(program, name)]
        feed = joined(shares, names)
        if backwards:
            feed = reordered(feed, names, lambda size: range(size - 1, -1, -1))
        run(program, feed=feed, scope=scope, seed=seed, step=step)
    return {var.name: own_copy(scope[var.name]) for var in course.whole.parameters() if var.name in scope}
