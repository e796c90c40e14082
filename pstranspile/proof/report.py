"""The result of a check: a verdict for each variable, and one on the whole."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pstranspile.ir.diagnostics import cluster_of, in_one_line, quantity

BITWISE = "bitwise equal"
ROUNDING = "equal within rounding"
DIFFERENT = "different"
ADDS_UP = "adds up over the trainers"
"""The equality of a variable for metrics: each trainer counts its share, and the sum equals the single
machine's count.
"""


BITS = "bits"
"""Settled by comparing bits: the variable is bitwise equal."""

SINGLE = "single precision"
"""Settled by the run itself, in single precision."""

DOUBLE = "double precision"
"""Settled by a second run, in double precision."""

GRADIENTS = "gradients in double precision"
"""Settled by comparing, for each step and in double precision, the results on whole batches and on shares."""

ROUGH = 1e-4
"""The relative difference that counts as rounding if double precision is not available."""

OWN_NORM = "each server uses the norm of its own slice"
"""The reason for updates that differ because an op takes the norm of a whole parameter in the source."""

SHOWN = 5
"""The most variables, causes, tables and wrong steps that a report lists, of each kind."""


class Verdict(NamedTuple):
    """How a variable of the cluster compares with the single machine's over all steps.

    `kind` is one of "loss", "result" (of a program that trains nothing), "parameter", "state", "sum" (of gradients of
    several steps, which each trainer has of its shares), and "metric": what is kept or made for a metric only. No
    equality is promised for a metric, as no training depends on it. `worst` is the largest relative difference in the
    run itself and `worst_step` the step after which it was seen; `first` is the first step after which the two were not
    equal within rounding, -1 for none. Steps count from 1.

    `worst` decides nothing where there is double precision. What decides is `deviation`, of the comparison that
    `settled_by` names: more than `tolerance` is different, up to that is rounding.
    """

    name: str
    kind: str
    equality: str
    worst: float
    worst_step: int
    first: int
    tolerance: float
    deviation: float = 0.0
    settled_by: str = BITS


class Cause(NamedTuple):
    """An op whose result on shares of the batch differs from its result on the whole batch.

    `instead` says what to write instead; it is empty where no advice holds in every case.
    """

    op_type: str
    variable: str
    location: str
    why: str
    instead: str = ""


class Applied(NamedTuple):
    """What became of the gradients that the servers of an asynchronous job received.

    `sent` and `applied` count gradients. Staleness is the number of updates of a parameter between the moment a trainer
    fetched it and the moment that trainer's gradient was applied: `stalest` is the largest, `mean_staleness` the mean.
    """

    sent: int
    applied: int
    stalest: int
    mean_staleness: float


class Away(NamedTuple):
    """A period in which a trainer took part in no step: its first and last step, from 1."""

    trainer: str
    first: int
    last: int


class Faulty(NamedTuple):
    """The outcome of a run with faults.

    `told` lists the faults that happened, `stuck` what each machine waited for if the cluster could not go on, `wrong`
    the gradients that were lost, doubled, or applied in another step. `equality` is how the parameters at the end
    compare with the run without faults, or, where trainers were `away`, with a single machine that is not fed their
    rows; it is empty where nothing is promised, or for the reason `not_compared`.
    """

    scenario: str
    named: tuple[str, ...]
    stuck: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    away: tuple[Away, ...] = ()
    equality: str = ""
    worst: float = 0.0
    variable: str = ""
    not_compared: str = ""
    held: bool = False
    """Whether each step of the run was compared with the source program."""
    unreached: tuple[str, ...] = ()
    """The lines of the scenario that had no effect on the run, so that the check shows nothing about them."""
    unreached_allowed: bool = False
    """Whether a scenario may have lines without effect."""

    @property
    def holds(self) -> bool:
        """Whether the run ended as promised.

        The cluster must reach its end, with every gradient applied once and the expected parameters. All faults of the
        scenario must have happened, unless this is not required.
        """
        if self.unreached and not self.unreached_allowed:
            return False
        return not self.stuck and not self.wrong and self.equality != DIFFERENT

    @property
    def only_unreached(self) -> bool:
        """Whether the only problem is that a part of the scenario did not happen."""
        return not self.holds and self._replace(unreached=()).holds


class Learnt(NamedTuple):
    """The number of rows of a parameter that the steps have changed, and the number of all its rows."""

    parameter: str
    changed: int
    rows: int


class Report(NamedTuple):
    """The result of a check.

    `schedules` is the number of other orders of events that were run. `schedule_differs` are those that ended with
    other parameters than the first one, each with the first variable that differs. `causes` are given if a variable is
    different, `applied` for modes that are not synchronous and promise no equality.
    """

    mode: str
    trainers: int
    servers: int
    steps: int
    verdicts: tuple[Verdict, ...]
    schedules: int = 0
    schedule_differs: tuple[tuple[int, str], ...] = ()
    causes: tuple[Cause, ...] = ()
    applied: Applied | None = None
    promised: bool = True
    exchanges: int = 0
    """The number of exchanges of trainers in mode geo that were held to the source; the last is that at the end."""
    replayed: bool = False
    """Whether each step was held to the source in the other orders of events, in place of comparing how they end."""
    programs: str = ""
    """The program of each step, as selected; "" if every step ran @main."""
    not_run: tuple[str, ...] = ()
    """The programs of the module that no step ran."""
    faulty: Faulty | None = None
    """The outcome of a run with faults, if one was asked for."""
    learnt: tuple[Learnt, ...] = ()
    """The rows of each updated parameter that the single machine changed. The check shows nothing about the others."""
    single_precision: str = ""
    """The reason why double precision was not available, so that a rounding bound was used; "" if it was."""
    by_gradients: bool = False
    """Whether gradients of whole batches and of shares were compared in double precision in place of a full run."""
    wrong: tuple[str, ...] = ()
    """Steps in which a machine's values are not those that the source program computes from its values before
    the step.
    """
    shares: str = ""
    """A sentence about trainers whose losses are means over different numbers of rows."""
    uneven: int = 0
    """The first step, counted from 1, in which such losses count the same; 0: there is none."""

    end: str = ""
    """A sentence about trainers whose batches end before those of others."""
    endless_wait: bool = False
    """Whether the ranks of a real job would wait without end for trainers that have no more batches."""

    no_numbers: tuple[str, ...] = ()
    """Variables that are NaN on the single machine. They show nothing about the cluster."""
    whole: tuple[str, ...] = ()
    """The inputs, if all of them declare their batch size and so every trainer received the same data."""
    opaque: tuple[str, ...] = ()
    """Sentences about ops that other libraries run, each with its line. The check can't look into such ops."""
    one_sided: tuple[str, ...] = ()
    """Sentences about numbers of the batch that lie on one side of what the program compares them with, in all of the
    data that were made. The check shows nothing about the other side."""
    fed: int = 0
    """The number of steps for which the given data suffice; 0 if data were made or have no end."""

    def __str__(self) -> str:
        """The report as `check` prints it: first the verdict, then what differs and why, then the figures."""
        return report_text(self, hint="").rstrip("\n")

    @property
    def different(self) -> tuple[Verdict, ...]:
        """The variables that are different, sorted by the step in which they first differed."""
        result = [verdict for verdict in self.verdicts if verdict.equality == DIFFERENT and verdict.kind != "metric"]
        return tuple(sorted(result, key=lambda verdict: (verdict.first, verdict.kind != "parameter", verdict.name)))

    @property
    def nothing_learnt(self) -> bool:
        """Whether the check shows nothing because no program that trains has changed a parameter."""
        return bool(self.learnt) and not any(item.changed for item in self.learnt)

    @property
    def nothing_seen(self) -> bool:
        """Whether the check shows nothing because programs that train nothing have no results to compare."""
        return not self.learnt and not any(verdict.kind in ("loss", "result") for verdict in self.verdicts)

    @property
    def by_uneven_shares(self) -> bool:
        """Whether nothing else is known to make values differ than shares of other sizes that count the same."""
        differs = self.promised and bool(self.different) and not self.causes
        return differs and 0 < self.uneven <= self.different[0].first

    @property
    def lost(self) -> bool:
        """Whether gradients were lost, or applied more than once, by servers that wait for nobody."""
        return self.applied is not None and self.applied.applied != self.applied.sent

    @property
    def holds(self) -> bool:
        """Whether the check has shown that the promise of the mode is kept."""
        faultless = self.faulty is None or self.faulty.holds
        return (
            faultless
            and not self.lost
            and not self.nothing_learnt
            and not self.nothing_seen
            and not self.no_numbers
            and not self.endless_wait
            and not self.wrong
            and not self.schedule_differs
            and not (self.promised and self.different)
        )


def report_text(report: Report, *, every: bool = False, hint: str = "; --all lists them") -> str:
    """Formats a report for a reader: the verdict, what differs and why, and what else was found.

    Variables that are as promised are only counted; with `every` each has a line. `hint` tells the reader how to list
    variables that are only counted.
    """
    cluster = cluster_of(report.trainers, report.servers)
    fed = report.fed > report.steps
    steps = f"{report.steps} of {report.fed} fed steps" if fed else quantity(report.steps, "step")
    head = f"mode {report.mode}, {cluster}, {steps}"
    head += f" of {report.programs}" if report.programs else ""
    different = report.different if report.promised else ()
    width = max((len(in_one_line(verdict.name)) for verdict in (report.verdicts if every else different)), default=4)
    most = len(different) if every else SHOWN
    lines = [_verdict(report), head, *(_line(verdict, width) for verdict in different[:most])]
    if len(different) > most:
        lines.append(f"  and {quantity(len(different) - most, 'more variable')}{hint}")
    lines += _causes(report, every=every, hint=hint)
    lines += _conclusion(report, every=every, hint=hint)
    others = [verdict for verdict in report.verdicts if verdict not in different]
    if every and any(verdict.worst for verdict in report.verdicts):
        lines.append("differences are relative to values, and in double precision to what these have changed by")
    lines += [_line(verdict, width) for verdict in others] if every else _counts(report, others, hint)
    return "\n".join(map(in_one_line, lines)) + "\n"


def _counts(report: Report, verdicts: Sequence[Verdict], hint: str) -> Iterator[str]:
    """The counts of variables by verdict, and the most different variables by name."""
    compared_verdicts = [verdict for verdict in verdicts if verdict.kind != "metric"]
    allowed = [verdict for verdict in compared_verdicts if verdict.equality == DIFFERENT]
    if allowed:
        most = max(allowed, key=lambda verdict: verdict.worst)
        yield (
            f"{len(allowed):,} of {quantity(len(compared_verdicts), 'variable')} "
            f"{'differs' if len(allowed) == 1 else 'differ'}, which the mode allows; the largest "
            f"relative difference: %{most.name}, {most.worst:.1e} after step {most.worst_step}"
        )
    figures: list[str] = []
    for equality in (BITWISE, ROUNDING):
        of = [verdict for verdict in compared_verdicts if verdict.equality == equality]
        if of:
            worst = max(of, key=lambda verdict: verdict.deviation)
            most = f" (the largest relative difference: %{worst.name}, {_figure(worst)})" if worst.deviation else ""
            figures.append(f"{quantity(len(of), 'variable')} {equality}{most}")
    metrics = len(verdicts) - len(compared_verdicts)
    if metrics:
        figures.append(f"{metrics} for metrics")
    if figures:
        yield ", ".join(figures) + hint


def _figure(verdict: Verdict) -> str:
    """The difference that decided about a variable that is as promised, and the comparison in which it was seen."""
    if verdict.settled_by in (DOUBLE, GRADIENTS):
        return f"{verdict.deviation:.1e}, {verdict.settled_by}"
    return f"{verdict.deviation or verdict.worst:.1e} after step {verdict.worst_step}"


def _line(verdict: Verdict, width: int) -> str:
    line = f"  {in_one_line(verdict.name):<{width}}  {verdict.kind:<9}  {verdict.equality}"
    if verdict.kind == "metric":
        return line if verdict.equality != DIFFERENT else f"{line}: each trainer has its own"
    if verdict.equality == DIFFERENT:
        line += f"  {verdict.worst:.1e} after step {verdict.worst_step}"
    elif verdict.equality != BITWISE:
        line += f"  {_figure(verdict)}"
    if verdict.equality == DIFFERENT:
        inside = "" if verdict.settled_by == SINGLE else f"{verdict.settled_by}: {verdict.deviation:.1e}, "
        line += f", first after step {verdict.first} ({inside}allowed {verdict.tolerance:.0e})"
    return line


def _conclusion(report: Report, *, every: bool, hint: str) -> list[str]:
    lines: list[str] = []
    if report.not_run:
        lines.append(f"not run: {', '.join(f'@{name}' for name in report.not_run)} (--program says what is)")
    if report.single_precision:
        lines.append(f"not in double precision, so {ROUGH:.0e} is taken for rounding: {report.single_precision}")
    if report.by_gradients and not report.different:
        lines.append("what differs by more is rounding, too: gradients of whole batches are the means of their shares'")
    lines += [report.shares] if report.shares and not report.by_uneven_shares else []
    if report.end:
        lines += [] if _is_verdict_of_end(report) else [report.end]
        lines.append("the steps before that one are compared")
    lines += [f"WRONG: {line}" for line in report.wrong[:SHOWN]]
    if len(report.wrong) > SHOWN:
        lines.append(f"WRONG: and {len(report.wrong) - SHOWN} more")
    if report.whole:
        named = ", ".join(f"%{name}" for name in report.whole[:SHOWN]) + (", ..." if len(report.whole) > SHOWN else "")
        lines.append(
            f"every trainer was given the same data: {named} declare{'s' * (len(report.whole) == 1)} the batch size"
        )
    if report.no_numbers:
        more = f" and {len(report.no_numbers) - SHOWN} more" if len(report.no_numbers) > SHOWN else ""
        lines.append(f"NaN on a single machine: {', '.join(f'%{n}' for n in report.no_numbers[:SHOWN])}{more}")
    lines += _not_learnt(report.learnt, every=every, hint=hint)
    lines += report.opaque
    if not report.different:
        lines += report.one_sided
    if not report.wrong:
        lines.append("every step of every machine is what the source program makes of the values before it")
        if report.exchanges:
            follow = "the one exchange follows" if report.exchanges == 1 else f"{report.exchanges:,} exchanges follow"
            lines.append(f"{follow} the recurrence of geo: what is learnt is added once, nothing is lost")
    if report.replayed and not report.wrong:
        lines.append(f"the same holds in {quantity(report.schedules, 'other schedule')}")
    elif report.schedules and not report.replayed:
        bad, schedules = len(report.schedule_differs), quantity(report.schedules, "schedule")
        if bad:
            seed, name = report.schedule_differs[0]
            end = "ends" if bad == 1 else "end"
            lines.append(f"{bad:,} of {schedules} {end} differently; schedule {seed} in %{name}")
        else:
            lines.append(f"{schedules} {'ends' if report.schedules == 1 else 'end'} bitwise equal")
    if report.applied is not None:
        result = report.applied
        were = "was" if result.sent == 1 else "were"
        lines.append(f"{result.applied:,} of {quantity(result.sent, 'gradient')} {were} applied, each once")
        most, mean = f"at most {quantity(result.stalest, 'update')}", f"{result.mean_staleness:.2f} on average"
        lines.append(f"staleness: {most} of a parameter between its fetch and the gradient made of it, {mean}")
    return [*lines, *(_fault_lines(report.faulty) if report.faulty is not None else ())]


def _causes(report: Report, *, every: bool, hint: str) -> Iterator[str]:
    """The causes of differences: the first ones, or with `every` all of them."""
    most = len(report.causes) if every else SHOWN
    for cause in report.causes[:most]:
        where = f"{cause.location}: " if cause.location else ""
        if report.mode == "ddp" and where:  # PyTorch users know the line, and neither op nor variable
            yield f"{where}{cause.why}"
            code = _code(cause.location)
            yield from [f"    {code}"] if code else ()
        else:
            yield f"{where}{cause.op_type} makes %{cause.variable} differ: {cause.why}"
        if cause.instead:
            yield f"  instead: {cause.instead}"
    if len(report.causes) > most:
        yield f"and {quantity(len(report.causes) - most, 'more cause')}{hint}"
    if report.by_uneven_shares:
        yield f"the cause is uneven shares: {report.shares}"
    elif report.promised and report.different and not report.causes:
        yield "no cause was found: no op was seen to give something else on shares of the batch, or on a server"


def _code(location: str) -> str:
    """The text of the line at a location `FILE:LINE`, `FILE:LINE:COLUMN` or `FILE:LINE:COLUMN (SCRIPT:LINE)`: that of
    the script if it can be read. Empty for other locations.
    """
    places = re.fullmatch(r"(.+?)(?: \((.+)\))?", location)
    for place in reversed(places.groups()) if places else ():
        found = re.match(r"(.+?):([0-9]+)(?::[0-9]+)?$", place or "")
        line = linecache.getline(found[1], int(found[2])).strip() if found else ""
        if line:
            return line
    return ""


def _is_verdict_of_end(report: Report) -> bool:
    """Whether the verdict is on trainers that have no more batches: nothing is wrong in the steps before."""
    return report.endless_wait and not report.wrong and not (report.promised and report.different)


def _verdict(report: Report) -> str:
    """The sentence on what the check has shown."""
    different, faultless = report.different, report.faulty is None or report.faulty.holds
    alone = "" if faultless else "without faults "
    if report.promised and different:
        return f"DIFFERENT: first %{different[0].name}, after step {different[0].first}"
    if report.wrong:
        return "the machines do not do what the source program says"
    if _is_verdict_of_end(report):
        return f"WAITS WITHOUT END: {report.end}"
    if report.nothing_learnt:
        return "NOTHING LEARNT: no parameter changed, so nothing is shown"
    if report.no_numbers:
        return f"NO NUMBERS: %{report.no_numbers[0]} is NaN, so nothing is shown"
    if report.lost:
        return "GRADIENTS LOST: not each gradient was applied once"
    if report.schedule_differs:
        return f"DIFFERENT in other orders of events: first %{report.schedule_differs[0][1]}"
    if different and not (report.faulty is not None and report.faulty.only_unreached):
        return f"{alone}what the mode promises holds; the mode gives no equality with a single machine"
    if not report.learnt:
        shown = "so nothing is shown" if report.nothing_seen else "the trainers' results are those of a single machine"
        return f"nothing is trained by what was run; {shown}"
    if report.faulty is not None and report.faulty.only_unreached:
        return "NOT REACHED: a part of the faults did not happen, so nothing is shown of it"
    if not report.promised:
        return f"{alone}the cluster trains as the single machine does, which the mode does not promise"
    if report.whole and faultless:
        return "given the same data, the trainers learn what one does; of batches that are shared this says nothing"
    return f"{alone}the cluster trains as the single machine does"


def _not_learnt(learnt: Sequence[Learnt], *, every: bool, hint: str) -> Iterator[str]:
    """The parameters, and rows, that no step changed: the first tables, or with `every` all of them."""
    still = [f"%{item.parameter}" for item in learnt if not item.changed]
    if still:
        more = f" and {len(still) - SHOWN} more" if len(still) > SHOWN else ""
        yield f"unchanged, so that nothing is shown of their updates: {', '.join(still[:SHOWN])}{more}"
    parts = [item for item in learnt if 0 < item.changed < item.rows]
    most = len(parts) if every else SHOWN
    for item in parts[:most]:
        rows = quantity(item.rows, "row")
        yield f"{item.changed:,} of {rows} of %{item.parameter} changed; nothing is shown of the others"
    if len(parts) > most:
        yield f"of {quantity(len(parts) - most, 'more table')} some rows changed; nothing is shown of the others{hint}"


def _fault_lines(result: Faulty) -> list[str]:
    """The lines about a run with faults."""
    lines = ["with faults:", *(f"  {line}" for line in result.named)]
    if result.stuck:
        return [*lines, "  STUCK: no machine can go on", *(f"  {line}" for line in result.stuck)]
    lines += [f"  not reached: {line}" for line in result.unreached]
    lines += [f"  WRONG: {line}" for line in result.wrong[:SHOWN]]
    lines += [f"  WRONG: and {len(result.wrong) - SHOWN} more"] if len(result.wrong) > SHOWN else []
    if not result.wrong:
        lines.append("  every gradient that counts was applied once")
        lines += ["  every step is what the source program makes of the values before it"] if result.held else []
    for trainer, first, last in result.away:
        when = f"step {first}" if first == last else f"steps {first} to {last}"
        lines.append(f"  the share of {trainer} in {when} is missing: it was away")
    if not result.equality and not result.not_compared and not result.held:
        lines.append("  in this mode values are not compared with faults, only counted")
    whom = "a single machine without the missing shares" if result.away else "the run without faults"
    if result.not_compared:
        lines.append(f"  the parameters are not compared: {result.not_compared}")
    elif result.equality == DIFFERENT:
        lines.append(f"  DIFFERENT: %{result.variable} does not end as that of {whom} ({result.worst:.1e})")
    elif result.equality:
        worst = "" if result.equality == BITWISE else f" ({result.worst:.1e})"
        lines.append(f"  the parameters end {result.equality} to those of {whom}{worst}")
    return lines
