"""A step of a job in virtual time: which turns machines take, when their frames go and come, and who waits for whom.

Every machine has one processor, and a link that carries frames in both directions at the same time. In a turn, a
trainer takes the frames that have come, computes what these allow, and writes what it sends; these frames leave at the
end of the turn, and share the link. A server takes frames one by one, in the order in which they come, and each answer
leaves when it is written. A frame occupies the link of its sender and, a latency later, that of its receiver, while it
still leaves.

Servers that are equal get equal frames at the same moments, so that they are equal at every moment: they are computed
once, as a group. So are trainers without servers. Trainers of servers are not, as a server answers them one after the
other. Times are whole numbers of picoseconds, so that a hundred frames to a group take exactly what they take one by
one. Read `simulate` first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

TICKS = 10**12
"""The units of time in a second."""

ROWS, GRADIENTS, SUMS = "rows", "gradients", "sums"
"""What a stage exchanges: ids for rows of tables, gradients for parameters, or parts of sums for sums."""

MOST_CYCLES = 24
"""The most cycles that are simulated until a cycle takes as long as the one before."""


class Group(NamedTuple):
    """Equal machines: how they are named, how many they are, and how many times slower than a profile says their
    processors, and their links, are. `kind` is the name of all machines like them, of which they may be a part.
    """

    name: str
    count: int = 1
    slow: float = 1.0
    slow_link: float = 1.0
    kind: str = ""

    @property
    def of(self) -> str:
        """The name of all machines like them."""
        return self.kind or self.name


class Frame(NamedTuple):
    """What one machine sends another at one place: the seconds of a processor at either end, and the bytes."""

    sending: float
    receiving: float
    size: float


class Stage(NamedTuple):
    """A part of what a trainer does again and again: ops, then an exchange.

    `ops` are the ops before it, each with its seconds. With each group of servers, `sent` is the frame to
    each server (None: there is none), `work` the seconds of the server for it, `answers` the frame back. In a stage of
    sums, `sent` has the frame to each other trainer of each group.
    """

    ops: Sequence[tuple[str, float]] = ()
    kind: str = ""
    sent: Sequence[Frame | None] = ()
    work: Sequence[float] = ()
    answers: Sequence[Frame | None] = ()


class Cycle(NamedTuple):
    """The stages that trainers repeat.

    `barrier`: servers update once, when all trainers have sent their gradients; otherwise for every trainer.
    `background`: trainers go on after gradients, and wait for the answers where the next ones are sent.
    """

    stages: Sequence[Stage]
    barrier: bool = False
    background: bool = False


class Part(NamedTuple):
    """A part of a turn: "ops", "sending", "receiving", "lookups" or "updates"; with what or whom; its time."""

    what: str
    about: str
    ticks: int


class Turn(NamedTuple):
    """A turn of the machines of a group. It began when the turn `after` of the same machine ended, or when the transfer
    `woken` came (-1: neither).
    """

    group: int
    start: int
    end: int
    parts: tuple[Part, ...]
    after: int
    woken: int


class Transfer(NamedTuple):
    """Frames of a turn that go to the machines of a group: what they carry, when the turn ended, when the sender's link
    had carried all before them, when they came to the receiver's, and when they were there. `held`: the receiver's link
    ended last.
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
        """The ticks of the last cycle."""
        return self.marks[-1][0] - self.marks[-2][0]


class _Sent(NamedTuple):
    """A frame on its way, as often as a receiver gets it; `key` names the exchange that it belongs to."""

    source: int
    target: int
    frame: Frame
    times: int
    copies: int
    stage: int
    answers: bool
    key: tuple[int, int]
    transfer: int = -1


class _Machine:
    """The state of the machines of a group."""

    def __init__(self, group: Group):
        self.group = group
        self.inbox: deque[_Sent] = deque()
        self.busy = False
        self.last = -1
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

    def __init__(self, machine: int, start: int, after: int, woken: int):
        self.machine, self.start, self.after, self.woken = machine, start, after, woken
        self.parts: list[Part] = []
        self.sent: list[_Sent] = []
        self.begun: list[int] = []
        self.ticks = 0

    def add(self, what: str, about: str, ticks: int) -> None:
        """Adds a part, unless it takes no time."""
        if ticks:
            self.parts.append(Part(what, about, ticks))
            self.ticks += ticks


class _Processors:
    """The ends of turns. If machines share a number of processors, all turns advance alike, as slowly as they must."""

    def __init__(self, count: int | None):
        self._count = count
        self._now = self._done = self._active = 0
        self._ends: list[tuple[int, int, int, _Turning]] = []

    def begin(self, number: int, turning: _Turning, machines: int) -> None:
        """Begins a turn of so many machines, at the time of the last `advance`."""
        heappush(self._ends, (self._done + turning.ticks, number, machines, turning))
        self._active += machines

    def next(self) -> int | None:
        """The time at which the next turn ends; None if there is none."""
        if not self._ends:
            return None
        left = self._ends[0][0] - self._done
        if self._count is not None and self._active > self._count:
            left = -(-left * self._active // self._count)
        return self._now + left

    def advance(self, now: int) -> None:
        """Lets turns advance to a time, which is at most that of `next`."""
        passed = now - self._now
        if self._count is not None and self._active > self._count:
            passed = passed * self._count // self._active
        self._now, self._done = now, self._done + passed

    def ended(self) -> Iterator[_Turning]:
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
) -> Trace:
    """What happens until a cycle of the first group of trainers takes as long as the one before.

    `bytes_per_second` and `latency` (in seconds) are those of a link that is not slow. `processors`: all machines share
    so many; None: each has its own.
    """
    return _Simulation(cycle, trainers, servers, bytes_per_second, latency, processors).run()


class _Simulation:
    def __init__(
        self,
        cycle: Cycle,
        trainers: Sequence[Group],
        servers: Sequence[Group],
        rate: float,
        latency: float,
        processors: int | None,
    ):
        self._cycle, self._rate, self._latency = cycle, rate, round(latency * TICKS)
        self._trainers = len(trainers)
        self._machines = [_Machine(group) for group in (*trainers, *servers)]
        for machine in self._machines:
            machine.lacking = len(trainers)
        self._processors = _Processors(processors)
        self._beginning: list[tuple[int, int, _Sent, int]] = []
        self._arriving: list[tuple[int, int, _Sent]] = []
        self._number = 0
        self._touched = set(range(len(trainers)))
        """Machines to which something has happened at this moment."""
        self._turns: list[Turn] = []
        self._transfers: list[Transfer] = []
        self._marks: list[tuple[int, int]] = []

    def run(self) -> Trace:
        """Runs until a cycle is as long as the one before."""
        self._start_turns(0)
        while not self._settled():
            times = [heap[0][0] for heap in (self._beginning, self._arriving) if heap]
            end = self._processors.next()
            now = min([*times, end] if end is not None else times)
            self._processors.advance(now)
            while self._happens(now):
                pass
            self._start_turns(now)
        groups = tuple(machine.group for machine in self._machines)
        return Trace(groups, tuple(self._turns), tuple(self._transfers), tuple(self._marks))

    def _settled(self) -> bool:
        marks = [time for time, _ in self._marks]
        if len(marks) < 4:
            return False
        return marks[-1] - marks[-2] == marks[-2] - marks[-3] or len(marks) > MOST_CYCLES

    def _happens(self, now: int) -> bool:
        """Handles what happens at this moment; returns False if nothing did."""
        turnings = [*self._processors.ended()]
        for turning in turnings:
            self._end(turning, now)
        begun: dict[int, list[tuple[_Sent, int]]] = {}
        while self._beginning and self._beginning[0][0] == now:
            _, _, sent, least = heappop(self._beginning)
            begun.setdefault(sent.target, []).append((sent, least))
        for target, of_target in begun.items():
            self._carry(target, of_target, now)
        arrived = False
        while self._arriving and self._arriving[0][0] == now:
            sent = heappop(self._arriving)[2]
            self._machines[sent.target].inbox.append(sent)
            self._touched.add(sent.target)
            arrived = True
        return bool(turnings or begun or arrived)

    def _carry(self, target: int, begun: Sequence[tuple[_Sent, int]], now: int) -> None:
        """Lets frames that begin to come at the same moment share the link of a receiver."""
        machine = self._machines[target]
        size = sum(self._link_ticks(sent.frame.size, machine.group) * sent.times for sent, _ in begun)
        machine.free_in = max(machine.free_in, now) + size
        for sent, least in begun:
            there = max(machine.free_in, least)
            transfer = self._transfers[sent.transfer]
            self._transfers[sent.transfer] = transfer._replace(there=there, held=there > least)
            self._number += 1
            heappush(self._arriving, (there, self._number, sent))

    def _link_ticks(self, size: float, group: Group) -> int:
        return round(size / self._rate * group.slow_link * TICKS)

    # turns

    def _start_turns(self, now: int) -> None:
        """Begins the turns of machines that have something to do."""
        for number in sorted(self._touched):
            machine = self._machines[number]
            is_trainer = number < self._trainers
            waiting = machine.inbox or machine.outbox or machine.again
            if machine.busy or not (waiting or (is_trainer and machine.runs)):
                continue
            after = machine.last if machine.last >= 0 and self._turns[machine.last].end == now else -1
            begun = _Turning(number, now, after, -1)
            if machine.outbox:
                self._write(begun, machine.outbox.popleft())
            elif machine.again:
                self._serve(machine, machine.again.popleft(), begun)
            elif is_trainer:
                begun.woken = machine.inbox[-1].transfer if machine.inbox and after < 0 else -1
                while machine.inbox:
                    self._receive(machine, machine.inbox.popleft(), begun)
                if machine.runs:
                    self._go_on(machine, number, begun)
            else:
                sent = machine.inbox.popleft()
                begun.woken = sent.transfer if after < 0 else -1
                self._receive(machine, sent, begun)
            machine.busy = True
            self._number += 1
            self._processors.begin(self._number, begun, machine.group.count)
        self._touched.clear()

    def _end(self, turning: _Turning, now: int) -> None:
        """Ends a turn, and lets its frames go."""
        machine = self._machines[turning.machine]
        machine.busy = False
        self._touched.add(turning.machine)
        machine.last = len(self._turns)
        parts = tuple(turning.parts)
        self._turns.append(Turn(turning.machine, turning.start, now, parts, turning.after, turning.woken))
        if turning.machine == 0:
            lasted, ticks = now - turning.start, turning.ticks
            for begun in turning.begun:
                at = turning.start + (begun * lasted // ticks if ticks else 0)
                self._marks.append((at, machine.last))
        begun = max(machine.free_out, now)
        size = sum(self._link_ticks(sent.frame.size, machine.group) * sent.copies for sent in turning.sent)
        machine.free_out = begun + size if turning.sent else machine.free_out
        for sent in turning.sent:
            came, least = begun + self._latency, begun + size + self._latency
            what = self._label(sent)
            sent = sent._replace(transfer=len(self._transfers))
            self._transfers.append(
                Transfer(machine.last, sent.source, sent.target, what, now, begun, came, least, False)
            )
            self._number += 1
            heappush(self._beginning, (came, self._number, sent, least))

    def _label(self, sent: _Sent) -> str:
        kind = self._cycle.stages[sent.stage].kind
        if kind == SUMS:
            return "sums"
        if kind == ROWS:
            return "rows" if sent.answers else "ids"
        return "parameters" if sent.answers else "gradients"

    def _receive(self, machine: _Machine, sent: _Sent, turning: _Turning) -> None:
        source, group = self._machines[sent.source].group, machine.group
        about = f"{self._label(sent)} of {source.name}"
        turning.add("receiving", about, sent.times * round(sent.frame.receiving * group.slow * TICKS))
        if turning.machine < self._trainers:
            machine.came[sent.key] += sent.times
        else:
            self._serve(machine, sent, turning)

    def _serve(self, machine: _Machine, sent: _Sent, turning: _Turning) -> None:
        """Lets a server do what a frame asks for. What it answers is written at once; after the update of a barrier, to
        one trainer after the other.
        """
        stage, source = self._cycle.stages[sent.stage], sent.source
        work = round(stage.work[turning.machine - self._trainers] * machine.group.slow * TICKS)
        if stage.kind == ROWS and machine.told[source]:
            machine.held.append(sent)
            return
        if stage.kind == ROWS or not self._cycle.barrier:
            what = "lookups" if stage.kind == ROWS else "updates"
            turning.add(what, f"for {self._machines[source].group.name}", work)
            for answer in self._answers(machine, turning.machine, source, sent):
                self._write(turning, answer)
            return
        if not machine.told[source]:
            machine.lacking -= 1
        machine.told[source] += 1
        machine.gradients.append(sent)
        if machine.lacking:
            return
        turning.add("updates", "for all trainers", work)
        taken, machine.gradients = machine.gradients, []
        machine.lacking = self._trainers
        for each in taken:
            if not machine.told[each.source]:
                machine.gradients.append(each)  # it belongs to the next update
                continue
            machine.outbox.extend(self._answers(machine, turning.machine, each.source, each))
            machine.told[each.source] = 0
        for each in machine.gradients:
            machine.told[each.source] += 1
            machine.lacking -= 1
        held, machine.held = machine.held, []
        machine.again.extend(held)

    def _answers(self, machine: _Machine, number: int, source: int, sent: _Sent) -> Iterator[_Sent]:
        frame = self._cycle.stages[sent.stage].answers[number - self._trainers]
        if frame is not None:
            yield _Sent(number, source, frame, machine.group.count, 0, sent.stage, True, sent.key)

    def _write(self, turning: _Turning, sent: _Sent) -> None:
        """Writes a frame to each machine of a group."""
        group, target = self._machines[sent.source].group, self._machines[sent.target].group
        copies = target.count - (sent.source == sent.target)
        about = f"{self._label(sent)} to {target.name}"
        turning.add("sending", about, copies * round(sent.frame.sending * group.slow * TICKS))
        turning.sent.append(sent._replace(copies=copies))

    def _go_on(self, machine: _Machine, number: int, turning: _Turning) -> None:
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
                    turning.add("ops", op, round(seconds * machine.group.slow * TICKS))
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

    def _send(self, machine: _Machine, number: int, turning: _Turning) -> int:
        """Sends the frames of a stage; returns how many come back."""
        stage, key = self._cycle.stages[machine.stage], (machine.cycle, machine.stage)
        first = 0 if stage.kind == SUMS else self._trainers
        needed = 0
        for place, frame in enumerate(stage.sent):
            target = first + place
            own = stage.kind == SUMS and target == number
            times = machine.group.count - own
            if frame is None or not times and own:
                continue
            self._write(turning, _Sent(number, target, frame, times, 0, machine.stage, False, key))
            if stage.kind == SUMS:
                needed += self._machines[target].group.count - own
            elif stage.answers[place] is not None:
                needed += self._machines[target].group.count
        machine.needed[key] = needed
        return needed


# What is read from a trace.


class Span(NamedTuple):
    """What a machine or a link did at a time, in seconds from the begin of a step. `what` is "ops", "lookups",
    "updates", "sending", "receiving", "link" or "latency"; `about` the ops, or what goes to whom.
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


def spans_of(trace: Trace) -> list[Span]:
    """What the machines did in the last cycle, by machine and time; parts of turns are clipped to the cycle."""
    begin, end = _window(trace)
    result: list[Span] = []
    for turn in sorted(trace.turns, key=lambda each: (each.group, each.start)):
        for part, start, stop in _parts(turn):
            low, high = max(start, begin), min(stop, end)
            if low < high:
                name = trace.groups[turn.group].name
                result.append(Span(name, part.what, part.about, (low - begin) / TICKS, (high - low) / TICKS))
    return result


def _parts(turn: Turn) -> Iterator[tuple[Part, int, int]]:
    """Yields the parts of a turn with their times; where processors are shared, all parts are as slow."""
    work, lasted, done = sum(part.ticks for part in turn.parts), turn.end - turn.start, 0
    for part in turn.parts:
        start = turn.start + done * lasted // work
        done += part.ticks
        yield part, start, turn.start + done * lasted // work


def arrows_of(trace: Trace) -> list[Arrow]:
    """The frames that left or came in the last cycle, by when they left."""
    begin, end = _window(trace)
    names = [group.name for group in trace.groups]
    return [
        Arrow(names[each.source], names[each.target], each.what, (each.left - begin) / TICKS, (each.there - begin) / TICKS)
        for each in sorted(trace.transfers, key=lambda each: (each.left, each.there))
        if each.there > begin and each.left < end and each.there <= end
    ]


def waits_of(trace: Trace) -> list[Wait]:
    """How long machines waited in the last cycle, and for what, in the mean of all that are alike; the longest wait of a
    machine comes first.
    """
    begin, end = _window(trace)
    alike = Counter[str]()
    for group in trace.groups:
        alike[group.of] += group.count
    found: Counter[tuple[int, str]] = Counter()
    last: dict[int, int] = {}
    for turn in trace.turns:
        since = max(last.get(turn.group, 0), begin)
        last[turn.group] = turn.end
        if turn.woken >= 0 and since < min(turn.start, end):
            transfer = trace.transfers[turn.woken]
            cause = f"{transfer.what} of {trace.groups[transfer.source].of}"
            found[turn.group, cause] += min(turn.start, end) - since
        lacking = turn.end - turn.start - sum(part.ticks for part in turn.parts)
        if lacking > 0 and turn.end > begin and turn.start < end:
            shown = min(turn.end, end) - max(turn.start, begin)
            found[turn.group, "a processor of the host"] += lacking * shown // (turn.end - turn.start)
    total: Counter[tuple[str, str]] = Counter()
    for (number, cause), ticks in found.items():
        group = trace.groups[number]
        total[group.of, cause] += ticks * group.count
    place = {group.of: number for number, group in reversed([*enumerate(trace.groups)])}
    order = sorted(total.items(), key=lambda each: (place[each[0][0]], -each[1], each[0][1]))
    return [Wait(name, cause, ticks / alike[name] / TICKS) for (name, cause), ticks in order if ticks]


def path_of(trace: Trace) -> list[Span]:
    """The critical path of the last cycle: what took its time, one after the other, from its begin to its end."""
    begin, end = _window(trace)
    pieces = [(*piece, max(piece[3], begin), min(piece[4], end)) for piece in _back(trace, begin)]
    kept = [(*piece[:3], low, high) for *piece, low, high in pieces if low < high]
    return [
        Span(machine, what, about, (low - begin) / TICKS, (high - low) / TICKS)
        for machine, what, about, low, high in reversed(kept)
    ]


def _back(trace: Trace, begin: int) -> Iterator[tuple[str, str, str, int, int]]:
    """Yields the pieces of the critical path, the last one first."""
    names, number = [group.name for group in trace.groups], trace.marks[-1][1]
    while number >= 0 and trace.turns[number].end > begin:
        turn = trace.turns[number]
        for part, start, stop in reversed([*_parts(turn)]):
            yield names[turn.group], part.what, part.about, start, stop
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


def in_short(path: Iterable[Span]) -> list[tuple[str, str, float]]:
    """The machines of a path with what they do, and the seconds; the longest come first."""
    found: dict[tuple[str, str], float] = {}
    for span in path:
        found[span.machine, span.what] = found.get((span.machine, span.what), 0.0) + span.seconds
    order = sorted(found.items(), key=lambda each: (-each[1], each[0]))
    return [(machine, what, seconds) for (machine, what), seconds in order]
