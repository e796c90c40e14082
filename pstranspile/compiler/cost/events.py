"""A step of a job in virtual time: which turns machines take, when their frames go and come, and who waits for whom.

Every machine has one processor, and a link that carries frames in both directions at the same time. In a turn, a
trainer takes the frames that have come, computes what these allow, and writes what it sends; these frames leave at the
end of the turn, and share the link. A server takes frames one by one, in the order in which they come, and each answer
leaves when it is written. A frame occupies the link of its sender and, a latency later, that of its receiver, while it
still leaves. Large frames are on their way while they are written, and are read while they come. A machine that was
asleep when a frame came takes some time to wake.

Servers that are equal get equal frames at the same moments, so that they are equal at every moment: they are computed
once, as a group. So are trainers without servers. Trainers of servers are not, as a server answers them one after the
other. Times are whole numbers of picoseconds, so that a hundred frames to a group take exactly what they take one by
one. Read `simulate` first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from pstranspile.compiler.cost.profile import LONG_SLEEP, SHORT_SLEEP
from pstranspile.ir.model import collector_paused

TICKS = 10**12
"""The units of time in a second."""

ROWS = "rows"
"""The stage in which a trainer sends ids and gets rows of tables."""

GRADIENTS = "gradients"
"""The stage in which a trainer sends gradients and gets parameters."""

SUMS = "sums"
"""The stage in which trainers send each other parts of sums, or sums."""

MOST_CYCLES = 24
"""The most cycles that are simulated until a cycle takes as long as the one before."""


NEVER = 1 << 100
"""A time after all others."""


class Group(NamedTuple):
    """Equal machines: how they are named, how many they are, and how many times slower than a profile says their
    processors, and their links, are. `kind` is the name of all machines like them, of which they may be a part.
    """

    name: str
    size: int = 1
    slow: float = 1.0
    slow_link: float = 1.0
    kind: str = ""

    @property
    def of(self) -> str:
        """The name of all machines like them."""
        return self.kind or self.name


class MessageLoad(NamedTuple):
    """What one machine sends another at one place: the seconds of a processor at either end, and the bytes. Of these
    seconds, `writing` and `reading` are those in which the bytes are handed to the system, or taken from it.
    """

    sending: float
    receiving: float
    size: float
    writing: float = 0.0
    reading: float = 0.0


class Stage(NamedTuple):
    """A part of what a trainer does again and again: ops, then an exchange.

    `ops` are the ops before it, each with its seconds. With each group of servers, `sent` is the frame to
    each server (None: there is none), `work` the seconds of the server for it, `answers` the frame back. In a stage of
    sums, `sent` has the frame to each other trainer of each group.
    """

    ops: Sequence[tuple[str, float]] = ()
    kind: str = ""
    sent: Sequence[MessageLoad | None] = ()
    work: Sequence[float] = ()
    answers: Sequence[MessageLoad | None] = ()


class Cycle(NamedTuple):
    """The stages that trainers repeat.

    `barrier`: servers update once, when all trainers have sent their gradients; otherwise for every trainer.
    `background`: trainers go on after gradients, and wait for the answers where the next ones are sent.
    """

    stages: Sequence[Stage]
    barrier: bool = False
    background: bool = False


class TurnPart(NamedTuple):
    """A part of a turn: "waking", "ops", "sending", "receiving", "lookups" or "updates"; of what; with which group (-1:
    none); and its time.
    """

    what: str
    of: str
    other: int
    ticks: int

    def about(self, groups: Sequence[Group]) -> str:
        """`gradients to pserver_1`, `parameters of pserver_1`, `for trainer_0`, or the type of ops."""
        if self.other < 0:
            return self.of
        word = "to" if self.what == "sending" else "of" if self.what == "receiving" else "for"
        return f"{self.of} {word} {groups[self.other].name}".strip()


class Turn(NamedTuple):
    """A turn of the machines of a group. It began when the turn `after` of the same machine ended, or when the transfer
    `woken` came (-1: neither).
    """

    group: int
    start: int
    end: int
    parts: tuple[TurnPart, ...]
    after: int
    woken: int


class Transfer(NamedTuple):
    """Frames of a turn that go to the machines of a group: what they carry, when the turn ended, when the sender's link
    had carried all before them, when they came to the receiver's, and when it could take them. `held`: the receiver's
    link ended last.
    """

    turn: int
    source: int
    target: int
    what: str
    left: int
    begun: int
    came: int
    there: int
    held: bool


class Trace(NamedTuple):
    """What happened in virtual time: groups (trainers, then servers), turns by their ends, transfers, and the moments
    at which cycles of the first group begin, each with the turn in which it does.
    """

    groups: tuple[Group, ...]
    turns: tuple[Turn, ...]
    transfers: tuple[Transfer, ...]
    marks: tuple[tuple[int, int], ...]

    @property
    def period(self) -> int:
        """The ticks of the last cycle; if cycles do not settle, the mean of the last ones."""
        count = MOST_CYCLES // 2 if len(self.marks) > MOST_CYCLES else 1
        return (self.marks[-1][0] - self.marks[-1 - count][0]) // count


class _Leg(NamedTuple):
    """The times of frames from a machine to a group: of the processors that write and take them, of both links, and of
    the work that a server has with one. `times` is how many a receiver gets. In the last part of `sending` (`writing`)
    and the first of `receiving` (`reading`), frames are on their way.
    """

    what: str
    sending: int
    receiving: int
    out: int
    into: int
    work: int
    times: int
    writing: int = 0
    reading: int = 0


class _Sent(NamedTuple):
    """Frames on their way from the machines of a group to those of another; `key` names the exchange of the trainer."""

    source: int
    target: int
    leg: _Leg
    stage: int
    key: tuple[int, int]


class _Burst(NamedTuple):
    """The frames that leave together after a turn: when it ended, and when the link of the sender begins and ends."""

    turn: int
    left: int
    begun: int
    least: int
    sent: Sequence[_Sent]


class _GroupState:
    """The state of the machines of a group."""

    def __init__(self, group: Group):
        self.group = group
        self.inbox: deque[tuple[_Sent, int]] = deque()
        """What has come, each with the number of its transfer."""
        self.busy = False
        self.writes: _Turning | None = None
        """The turn that comes next, in which it writes frames that are on their way already."""
        self.last = self.ended = -1
        self.free_out = self.free_in = 0
        self.stage = self.cycle = self.place = 0
        """The stage of a trainer, and whether its ops (0), its sending (1) or its waiting (2) comes next."""
        self.waits: tuple[int, int] | None = None
        self.needed: dict[tuple[int, int], int] = {}
        self.came: Counter[tuple[int, int]] = Counter()
        self.open: tuple[int, int] | None = None
        """The exchange in the background that is not answered yet."""
        self.told: Counter[int] = Counter()
        """How many gradients a server has and has not updated with, by trainer."""
        self.lacking = 0
        """The number of trainers whose gradients a server lacks for its update."""
        self.gradients: list[_Sent] = []
        self.held: list[_Sent] = []
        """Requests that wait for the update."""
        self.again: deque[_Sent] = deque()
        """Requests that have waited, and are served next."""
        self.outbox: deque[_Sent] = deque()
        """Answers that a server has still to write."""

    @property
    def runs(self) -> bool:
        """Whether a trainer has what it waits for."""
        return self.waits is None or self.came[self.waits] >= self.needed[self.waits]


class _Turning:
    """A turn in progress: its parts, the frames that it sends, and the moments at which cycles begin in it."""

    __slots__ = ("after", "begun", "machine", "parts", "sent", "start", "ticks", "woken", "writes")

    def __init__(self, machine: int, start: int, after: int):
        self.machine, self.start, self.after, self.woken = machine, start, after, -1
        self.parts: list[TurnPart] = []
        self.sent: list[_Sent] = []
        self.begun: list[int] = []
        self.ticks = 0
        self.writes = -1
        """The number of the first part in which frames are on their way already; -1: there is none."""

    def add(self, what: str, of: str, other: int, ticks: int) -> None:
        """Adds a part, unless it takes no time."""
        if ticks:
            self.parts.append(TurnPart(what, of, other, ticks))
            self.ticks += ticks

    def divide(self) -> _Turning | None:
        """Cuts off the writing of frames as a turn of its own, at whose begin they leave; None if there is none."""
        if self.writes < 0:
            return None
        rest = _Turning(self.machine, self.start, -1)
        self.parts, rest.parts = self.parts[: self.writes], self.parts[self.writes :]
        self.sent, rest.sent = [], self.sent
        rest.ticks = sum(part.ticks for part in rest.parts)
        self.ticks -= rest.ticks
        rest.begun = [ticks - self.ticks for ticks in self.begun if ticks > self.ticks]
        self.begun = [ticks for ticks in self.begun if ticks <= self.ticks]
        return rest


class _Processors:
    """The ends of turns. If machines share a number of processors, all turns advance alike, as slowly as they must, and
    `sharing` times as slowly beside: a system does not keep all processors at work that turns wait for.
    """

    def __init__(self, count: int | None, sharing: float):
        self._count = count
        self._parts = round(sharing * WHOLE)
        """How many times slower turns are that share processors, in parts of `WHOLE`."""
        self._now = self._done = self._active = 0
        self._ends: list[tuple[int, int, int, _Turning]] = []

    def begin(self, number: int, turning: _Turning, machines: int) -> None:
        """Begins a turn of so many machines, at the time of the last `advance`."""
        heappush(self._ends, (self._done + turning.ticks, number, machines, turning))
        self._active += machines

    def next(self) -> int:
        """The time at which the next turn ends; the end of time if there is none."""
        if not self._ends:
            return NEVER
        left = self._ends[0][0] - self._done
        if self._count is not None and self._active > self._count:
            left = self.slowed(left)
        return self._now + left

    def slowed(self, ticks: int) -> int:
        """How long so much work takes if no other turn begins or ends."""
        if self._count is not None and self._active > self._count:
            return -(-ticks * self._active * self._parts // (self._count * WHOLE))
        return ticks

    def advance(self, now: int) -> None:
        """Lets turns advance to a time, which is at most that of `next`."""
        passed = now - self._now
        if self._count is not None and self._active > self._count:
            passed = passed * self._count * WHOLE // (self._active * self._parts)
        self._now, self._done = now, self._done + passed

    def pop_ended_turns(self) -> Iterator[_Turning]:
        """Yields and removes the turns that have ended."""
        while self._ends and self._ends[0][0] <= self._done:
            _, _, machines, turning = heappop(self._ends)
            self._active -= machines
            yield turning


def simulate(
    cycle: Cycle,
    trainers: Sequence[Group],
    servers: Sequence[Group],
    *,
    bytes_per_second: float,
    latency: float,
    processors: int | None = None,
    wakes: tuple[float, float] = (0.0, 0.0),
    long_wakes: tuple[float, float] = (0.0, 0.0),
    sharing: float = 1.0,
) -> Trace:
    """What happens until a cycle of the first group of trainers takes as long as the one before.

    `bytes_per_second` and `latency` (in seconds) are those of a link that is not slow. `processors`: all machines share
    so many; None: each has its own. `wakes` are the seconds that a trainer, and a server, needs to wake, `long_wakes`
    those after a long sleep, if these are more. Turns are `sharing` times as long as their share of the processors says
    while there are more of them than processors.
    """
    with collector_paused():  # nothing here is freed before the end
        return _Simulation(
            cycle, trainers, servers, bytes_per_second, latency, processors, wakes, long_wakes, sharing
        ).run()


def _depth(slept: int) -> float:
    """How much of what a long sleep costs a sleep of so many ticks does, between 0 and 1."""
    return min(max((slept / TICKS - SHORT_SLEEP) / (LONG_SLEEP - SHORT_SLEEP), 0.0), 1.0)


class _Simulation:
    def __init__(
        self,
        cycle: Cycle,
        trainers: Sequence[Group],
        servers: Sequence[Group],
        rate: float,
        latency: float,
        processors: int | None,
        wakes: tuple[float, float],
        long_wakes: tuple[float, float],
        sharing: float,
    ):
        self._wakes = wakes
        self._more = tuple(max(late - soon, 0.0) for soon, late in zip(wakes, long_wakes, strict=True))
        """What a trainer, and a server, needs more after a long sleep."""
        self._cycle, self._rate, self._latency = cycle, rate, round(latency * TICKS)
        self._trainers = len(trainers)
        self._groups = (*trainers, *servers)
        self._machines = [_GroupState(group) for group in self._groups]
        likes = {
            group: number for number, group in enumerate(dict.fromkeys(each._replace(name="") for each in trainers))
        }
        self._like = [likes[each._replace(name="")] for each in trainers]
        """The number of the kind of each trainer, for which times are reckoned once."""
        self._like += range(len(likes), len(likes) + len(servers))
        self._legs: dict[tuple[int, int, int, bool], _Leg] = {}
        for machine in self._machines:
            machine.lacking = len(trainers)
        self._processors = _Processors(processors, sharing)
        self._beginning: list[tuple[int, int, _Burst]] = []
        self._arriving: list[tuple[int, int, _Sent, int]] = []
        self._number = 0
        self._touched = set(range(len(trainers)))
        """Machines to which something has happened at this moment."""
        self._turns: list[Turn] = []
        self._transfers: list[Transfer] = []
        self._marks: list[tuple[int, int]] = []
        frames = len(trainers) * len(servers)
        self._is_large, self._close = frames > LARGE, CLOSE if frames > MANY else 0.0

    def run(self) -> Trace:
        """Runs until a cycle is as long as the one before."""
        self._start_turns(0)
        beginning, arriving, processors = self._beginning, self._arriving, self._processors
        while not self._is_steady():
            now = processors.next()
            for heap in (beginning, arriving):
                if heap and heap[0][0] < now:
                    now = heap[0][0]
            processors.advance(now)
            while self._happens(now):
                pass
            self._start_turns(now)
        return Trace(self._groups, tuple(self._turns), tuple(self._transfers), tuple(self._marks))

    def _is_steady(self) -> bool:
        marks = self._marks
        if len(marks) < 4 - self._is_large:
            return False
        last, before, other = marks[-1][0], marks[-2][0], marks[-3][0]
        alike = abs((last - before) - (before - other)) <= self._close * (last - before)
        return self._is_large or alike or len(marks) > MOST_CYCLES

    def _happens(self, now: int) -> bool:
        """Handles what happens at this moment; returns False if nothing did."""
        any_of = False
        for turning in self._processors.pop_ended_turns():
            self._end(turning, now)
            any_of = True
        while self._beginning and self._beginning[0][0] == now:
            self._carry(heappop(self._beginning)[2], now)
            any_of = True
        while self._arriving and self._arriving[0][0] == now:
            _, _, sent, transfer = heappop(self._arriving)
            self._machines[sent.target].inbox.append((sent, transfer))
            self._touched.add(sent.target)
            any_of = True
        return any_of

    def _carry(self, burst: _Burst, now: int) -> None:
        """Lets frames begin to come on the links of their receivers, behind what came before.

        Frames of a group come one after the other, and are there when the receiver can take them at one go: it ends as
        if it took each as it comes.
        """
        for sent in burst.sent:
            machine, leg = self._machines[sent.target], sent.leg
            times, reading = leg.times, leg.reading // leg.times
            begin = max(machine.free_in, now)
            machine.free_in = end = begin + leg.into
            first, last = max(begin + leg.into // times, burst.least), max(end, burst.least)
            there = max(now, max(first, last - leg.receiving // times * (times - 1)) - reading)
            self._number += 1
            heappush(self._arriving, (there, self._number, sent, len(self._transfers)))
            what = (sent.source, sent.target, sent.leg.what, burst.left, burst.begun, now, there, end > burst.least)
            self._transfers.append(Transfer(burst.turn, *what))

    def _leg(self, source: int, target: int, stage: int, *, answers: bool) -> _Leg:
        """The times of the frames of an exchange, or of its answers, from a machine to a group."""
        key = self._like[source], -1 if source == target else self._like[target], stage, answers
        leg = self._legs.get(key)
        if leg is None:
            leg = self._legs[key] = self._leg_of(source, target, stage, answers=answers)
        return leg

    def _leg_of(self, source: int, target: int, number: int, *, answers: bool) -> _Leg:
        stage, sender, receiver = self._cycle.stages[number], self._groups[source], self._groups[target]
        server = source if answers else target
        place = server if stage.kind == SUMS else server - self._trainers
        frame = stage.answers[place] if answers else stage.sent[place]
        if frame is None:
            return _NONE
        own = stage.kind == SUMS and source == target
        copies, times = receiver.size - own, sender.size - own
        what = {SUMS: "sums", ROWS: "rows" if answers else "ids"}.get(
            stage.kind, "parameters" if answers else "gradients"
        )
        work = 0.0 if answers or stage.kind == SUMS else stage.work[place] * receiver.slow
        on_link = frame.size / self._rate * TICKS
        writing, reading = (frame.writing, frame.reading) if frame.size >= LEAST_READ else (0.0, 0.0)
        return _Leg(
            what,
            copies * round(frame.sending * sender.slow * TICKS),
            times * round(frame.receiving * receiver.slow * TICKS),
            copies * round(on_link * sender.slow_link),
            times * round(on_link * receiver.slow_link),
            round(work * TICKS),
            times if copies else 0,
            copies * round(writing * sender.slow * TICKS),
            times * round(reading * receiver.slow * TICKS),
        )

    # turns

    def _start_turns(self, now: int) -> None:
        """Begins the turns of machines that have something to do."""
        for number in sorted(self._touched):
            machine = self._machines[number]
            is_trainer = number < self._trainers
            if machine.busy or not (machine.inbox or machine.outbox or machine.again or (is_trainer and machine.runs)):
                continue
            after = machine.last if machine.last >= 0 and machine.ended == now else -1
            begun = _Turning(number, now, after)
            if machine.inbox and after < 0:
                wakes = self._wakes[not is_trainer] + self._more[not is_trainer] * _depth(now - machine.ended)
                begun.add("waking", "", -1, round(wakes * machine.group.slow * TICKS))
            if machine.outbox:
                self._write(begun, machine.outbox.popleft())
            elif machine.again:
                self._serve(machine, machine.again.popleft(), begun)
            elif is_trainer:
                if machine.inbox and after < 0:
                    begun.woken = machine.inbox[-1][1]
                while machine.inbox:
                    sent = machine.inbox.popleft()[0]
                    begun.add("receiving", sent.leg.what, sent.source, sent.leg.receiving)
                    machine.came[sent.key] += sent.leg.times
                if machine.runs:
                    self._go_on(machine, number, begun)
            else:
                sent, transfer = machine.inbox.popleft()
                begun.woken = transfer if after < 0 else -1
                begun.add("receiving", sent.leg.what, sent.source, sent.leg.receiving)
                self._serve(machine, sent, begun)
            machine.busy = True
            machine.writes = begun.divide()
            self._number += 1
            self._processors.begin(self._number, begun, machine.group.size)
        self._touched.clear()

    def _end(self, turning: _Turning, now: int) -> None:
        """Ends a turn, and lets its frames go: those that are still written, as their writing begins."""
        machine = self._machines[turning.machine]
        writes, machine.writes = machine.writes, None
        machine.busy = writes is not None
        machine.last, machine.ended = len(self._turns), now
        self._touched.add(turning.machine)
        parts = tuple(turning.parts)
        self._turns.append(Turn(turning.machine, turning.start, now, parts, turning.after, turning.woken))
        if turning.machine == 0:
            lasted, ticks = now - turning.start, turning.ticks
            for begun in turning.begun:
                at = turning.start + (begun * lasted // ticks if ticks else 0)
                self._marks.append((at, machine.last))
        leaving = turning.sent
        written = now
        if writes is not None:
            writes.start, writes.after = now, machine.last
            leaving, writes.sent = writes.sent, []
            self._number += 1
            self._processors.begin(self._number, writes, machine.group.size)
            written = now + self._processors.slowed(writes.ticks)
        if leaving:
            begun = max(machine.free_out, now)
            machine.free_out = max(begun + sum(sent.leg.out for sent in leaving), written)
            came, least = begun + self._latency, machine.free_out + self._latency
            self._number += 1
            burst = _Burst(machine.last, now, begun, least, leaving)
            heappush(self._beginning, (came, self._number, burst))

    def _serve(self, machine: _GroupState, sent: _Sent, turning: _Turning) -> None:
        """Lets a server do what a frame asks for. What it answers is written at once; after the update of a barrier, to
        one trainer after the other.
        """
        kind, source = self._cycle.stages[sent.stage].kind, sent.source
        if kind == ROWS and machine.told[source]:
            machine.held.append(sent)
            return
        if kind == ROWS or not self._cycle.barrier:
            turning.add("lookups" if kind == ROWS else "updates", "", source, sent.leg.work)
            answer = self._answer(turning.machine, sent)
            if answer is not None:
                self._write(turning, answer)
            return
        if not machine.told[source]:
            machine.lacking -= 1
        machine.told[source] += 1
        machine.gradients.append(sent)
        if machine.lacking:
            return
        turning.add("updates", "for all trainers", -1, sent.leg.work)
        taken, machine.gradients = machine.gradients, []
        for each in taken:
            if not machine.told[each.source]:
                machine.gradients.append(each)  # it belongs to the next update
                continue
            machine.told[each.source] = 0
            answer = self._answer(turning.machine, each)
            if answer is not None:
                machine.outbox.append(answer)
        machine.lacking = self._trainers
        for each in machine.gradients:
            machine.told[each.source] = 1
            machine.lacking -= 1
        machine.again.extend(machine.held)
        machine.held.clear()

    def _answer(self, number: int, sent: _Sent) -> _Sent | None:
        leg = self._leg(number, sent.source, sent.stage, answers=True)
        return _Sent(number, sent.source, leg, sent.stage, sent.key) if leg.times else None

    def _write(self, turning: _Turning, sent: _Sent) -> None:
        """Writes frames to each machine of a group."""
        leg = sent.leg
        turning.add("sending", leg.what, sent.target, leg.sending - leg.writing)
        if leg.writing and turning.writes < 0:
            turning.writes = len(turning.parts)
        turning.add("sending", leg.what, sent.target, leg.writing)
        turning.sent.append(sent)

    def _go_on(self, machine: _GroupState, number: int, turning: _Turning) -> None:
        """Lets a trainer go on as far as it can."""
        stages = self._cycle.stages
        machine.waits = None
        while True:
            stage = stages[machine.stage]
            background = self._cycle.background and stage.kind == GRADIENTS
            if machine.place == 0:
                if machine.stage == 0:
                    turning.begun.append(turning.ticks)
                for op, seconds in stage.ops:
                    turning.add("ops", op, -1, round(seconds * machine.group.slow * TICKS))
                machine.place = 1
            if machine.place == 1:
                awaited = machine.open
                if background and awaited and machine.came[awaited] < machine.needed[awaited]:
                    machine.waits = awaited
                    return
                needed = self._send(machine, number, turning)
                key = machine.cycle, machine.stage
                if needed and not background:
                    machine.waits, machine.place = key, 2
                    return
                machine.open = key if needed else machine.open
            machine.place = 0
            machine.stage += 1
            if machine.stage == len(stages):
                machine.stage = 0
                machine.cycle += 1
                if turning.begun:  # a whole cycle without waiting
                    return
            if background:
                return  # its frames leave before the next ops

    def _send(self, machine: _GroupState, number: int, turning: _Turning) -> int:
        """Sends the frames of a stage; returns how many come back."""
        place = machine.stage
        stage, key = self._cycle.stages[place], (machine.cycle, place)
        first = 0 if stage.kind == SUMS else self._trainers
        needed = 0
        for target in range(first, first + len(stage.sent)):
            leg = self._leg(number, target, place, answers=False)
            if not leg.times:
                continue
            self._write(turning, _Sent(number, target, leg, place, key))
            if stage.kind == SUMS:
                needed += self._leg(target, number, place, answers=False).times
            else:
                needed += self._leg(target, number, place, answers=True).times
        machine.needed[key] = needed
        return needed


WHOLE = 1 << 10
"""The parts in which it is counted how many times slower turns are."""

_NONE = _Leg("", 0, 0, 0, 0, 0, 0)
"""The leg of an exchange that sends nothing."""

LEAST_READ = 1 << 16
"""The bytes of a frame that is read while it comes: the system hands smaller ones on at one go."""

MANY = 1_000
"""The number of frames from trainers to servers beyond which two cycles that differ by `CLOSE` are taken as equal."""

CLOSE = 1e-3
"""The largest share by which they differ."""

LARGE = 10_000
"""The number of frames from trainers to servers beyond which the second cycle is taken as a step."""


# What is read from a trace.


class TimedActivity(NamedTuple):
    """What a machine or a link did at a time, in seconds from the begin of a step. `what` is "waking", "ops",
    "lookups", "updates", "sending", "receiving", "link" or "latency"; `about` the ops, or what goes to whom.
    """

    machine: str
    what: str
    about: str
    start: float
    seconds: float


class Arrow(NamedTuple):
    """Frames that go from a machine to another: what they carry, when they leave and when they are there, in seconds
    from the begin of a step.
    """

    source: str
    target: str
    what: str
    left: float
    there: float


class Wait(NamedTuple):
    """The seconds of a step in which a machine waits for something."""

    machine: str
    cause: str
    seconds: float


def _window(trace: Trace) -> tuple[int, int]:
    return trace.marks[-2][0], trace.marks[-1][0]


def spans_of(trace: Trace, shown: Container[str]) -> list[TimedActivity]:
    """What the machines with these names did in the last cycle, by machine and time; parts of turns are clipped to the
    cycle.
    """
    begin, end = _window(trace)
    groups, result = trace.groups, list[TimedActivity]()
    chosen = {number for number, group in enumerate(groups) if group.name in shown}
    turns = [turn for turn in trace.turns if turn.group in chosen and turn.end > begin and turn.start < end]
    for turn in sorted(turns, key=lambda each: (each.group, each.start)):
        name = groups[turn.group].name
        for part, start, stop in _parts(turn):
            low, high = max(start, begin), min(stop, end)
            if low < high:
                result.append(
                    TimedActivity(name, part.what, part.about(groups), (low - begin) / TICKS, (high - low) / TICKS)
                )
    return result


def _parts(turn: Turn) -> Iterator[tuple[TurnPart, int, int]]:
    """Yields the parts of a turn with their times; where processors are shared, all parts are as slow."""
    work, lasted, done = sum(part.ticks for part in turn.parts), turn.end - turn.start, 0
    for part in turn.parts:
        start = turn.start + done * lasted // work
        done += part.ticks
        yield part, start, turn.start + done * lasted // work


def arrows_of(trace: Trace, shown: Container[str]) -> list[Arrow]:
    """The frames between machines with these names that left in the last cycle, by when they left."""
    begin, end = _window(trace)
    names = [group.name for group in trace.groups]
    kept = [
        each
        for each in trace.transfers
        if begin <= each.left < end and names[each.source] in shown and names[each.target] in shown
    ]
    return [
        Arrow(
            names[each.source], names[each.target], each.what, (each.left - begin) / TICKS, (each.there - begin) / TICKS
        )
        for each in sorted(kept, key=lambda each: (each.left, each.there, each.source, each.target))
    ]


def waking_of(trace: Trace) -> dict[str, float]:
    """The seconds in which machines woke in the last cycle, in the mean of all that are alike, by their name."""
    begin, end = _window(trace)
    alike, total = Counter[str](), Counter[str]()
    for group in trace.groups:
        alike[group.of] += group.size
    for turn in trace.turns:
        if begin < turn.end <= end:
            group = trace.groups[turn.group]
            total[group.of] += group.size * sum(part.ticks for part in turn.parts if part.what == "waking")
    return {name: ticks / alike[name] / TICKS for name, ticks in total.items()}


def waits_of(trace: Trace) -> list[Wait]:
    """How long machines waited in the last cycle, and for what, in the mean of all that are alike; of a machine, the
    longest wait comes first.
    """
    begin, end = _window(trace)
    alike = Counter[str]()
    for group in trace.groups:
        alike[group.of] += group.size
    found: Counter[tuple[int, str]] = Counter()
    ended = dict.fromkeys(range(len(trace.groups)), 0)
    first: dict[int, str] = {}
    for turn in trace.turns:
        since, ended[turn.group] = max(ended[turn.group], begin), turn.end
        if turn.end <= begin or turn.start >= end:
            continue
        if turn.woken >= 0:
            transfer = trace.transfers[turn.woken]
            cause = f"{transfer.what} of {trace.groups[transfer.source].of}"
            first.setdefault(turn.group, cause)
            found[turn.group, cause] += max(turn.start - since, 0)
        lacking = turn.end - turn.start - sum(part.ticks for part in turn.parts)
        if lacking > 0:
            shown = min(turn.end, end) - max(turn.start, begin)
            found[turn.group, "a processor of the host"] += lacking * shown // (turn.end - turn.start)
    for number, cause in first.items():  # it waits at the end for what it waits for at the begin of a cycle
        found[number, cause] += max(end - max(ended[number], begin), 0)
    total: Counter[tuple[str, str]] = Counter()
    for (number, cause), ticks in found.items():
        group = trace.groups[number]
        total[group.of, cause] += ticks * group.size
    place = {group.of: number for number, group in reversed([*enumerate(trace.groups)])}
    order = sorted(total.items(), key=lambda each: (place[each[0][0]], -each[1], each[0][1]))
    return [Wait(name, cause, ticks / alike[name] / TICKS) for (name, cause), ticks in order if ticks]


def path_of(trace: Trace) -> list[TimedActivity]:
    """The critical path of the last cycle: what took its time, one after the other, from its begin to its end."""
    begin, end = _window(trace)
    result: list[TimedActivity] = []
    for machine, what, about, start, stop in _back(trace, begin):
        low, high = max(start, begin), min(stop, end)
        if low < high:
            result.append(TimedActivity(machine, what, about, (low - begin) / TICKS, (high - low) / TICKS))
    return result[::-1]


def _back(trace: Trace, begin: int) -> Iterator[tuple[str, str, str, int, int]]:
    """Yields the pieces of the critical path, the last one first."""
    names, number = [group.name for group in trace.groups], trace.marks[-1][1]
    while number >= 0 and trace.turns[number].end > begin:
        turn = trace.turns[number]
        for part, start, stop in reversed([*_parts(turn)]):
            yield names[turn.group], part.what, part.about(trace.groups), start, stop
        if turn.woken < 0:
            number = turn.after
            continue
        each = trace.transfers[turn.woken]
        about = f"{each.what} from {names[each.source]} to {names[each.target]}"
        slower = names[each.target] if each.held else names[each.source]
        latency = each.came - each.begun
        yield slower, "link", about, each.left + latency, each.there
        yield slower, "latency", about, each.left, each.left + latency
        number = each.turn


def in_short(path: Iterable[TimedActivity]) -> list[tuple[str, str, float]]:
    """The machines of a path with what they do, and the seconds; the longest come first."""
    found: dict[tuple[str, str], float] = {}
    for span in path:
        found[span.machine, span.what] = found.get((span.machine, span.what), 0.0) + span.seconds
    order = sorted(found.items(), key=lambda each: (-each[1], each[0]))
    return [(machine, what, seconds) for (machine, what), seconds in order]
