"""Arguments of a wrong type are refused with what would be right."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.fluid import DistributeTranspiler, DistributeTranspilerConfig
from pstranspile.proof import check, make_feeds

ROOT = Path(__file__).parents[1]
TEXT = """ir 1

program @main {
  block ^0 {
  }
}

program @startup {
  block ^0 {
  }
}
"""


class Seven:
    """A number like those of numpy: no int, but usable as one."""

    def __index__(self):
        return 7


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda module, job: ps.compile(module.main, job),
            "compile takes a Module, not a value of type Program; Module",
        ),
        (lambda module, job: ps.compile("net.ir", job), "not a value of type str; load gives that of a file"),
        (lambda module, job: ps.compile(module, {"pservers": 2}), "compile takes a Job, not a value of type dict; Job"),
        (lambda module, job: ps.verify(module.main), "verify takes a Module"),
        (lambda module, job: ps.check(module, {"pservers": 2}), "check takes a Job, not a value of type dict; Job"),
        (lambda module, job: ps.analyze(module.main, 0), "analyze takes a Steps, not a value of type int"),
        (
            lambda module, job: ps.run(module.main, seed="7"),
            "run takes a whole number as seed, not a value of type str",
        ),
        (
            lambda module, job: ps.run(module.main, seed=7.0),
            "run takes a whole number as seed, not a value of type float",
        ),
        (
            lambda module, job: ps.run(module.main, stream=""),
            "a whole number as stream, not a value of type str",
        ),
        (lambda module, job: ps.dumps(3), "dumps takes a Module, not a value of type int"),
        (lambda module, job: ps.loads(b"ir 1"), "loads takes text, not a value of type bytes"),
        (lambda module, job: DistributeTranspiler({"mode": "pserver"}), "the config is a DistributeTranspilerConfig"),
        (
            lambda module, job: DistributeTranspiler().transpile(0, module, startup_program=module.startup),
            "transpile takes Programs, such as module.main, not a value of type Module",
        ),
    ],
)
def test_wrong_types(call, says):
    with pytest.raises(TypeError) as raised:
        call(ps.loads(TEXT), ps.Job(pservers=2))
    assert says in str(raised.value)


MODULE = ps.load(ROOT / "examples" / "regression.ir")
JOB = ps.Job(pservers=2, trainers=2)
COMPILED = ps.compile(MODULE, JOB)
GIVEN: dict[str, Any] = {
    "None": None,
    "number": 3,
    "text": "net.ir",
    "path": Path("net.ir"),
    "mapping": {"x": 1},
    "list": [1],
    "module": MODULE,
    "program": MODULE.main,
    "job": JOB,
    "compiled": COMPILED,
    "scope": ps.Scope(),
}
TAKES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "run": ("program", ps.run),
    "run, feed": ("None mapping scope", lambda value: ps.run(MODULE.main, value)),
    "run, fetch": ("mapping scope", lambda value: ps.run(MODULE.main, fetch=value)),
    "run, scope": ("None scope", lambda value: ps.run(MODULE.main, scope=value)),
    "simulate": ("mapping scope compiled", ps.simulate),
    "simulate, feeds": ("None mapping scope", lambda value: ps.simulate(COMPILED, value)),
    "simulate, steps": ("None number", lambda value: ps.simulate(COMPILED, steps=value)),
    "simulate, fetch": ("mapping scope", lambda value: ps.simulate(COMPILED, fetch=value)),
    "simulate, init": ("None mapping scope", lambda value: ps.simulate(COMPILED, init=value)),
    "simulate, faults": ("None", lambda value: ps.simulate(COMPILED, faults=value)),
    "launch": ("compiled", ps.launch),
    "launch, restarts": ("number", lambda value: ps.launch(COMPILED, restarts=value)),
    "Cluster": ("mapping scope", ps.Cluster),
    "analyze": ("program", ps.analyze),
    "op_graph": ("program", lambda value: ps.op_graph(value, [])),
    "compile": ("module", lambda value: ps.compile(value, JOB)),
    "compile, job": ("job", lambda value: ps.compile(MODULE, value)),
    "compile, plan": ("None", lambda value: ps.compile(MODULE, JOB, plan=value)),
    "prepare": ("module", lambda value: ps.prepare(value, JOB)),
    "prepare, plan": ("None", lambda value: ps.prepare(MODULE, JOB, plan=value)),
    "make_plan": ("", lambda value: ps.make_plan(value, None, JOB, per_trainer=True)),
    "make_plan, job": ("job", lambda value: ps.make_plan(ps.analyze(MODULE.main), None, value, per_trainer=True)),
    "trainer": ("number", COMPILED.trainer),
    "pserver": ("text", COMPILED.pserver),
    "check": ("module", lambda value: check(value, JOB)),
    "cost": ("compiled", ps.cost),
    "calibrate": ("None", lambda value: ps.calibrate(tell=value)),
    "why": ("compiled", lambda value: ps.why(value, "w")),
    "why, variable": ("text", lambda value: ps.why(COMPILED, value)),
    "suggest": ("module", lambda value: ps.suggest(value, JOB)),
    "suggest, job": ("job", lambda value: ps.suggest(MODULE, value)),
    "sweep": ("module", lambda value: ps.sweep(value, JOB)),
    "sweep, job": ("job", lambda value: ps.sweep(MODULE, value)),
    "check, plan": ("None", lambda value: check(MODULE, JOB, steps=1, plan=value)),
    "make_feeds": ("program", lambda value: make_feeds(value, 1, 2)),
    "diff": ("module program text path", lambda value: ps.diff(value, MODULE)),
    "dumps": ("module", ps.dumps),
    "export": ("module", lambda value: ps.export(value, "/proc/nowhere")),
    "export, folder": ("text path", lambda value: ps.export(MODULE, value)),
    "load": ("text path", ps.load),
    "load, startup": ("None text path", lambda value: ps.load(ROOT / "examples" / "regression.ir", startup=value)),
    "load, meta": ("None text path", lambda value: ps.load(ROOT / "examples" / "regression.ir", meta=value)),
    "load_job": ("None text path", ps.load_job),
    "load_plan": ("text path", ps.load_plan),
    "parse_plan": ("text", ps.parse_plan),
    "loads": ("text", ps.loads),
    "verify": ("module", ps.verify),
    "parse_scenario": ("text", ps.parse_scenario),
    "save_feeds": ("mapping scope", lambda v: ps.save_feeds("/proc/nowhere", v if isinstance(v, list) else [v])),
    "save_variables": ("program", lambda value: ps.save_variables(value, {}, "/nowhere")),
    "save_variables, scope": ("mapping scope", lambda value: ps.save_variables(MODULE.main, value, "/nowhere")),
    "load_variables": ("program", lambda value: ps.load_variables(value, {}, "/nowhere")),
    "load_variables, scope": ("mapping scope", lambda value: ps.load_variables(MODULE.main, value, "/nowhere")),
    "save_checkpoint": ("mapping scope", lambda value: ps.save_checkpoint(value, MODULE, "/nowhere")),
    "save_checkpoint, job": ("module compiled", lambda value: ps.save_checkpoint(ps.Scope(), value, "/nowhere")),
    "save_checkpoint, folder": ("text path", lambda value: ps.save_checkpoint(ps.Scope(), MODULE, value)),
    "load_checkpoint": ("mapping scope", lambda value: ps.load_checkpoint(value, MODULE, "/nowhere")),
    "load_checkpoint, job": ("module compiled", lambda value: ps.load_checkpoint(ps.Scope(), value, "/nowhere")),
    "load_checkpoint, folder": ("text path", lambda value: ps.load_checkpoint(ps.Scope(), MODULE, value)),
}
"""By function and argument: what it takes of `GIVEN`, and a call."""


@pytest.mark.parametrize("function", TAKES)
def test_every_public_function_says_what_it_takes(function: str):
    right, call = TAKES[function]
    for name in GIVEN.keys() - set(right.split()):
        with pytest.raises(TypeError, match=r" takes .*, not (a value of type|one name)|; one is of type"):
            call(GIVEN[name])


def test_no_public_function_is_forgotten():
    makers = {"error", "make_op"}  # of one call each in a pass, whose result is looked at
    functions = {name for name in ps.__all__ if not isinstance(getattr(ps, name), type)} - makers
    assert functions <= {name.partition(",")[0] for name in TAKES}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ps.run(MODULE), "run takes a Program, not a value of type Module; module.main is its main program"),
        (lambda: ps.simulate(JOB), "not a value of type Job; compile(module, job) gives one"),
        (lambda: ps.simulate(MODULE), "not a value of type Module; compile(module, job) gives one"),
        (lambda: ps.Cluster(COMPILED), "not a value of type Compiled; compiled.roles() gives them"),
        (lambda: ps.run(MODULE.main, fetch="loss"), "a list of names of variables, not one name; write ['loss']"),
        (lambda: ps.run(MODULE.main, scope={}), "Scope() makes one"),
        (lambda: ps.simulate(COMPILED, faults="drop 0.1"), "parse_scenario(text) gives one"),
        (lambda: ps.make_plan(MODULE.main, None, JOB, per_trainer=True), "analyze(program) gives them"),
    ],
)
def test_it_is_said_what_to_do_instead(call: Any, says: str):
    with pytest.raises(TypeError) as raised:
        call()
    assert says in str(raised.value)


UNEVEN: Any = [[1.0], [1.0, 2.0]]
FED = {"x": np.zeros((2, 4, 1000), "float32"), "y": np.zeros((2, 4, 20), "float32")}
ONE = {name: array[0] for name, array in FED.items()}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ps.simulate(COMPILED, {**FED, "x": 1}), "x has no leading step axis: it is f32[]"),
        (lambda: ps.simulate(COMPILED, {**FED, "x": [1]}), "in each step is fed f32[]"),
        (lambda: ps.simulate(COMPILED, {**FED, "x": UNEVEN}), "is fed a list that makes no array"),
        (lambda: ps.simulate(COMPILED, {**FED, "x": {"a": 1}}), "is fed dict; an array has a value for each step"),
        (lambda: ps.simulate(COMPILED, {**FED, "x": None}), "is fed nothing; an array has a value for each step"),
        (lambda: ps.simulate(COMPILED, {**FED, "x": "text"}), "is fed str; an array has a value for each step"),
        (lambda: ps.simulate(COMPILED, [{**ONE, "x": 1}]), "is fed f32[]"),
        (lambda: ps.simulate(COMPILED, [{**ONE, "x": None}]), "is fed nothing"),
        (lambda: ps.simulate(COMPILED, [{**ONE, "x": UNEVEN}]), "is fed a list that makes no array"),
        (lambda: ps.simulate(COMPILED, lambda i, step: {**ONE, "x": 1}, steps=1), "is fed f32[]"),
        (lambda: check(MODULE, JOB, feeds={**FED, "x": 1}, steps=1), "x has no leading step axis"),
        (lambda: ps.run(MODULE.main, {**ONE, "x": UNEVEN}), "is fed a list that makes no array"),
        (lambda: ps.run(MODULE.main, {1: 2}), "1 is fed, but the program declares no such variable"),
        (lambda: ps.simulate(COMPILED, FED, init={"w": UNEVEN}), "w is given rows of different lengths"),
        (lambda: ps.simulate(COMPILED, FED, init={1: 2}), "1"),
        (lambda: ps.save_feeds("/nowhere/o.npz", [{"x": UNEVEN}]), "x holds rows of different lengths"),
    ],
)
def test_values_by_name_of_other_types(call: Any, says: str):
    with pytest.raises(ps.DiagnosticError) as raised:
        call()
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ps.simulate(COMPILED, {1: FED["x"]}), "; one name is of type int"),
        (lambda: ps.simulate(COMPILED, [{1: FED["x"]}]), "; one name is of type int"),
        (lambda: check(MODULE, JOB, feeds={1: FED["x"]}, steps=1), "; one name is of type int"),
        (lambda: ps.save_feeds("/nowhere/o.npz", [{1: 2}]), "; one name is of type int"),
        (lambda: ps.Cluster({"trainer_0": 1}), "roles takes a Role for each name"),
        (lambda: ps.DiagnosticError(["text"]), "DiagnosticError takes findings, such as error(code, message), not str"),
        (lambda: ps.DiagnosticError(3), "DiagnosticError takes findings"),
    ],
)
def test_names_and_parts_of_other_types(call: Any, says: str):
    with pytest.raises(TypeError) as raised:
        call()
    assert says in str(raised.value)


def test_lists_of_numbers_are_fed_like_arrays():
    arrays = ps.simulate(COMPILED, FED, fetch=["loss"])
    lists = ps.simulate(COMPILED, {name: array.tolist() for name, array in FED.items()}, fetch=["loss"])
    assert str(lists) == str(arrays)


def test_one_finding_is_raised_like_a_list_of_one():
    finding = ps.error("run-feed-unknown", "x is fed")
    assert ps.DiagnosticError(finding).diagnostics == (finding,)


def test_numbers_for_which_no_time_is_enough():
    with pytest.raises(ValueError, match="simulate takes a number of steps, 1,000,000,000 at most"):
        ps.simulate(COMPILED, steps=10**26)
    for given in ({"steps": 10**26}, {"schedules": 10**26}, {"batch": 10**26}):
        with pytest.raises(ValueError, match=r"check takes a number of .*, 1,000,000 at most"):
            check(MODULE, JOB, **given)


def test_a_misspelt_setting_of_fluid():
    config = DistributeTranspilerConfig()
    config.print_log = True  # has no effect
    assert config.job_settings() == {}
    with pytest.raises(AttributeError, match=r"has no 'slice_varup'; did you mean slice_var_up\?"):
        config.slice_varup = False


def test_numbers_of_other_types():
    job = ps.Job(pservers=Seven(), trainers=Seven(), min_block_size=Seven())
    assert (len(job.pservers), job.trainers, job.min_block_size) == (7, 7, 7)
    assert type(job.trainers) is int


def test_machines_that_are_not_there():
    module = ps.load(ROOT / "golden" / "linear_regression.ir")
    made = ps.compile(module, ps.Job(pservers=["a:1"], trainers=2))
    with pytest.raises(IndexError, match="no trainer 2; the job has 2, numbered from 0"):
        made.trainer(2)
    with pytest.raises(KeyError, match="no server at 'b:1'; the servers are a:1"):
        made.pserver("b:1")


def test_seeds_of_other_packages_are_used():
    text = TEXT.replace("{\n  }", "{\n    temp %w : f32[3]\n    uniform_random() -> Out=%w {shape=[3]}\n  }")
    program = ps.loads(text).main
    expected = ps.run(program, fetch=["w"], seed=7)["w"]
    for seed in (np.int64(7), np.uint8(7), Seven()):
        assert np.array_equal(ps.run(program, fetch=["w"], seed=seed)["w"], expected)  # pyright: ignore[reportArgumentType]
