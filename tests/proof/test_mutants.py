"""No mutant of emitted programs that changes what is computed passes the check; every other one does.

`PSTRANSPILE_MUTANTS=20000 pytest -s tests/proof/test_mutants.py` tries as many, and prints what became of them.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.machines.scenario import Scenario, parse_scenario, random_scenario
from pstranspile.compiler.compile import Compiled
from pstranspile.frontends.autodiff import SGD, Adam, Exponential, Momentum
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Module
from pstranspile.proof import check
from pstranspile.proof.check import with_wrong_starts
from pstranspile.proof.compare import plain
from pstranspile.proof.replay import Replay
from pstranspile.proof.replays import replay_of
from pstranspile.proof.training import start_cluster
from pstranspile.proof.values import make_feeds
from pstranspile.proof.workload import CheckInput, Workload
from pstranspile.runtime.run.scope import own_copy
from tests.compiler.emit.several import adversarial, two_tasks, with_evaluation
from tests.proof.mutants import CHANGES, Mutant, Place, as_compiled, mutants, places_of, programs_of, refused, with_ops
from tests.proof.orders import may_be_taken
from tests.proof.test_check import dense, sparse
from tests.proof.test_excuses import clicks
from tests.training import recorded

COUNT = int(os.environ.get("PSTRANSPILE_MUTANTS", "30"))
SEED = int(os.environ.get("PSTRANSPILE_MUTANTS_SEED", "1"))
STEPS = 3

MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "sync-faults": {},
    "fleet-sync": {},
    "async": {},
    "async-split": {"mode": "async", "runtime_split_send_recv": True},
    "half-async": {},
    "dc-asgd": {"mode": "async", "enable_dc_asgd": True},
    "async-faults": {"mode": "async"},
    "geo": {"geo_sgd_need_push_nums": 2},
    "geo-faults": {"mode": "geo", "geo_sgd_need_push_nums": 1},
    "nccl2": {},
    "grad-allreduce": {},
    "ddp": {},
    "single-process-multi-thread": {},
    "local-sgd": {},
}
WITHOUT_SERVERS = ("nccl2", "grad-allreduce", "ddp", "single-process-multi-thread", "local-sgd")

RECORDED = (
    *("adam_beta_tensor", "clip_global_norm", "clip_norm", "clip_value_l2", "conv_small_momentum", "ctr_dnn_sgd"),
    *("dist_table_sgd", "ema_sgd", "fit_a_line_sgd", "frozen_mlp", "geo_sparse_small", "lookahead_sgd", "lookup_chain"),
    *("lr_cosine", "lr_exponential", "lr_noam", "lr_piecewise", "lr_warmup", "mlp_small_adam", "opt_adamax"),
    *("opt_ftrl", "opt_rmsprop", "param_lr", "reg_l1", "sparse_l2", "static_rnn", "text_conv_adagrad", "tied_weights"),
    *("two_losses", "two_optimizers", "wide_bias", "word2vec_sparse_sgd", "while_loop", "simnet_bow_sgd"),
)
OWN: dict[str, tuple[Callable[[], Module], str | None]] = {
    "dense": (dense, None),
    "momentum": (lambda: dense(Momentum(0.1, 0.9)), None),
    "decaying": (lambda: dense(Adam(Exponential(0.1, 2, 0.5))), None),
    "sparse": (sparse, None),
    "clicks": (clicks, None),
    "adversarial": (lambda: adversarial(SGD(0.1), SGD(0.1)), "main*2,generator"),
    "two-tasks": (lambda: two_tasks([SGD(0.1), SGD(0.1)]), "main,second"),
    "evaluated": (with_evaluation, "main*2,evaluation"),
}


@cache
def source(name: str) -> tuple[Module, str | None]:
    if name in OWN:
        make, turns = OWN[name]
        return make(), turns
    return recorded(name), None


def job_of(mode: str, trainers: int) -> ps.Job:
    settings = {"mode": mode.removesuffix("-faults"), **MODES[mode]}
    if mode in WITHOUT_SERVERS:
        return ps.Job(trainers=tuple(f"t{i}:1" for i in range(trainers)), **settings)
    return ps.Job(pservers=2, trainers=trainers, min_block_size=32, **settings)


@cache
def compiled(name: str, mode: str, trainers: int) -> Compiled | None:
    """None: the model can't be trained in this mode."""
    if source(name)[1] is not None and mode in WITHOUT_SERVERS:
        return None  # they run one program
    try:
        return ps.compile(source(name)[0], job_of(mode, trainers))
    except DiagnosticError:
        return None


def held(made: Compiled, name: str, mode: str) -> str:
    """What the check says: "yes", or why not."""
    module, turns = source(name)
    assert made.job is not None
    try:
        report = check(
            module, made.job, result=made, steps=STEPS, programs=turns, faults=faults_of(made, mode), unreached=True
        )
    except DiagnosticError as problem:
        return f"error {problem.diagnostics[0].code}"
    if report.holds:
        return "yes"
    return "wrong" if report.wrong else "different"


Trace = list[Mapping[Any, Any]]


DATA = (77, 78)
"""The seeds of data by which mutants are judged. One alone may not show a mutant, such as one of gradients to clip."""


def trace(made: Compiled, name: str, mode: str, data: int, *, precise: bool = False) -> Trace | None:
    """What all machines keep after every step, on other data than that of the check; with faults also what servers end
    with. `precise`: in double precision.
    """
    module, turns = source(name)
    workload = Workload(module, turns, STEPS)
    trainers = made.plan.trainers
    feeds = workload.merge_feeds(
        {
            name: make_feeds(program, len(workload.steps_of(name)), 3 * trainers, data)
            for name, program in workload.programs.items()
        }
    )
    given = CheckInput(module, with_wrong_starts(made, workload), workload, feeds, {}, 5)
    try:
        given = given.in_doubles() if precise else given
        cluster = start_cluster(given)
        looker = replay_of(given._replace(compiled=without_changes(given.compiled)), cluster)
        cluster.start()
        found: Trace = [_kept(looker)]
        for step in range(workload.steps):
            cluster.run_to(step + 1)
            fetched = {("fetched", i): t.results[-1].values for i, t in enumerate(cluster.trainers)}
            found.append({**_kept(looker), **fetched})
        cluster.finish()
        return [*found, _kept(looker), *_with_faults(given, mode)]
    except DiagnosticError:
        return None


def _with_faults(given: CheckInput, mode: str) -> Trace:
    scenario = faults_of(given.compiled, mode)
    if scenario is None:
        return []
    cluster = start_cluster(given, watch=False, faults=scenario)
    try:
        cluster.run_to(given.workload.steps)
        return [cluster.parameters()]
    except DiagnosticError as stuck:
        return [{str(stuck): 0}]


def faults_of(made: Compiled, mode: str) -> Scenario | None:
    """What goes wrong in a mode that is tried with faults."""
    machines = [f"trainer_{i}" for i in range(made.plan.trainers)], [f"pserver_{j}" for j in range(2)]
    if mode == "sync-faults":
        return random_scenario(3, *machines, STEPS)
    return parse_scenario(ADRIFT) if mode.endswith("-faults") else None


ADRIFT = "seed 5\ndelay 0.4 1..80\ndrop 0.3\nduplicate 0.3\nslow trainer_1 40"
"""What goes wrong where trainers don't wait for each other."""


def _kept(looker: Replay) -> dict[Any, Any]:
    """Copies of what machines keep now."""
    return {place: own_copy(value) for place, value in looker.live().items()}


def without_changes(made: Compiled) -> Compiled:
    """The compile before mutation, which says what machines keep."""
    return made.with_roles({})


@cache
def idle(name: str, mode: str, trainers: int) -> frozenset[tuple[str, str]]:
    """What a start-up program makes that no op of the machine's other programs names: it can't change what they do."""
    made = compiled(name, mode, trainers)
    assert made is not None
    found: set[tuple[str, str]] = set()
    for machine, role in made.roles().items():
        programs = programs_of(role)
        begun = {name for block in programs["startup"].blocks for op in block.ops for name in op.output_names}
        for which, program in programs.items():
            if which != "startup":
                named = {
                    name for block in program.blocks for op in block.ops for name in (*op.input_names, *op.output_names)
                }
                begun -= named
        found |= {(machine, name) for name in begun}
    return frozenset(found)


def largest(one: Trace | None, other: Trace | None, unused: frozenset[tuple[str, str]] = frozenset()) -> float:
    """The largest difference of two traces, relative to the largest element; infinite if one ended early.

    What only one of them has before the first step does not count: a step that reads it shows it afterwards. Nor does
    what is `unused` by all steps.
    """
    if one is None or other is None:
        return float("inf")
    worst = 0.0
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        if number and (a.keys() ^ b.keys()) - unused:
            return float("inf")
        for place in a.keys() & b.keys():
            worst = max(worst, _apart(a[place], b[place]))
    return worst


def _apart(a: Any, b: Any) -> float:
    if isinstance(a, dict):
        return max((_apart(a[name], b[name]) for name in a), default=0.0)
    x, y = plain(a), plain(b)
    if x is None or y is None:
        return 0.0
    if x.shape != y.shape or x.dtype != y.dtype:
        return float("inf")
    if x.tobytes() == y.tobytes():
        return 0.0
    size = max(float(np.abs(x).max(initial=0.0)), 1e-12)
    with np.errstate(invalid="ignore"):
        apart = float(np.abs(x.astype("float64") - y).max(initial=0.0)) / size
    return apart if np.isfinite(apart) else float("inf")


def drawn(count: int, seed: int) -> Any:
    """Mutants of all models in all modes: name, mode, compile and mutant."""
    draw = random.Random(seed)
    names = [*RECORDED, *OWN]
    while count:
        name, mode = draw.choice(names), draw.choice(sorted(MODES))
        made = compiled(name, mode, draw.choice((2, 2, 3)))
        if made is None:
            continue
        yield name, mode, made, next(mutants(made, draw.randrange(1 << 30)))
        count -= 1


ROUNDING = 1e-11
"""The difference of two traces in double precision that is nothing but rounding."""

VISIBLE = 1e-4
"""The difference of two traces that is more than rounding in single precision."""


@cache
def unmutated(name: str, mode: str, trainers: int) -> str:
    made = compiled(name, mode, trainers)
    assert made is not None
    return held(made, name, mode)


@cache
def sound_trace(name: str, mode: str, trainers: int, data: int) -> Trace | None:
    made = compiled(name, mode, trainers)
    assert made is not None
    return trace(made, name, mode, data)


def changed_by(name: str, mode: str, made: Compiled, mutant: Compiled, data: int, *, passed: bool) -> float:
    """By how much a mutant is apart from what it was made of: 0 for the same bytes, `ROUNDING` for rounding alone.

    One that has not passed the check is looked at in double precision even if it has the same bytes.
    """
    unused = idle(name, mode, made.plan.trainers)
    apart = largest(sound_trace(name, mode, made.plan.trainers, data), trace(mutant, name, mode, data), unused)
    if apart >= VISIBLE or (passed and not apart):
        return apart
    precisely = largest(*(trace(one, name, mode, data, precise=True) for one in (made, mutant)), unused)
    return ROUNDING if precisely <= ROUNDING else max(apart, precisely)


def verdict(name: str, mode: str, made: Compiled, mutant: Mutant) -> tuple[str, str]:
    """What became of a mutant: killed, equivalent, missed, a false alarm; and by what, or how much it changes.

    It is equivalent if all machines have the same bytes as without it after every step, or if it changes nothing but
    rounding (nothing in double precision), or if servers have taken messages in another order that they might take.
    """
    before = unmutated(name, mode, made.plan.trainers)
    if before != "yes":
        return "not tried", before
    if refused(mutant):
        return "killed", "link"
    changed = as_compiled(made, mutant)
    found = held(changed, name, mode)
    apart = 0.0
    for data in DATA:
        if apart <= ROUNDING:
            apart = max(apart, changed_by(name, mode, made, changed, data, passed=found == "yes"))
    if found != "yes":
        return ("false alarm", found) if apart <= ROUNDING else ("killed", found.split()[0])
    if apart <= ROUNDING:
        return "equivalent", "but for rounding" if apart else "the same bytes"
    if MODES[mode].get("mode", mode) in ("async", "half-async") and may_be_taken(made, changed, *source(name), STEPS):
        return "equivalent", "in another order"
    return "missed", f"{apart:.1e}"


def test_no_mutant_that_changes_what_is_computed_passes():
    results: Counter[str] = Counter()
    by_mode: Counter[tuple[str, str]] = Counter()
    bad: list[str] = []
    for name, mode, made, mutant in drawn(COUNT, SEED):
        what, why = verdict(name, mode, made, mutant)
        results[f"{what} ({why})" if what in ("killed", "equivalent") else what] += 1
        by_mode[mode, what] += 1
        if what in ("missed", "false alarm"):
            bad.append(f"{what} {why}: {name} {mode} {made.plan.trainers}: {mutant.told}")
            print(bad[-1], flush=True)
    print(dict(results), {f"{mode} {what}": n for (mode, what), n in sorted(by_mode.items())})
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("mode", sorted(MODES))
def test_programs_without_a_mutation_pass(mode: str):
    for name in ("dense", "clicks", "adversarial"):
        if compiled(name, mode, 2) is not None:
            assert unmutated(name, mode, 2) == "yes"


def chosen(name: str, mode: str, role: str, which: str, op_type: str, change: str) -> tuple[Compiled, Mutant]:
    """The model for two trainers, and the mutant by a change to the first op of a type in which it can be made."""
    made = compiled(name, mode, 2)
    assert made is not None
    roles = made.roles()
    for place in places_of({role: roles[role]}):
        block = programs_of(roles[role])[place.program].blocks[place.block]
        if place.program == which and block.ops[place.index].type == op_type:
            found = CHANGES[change](block.ops, place.index, block, random.Random(1))
            if found is not None:
                return made, Mutant(found[0], {**roles, role: with_ops(roles[role], place, found[1])})
    raise AssertionError(f"no {op_type} in {role}")


@pytest.mark.parametrize(
    ("place", "change", "wanted"),
    [
        (("two-tasks", "dc-asgd", "trainer_0", "others.second", "recv"), "later", "equivalent"),
        (("wide_bias", "dc-asgd", "pserver_1", "main", "ref_by_trainer_id"), "halve", "killed"),
        (("wide_bias", "dc-asgd", "pserver_1", "startup", "assign"), "twice", "equivalent"),
        (("clip_global_norm", "single-process-multi-thread", "trainer_0", "main", "sum"), "swap-names", "equivalent"),
        (("clip_global_norm", "local-sgd", "trainer_0", "main", "sum"), "swap-names", "equivalent"),
        (("opt_adamax", "single-process-multi-thread", "trainer_0", "main", "fill_constant"), "narrow", "killed"),
        (("dense", "fleet-sync", "trainer_0", "main", "fill_constant"), "narrow", "killed"),
        (("lr_piecewise", "sync", "pserver_0", "main", "fill_constant"), "narrow", "killed"),
        (("lr_piecewise", "sync", "pserver_1", "main", "fill_constant"), "halve", "killed"),
        (("lr_exponential", "fleet-sync", "pserver_0", "startup", "fill_constant"), "narrow", "killed"),
        (("lr_exponential", "async", "pserver_0", "startup", "fill_constant"), "narrow", "killed"),
        (("dense", "sync", "trainer_1", "startup", "recv"), "drop", "killed"),
        (("dense", "async", "trainer_0", "startup", "recv"), "drop", "killed"),
        (("dense", "grad-allreduce", "trainer_1", "startup", "c_broadcast"), "drop", "killed"),
        (("dense", "nccl2", "trainer_1", "startup", "uniform_random"), "halve", "equivalent"),
    ],
)
def test_mutants_that_are_hard_to_tell(place: tuple[str, str, str, str, str], change: str, wanted: str):
    """Other orders, of sums and of messages, are the same mathematics. What is less than rounding is not, nor what goes
    unseen where every trainer draws the same initial values, or where numbers are exact in fewer bits.
    """
    made, mutant = chosen(*place, change)
    assert verdict(*place[:2], made, mutant)[0] == wanted, mutant.told


@pytest.mark.parametrize(("name", "trainers"), [("fit_a_line_sgd", 2), ("while_loop", 3)])
def test_a_parameter_may_be_fetched_before_the_gradient_of_another_is_sent(name: str, trainers: int):
    made = compiled(name, "async", trainers)
    assert made is not None
    roles = made.roles()
    ops = roles["trainer_0"].main.main_block.ops
    last = max(index for index, op in enumerate(ops) if op.type == "send")
    assert ops[last + 1].type == "recv"
    changed = (*ops[:last], ops[last + 1], ops[last], *ops[last + 2 :])
    place = Place("trainer_0", "main", 0, last)
    mutant = Mutant("", {**roles, "trainer_0": with_ops(roles["trainer_0"], place, changed)})
    assert verdict(name, "async", made, mutant) == ("equivalent", "in another order")


def test_a_start_value_that_no_op_names_changes_nothing():
    made = compiled("lr_warmup", "fleet-sync", 2)
    assert made is not None
    roles = made.roles()
    ops = roles["trainer_0"].startup.main_block.ops
    index = next(index for index, op in enumerate(ops) if "@LR_DECAY_COUNTER@" in op.output_names)
    assert ("trainer_0", "@LR_DECAY_COUNTER@") in idle("lr_warmup", "fleet-sync", 2)
    place = Place("trainer_0", "startup", 0, index)
    without = with_ops(roles["trainer_0"], place, (*ops[:index], *ops[index + 1 :]))
    assert verdict("lr_warmup", "fleet-sync", made, Mutant("", {**roles, "trainer_0": without}))[0] == "equivalent"


def test_a_start_value_that_every_step_overwrites_changes_nothing():
    made = compiled("lr_warmup", "geo", 2)
    assert made is not None
    roles = made.roles()
    ops = roles["trainer_1"].startup.main_block.ops
    index = next(index for index, op in enumerate(ops) if "learning_rate_warmup" in op.output_names)
    place = Place("trainer_1", "startup", 0, index)
    without = with_ops(roles["trainer_1"], place, (*ops[:index], *ops[index + 1 :]))
    assert verdict("lr_warmup", "geo", made, Mutant("", {**roles, "trainer_1": without}))[0] == "equivalent"
