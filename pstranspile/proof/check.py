"""The check: compiles a module, trains both sides, and compares them."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence, Set
from contextlib import nullcontext, suppress
from math import prod
from typing import Any, NamedTuple, get_args

from pstranspile.cluster.machines.feeding import EndOfBatches, Weighing, meeting_of
from pstranspile.cluster.machines.rings import plays_executor
from pstranspile.cluster.machines.scenario import Scenario
from pstranspile.compiler.compile import Compiled, compile
from pstranspile.compiler.emit.servers import ServerJob
from pstranspile.compiler.job import Job
from pstranspile.compiler.job.modes import Promise, settings_of
from pstranspile.compiler.plan.plan import Plan
from pstranspile.compiler.plan.plan_file import PlanFile
from pstranspile.ir.argument_checks import (
    MOST_CHECKED,
    check_arguments,
    expect,
    expect_module,
    expect_number,
    expect_word,
    require_programs,
)
from pstranspile.ir.attributes import AttrValue
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import STARTUP, FrozenMap, Module, Op, Program, Role
from pstranspile.ir.types import OpRole
from pstranspile.ops import facts_of
from pstranspile.proof.causes import Suspicion, differing_gradients, server_causes
from pstranspile.proof.compare import Comparison, Snapshot, differ, plain
from pstranspile.proof.explanations import machines_of
from pstranspile.proof.faults import FaultlessRun, check_faults
from pstranspile.proof.halves import Halves, halves_of
from pstranspile.proof.replays import (
    Ledger,
    ReplayResult,
    held_in_order,
    held_to_source,
    replay_of,
    result_of,
    waits_for_nobody,
)
from pstranspile.proof.report import DIFFERENT, Applied, Cause, Report, Verdict
from pstranspile.proof.training import (
    ClusterValues,
    SingleMachine,
    made_feeds,
    naming_inputs,
    rows_of_example,
    start_cluster,
    train_both,
    zeros_for_metrics,
)
from pstranspile.proof.workload import CheckInput, OnProgress, Watch, Workload, precisely
from pstranspile.runtime.run.batch import Dealt
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.run.seeds import is_divided
from pstranspile.runtime.run.step_feeds import ENDLESS, GivenFeeds, RowSource, batches_of_rows, refuse_turns

# Trainers with wrong initial values for the variables that they should receive at the start. If a trainer does not
# receive them, the comparison fails.

TAKING_OVER = frozenset({"recv", "concat", "c_broadcast"})
"""Types of start-up ops that take initial values from another machine."""


def with_wrong_starts(made: Compiled, workload: Workload) -> Compiled:
    """The job with trainers whose own initial values of trained parameters are wrong.

    In one process every machine draws the same initial values. On a real cluster without a seed each machine draws
    others, and trainers take them from the servers, or from the first trainer, which keeps its own.
    """
    sound = made.with_roles({})
    trained = {name for half in halves_of(made, workload).values() for name in half.sent_gradients}
    roles: dict[str, Role] = {}
    for number in range(0 if made.plan.pservers else 1, made.plan.trainers):
        role, startup = made.trainer(number), sound.trainer(number).startup
        taken = {name for op in startup.main_block.ops if op.type in TAKING_OVER for name in op.output_names}
        given = trained if plays_executor(startup) else trained & taken
        roles[role.name] = role._replace(startup=_wrong(role.startup, given))
    return made.with_roles({**made.roles(), **roles})


def _wrong(startup: Program, names: Set[str]) -> Program:
    """A start-up program that changes the variables `names` before values are taken from another machine.

    The change comes right before that, so that what is computed from the variables earlier is not changed.
    """
    ops, changed_names, taking = list[Op](), set[str](), False
    for op in startup.main_block.ops:
        if not taking and op.type in TAKING_OVER:
            ops += map(_other_value, sorted(changed_names))
            taking = True
        ops.append(op)
        fresh = set(op.output_names) - set(op.input_names) if op.type not in TAKING_OVER else set[str]()
        changed_names |= names & fresh
        ops += map(_other_value, sorted(names & fresh)) if taking else ()
    ops += () if taking else map(_other_value, sorted(changed_names))
    block = startup.main_block._replace(ops=tuple(ops))
    return startup.with_main_block(block)


def _other_value(name: str) -> Op:
    attrs: dict[str, AttrValue] = {"scale": -0.5, "bias": 1.0, "bias_after_scale": True}
    return Op("scale", FrozenMap({"X": (name,)}), FrozenMap({"Out": (name,)}), FrozenMap(attrs))


STEPS = 5
"""The largest default number of steps."""

STEPS_OF_LARGE = 3
"""The default number of steps with made data for a program whose persistable variables exceed `LARGE`."""

LARGE = 64
"""The size of persistable variables, in MB, above which a program is trained in double precision only if the result in
single precision is doubtful. Many machines hold copies of them.
"""

COLLECTED = 16
"""The size of persistable variables, in MB, above which the memory of finished machines is freed at once."""

MOST_IN_DOUBLES = 256
"""The size of persistable variables, in MB, above which a program is never trained in double precision."""

ROWS_PER_TRAINER = 3
"""The number of rows per trainer in a batch of made data."""


@check_arguments
def check(
    module: Module,
    job: Job,
    *,
    feeds: GivenFeeds | RowSource | None = None,
    steps: int | None = None,
    schedules: int = 0,
    init: Mapping[str, Any] | None = None,
    seed: int = 0,
    batch: int | None = None,
    result: Compiled | None = None,
    plan: Plan | PlanFile | None = None,
    programs: str | None = None,
    faults: Scenario | None = None,
    unreached: bool = False,
    shares: Weighing = "equal",
    progress: OnProgress | None = None,
    watch: Watch | None = None,
) -> Report:
    """Trains on one machine and on the cluster, from the same start on the same data, and compares after every step.

    `feeds` are arrays by input as in a feed file, a mapping for each step, or rows (`Data`); without them data are
    made that are like the module's example or suit the program's declarations, `batch` rows a step (default: 3 per
    trainer). Both sides start with the values that come with the module, and those of `init`. `steps` is the number
    of steps (default: as many as are fed, at most 5; of made data 3 where programs keep more than 64 MB). The
    cluster runs `schedules` more times, each in another order of events. These runs must end bitwise equal; where
    servers wait for nobody, each step of these runs must be what the source program makes of the values before it.
    `seed` replaces the seeds of the programs if it is not 0. `plan` is used instead of one made from the job, as by
    `compile`. `result` is a compile of the module for the job, if there is one
    already, with the plan that it has. `programs` selects the program of each step, where the module has
    several (`main*5,generator`); feeds are then for every program that has such an input, or for one
    (`PROGRAM/INPUT`). With `faults` the cluster runs once more with that scenario, and must keep its promise; all
    of it must happen, unless `unreached`. `shares`: the weights of the trainers' shares of a batch if they have
    different numbers of rows: "equal", or "weighted" by rows. `progress` is called with what is being done, how
    much of it, and of how much. `watch` is called with each cluster before it starts. Raises DiagnosticError.
    """
    module, result = _source(module, job, result, plan)
    for count, least, what in (
        (steps, 1, "a number of steps"),
        (batch, 1, "a number of rows"),
        (schedules, 0, "a number of orders"),
    ):
        expect_number(least if count is None else count, "check", what, MOST_CHECKED, least)
    expect_word(shares, "check", "shares", get_args(Weighing))
    fed, end = 0, None
    if isinstance(feeds, RowSource):
        refuse_turns(programs)
        rows, given_feeds = feeds, batches_of_rows(feeds, module.main, job.trainers, steps, STEPS)
        fed = rows.feeds([module.main] * job.trainers)[1]
        feeds, end = _until_one_ends(given_feeds, job)
        steps = len(feeds) if end is not None else steps
    buffers = job.mode == "ddp" and bool(module.example)  # of a model that was traced
    workload = Workload(module, programs, steps or STEPS, progress, shares, watch, buffers=buffers)
    if steps is None:
        workload.limit_to(_usual_steps(workload, feeds))
    seed = seed or module[STARTUP].random_seed or module.main.random_seed or 1
    init = {**module.start, **(init or {})}
    init = {**zeros_for_metrics(module, workload, init), **init}
    data, one_sided = feeds, tuple[str, ...]()
    if feeds is not None:
        fed = fed or workload.feeds(feeds).steps or 0
    if data is None:
        usual = rows_of_example(module.example) or ROWS_PER_TRAINER * job.trainers
        data, one_sided = made_feeds(workload, batch or usual, seed, job.trainers, module)
    workload.feeds(data).require(workload.steps)
    check_input = CheckInput(
        module, with_wrong_starts(result or compile(module, job, plan=plan), workload), workload, data, init, seed
    )
    with naming_inputs(workload, made=feeds is None):
        first = _first_run(check_input, ends=bool(schedules), parameters=faults is not None)
    if _kept_by(workload.whole_program) > COLLECTED:
        gc.collect()  # machines refer to each other, so that only the collector frees them
    report, shown = _compare_fault_free(check_input, job, first)
    report = report._replace(fed=fed if fed < ENDLESS else 0, one_sided=one_sided)
    if end is not None:
        report = report._replace(end=_sentence_of(end, job), endless_wait=meeting_of(job.mode) == "ranks")
    promise = settings_of(job.mode).promise
    if schedules and waits_for_nobody(check_input.compiled.plan):
        report = report._replace(
            schedules=schedules, replayed=True, wrong=(*report.wrong, *_other_orders(check_input, schedules))
        )
    elif schedules:
        differing = _other_schedules(check_input, first.start, schedules, first.ends)
        report = report._replace(schedules=schedules, schedule_differs=differing)
    if report.different and (job.trainers > 1 or len(job.pservers) > 1 or promise is Promise.SINGLE_TRAINER):
        report = report._replace(causes=tuple(_causes(check_input, first, shown, report.different)))
    if faults is not None:
        workload.progress("with faults: step", 0, workload.steps)
        sound = FaultlessRun(first.parameters, not report.different, bool(report.shares))
        faulty = check_faults(check_input, faults, sound if promise is Promise.ALWAYS else None)
        report = report._replace(faulty=faulty._replace(unreached_allowed=unreached))
    return report


def _until_one_ends(batches: Sequence[Dealt], job: Job) -> tuple[Sequence[Dealt], EndOfBatches | None]:
    """The batches before the first that some trainer has not, and the trainers that have not got it; None if all have
    all. Raises DiagnosticError where it is the first one.
    """
    for step, batch in enumerate(batches):
        without = tuple(trainer for trainer in range(job.trainers) if batch.is_without(trainer, job.trainers))
        if without:
            end = EndOfBatches(step + 1, without)
            if not step:
                raise DiagnosticError([error("feed-shares", _sentence_of(end, job))])
            return batches[:step], end
    return batches, None


def _sentence_of(end: EndOfBatches, job: Job) -> str:
    """The sentence about trainers whose batches end before those of others, in the words of the mode."""
    return end.describe(meeting_of(job.mode), ddp=job.mode == "ddp")


def _source(
    module: Module, job: Job, result: Compiled | None, plan: Plan | PlanFile | None
) -> tuple[Module, Compiled | None]:
    """The module that the single machine trains, and the compile if there is one.

    Tables that the job makes large are large on the single machine, too.
    """
    expect_module(module, "check")
    expect(job, Job, "check")
    require_programs(module)
    if job.large_tables:
        result = result or compile(module, job, plan=plan)
        module = result.source
    return module, result


def _usual_steps(workload: Workload, feeds: GivenFeeds | None) -> int:
    """The default number of steps."""
    if feeds is not None:
        return min(workload.feeds(feeds).steps or STEPS, STEPS)
    return STEPS_OF_LARGE if _kept_by(workload.whole_program) > LARGE else STEPS


class _FirstRun(NamedTuple):
    """The results of a run in single precision.

    `start` and `began` are those of the single machine. `first_shares` are the trainers' shares of the batch in the
    first step of each program. `uneven_step` is the first step, from 0, in which shares have different numbers of rows;
    -1 if there is none. `parameters` and `ends` are the final values of the cluster, if requested. `replay_result` is
    the result of the replay against the source, if it was made; `refusal` is the reason why double precision was not
    used.
    """

    comparison: Comparison
    start: Snapshot
    began: Mapping[str, Snapshot]
    first_shares: Mapping[int, Sequence[Mapping[str, Any]]]
    parameters: Snapshot
    ends: Snapshot
    other_types: Sequence[str]
    applied: Applied | None
    uneven: str
    uneven_step: int
    replay_result: ReplayResult | None
    refusal: str


def _first_run(check_input: CheckInput, *, ends: bool, parameters: bool) -> _FirstRun:
    """Trains both sides in single precision. Programs that keep more than `LARGE` are also replayed against the
    source.
    """
    workload, plan = check_input.workload, check_input.compiled.plan
    single, cluster = SingleMachine(check_input), start_cluster(check_input)
    ledger = Ledger(_plans(check_input.compiled)) if settings_of(plan.mode).promise is Promise.SINGLE_TRAINER else None
    if ledger is not None:
        cluster.network.observe(ledger)
    cluster_values, comparison = (
        ClusterValues(check_input.compiled, cluster, single.start),
        Comparison(workload, single.start),
    )
    size = _kept_by(workload.whole_program)
    most = LARGE if size <= MOST_IN_DOUBLES else MOST_IN_DOUBLES
    replay = replay_of(check_input, cluster) if size > most else None
    train_both(single, cluster_values, comparison.look, replay)
    all_ends = cluster_values.values() if ends and ledger is None else {}
    parameter_ends = cluster.parameters() if parameters else {}
    cluster.finish()
    if replay is not None:
        replay.end()
    shares = cluster.shares
    uneven = shares.uneven() if shares is not None else None
    fed = [shares.of(trainer.index) for trainer in cluster.trainers] if shares is not None else []
    steps = [step for step in map(workload.first_step, workload.programs) if step >= 0]
    return _FirstRun(
        comparison,
        single.start,
        single.began,
        {step: [share for feed in fed if (share := feed(step)) is not None] for step in steps},
        parameter_ends,
        all_ends,
        cluster_values.other_types(),
        ledger.result() if ledger else None,
        uneven.describe(workload.shares) if uneven else "",
        uneven.step - 1 if uneven else -1,
        None if replay is None else result_of(replay),
        f"the program keeps {size:.0f} MB, more than {most}" if replay is not None else "",
    )


def _compare_fault_free(check_input: CheckInput, job: Job, first: _FirstRun) -> tuple[Report, Mapping[str, str]]:
    """Compares both sides without faults and in one order of events.

    Returns the report, and the reasons for deviations on servers. The verdicts are of double precision if possible.
    """
    workload, promised = check_input.workload, _promises(job)
    verdicts, replay_result, refused = first.comparison.verdicts(), first.replay_result, first.refusal
    doubtful = promised and any(v.equality == DIFFERENT and v.kind != "metric" for v in verdicts)
    in_doubt = replay_result is not None and bool(doubtful or replay_result.problems)
    if replay_result is None or (in_doubt and _kept_by(workload.whole_program) <= MOST_IN_DOUBLES):
        replay_result, refused = precisely(
            check_input, lambda given: held_to_source(given, verdicts if promised else ())
        )
    settled = tuple(verdicts if refused or not promised else replay_result.verdicts)
    by_gradients = False
    if (
        refused
        and doubtful
        and not replay_result.problems
        and not any(verdict.name in replay_result.design_reasons for verdict in verdicts)
    ):
        gradients = differing_gradients(check_input, first.start)
        by_gradients = not gradients.refusal
        settled = tuple(gradients.settle(verdicts)) if by_gradients else settled
    report = Report(
        mode=job.mode,
        trainers=job.trainers,
        servers=len(job.pservers),
        steps=workload.steps,
        verdicts=settled,
        applied=first.applied,
        promised=promised,
        wrong=(*first.other_types, *replay_result.problems),
        exchanges=replay_result.exchanges,
        programs=workload.text,
        whole=_given_whole(check_input),
        not_run=tuple(name for name in workload.known_programs if name not in workload.programs),
        learnt=first.comparison.learnt(),
        single_precision=refused,
        by_gradients=by_gradients,
        no_numbers=tuple(first.comparison.no_numbers),
        shares=first.uneven,
        uneven=first.uneven_step + 1 if workload.shares == "equal" else 0,
        opaque=_opaque(check_input.module),
    )
    return report, replay_result.design_reasons


def _opaque(module: Module) -> tuple[str, ...]:
    """Sentences about ops that other libraries run, each with its location."""
    ops = (op for program in module.programs.values() for block in program.blocks for op in block.ops)
    told = [(op.location, facts_of(op.type).opaque) for op in ops if op.role != OpRole.BACKWARD]
    return tuple(f"{place}: {what}" if place is not None else what for place, what in told if what)


def _given_whole(check_input: CheckInput) -> tuple[str, ...]:
    """The inputs, sorted, if all of them declare their batch size and so every trainer receives the same data; else
    none.
    """
    workload, feeds = check_input.workload, check_input.workload.feeds(check_input.feeds)
    fed = {name for step in range(workload.steps) for name in feeds.step(step)}
    shared = check_input.compiled.plan.trainers > 1 and not any(
        is_divided(workload.whole_program, name) for name in fed
    )
    return tuple(sorted(fed)) if shared else ()


def _kept_by(program: Program) -> float:
    """The size of a program's persistable variables in single precision, in MB."""
    kept = [var for var in program.main_block.vars.values() if var.persistable and var.tensor is not None]
    return sum(4 * prod(max(dim, 0) for dim in var.shape) for var in kept) / 1e6


def _promises(job: Job) -> bool:
    """Whether the mode promises the results of a single machine.

    It does not for a communicator, which merges gradients of several steps.
    """
    promise = settings_of(job.mode).promise
    if promise is Promise.SINGLE_TRAINER:
        return job.trainers == 1 and not job.runtime_split_send_recv
    return promise is Promise.ALWAYS


def _plans(made: Compiled) -> list[Plan]:
    """The plans of all programs that train. Each names the gradients of its program."""
    emitter = made.emitter
    return [part.plan for part in emitter.parts] if isinstance(emitter, ServerJob) else [made.plan]


def _other_schedules(
    check_input: CheckInput, start: Snapshot, schedules: int, wanted: Snapshot
) -> tuple[tuple[int, str], ...]:
    """The numbers of the schedules that end with values other than `wanted`, each with the first variable that
    differs.
    """
    workload = check_input.workload
    result: list[tuple[int, str]] = []
    for schedule in range(1, schedules + 1):
        cluster = start_cluster(check_input, schedule, watch=False)
        cluster.run_to(workload.steps)
        held = ClusterValues(check_input.compiled, cluster, start)
        differing = next(
            (n for n in wanted if not differ(plain(held.value(n)), plain(wanted[n]), by_element=True)[0]), None
        )
        cluster.finish()
        workload.progress("orders of events", schedule, schedules)
        if differing is not None:
            result.append((schedule, differing))
    return tuple(result)


def _other_orders(check_input: CheckInput, schedules: int) -> list[str]:
    """What is wrong in other orders of events of a job whose servers wait for nobody."""
    plans = _plans(check_input.compiled)

    def run(check_input: CheckInput) -> list[str]:
        result: list[str] = []
        for schedule in range(1, schedules + 1):
            result += held_in_order(check_input, schedule, Ledger(plans))
            check_input.workload.progress("orders of events", schedule, schedules)
        return result

    return (
        run(check_input)
        if _kept_by(check_input.workload.whole_program) > MOST_IN_DOUBLES
        else precisely(check_input, run)[0]
    )


def _of_shares(
    check_input: CheckInput,
    half: Halves,
    held: Snapshot,
    feed: Mapping[str, Any],
    shares: Sequence[Mapping[str, Any]],
    step: int,
) -> list[Cause]:
    """Searches a step on shares for causes; in double precision if there are none in single precision."""
    machines = machines_of(check_input.compiled.plan.mode)
    for doubles in (False, True):
        with suppress(DiagnosticError) if doubles else nullcontext():
            looked = Suspicion(
                half,
                held,
                feed,
                shares,
                check_input.seed,
                step=step,
                machines=machines,
                doubles=doubles,
                buffers=check_input.workload.buffers,
            ).causes()
            if looked:
                return looked
    return []


def _causes(
    check_input: CheckInput, first: _FirstRun, shown: Mapping[str, str], different: Sequence[Verdict]
) -> list[Cause]:
    """The ops that cause differences: first those on trainers, then those on servers (from `shown`).

    The first step of each program is searched. If no cause is found there, the steps of `_steps_to_search` are
    searched.
    """
    workload = check_input.workload
    halves, feeds = halves_of(check_input.compiled, workload), workload.feeds(check_input.feeds)
    result: dict[Cause, None] = {}
    if check_input.compiled.plan.trainers > 1:
        searched = {step for name in workload.programs if (step := workload.first_step(name)) >= 0}
        for step in sorted(searched):
            name = workload.turns.program(step)
            held = first.began.get(name, first.start)
            result.update(
                dict.fromkeys(
                    _of_shares(check_input, halves[name], held, feeds.step(step), first.first_shares[step], step)
                )
            )
        if not result:
            later = [step for step in _steps_to_search(different, first.uneven_step) if step not in searched]
            result.update(dict.fromkeys(_later_causes(check_input, halves, first.start, later)))
    for program in workload.programs.values():
        result.update(dict.fromkeys(server_causes(program, shown, [verdict.name for verdict in different])))
    return list(result)


MOST_SEARCHED = 4
"""The most steps that are searched for causes after the first step of each program. Each is computed several times."""


def _steps_to_search(different: Sequence[Verdict], uneven: int) -> list[int]:
    """The first steps, from 0, in which a variable differs or in which shares have different numbers of rows.

    `uneven` is the first step with shares of different sizes; -1 if there is none. At most `MOST_SEARCHED` are
    returned.
    """
    steps = {verdict.first - 1 for verdict in different} | {uneven}
    return sorted(step for step in steps if step >= 0)[:MOST_SEARCHED]


def _later_causes(
    check_input: CheckInput, halves: Mapping[str, Halves], start: Snapshot, steps: Sequence[int]
) -> list[Cause]:
    """The causes in the first of `steps` that shows any. Each step starts from the values of the cluster before it."""
    if not steps:
        return []
    workload, cluster = check_input.workload, start_cluster(check_input, watch=False)
    held, feeds = ClusterValues(check_input.compiled, cluster, start), workload.feeds(check_input.feeds)
    cluster.start()
    for number, step in enumerate(steps):
        cluster.run_to(step)
        half = halves[workload.turns.program(step)]
        values = {name: own_copy(value) for name in sorted(start) if (value := held.value(name)) is not None}
        shares = [share for trainer in cluster.trainers if (share := trainer.feed(step)) is not None]
        found = _of_shares(check_input, half, values, feeds.step(step), shares, step)
        workload.progress("causes: step", number + 1, len(steps))
        if found:
            return found
    return []
