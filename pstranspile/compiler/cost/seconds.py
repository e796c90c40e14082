"""How long a step of a job takes, what it waits for, and which machine or link bounds it, from profiles of machines.

The ops of a machine take the seconds of their families. A step of trainers and servers has three exchanges: of rows
that servers look up, of gradients, and of parameters. A trainer's program says in which order they come, and `events`
simulates them in virtual time:

* with a barrier (sync), servers update once, when all trainers have sent their gradients; without servers, trainers
  wait for the sums of all gradients. All machines are simulated together;
* without (async, half-async), a server updates for each trainer as its gradients come, and trainers fall out of step,
  so that they do not meet at a server that has time for all of them. Each trainer is simulated by itself. If a machine
  or a link has more to do for all trainers than such a step is long, the step is as long as that;
* geo and trainers with a communicator go on after they have sent, and wait where they send again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pstranspile.compiler.cost.balance import ID, Moved
from pstranspile.compiler.cost.events import (
    GRADIENTS,
    ROWS,
    SUMS,
    TICKS,
    Arrow,
    Cycle,
    Group,
    MessageLoad,
    Stage,
    TimedActivity,
    Trace,
    Wait,
    arrows_of,
    in_short,
    path_of,
    simulate,
    spans_of,
    waits_of,
    waking_of,
)
from pstranspile.compiler.cost.profile import (
    SLOW_LINK,
    Crash,
    Link,
    Profiles,
    Rate,
    Wire,
    crowded,
    rate_of,
    require_factor,
)
from pstranspile.compiler.cost.steps import OpCost, StepCost
from pstranspile.compiler.plan.plan import Plan, PlannedParameter, row_width
from pstranspile.ir.model import EMPTY, Program
from pstranspile.ops import facts_of
from pstranspile.ops.attributes import strings_attr
from pstranspile.ops.work import FAMILIES, Family


class Exchange(NamedTuple):
    """What one trainer sends to a server (`up`) and gets from it (`down`) at one place of a step.

    `of_rows_up` and `of_rows_down` are how many of the messages carry ids, or rows of tables; `frames` those in each
    direction that the trainer waits for.
    """

    messages_up: float = 0.0
    messages_down: float = 0.0
    up: float = 0.0
    down: float = 0.0
    frames: float = 0.0
    of_rows_up: float = 0.0
    of_rows_down: float = 0.0


class Flow(NamedTuple):
    """What one trainer and one server exchange in a step; `looked_up` is how many rows the server looks up."""

    rows: Exchange = Exchange()
    gradients: Exchange = Exchange()
    parameters: Exchange = Exchange()
    looked_up: float = 0.0

    @property
    def messages(self) -> float:
        """All messages."""
        return sum(each.messages_up + each.messages_down for each in self.exchanges)

    @property
    def messages_of_rows(self) -> float:
        """The messages with ids, or rows of tables."""
        return sum(each.of_rows_up + each.of_rows_down for each in self.exchanges)

    @property
    def frames(self) -> float:
        """All frames, in both directions."""
        return sum(2 * each.frames for each in self.exchanges)

    @property
    def bytes(self) -> float:
        """All bytes, in both directions."""
        return sum(each.up + each.down for each in self.exchanges)

    @property
    def exchanges(self) -> tuple[Exchange, Exchange, Exchange]:
        """The exchanges in the order of a step."""
        return self.rows, self.gradients, self.parameters


class _Told:
    """Counts of what a trainer and one server exchange in a step."""

    def __init__(self) -> None:
        self.asked = self.looked_up = self.given = self.answered = self.received = self.slices = self.sparse = 0.0
        self.messages: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.asking = ""
        """The kind of the last exchange, unless it is over: the answers of consecutive ops come together."""


def flows_of(plan: Plan, trainer: Program, moved: Callable[[PlannedParameter], Moved]) -> tuple[Flow, ...]:
    """What a trainer exchanges with each server in a step, in mode geo in an exchange; `trainer` is its program."""
    told = {endpoint: _Told() for endpoint in plan.pservers}
    for parameter in plan.parameters:
        of_rows = moved(parameter)
        row = row_width(parameter.shape) * parameter.dtype.size
        for part in parameter.slices:
            of = told[part.endpoint]
            of.slices += 1
            of.sparse += parameter.sparse
            dense = of_rows.each * (part.stop - part.start)
            gradients = of_rows.looked_up_below(part.stop) - of_rows.looked_up_below(part.start)
            if not parameter.sparse:
                of.given, of.received = of.given + dense / 2, of.received + dense / 2
            elif parameter.prefetched:
                count = (of_rows.requested_below(part.stop) - of_rows.requested_below(part.start)) / (row + ID)
                of.looked_up, of.asked = of.looked_up + count, of.asked + ID * count
                of.answered, of.given = of.answered + row * count, of.given + gradients
            else:
                of.given, of.received = of.given + gradients, of.received + dense
    for op in trainer.main_block.ops:
        facts = facts_of(op.type)
        if facts.communicates != "request":
            continue
        kind = ("rows" if facts.sends else "parameters") if facts.receives else "gradients"
        counts = Counter((*strings_attr(op, "epmap"), *strings_attr(op, "endpoints")))
        for endpoint in told if not facts.receives else ():
            told[endpoint].asking = ""
        for endpoint, count in counts.items():
            if endpoint not in told:
                continue
            of = told[endpoint]
            of.messages[kind] += count
            if facts.receives and kind != of.asking:
                of.waits[kind] += 1
                of.asking = kind
    return tuple(_flow(of, geo=plan.geo is not None) for of in told.values())


def _flow(of: _Told, *, geo: bool) -> Flow:
    rows, gradients, parameters = (float(of.messages[kind]) for kind in ("rows", "gradients", "parameters"))
    waits: Mapping[str, float] = of.waits
    if geo:
        rows, gradients, parameters = 0.0, of.slices, of.slices
        waits = {"rows": 0.0, "parameters": 1.0 if of.slices else 0.0}
    return Flow(
        Exchange(rows, rows, of.asked, of.answered, waits["rows"], rows, rows),
        Exchange(gradients, 0.0, of.given, 0.0, 0.0, of.sparse),
        Exchange(parameters, parameters, 0.0, of.received, waits["parameters"]),
        of.looked_up,
    )


class ExchangePoint(NamedTuple):
    """A place of a trainer's step at which it exchanges something: after so many of its ops (`stop`), `rows` of what it
    looks up, `parameters` of those that it gets (shares of a step), and whether its gradients go there.
    """

    stop: int
    rows: float = 0.0
    gradients: bool = False
    parameters: float = 0.0
    sums: bool = False


def places_of(plan: Plan, trainer: Program, step: StepCost) -> tuple[ExchangePoint, ...]:
    """The places at which a trainer exchanges something, in the order of its program."""
    if plan.geo is not None:
        return (ExchangePoint(len(step.ops), gradients=True, parameters=1.0),)
    stops = {op.number: at for at, op in enumerate(step.ops) if op.block == 0}
    result: list[ExchangePoint] = []
    asking = ""
    unsent = False
    for number, op in enumerate(trainer.main_block.ops):
        facts, stop = facts_of(op.type), stops.get(number, len(step.ops))
        if facts.communicates == "collective":
            result = [ExchangePoint(stop, sums=True)]  # those of all ops are awaited together
        if facts.communicates != "request":
            continue
        if not facts.receives:
            asking, unsent = "", True
            continue
        kind = "rows" if facts.sends else "parameters"
        count = float(len((*strings_attr(op, "epmap"), *strings_attr(op, "endpoints"))))
        if kind != asking:
            result.append(ExchangePoint(stop, gradients=unsent))
            unsent = False
        asking = kind
        last = result[-1]
        result[-1] = last._replace(**{kind: getattr(last, kind) + count})
    sent = max((stops.get(n, 0) for n, op in enumerate(trainer.main_block.ops) if _sends_on(op.type)), default=0)
    if unsent and not any(each.gradients for each in result):
        result.append(ExchangePoint(sent, gradients=True))
    rows, parameters = (sum(getattr(each, kind) for each in result) or 1.0 for kind in ("rows", "parameters"))
    return tuple(each._replace(rows=each.rows / rows, parameters=each.parameters / parameters) for each in result)


def _sends_on(op_type: str) -> bool:
    """Whether ops of a type send something and get no answer."""
    facts = facts_of(op_type)
    return facts.communicates == "request" and not facts.receives


def terms_of(step: StepCost) -> Mapping[Family, tuple[float, float, float]]:
    """The calls, operations and bytes touched of a step, by family. Families without ops have zeros."""
    result: dict[Family, tuple[float, float, float]] = dict.fromkeys(FAMILIES, (0.0, 0.0, 0.0))
    for op in step.ops:
        calls, operations, touched = result[op.family]
        result[op.family] = (calls + op.runs * op.calls, operations + op.operations, touched + op.touched)
    return result


def sum_of_ops(step: StepCost, families: Mapping[Family, Rate], ops: Mapping[str, Rate] = EMPTY) -> float:
    """The seconds of a step's ops on a machine whose ops, and families of ops, have these rates."""
    return sum(_seconds_of(step.ops, families, ops))


class MachineSeconds(NamedTuple):
    """The seconds of a step on a machine, or on each of `alike` machines.

    `computing`, `sending` and `receiving` are seconds of its processor, and `waking` those in which it wakes for what
    has come; `link` are those in which its link is busy in the busier direction. `step` is how long its step takes; for
    `waits` seconds it waits for something, most of all for `cause`.
    """

    machine: str
    alike: int
    computing: float
    sending: float
    receiving: float
    link: float
    step: float = 0.0
    waits: float = 0.0
    cause: str = ""
    waking: float = 0.0

    @property
    def processor(self) -> float:
        """All seconds of its processor."""
        return self.computing + self.sending + self.receiving + self.waking


class CrashSeconds(NamedTuple):
    """What a crash costs: how long others wait for the machine, in seconds.

    They are those until it is given up (`known`) or its process runs again (`runs`), until it has read its state or
    checkpoint (`restored`), and until `steps` steps are done again (`repeated`), half of those between two states on
    average. `others` says what the other machines do; without servers and without a checkpoint, `steps` is None: all.
    """

    crash: Crash
    known: float
    runs: float
    restored: float
    steps: float | None
    repeated: float
    others: str

    @property
    def seconds(self) -> float:
        """All seconds that it costs."""
        return self.known + self.runs + self.restored + self.repeated

    def __str__(self) -> str:
        """The cost as a line."""
        parts = [
            (self.known, f"{format_seconds(self.known)} until it is given up"),
            (self.runs, f"{format_seconds(self.runs)} until it runs again"),
            (self.restored, f"{format_seconds(self.restored)} to read what it had"),
            (self.repeated, f"{format_seconds(self.repeated)} for {self.steps or 0:g} steps again"),
        ]
        told = ", ".join(text for seconds, text in parts if seconds)
        more = ", and all steps from the first one again: the job has no checkpoint_every" if self.steps is None else ""
        return f"if {self.crash.machine} crashes, {self.others}: {told or 'no time'}{more}"


class JobSeconds(NamedTuple):
    """How long a step of a job takes, in seconds; the machine that bounds it, and what of that: "processor", "link",
    "latency" of its link, or "processors" for those of a host that all machines share, which is no machine's (""). That
    has the part `share` of the step. `machine_seconds` are those of all machines together for a million rows.

    Where trainers do not wait for each other, `step` is the mean of theirs. `path` is the critical path of a step: what
    a trainer, and whom it waits for, did one after the other. `waits` are the waits of each machine by cause, `spans`
    and `arrows` what machines do and send in that step. `slow` names the machines that are slower than their profile
    says, or their links (`trainer_3:link`), with how many times; `unslowed` is the step without them. `crash` says what
    a crash costs, if one was asked for.
    """

    step: float
    machine: str
    part: str
    share: float
    rows_per_second: float
    machine_seconds: float
    machines: tuple[MachineSeconds, ...]
    path: tuple[TimedActivity, ...] = ()
    waits: tuple[Wait, ...] = ()
    spans: tuple[TimedActivity, ...] = ()
    arrows: tuple[Arrow, ...] = ()
    slow: Mapping[str, float] = EMPTY
    unslowed: float = 0.0
    crash: CrashSeconds | None = None

    @property
    def verdict(self) -> str:
        """`a step takes 12.4 ms; the bottleneck is pserver_1: its link (71% of the step)`."""
        part = "link's latency" if self.part == "latency" else self.part
        what = f"{self.machine or 'the host'}: its {part}"
        return f"a step takes {format_seconds(self.step)}; the bottleneck is {what} ({self.share:.0%} of the step)"

    @property
    def cost_of_slow(self) -> str:
        """`trainer_3 2x slower: a step takes 1.9 times as long, 12.4 ms in place of 6.53 ms`; empty if none is slow."""
        if not self.slow:
            return ""
        names = ", ".join(f"{name} {factor:g} times as slow" for name, factor in self.slow.items())
        ratio = self.step / self.unslowed if self.unslowed else 1.0
        slowed, unslowed = format_seconds(self.step), format_seconds(self.unslowed)
        return f"{names}: a step takes {ratio:.2f} times as long, {slowed} in place of {unslowed}"


def format_seconds(seconds: float) -> str:
    """Seconds with three digits, as `12.4 ms`."""
    for least, unit, scale in ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (0.0, "us", 1e6)):
        if seconds >= least:
            value = seconds * scale
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    raise ValueError(f"{seconds} is no time")


class Work(NamedTuple):
    """What a job does in a step: the ops of a trainer and of each server, and what a trainer exchanges with each.

    Without servers, `reduced` is what a trainer exchanges with all others. `names` are those of the machines, the
    trainers' first. `waits`: servers update once in a step, when all trainers have sent their gradients. `places` are
    those of a trainer's step at which it exchanges something; `background`: it goes on after gradients.
    """

    names: Sequence[str]
    steps: Sequence[StepCost]
    flows: Sequence[Flow]
    reduced: Exchange
    waits: bool
    places: Sequence[ExchangePoint] = ()
    background: bool = False


def job_seconds(
    plan: Plan,
    work: Work,
    batch_rows: int,
    profiles: Profiles,
    link: Link,
    processors: int | None = None,
    slow: Mapping[str, float] = EMPTY,
    crash: Crash | None = None,
) -> JobSeconds:
    """How long a step takes. `processors` is the number of those that all machines share, None if they share none;
    `slow` says of machines, or of links (`trainer_3:link`), how many times slower they are than their profile; `crash`
    is one whose cost is wanted.

    Raises ValueError for a machine that the job does not have.
    """
    require_slow(slow, plan.trainers, len(plan.pservers))
    if processors is not None and plan.trainers + len(plan.pservers) > processors:
        machines = plan.trainers + len(plan.pservers)
        profiles = Profiles(*(crowded(profile, machines, processors) for profile in profiles))
    model = _Model(plan, work, profiles, link, processors, slow)
    found = model.estimate_step(batch_rows)
    if crash is not None:
        require_slow({crash.machine: 1.0}, plan.trainers, len(plan.pservers))
        found = found._replace(crash=_crash_cost(crash, plan, work, found, profiles))
    if not slow:
        return found
    without = _Model(plan, work, profiles, link, processors, EMPTY).estimate_step(batch_rows)
    return found._replace(slow=slow, unslowed=without.step)


def _crash_cost(crash: Crash, plan: Plan, work: Work, found: JobSeconds, profiles: Profiles) -> CrashSeconds:
    """What a crash costs a job whose step is known."""
    server = crash.machine.startswith("pserver")
    number = int(crash.machine.rpartition("_")[2])
    profile = profiles.servers if server else profiles.trainers
    state = work.steps[1 + number if server else 0].held * profile.families["moved"].byte
    if server:
        steps = crash.state_every / 2
        (each,) = (machine for machine in found.machines if machine.machine == crash.machine)
        updates = each.processor * (steps if work.waits else steps / plan.trainers)
        return CrashSeconds(crash, 0.0, crash.restart, state, steps, updates, "trainers wait until it is back")
    if not plan.pservers:
        if not crash.checkpoint_every:
            return CrashSeconds(crash, 0.0, crash.restart, 0.0, None, 0.0, "all trainers start again")
        steps = crash.checkpoint_every / 2
        again = steps * found.step
        return CrashSeconds(crash, 0.0, crash.restart, state, steps, again, "all trainers go back to a checkpoint")
    others = "servers go on without it once they know, and with it when it is back"
    known = crash.lease if work.waits and plan.trainers > 1 else 0.0
    alone = 0.0 if plan.trainers > 1 else crash.restart
    return CrashSeconds(crash, known, alone, 0.0, 0.0, 0.0, others if plan.trainers > 1 else "servers wait for it")


def require_slow(slow: Mapping[str, float], trainers: int, servers: int) -> None:
    """Raises ValueError for a machine that a job with so many trainers and servers does not have, and for a factor that
    is no number above 0.
    """
    for name, factor in slow.items():
        kind, _, number = name.removesuffix(SLOW_LINK).rpartition("_")
        count = {"trainer": trainers, "pserver": servers}.get(kind, 0)
        if not number.isascii() or not number.isdigit() or str(int(number)) != number or int(number) >= count:
            has = " and ".join(
                _format_machines(*each) for each in (("trainer", range(trainers)), ("pserver", range(servers)))
            )
            raise ValueError(f"there is no machine {name.removesuffix(SLOW_LINK)!r}; the job has {has}")
        require_factor(name, factor)


def _format_machines(kind: str, numbers: Sequence[int]) -> str:
    """`trainer_0 to 2, 4 to 9`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [f"{first}" if first == last else f"{first} to {last}" for first, last in runs]
    return f"{kind}_{', '.join(texts)}" if texts else f"no {kind}"


class _Class(NamedTuple):
    """Equal machines: their numbers, and the group that stands for them; `of` is the first of them."""

    numbers: tuple[int, ...]
    group: Group

    @property
    def of(self) -> int:
        """The number of the first machine."""
        return self.numbers[0]


class _Model:
    """The seconds of machines, exchanges and steps of a job."""

    def __init__(
        self,
        plan: Plan,
        work: Work,
        profiles: Profiles,
        link: Link,
        processors: int | None,
        slow: Mapping[str, float],
    ):
        delay = sum(profile.delay for profile in profiles) / 2  # there and back, each of them has its own once
        self._work, self._profiles, self._link = work, profiles, link._replace(latency=link.latency + delay)
        self._sharing = sum(profile.sharing for profile in profiles) / 2
        self._slow, self._processors = slow, processors
        self._count = plan.trainers
        self._every = plan.geo.need_push_nums if plan.geo is not None else 1
        self._own_ops = _seconds_of(work.steps[0].ops, profiles.trainers.families, profiles.trainers.ops)
        self._asked = profiles.trainers.ask * sum(flow.looked_up for flow in work.flows)
        self._trains = profiles.trainers.step + sum(self._own_ops) + self._asked
        servers = profiles.servers
        self._updates = [servers.update + sum_of_ops(each, servers.families, servers.ops) for each in work.steps[1:]]
        """The seconds of an update of each server."""
        self.trainers = self._classes("trainer", [()] * plan.trainers)
        self.servers = self._classes("pserver", [*zip(work.flows, self._updates, strict=True)])

    def _classes(self, kind: str, equal: Sequence[object]) -> list[_Class]:
        """The classes of equal machines, by their first machines."""
        found: dict[object, list[int]] = {}
        for number, each in enumerate(equal):
            name = f"{kind}_{number}"
            factors = self._slow.get(name, 1.0), self._slow.get(name + SLOW_LINK, 1.0)
            found.setdefault((each, factors), []).append(number)
        result: list[_Class] = []
        for numbers in found.values():
            name = f"{kind}_{numbers[0]}"
            factors = self._slow.get(name, 1.0), self._slow.get(name + SLOW_LINK, 1.0)
            result.append(_Class(tuple(numbers), Group(_format_machines(kind, numbers), len(numbers), *factors)))
        return result

    # the time of a step

    def estimate_step(self, batch_rows: int) -> JobSeconds:
        """How long a step takes, the machine that bounds it, and what every machine does meanwhile."""
        together = self._work.waits or not self._work.flows
        traces = [self._trace(self._simulated_groups())] if together else self._alone()
        own = [each.period / TICKS / self._every for each in traces]
        if together:
            own = [max(own[0], self._busiest())]
        steps = own * len(self.trainers) if together else own
        if not together:
            least = self._least(own)
            steps = [max(each, least) for each in own]
        rows_per_second = sum(
            each.group.size * batch_rows / step for each, step in zip(self.trainers, steps, strict=True) if step
        )
        count = self._count + len(self._work.flows)
        step = self._count * batch_rows / rows_per_second if rows_per_second else 0.0
        waits = self._waits(traces, own, steps)
        times = sum(each.group.size * step / one if one else 0 for each, one in zip(self.trainers, steps, strict=True))
        machines = self._machines(steps, step, waits, self._count if together else times)
        machines = self._awake(machines, traces)
        busy = [
            (each.machine, part, getattr(each, part), each.step) for each in machines for part in ("processor", "link")
        ]
        busy.append((machines[0].machine, "latency", self._latency(), machines[0].step))
        if self._processors is not None:
            shared = sum(each.alike * each.processor * step / each.step for each in machines if each.step)
            busy.append(("", "processors", shared / self._processors, step))
        machine, part, seconds, of = max(busy, key=lambda each: each[2] / each[3] if each[3] else 0.0)
        slowest = max(range(len(traces)), key=lambda at: own[at])
        path = path_of(traces[slowest])
        if (more := steps[slowest] - own[slowest]) > 0 and not together:
            path.append(TimedActivity(path[0].machine if path else "", "queues", OTHERS, own[slowest], more))
        shown_too = self._timeline_machines(traces[slowest], path)
        return JobSeconds(
            step,
            machine,
            part,
            seconds / of if of else 0.0,
            rows_per_second,
            count / rows_per_second * 1e6 if rows_per_second else 0.0,
            tuple(machines),
            tuple(path),
            tuple(waits),
            tuple(spans_of(traces[slowest], shown_too)),
            tuple(arrows_of(traces[slowest], shown_too)),
        )

    def _awake(self, machines: Sequence[MachineSeconds], traces: Sequence[Trace]) -> list[MachineSeconds]:
        """The machines with the seconds in which they wake. A server that all trainers do not await together sleeps
        the less the more of them it serves: it is awake already when a message comes while it is busy.
        """
        waking: dict[str, float] = {}
        sizes = {each.group.name: each.group.size for each in self.trainers}
        together = self._work.waits or not self._work.flows
        for trace in traces:
            of = 1 if together else sizes[trace.groups[0].name]
            for name, seconds in waking_of(trace).items():
                waking[name] = waking.get(name, 0.0) + (1 if name in sizes else of) * seconds / self._every
        groups = {f"pserver_{number}": each.group.name for each in self.servers for number in each.numbers}
        result: list[MachineSeconds] = []
        for each in machines:
            seconds = waking.get(groups.get(each.machine, each.machine), 0.0)
            idle = 1.0 if together or each.machine in sizes or not each.step else 1.0 - each.processor / each.step
            result.append(each._replace(waking=seconds * max(idle, 0.0)))
        return result

    def _busiest(self) -> float:
        """The most seconds that a processor or a link of a machine needs for a step of all trainers."""
        all_of = self._machines([0.0] * len(self.trainers), 0.0, (), self._count)
        return max(max(each.processor, each.link) for each in all_of)

    def _trace(self, trainers: Sequence[Group]) -> Trace:
        return simulate(
            Cycle(self._stages(), self._work.waits, self._work.background or self._every > 1),
            trainers,
            [each.group for each in self.servers],
            bytes_per_second=self._link.bytes_per_second,
            latency=self._link.latency,
            processors=self._processors,
            wakes=(self._profiles.trainers.wake, self._profiles.servers.wake),
            long_wakes=(self._profiles.trainers.wake_long, self._profiles.servers.wake_long),
            sharing=self._sharing,
        )

    def _simulated_groups(self) -> list[Group]:
        """The groups of trainers that are simulated: single trainers if servers answer them one after the other."""
        if not self._work.flows:
            return [each.group for each in self.trainers]
        singles = [
            (number, each.group._replace(name=f"trainer_{number}", size=1, kind=each.group.name))
            for each in self.trainers
            for number in each.numbers
        ]
        return [group for _, group in sorted(singles)]

    def _alone(self) -> list[Trace]:
        """A trace of a trainer of each class, which has the servers for itself."""
        return [self._trace([each.group._replace(size=1)]) for each in self.trainers]

    def _least(self, own: Sequence[float]) -> float:
        """The seconds of a step below which a machine or a link has more to do than it can."""
        counts = [each.group.size for each in self.trainers]
        result = 0.0
        rate = self._link.bytes_per_second
        for each in self.servers:
            flow = self._work.flows[each.of]
            up, down = (sum(getattr(one, way) for one in flow.exchanges) / self._every for way in ("up", "down"))
            loads = [max(up, down) / rate * each.group.slow_link, sum(self._of_server(each)) * each.group.slow]
            for load in loads:
                result = max(result, _least_period([load] * len(counts), counts, own, 1))
        if self._processors is not None:
            served = sum(sum(self._of_server(each)) * each.group.slow * each.group.size for each in self.servers)
            loads = [self._of_trainer() * each.group.slow + served for each in self.trainers]
            result = max(result, _least_period(loads, counts, own, self._processors / self._sharing))
        return result

    def _of_server(self, each: _Class) -> tuple[float, float, float]:
        """What a server computes, sends and receives for a step of one trainer."""
        flow, wire = self._work.flows[each.of], self._profiles.servers.wire
        computing = flow.looked_up * self._profiles.servers.lookup
        computing += 0.0 if self._work.waits else self._updates[each.of] / self._every
        receiving, sending = (
            sum(way(wire, one) for one in flow.exchanges) / self._every for way in (_seconds_up, _seconds_down)
        )
        return computing, sending, receiving

    def _of_trainer(self) -> float:
        return self._trains + sum(self._transfer_seconds())

    def _transfer_seconds(self) -> tuple[float, float]:
        """The seconds in which a trainer sends and receives in a step."""
        own, wire = self._work, self._profiles.trainers.wire
        exchanges = [each for flow in own.flows for each in flow.exchanges] or [own.reduced]
        sending, receiving = (
            sum(way(wire, one) for one in exchanges) / self._every for way in (_seconds_up, _seconds_down)
        )
        return sending, receiving

    def _waits(self, traces: Sequence[Trace], own: Sequence[float], steps: Sequence[float]) -> list[Wait]:
        """The waits of all machines in a step."""
        result: list[Wait] = []
        trainers = {each.group.name for each in self.trainers}
        for trace, alone, step in zip(traces, own, steps, strict=False):
            for each in waits_of(trace):
                if len(traces) == 1 or each.machine in trainers:
                    result.append(each._replace(seconds=each.seconds / self._every))
            if step > alone:
                result.append(Wait(trace.groups[0].name, OTHERS, step - alone))
        return result

    def _machines(
        self, steps: Sequence[float], step: float, waits: Iterable[Wait], times: float
    ) -> list[MachineSeconds]:
        """The seconds of each machine in a step, on average: of a server, for so many steps of trainers."""
        rate, (sending, receiving) = self._link.bytes_per_second, self._transfer_seconds()
        exchanges = [each for flow in self._work.flows for each in flow.exchanges] or [self._work.reduced]
        link = max(sum(each.up for each in exchanges), sum(each.down for each in exchanges)) / self._every / rate
        of_group: dict[str, list[Wait]] = {}
        for wait in waits:
            of_group.setdefault(wait.machine, []).append(wait)
        result: list[MachineSeconds] = []
        for each, own in zip(self.trainers, steps, strict=True):
            name, count, slow, slow_link, _ = each.group
            numbers = (self._trains * slow, sending * slow, receiving * slow, link * slow_link)
            result.append(MachineSeconds(name, count, *numbers, own, *_most(of_group.get(name, ()))))
        servers: dict[int, MachineSeconds] = {}
        for each in self.servers:
            flow, slow = self._work.flows[each.of], each.group.slow
            computing, *told = (times * slow * seconds for seconds in self._of_server(each))
            computing += self._updates[each.of] * slow if self._work.waits else 0.0
            link = times * max(sum(one.up for one in flow.exchanges), sum(one.down for one in flow.exchanges))
            link *= each.group.slow_link / rate / self._every
            waited = _most(of_group.get(each.group.name, ()))
            for number in each.numbers:
                name = f"pserver_{number}"
                servers[number] = MachineSeconds(name, 1, computing, told[0], told[1], link, step, *waited)
        return [*result, *(servers[number] for number in sorted(servers))]

    def _latency(self) -> float:
        """The seconds of a step in which a trainer waits for messages that are on their way."""
        if not self._work.flows:
            return 2 * self._link.latency if self._count > 1 else 0.0
        waits = [max(flow.exchanges[place].frames for flow in self._work.flows) for place in range(3)]
        return 2 * self._link.latency * sum(waits) / self._every

    def _timeline_machines(self, trace: Trace, path: Iterable[TimedActivity]) -> set[str]:
        """The machines that a time line shows: the first ones, those that are slow, those on the critical path."""
        groups = trace.groups
        trainers = [each for each in groups if each.name.startswith("trainer")]
        servers = [each for each in groups if not each.name.startswith("trainer")]
        most = [
            *(each.name for each in groups if (each.slow, each.slow_link) != (1.0, 1.0)),
            *dict.fromkeys(span.machine for span in path),
        ]
        return {*most[:MOST_DRAWN], *(each.name for kind in (trainers, servers) for each in kind[:MOST_DRAWN])}

    # what a trainer does

    def _stages(self) -> list[Stage]:
        """The stages of a step, in mode geo of all steps until the next exchange."""
        result: list[Stage] = []
        start, ask = 0, 0.0
        overhead = [("a step beside its ops", self._profiles.trainers.step)]
        for place in self._work.places:
            ops = [*overhead, *self._ops(start, place.stop)]
            ops += [("rows looked up", ask)] if ask else []
            result += self._exchange_stages(place, ops)
            start, overhead = place.stop, []
            ask = self._asked * place.rows
        rest = [*overhead, *self._ops(start, len(self._own_ops))]
        rest += [("rows looked up", ask)] if ask else []
        if self._every > 1:
            (stage,) = result
            turns = min(self._every, MOST_TURNS)
            ops = [(op, seconds * self._every / turns) for op, seconds in stage.ops]
            return [*[Stage(ops)] * (turns - 1), stage._replace(ops=ops)]
        return [*result, Stage(rest)] if rest or not result else result

    def _ops(self, start: int, stop: int) -> list[tuple[str, float]]:
        """The ops between two places with their seconds; of neighbours with one type, together."""
        result: list[tuple[str, float]] = []
        for op, seconds in zip(self._work.steps[0].ops[start:stop], self._own_ops[start:stop], strict=True):
            if result and result[-1][0] == op.type:
                result[-1] = op.type, result[-1][1] + seconds
            elif seconds:
                result.append((op.type, seconds))
        return result

    def _exchange_stages(self, place: ExchangePoint, ops: Sequence[tuple[str, float]]) -> list[Stage]:
        """The stages of a place: one, or two for sums, whose parts are sent before the sums are received."""
        own, served = self._profiles.trainers.wire, self._profiles.servers.wire
        if place.sums:
            others = max(self._count - 1, 1) * 2
            all_of = self._work.reduced
            part = _part(all_of, 1 / others)
            frame = _load(_seconds_up(own, part), _seconds_down(own, part), part.up, own, own)
            sent = [frame] * len(self.trainers) if self._count > 1 else []
            return [Stage(ops, SUMS, sent), Stage((), SUMS, sent)]
        sent: list[MessageLoad | None] = []
        answers: list[MessageLoad | None] = []
        work: list[float] = []
        for each in self.servers:
            flow = self._work.flows[each.of]
            if place.rows:
                there = back = _part(flow.rows, place.rows)
                work.append(flow.looked_up * self._profiles.servers.lookup * place.rows)
            else:
                back = _part(flow.parameters, place.parameters)
                there = _add_exchanges(flow.gradients, back) if place.gradients else back
                work.append(self._updates[each.of] if place.gradients else 0.0)
            goes, comes = there.messages_up or there.up, back.messages_down or back.down
            up = _seconds_up(own, there), _seconds_up(served, there), there.up
            down = _seconds_down(served, back), _seconds_down(own, back), back.down
            sent.append(_load(*up, own, served) if goes else None)
            answers.append(_load(*down, served, own) if comes else None)
        return [Stage(ops, GRADIENTS if place.gradients else ROWS, sent, work, answers)]


OTHERS = "machines and links that others use"
"""What trainers wait for that don't wait for each other, if something has more to do than it can."""

MOST_DRAWN = 12
"""The most trainers, servers, and machines that are slow or on the critical path, on a time line."""

MOST_TURNS = 16
"""The most turns in which the steps before an exchange of geo are simulated."""


def _seconds_of(ops: Iterable[OpCost], families: Mapping[Family, Rate], own: Mapping[str, Rate]) -> list[float]:
    """The seconds of each op."""
    return [
        rate_of(families, own, op.family, op.kind).seconds(
            op.runs * op.calls, op.operations, op.touched, op.first, op.far
        )
        for op in ops
    ]


def _part(each: Exchange, share: float) -> Exchange:
    return Exchange(*(share * number for number in each))


def _add_exchanges(one: Exchange, other: Exchange) -> Exchange:
    return Exchange(*map(sum, zip(one, other, strict=True)))


def _most(waits: Iterable[Wait]) -> tuple[float, str]:
    """How long a machine waits, and for what most of the time."""
    held = [*waits]
    longest = max(held, key=lambda each: each.seconds, default=None)
    return sum(each.seconds for each in held), longest.cause if longest is not None else ""


def _least_period(loads: Sequence[float], counts: Sequence[int], own: Sequence[float], capacity: float) -> float:
    """The seconds of a step with which something that has to work `loads` for a step of a trainer of each class keeps
    up: trainers whose own step is longer do not come as often.
    """
    order = sorted(range(len(own)), key=lambda at: own[at])
    busy = sum(counts[at] * loads[at] / own[at] if own[at] else 0.0 for at in order)
    if busy <= capacity and all(own):
        return 0.0
    waiting, period = 0.0, 0.0
    for place, at in enumerate(order):
        busy -= counts[at] * loads[at] / own[at] if own[at] else 0.0
        waiting += counts[at] * loads[at]
        left = capacity - busy
        period = waiting / left if left > 1e-12 else float("inf")
        if place + 1 == len(order) or period <= own[order[place + 1]]:
            break
    return period


def _load(sending: float, receiving: float, size: float, sender: Wire, receiver: Wire) -> MessageLoad:
    return MessageLoad(sending, receiving, size, size * sender.byte, size * receiver.byte)


def _seconds_up(wire: Wire, each: Exchange) -> float:
    """The seconds of a processor for what goes from a trainer to a server, at either end."""
    messages = each.messages_up * wire.message + each.of_rows_up * wire.message_of_rows
    return messages + each.frames * wire.frame + each.up * wire.byte


def _seconds_down(wire: Wire, each: Exchange) -> float:
    """The seconds of a processor for what goes from a server to a trainer, at either end."""
    messages = each.messages_down * wire.message + each.of_rows_down * wire.message_of_rows
    return messages + each.frames * wire.frame + each.down * wire.byte


def seconds_lines(found: JobSeconds) -> list[str]:
    """What follows the verdict: what slow machines cost, and where the time of the critical path goes."""
    lines = [*([found.cost_of_slow] if found.slow else []), *([str(found.crash)] if found.crash is not None else [])]
    step = found.step or 1.0
    most = [(machine, what, seconds) for machine, what, seconds in in_short(found.path) if seconds >= LEAST_TOLD * step]
    parts = [f"{_doing(machine, what)} {format_seconds(seconds)}" for machine, what, seconds in most[:MOST_TOLD]]
    return [*lines, *([f"one after the other: {', '.join(parts)}"] if parts else [])]


MOST_TOLD = 6
"""The most parts of a critical path that are told."""

LEAST_TOLD = 0.01
"""The least share of a step that is told."""


def _doing(machine: str, what: str) -> str:
    return f"{'the link' if what == 'link' else 'the latency' if what == 'latency' else what} of {machine}"


def seconds_rows(found: JobSeconds) -> list[tuple[str, ...]]:
    """The table of machines, a row for each, below a row of titles."""
    table: list[tuple[str, ...]] = [
        ("machine", "computing", "sending", "receiving", "waking", "processor", "link", "waits", "most of it for")
    ]
    for each in found.machines:
        parts = tuple(map(format_seconds, (each.computing, each.sending, each.receiving, each.waking)))
        busy = [
            f"{seconds / each.step if each.step else 0.0:.1%}" for seconds in (each.processor, each.link, each.waits)
        ]
        table.append((each.machine, *parts, *busy, each.cause))
    return table


def seconds_json(found: JobSeconds) -> dict[str, Any]:
    """The seconds of a step as JSON."""
    lists = ("machines", "path", "waits", "spans", "arrows")
    fields = {name: value for name, value in found._asdict().items() if name not in lists}
    fields["slow"] = dict(found.slow)
    if found.crash is not None:
        told = found.crash._asdict()
        fields["crash"] = {**told, "crash": found.crash.crash._asdict(), "seconds": found.crash.seconds}
    machines = [{**each._asdict(), "processor": each.processor} for each in found.machines]
    path, waits = ([each._asdict() for each in held] for held in (found.path, found.waits))
    return {**fields, "machines": machines, "path": path, "waits": waits}
