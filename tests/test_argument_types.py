"""Every argument of the public functions is held to its declared type, and to what it can mean."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.ir.argument_checks import declared_kinds, is_whole

if TYPE_CHECKING:
    from pstranspile.cluster.ray.session import Session

ROOT = Path(__file__).parents[1]
MODULE = ps.load(ROOT / "examples" / "regression.ir")
JOB = ps.Job(pservers=2, trainers=2)
COMPILED = ps.compile(MODULE, JOB)
PLAN = ps.parse_plan(str(COMPILED.plan))
CLUSTER = ps.Cluster(COMPILED.roles())
ROWS = ps.Rows([{"x": 1}], batch=1)
FED = {"x": np.zeros((2, 4, 1000), "float32"), "y": np.zeros((2, 4, 20), "float32")}
ONE = {name: array[0] for name, array in FED.items()}

CALLS: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
    "Batch": (ps.Batch, {"values": ONE, "parts": {}}),
    "Cluster": (ps.Cluster, {"roles": COMPILED.roles()}),
    "Cluster.run_once": (CLUSTER.run_once, {"trainer": 0, "program": MODULE.main}),
    "Cluster.run_to": (CLUSTER.run_to, {"step": 1}),
    "Compiled.pserver": (COMPILED.pserver, {"endpoint": "a:1"}),
    "Compiled.trainer": (COMPILED.trainer, {"index": 0}),
    "Compiled.with_roles": (COMPILED.with_roles, {"roles": {}}),
    "Data": (ps.Data, {"paths": __file__, "batch": 1, "format": "csv"}),
    "Dispatcher": (ps.Dispatcher, {"pserver_endpoints": ["a:1"]}),
    "Plan.slices_on": (COMPILED.plan.slices_on, {"endpoint": "a:1"}),
    "Rows": (ps.Rows, {"rows": [], "batch": 1}),
    "Rows.continued": (ROWS.continued, {"before": ROWS.dealing(1), "step": 1, "trainers": 1}),
    "Rows.feeds": (ROWS.feeds, {"programs": [MODULE.main]}),
    "analyze": (ps.analyze, {"program": MODULE.main}),
    "check": (ps.check, {"module": MODULE, "job": JOB}),
    "compile": (ps.compile, {"module": MODULE, "job": JOB}),
    "cost": (ps.cost, {"compiled": COMPILED}),
    "diff": (ps.diff, {"a": MODULE, "b": MODULE}),
    "export": (ps.export, {"module": MODULE, "folder": "/proc/nowhere"}),
    "launch": (ps.launch, {"job": COMPILED}),
    "load": (ps.load, {"path": "/nowhere"}),
    "load_checkpoint": (ps.load_checkpoint, {"machines": CLUSTER, "job": COMPILED, "folder": "/nowhere"}),
    "load_job": (ps.load_job, {"path": None}),
    "load_plan": (ps.load_plan, {"path": "/nowhere"}),
    "load_variables": (ps.load_variables, {"program": MODULE.main, "scope": {}, "source": "/nowhere"}),
    "loads": (ps.loads, {"text": ""}),
    "make_plan": (
        ps.make_plan,
        {"facts": ps.analyze(MODULE.main), "startup": None, "job": JOB, "per_trainer": True},
    ),
    "op_graph": (ps.op_graph, {"program": MODULE.main, "indices": [0]}),
    "parse_plan": (ps.parse_plan, {"text": ""}),
    "parse_scenario": (ps.parse_scenario, {"text": ""}),
    "prepare": (ps.prepare, {"module": MODULE, "job": JOB}),
    "run": (ps.run, {"program": MODULE.main}),
    "save_checkpoint": (ps.save_checkpoint, {"machines": CLUSTER, "job": COMPILED, "folder": "/proc/nowhere"}),
    "save_feeds": (ps.save_feeds, {"path": "/proc/nowhere", "batches": [ONE]}),
    "save_variables": (ps.save_variables, {"program": MODULE.main, "scope": {}, "target": "/proc/nowhere"}),
    "simulate": (ps.simulate, {"result": COMPILED}),
    "calibrate": (ps.calibrate, {}),
    "suggest": (ps.suggest, {"module": MODULE, "job": JOB}),
    "sweep": (ps.sweep, {"module": MODULE, "job": JOB}),
    "verify": (ps.verify, {"module": MODULE}),
    "why": (ps.why, {"compiled": COMPILED, "variable": "w"}),
}
"""By name: what is called, and right arguments where it needs some."""

FREE = {
    "Cluster(schedule)", "Cluster(faults)", "Cluster(programs)", "check(feeds)", "compile(plan)", "launch(feeds)",
    "load_checkpoint(machines)", "prepare(plan)", "save_checkpoint(machines)", "simulate(feeds)", "simulate(options)",
    "simulate(programs)", "simulate(result)", "simulate(schedule)",
}  # fmt: skip
"""Arguments of types that only type checkers know, or of any type, which their functions look at."""

WRONG = (object(), b"x", float("nan"))


def arguments() -> Iterator[tuple[str, str]]:
    for name, (called, _) in CALLS.items():
        yield from ((name, parameter) for parameter in inspect.signature(called).parameters)


def test_every_argument_is_held_to_its_type():
    for name, parameter in arguments():
        called, right = CALLS[name]
        if f"{name}({parameter})" in FREE:
            continue
        for wrong in WRONG:
            with pytest.raises(TypeError, match=r"^[\w.]+ takes .*, not (a value of type|NaN)") as raised:
                called(**{**right, parameter: wrong})
            assert type(wrong).__name__ in str(raised.value) or str(raised.value).endswith("NaN")


def test_no_function_is_forgotten():
    functions = {name for name in ps.__all__ if not isinstance(getattr(ps, name), type)}
    assert functions - {"dumps", "error", "make_op"} <= CALLS.keys()


def taking(
    number: "float",
    text: "str | None",
    many: "list[int] | None",
    hidden: "Session | None",
    by_name: "dict[str, int]",
) -> None:
    """A function whose types are of every sort."""


def test_declared_types_are_read():
    assert declared_kinds(taking, "number").classes == (float,)
    assert declared_kinds(taking, "text").exact == {str, type(None)}
    for parameter in ("many", "by_name"):
        kinds = declared_kinds(taking, parameter)
        assert (kinds.elements or kinds.values or kinds).classes == (int,)
    assert not declared_kinds(taking, "hidden").is_known
    assert not declared_kinds(taking, "unknown").is_known


def test_whole_numbers():
    assert all(map(is_whole, (3, np.int8(3), np.array(3))))
    assert not any(map(is_whole, (True, np.zeros(1), np.zeros(()), "3", 3.0, None)))


LOD: Any = None


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ps.verify(MODULE, allow="type-mismatch"), "as allow, not one text; write ['type-mismatch']"),
        (lambda: ps.verify(MODULE, allow=[3]), "a list of texts as allow; one is of type int"),
        (lambda: ps.run(MODULE.main, check_nan=1), "run takes True or False as check_nan, not a value of type int"),
        (lambda: ps.simulate(COMPILED, FED, True), "a whole number as steps, not a value of type bool"),
        (lambda: ps.compile(MODULE, JOB, on_pass=0), "compile takes a function as on_pass, not a value of type int"),
        (lambda: ps.parse_plan("", file=[]), "parse_plan takes text as file, not a value of type list"),
        (lambda: ps.Batch(None, {}), "Batch takes a mapping, not a value of type NoneType"),
        (lambda: ps.Batch(ONE, {"x": 3}), "Batch takes a Part or None for each input as parts, not"),
        (lambda: ps.Data("x", batch=type), "Data takes a whole number as batch, not a value of type type"),
        (lambda: ps.Data("x", batch=1, columns={"x": 1}), "a mapping as columns; one value is of type int"),
        (lambda: ps.Rows("text", batch=1), "Rows takes a list of mappings or a function, not a value of type str"),
        (lambda: ps.load_job(None, {1: 2}), "load_job takes values by key as overrides, not a value of type int"),
        (lambda: ps.Module([MODULE.main]), "Module takes Programs by name"),
        (lambda: ps.Module(ps.FrozenMap(main=3)), "a Program for each name; 'main' is of type int"),
        (lambda: MODULE.with_programs(3), "with_programs takes Programs by name, not a value of type int"),
        (lambda: COMPILED.with_roles({"trainer_0": 3}), "with_roles takes a Role for each name"),
        (lambda: ps.Scope(3), "Scope takes a Scope as parent, not a value of type int"),
        (lambda: ps.Scope().share(3), "share takes a Scope, not a value of type int"),
        (lambda: ps.Scope().put(3, 1), "Scope takes text as the name of a variable, not a value of type int"),
        (lambda: ps.error("data-row", 3), "error takes text as message, not a value of type int"),
        (lambda: ps.error(3, "m"), "error takes text as code, not a value of type int"),
        (lambda: ps.error("data-row", "m", notes=None), "a list of Notes as notes, such as [Note(message)], not"),
        (lambda: ps.error("data-row", "m", notes=["n"]), "[Note(message)]; one is of type str"),
        (lambda: ps.DiagnosticError([ps.Diagnostic("data-row", None)]), "Diagnostic takes text as message"),
        (lambda: ps.make_op("relu", None, {}), "make_op takes names of variables by slot as inputs"),
        (lambda: ps.make_op("relu", {"X": 3}, {}), "relu: slot X takes a list of names, not a value of type int"),
        (lambda: ps.make_op("relu", {"X": [3]}, {}), "slot X of relu takes a list of names, not a value of type int"),
        (lambda: ps.make_op("relu", {}, {}, role=1), "make_op takes an OpRole as role, not a value of type int"),
        (lambda: ps.make_op("relu", {}, {}, 3), "make_op takes values by name as attrs, not a value of type int"),
        (lambda: ps.simulate(COMPILED, FED, programs=3), "a text such as main*5,generator, or a function"),
        (lambda: ps.simulate(COMPILED, FED, schedule="x"), "takes a seed, a Scheduler or None, not a value"),
        (lambda: ps.simulate(COMPILED, lambda i, n: 3, 1), "feeds takes a function that gives a mapping"),
        (lambda: ps.simulate(COMPILED, ps.Rows(lambda: 3, batch=1), 1), "a function that gives a list of rows"),
        (lambda: ps.simulate(COMPILED, "", 1), "not a value of type str"),
        (lambda: ps.simulate(COMPILED, FED, faults=ps.Scenario(keep="x")), "Scenario takes a whole number as keep"),
        (lambda: ps.simulate(COMPILED, FED, faults=ps.Scenario(events=[1])), "Scenario takes a list of"),
        (lambda: ps.simulate(COMPILED, FED, faults=ps.Scenario(ticks=(1,))), "takes two whole numbers as ticks"),
        (lambda: str(ps.Diagnostic("data-row", "m", 3)), "Diagnostic takes a Location or an Origin"),
        (lambda: MODULE.main.find_var([]), "find_var takes a name and the number of a block, not [] and 0"),
        (lambda: MODULE.main.find_var("x", None), "find_var takes a name and the number of a block, not 'x' and None"),
        (lambda: MODULE.main.main_block.ops[0].input([]), "input takes the name of a slot, not []"),
        (lambda: MODULE.main.main_block.ops[0].output({}), "output takes the name of a slot, not {}"),
        (lambda: ps.compile(MODULE, JOB, plan=PLAN._replace(lines=3)), "PlanFile takes a list of"),
    ],
)  # fmt: skip
def test_wrong_types(call: Callable[[], object], says: str):
    with pytest.raises(TypeError) as raised:
        call()
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ps.error("Run feed unknown", "m"), "not 'Run feed unknown'"),
        (lambda: ps.save_feeds("/nowhere", []), "one for each step, at least one"),
        (lambda: ps.run(MODULE.main, step=-1), "a whole number as step, 0 at least, not -1"),
        (lambda: ps.run(MODULE.main, stream=-1), "a whole number as stream, 0 at least, not -1"),
        (lambda: ps.simulate(COMPILED, FED, 0), "simulate takes a number of steps, 1 at least, not 0"),
        (lambda: ps.simulate(COMPILED, FED, shares="x"), "takes 'equal' or 'weighted' as shares, not 'x'"),
        (lambda: CLUSTER.run_to(-1), "run_to takes a number of steps, 0 at least, not -1"),
        (lambda: ps.Batch(ONE, {}, rows=-1), "a number of rows, 0 at least, not -1"),
        (lambda: ps.Batch(ONE, {}, weight=-0.5), "a weight of 0 or above, not -0.5"),
        (lambda: ROWS.dealing(0), "a number of trainers, 1 at least, not 0"),
        (lambda: ROWS.feeds([]), "the programs of the trainers, at least one"),
        (lambda: ps.Rows([], batch=10**30), "a number of rows, 1,000,000,000 at most"),
        (lambda: ps.launch(COMPILED, restarts=-1), "a number of restarts, 0 at least, not -1"),
        (lambda: ps.launch(COMPILED, threads=0), "a number of threads, 1 at least, not 0"),
        (lambda: ps.launch(COMPILED, state_every=0), "a number of updates as state_every, 1 at least, not 0"),
        (lambda: ps.launch(COMPILED, lease=0), "a number of seconds above 0 as lease, not 0"),
        (lambda: ps.Scenario().chance_line("keep"), "takes 'delay' or 'drop' or 'duplicate' as name, not 'keep'"),
    ],
)
def test_values_that_mean_nothing(call: Callable[[], object], says: str):
    with pytest.raises(ValueError) as raised:
        call()
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ps.simulate(COMPILED, FED, faults=ps.Scenario(drop=1.5)), "1.5 is no chance between 0 and 0.9"),
        (lambda: ps.simulate(COMPILED, FED, faults=ps.Scenario(ticks=(9, 1), delay=0.1)), "delay"),
        (lambda: ps.load_job("a\0b.toml"), "can't read the job file"),
        (lambda: ps.Job(pservers=np.zeros(2)), "pservers"),
        (lambda: ps.run(MODULE.main, {**ONE, "x": ps.LoDTensor(ONE["x"], LOD)}), "x is declared"),
    ],
)
def test_values_that_are_findings(call: Callable[[], object], says: str):
    with pytest.raises(ps.DiagnosticError) as raised:
        call()
    assert says in str(raised.value)


def test_trainers_that_are_not_there():
    with pytest.raises(IndexError, match="there is no trainer 2; the cluster has 2, numbered from 0"):
        CLUSTER.run_once(2, MODULE.main)


def test_programs_that_are_not_there():
    with pytest.raises(KeyError, match="the module has no program 'eval'; its programs are main, startup"):
        MODULE["eval"]
    with pytest.raises(KeyError, match="the module has no program 'main'; its programs are none"):
        _ = ps.Module().main


def test_what_is_missing_is_told_before_types():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'job'"):
        ps.compile(3)  # pyright: ignore


def test_arguments_in_wrong_places_are_told() -> None:
    """The wrong type of an argument is told first, with what to pass instead."""
    module = ps.load(ROOT / "golden" / "linear_regression.ir")
    job = ps.Job(pservers=2, trainers=2)
    launch: Any = ps.launch
    compiling: Any = ps.compile
    job_of: Any = ps.Job
    with pytest.raises(
        TypeError, match=r"^launch takes a Compiled, not a value of type Module; compile\(module, job\)"
    ):
        launch(module, job, feeds={})
    with pytest.raises(
        TypeError, match=r"^launch is given feeds twice, by its place and by its name: launch\(job, fee"
    ):
        launch(ps.compile(module, job), {}, feeds={})
    with pytest.raises(
        TypeError, match=r"^compile is given 3 arguments by place, it takes 2: compile\(module, job, \.\.\.\); "
    ):
        compiling(module, job, None)
    with pytest.raises(TypeError, match=r"^Job is given 3 arguments by place, it takes 2: Job\(pservers, trainers, "):
        job_of(2, 2, "async")
