"""How long a step of a job takes, and which machine or link bounds it, from the profiles of its machines.

The ops of a machine take the seconds of their families. A step of trainers and servers has three exchanges: of rows
that servers look up, of gradients, and of parameters. In an exchange everybody works at the same time, so it lasts as
long as the busiest machine, or the busiest link, and the latency of the link. How exchanges follow each other is the
mode's:

* with a barrier (sync): rows, the trainers' ops, gradients, the servers' updates, parameters, one after the other;
* without (async, half-async): a trainer waits for its own messages alone, and a server updates for each trainer; the
  step is as long as the busiest of them;
* geo: as without a barrier, but the exchange comes once in so many steps;
* without servers: the trainers' ops, then the sums of gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pstranspile.compiler.cost.balance import ID, Moved
from pstranspile.compiler.cost.profile import Link, Profiles, Rate, Wire
from pstranspile.compiler.cost.steps import StepCost
from pstranspile.compiler.plan.plan import Plan, PlannedParameter, row_width
from pstranspile.ir.model import Program
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


def flows_of(plan: Plan, trainer: Program, moved: Callable[[PlannedParameter], Moved]) -> tuple[Flow, ...]:
    """What a trainer exchanges with each server in a step, in mode geo in an exchange; `trainer` is its program."""
    return tuple(_flow(plan, trainer, endpoint, moved) for endpoint in plan.pservers)


def _flow(plan: Plan, trainer: Program, endpoint: str, moved: Callable[[PlannedParameter], Moved]) -> Flow:
    asked = looked_up = given = answered = received = slices = sparse = 0.0
    for parameter in plan.parameters:
        of_rows = moved(parameter)
        row = row_width(parameter.shape) * parameter.dtype.size
        for part in (each for each in parameter.slices if each.endpoint == endpoint):
            slices += 1
            sparse += parameter.sparse
            dense = of_rows.each * (part.stop - part.start)
            found = of_rows.below(part.stop) - of_rows.below(part.start) - dense
            if not parameter.sparse:
                given, received = given + dense / 2, received + dense / 2
            elif parameter.prefetched:
                count = found / 2 / (row + ID)
                looked_up, asked, answered = looked_up + count, asked + ID * count, answered + row * count
                given += found / 2
            else:
                given, received = given + found, received + dense
    told: dict[str, float] = dict.fromkeys(("rows", "gradients", "parameters"), 0.0)
    waits: dict[str, float] = dict.fromkeys(told, 0.0)
    asking = ""  # the answers of consecutive ops come together
    for op in trainer.main_block.ops:
        facts = facts_of(op.type)
        if facts.communicates != "request":
            continue
        count = [*strings_attr(op, "epmap"), *strings_attr(op, "endpoints")].count(endpoint)
        kind = ("rows" if facts.sends else "parameters") if facts.receives else "gradients"
        told[kind] += count
        if not facts.receives:
            asking = ""
        elif count and kind != asking:
            waits[kind] += 1.0
            asking = kind
    if plan.geo is not None:
        told = {"rows": 0.0, "gradients": slices, "parameters": slices}
        waits = {"rows": 0.0, "gradients": 0.0, "parameters": 1.0 if slices else 0.0}
    return Flow(
        Exchange(told["rows"], told["rows"], asked, answered, waits["rows"], told["rows"], told["rows"]),
        Exchange(told["gradients"], 0.0, given, 0.0, 0.0, sparse),
        Exchange(told["parameters"], told["parameters"], 0.0, received, waits["parameters"]),
        looked_up,
    )


def terms_of(step: StepCost) -> Mapping[Family, tuple[float, float, float]]:
    """The calls, operations and bytes touched of a step, by family. Families without ops have zeros."""
    result: dict[Family, tuple[float, float, float]] = dict.fromkeys(FAMILIES, (0.0, 0.0, 0.0))
    for op in step.ops:
        calls, operations, touched = result[op.family]
        result[op.family] = (calls + op.runs, operations + op.operations, touched + op.touched)
    return result


def sum_of_ops(step: StepCost, families: Mapping[Family, Rate]) -> float:
    """The seconds of a step's ops on a machine whose families of ops have these rates."""
    terms = terms_of(step)
    return sum(rate.seconds(*terms[family]) for family, rate in families.items())


class MachineSeconds(NamedTuple):
    """The seconds of a step on a machine, or on each of `alike` machines.

    `computing`, `sending` and `receiving` are seconds of its processor, `link` those in which its link is busy in the
    busier direction.
    """

    machine: str
    alike: int
    computing: float
    sending: float
    receiving: float
    link: float

    @property
    def processor(self) -> float:
        """All seconds of its processor."""
        return self.computing + self.sending + self.receiving


class JobSeconds(NamedTuple):
    """How long a step of a job takes, in seconds; the machine that bounds it, and what of that: "processor", "link",
    "latency" of its link, or "processors" for those of a host that all machines share, which is no machine's (""). That
    has the part `share` of the step. `machine_seconds` are those of all machines together for a million rows.
    """

    step: float
    machine: str
    part: str
    share: float
    rows_per_second: float
    machine_seconds: float
    machines: tuple[MachineSeconds, ...]

    @property
    def verdict(self) -> str:
        """`a step takes 12.4 ms; the bottleneck is pserver_1: its link (71% of the step)`."""
        part = "link's latency" if self.part == "latency" else self.part
        what = f"{self.machine or 'the host'}: its {part}"
        return f"a step takes {shown(self.step)}; the bottleneck is {what} ({self.share:.0%} of the step)"


def shown(seconds: float) -> str:
    """Seconds with three digits, as `12.4 ms`."""
    for least, unit, scale in ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (0.0, "us", 1e6)):
        if seconds >= least:
            value = seconds * scale
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    raise ValueError(f"{seconds} is no time")


class Work(NamedTuple):
    """What a job does in a step: the ops of a trainer and of each server, and what a trainer exchanges with each.

    Without servers, `reduced` is what a trainer exchanges with all others. `names` are those of the machines, the
    trainers' first. `waits`: servers update once in a step, when all trainers have sent their gradients.
    """

    names: Sequence[str]
    steps: Sequence[StepCost]
    flows: Sequence[Flow]
    reduced: Exchange
    waits: bool


def job_seconds(
    plan: Plan, work: Work, batch_rows: int, profiles: Profiles, link: Link, processors: int | None = None
) -> JobSeconds:
    """How long a step takes. `processors` is the number of those that all machines share, None if they share none."""
    model = _Model(plan, work, profiles, link)
    machines = model.machines()
    step = model.step()
    busy = [(each.machine, part, getattr(each, part)) for each in machines for part in ("processor", "link")]
    busy.append((machines[0].machine, "latency", model.latency()))
    if processors is not None:
        shared = sum(each.alike * each.processor for each in machines) / processors
        step = max(step, shared)
        busy.append(("", "processors", shared))
    step = max(step, *(seconds for _, _, seconds in busy))
    machine, part, seconds = max(busy, key=lambda each: each[2])
    rows = plan.trainers * batch_rows
    count = sum(each.alike for each in machines)
    share = seconds / step if step else 0.0
    per_second = rows / step if step else 0.0
    return JobSeconds(step, machine, part, share, per_second, count * step / rows * 1e6, tuple(machines))


class _Model:
    """The seconds of machines, exchanges and steps of a job."""

    def __init__(self, plan: Plan, work: Work, profiles: Profiles, link: Link):
        self._work, self._profiles, self._link = work, profiles, link
        self._trainers = plan.trainers
        self._every = plan.geo.need_push_nums if plan.geo is not None else 1
        self._waits = work.waits
        trainer, *servers = work.steps
        self._trains = profiles.trainers.step + sum_of_ops(trainer, profiles.trainers.families)
        self._trains += profiles.trainers.ask * sum(flow.looked_up for flow in work.flows)
        self._updates = [profiles.servers.update + sum_of_ops(each, profiles.servers.families) for each in servers]
        """The seconds of an update of each server."""

    def machines(self) -> list[MachineSeconds]:
        """The seconds of each machine in a step, on average."""
        own, wire = self._work, self._profiles.trainers.wire
        exchanges = [each for flow in own.flows for each in flow.exchanges] or [own.reduced]
        sending, receiving = (sum(each(wire, one) for one in exchanges) / self._every for each in (_up, _down))
        link = max(sum(each.up for each in exchanges), sum(each.down for each in exchanges)) / self._every
        names, rate = own.names, self._link.bytes_per_second
        result = [MachineSeconds(names[0], self._trainers, self._trains, sending, receiving, link / rate)]
        wire, times = self._profiles.servers.wire, self._trainers / self._every
        for name, flow, update in zip(names[1:], own.flows, self._updates, strict=True):
            computing = update * (1 if self._waits else times) + times * flow.looked_up * self._profiles.servers.lookup
            receiving, sending = (times * sum(each(wire, one) for one in flow.exchanges) for each in (_up, _down))
            link = times * max(sum(each.up for each in flow.exchanges), sum(each.down for each in flow.exchanges))
            result.append(MachineSeconds(name, 1, computing, sending, receiving, link / rate))
        return result

    def step(self) -> float:
        """The seconds from the begin of a trainer's step to its end, by the order in which the mode has its parts."""
        if not self._work.flows:
            return self._trains + self._lasts([self._work.reduced], 1, [0.0]) + self.latency()
        rows, gradients, parameters = ([flow.exchanges[place] for flow in self._work.flows] for place in range(3))
        together = self._trainers if self._waits else 1
        looked_up = [together * flow.looked_up * self._profiles.servers.lookup for flow in self._work.flows]
        nothing = [0.0] * len(looked_up)
        exchanged = self._lasts(gradients, together, nothing) + self._lasts(parameters, together, nothing)
        asked = self._lasts(rows, together, looked_up)
        if self._waits:
            return asked + self._trains + exchanged + max(self._updates) + self.latency()
        return asked + self._trains + exchanged / self._every + self.latency()

    def latency(self) -> float:
        """The seconds of a step in which a trainer waits for messages that are on their way."""
        if not self._work.flows:
            return 2 * self._link.latency if self._trainers > 1 else 0.0
        waits = [max(flow.exchanges[place].frames for flow in self._work.flows) for place in range(3)]
        return 2 * self._link.latency * sum(waits) / self._every

    def _lasts(self, exchanges: Sequence[Exchange], together: int, more: Sequence[float]) -> float:
        """The seconds of an exchange of so many trainers with the servers, which work `more` for it."""
        trainers, servers, rate = self._profiles.trainers.wire, self._profiles.servers.wire, self._link.bytes_per_second
        own = sum(_up(trainers, each) + _down(trainers, each) for each in exchanges)
        of_servers = [
            together * (_up(servers, each) + _down(servers, each)) + extra
            for each, extra in zip(exchanges, more, strict=True)
        ]
        links = [together * max(each.up, each.down) / rate for each in exchanges]
        mine = max(sum(each.up for each in exchanges), sum(each.down for each in exchanges)) / rate
        return max(own, mine, *of_servers, *links)


def _up(wire: Wire, each: Exchange) -> float:
    """The seconds of a processor for what goes from a trainer to a server, at either end."""
    messages = each.messages_up * wire.message + each.of_rows_up * wire.message_of_rows
    return messages + each.frames * wire.frame + each.up * wire.byte


def _down(wire: Wire, each: Exchange) -> float:
    """The seconds of a processor for what goes from a server to a trainer, at either end."""
    messages = each.messages_down * wire.message + each.of_rows_down * wire.message_of_rows
    return messages + each.frames * wire.frame + each.down * wire.byte


def seconds_rows(found: JobSeconds) -> list[tuple[str, ...]]:
    """The table of machines, a row for each, below a row of titles."""
    table: list[tuple[str, ...]] = [("machine", "computing", "sending", "receiving", "processor", "link")]
    for each in found.machines:
        parts = (shown(each.computing), shown(each.sending), shown(each.receiving))
        busy = [f"{seconds / found.step if found.step else 0.0:.1%}" for seconds in (each.processor, each.link)]
        table.append((each.machine, *parts, *busy))
    return table


def seconds_json(found: JobSeconds) -> dict[str, Any]:
    """The seconds of a step as JSON."""
    fields = {name: value for name, value in found._asdict().items() if name != "machines"}
    return {**fields, "machines": [{**each._asdict(), "processor": each.processor} for each in found.machines]}
