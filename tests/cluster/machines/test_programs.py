"""Trainers with several programs that take turns: each update of the servers is that of one program."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.machines.scenario import parse_scenario
from pstranspile.cluster.machines.simulate import Simulated, cluster_of, simulate
from pstranspile.compiler.compile import Compiled
from pstranspile.frontends.autodiff import SGD, Adam, Adamax, Exponential, Momentum
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import MAIN, FrozenMap, Module, Op
from pstranspile.runtime.run.files import ArrayFile
from pstranspile.runtime.run.step_feeds import ProgramFeeds, arrays_by_program, parse_turns, step_programs
from tests.compiler.emit.several import DISCRIMINATOR, GENERATOR, adversarial, two_tasks, with_evaluation

SEED = 7
STEPS = 8
TURNS = "main*2,@generator"


def ran(done: Simulated) -> list[list[str]]:
    """The programs of every trainer's steps."""
    return [[result.program for result in trainer.results] for trainer in done.cluster.trainers]


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.RandomState(seed).uniform(-1, 1, shape).astype("float32")


def adversarial_feeds() -> dict[str, Any]:
    return {
        "noise": numbers(6, 12, 8),
        "real": numbers(6, 12, 200, seed=1),
        "generator/noise": numbers(4, 12, 8, seed=2),
    }


def job(mode: str = "sync", trainers: int = 2, **settings: object) -> ps.Job:
    return ps.Job(pservers=2, trainers=trainers, mode=mode, min_block_size=1000, **settings)


@cache
def compiled(trainers: int = 2, mode: str = "sync") -> Compiled:
    return ps.compile(adversarial(), job(mode, trainers))


def alone(module: Module, feeds: dict[str, Any], text: str, steps: int) -> ps.Scope:
    programs = step_programs(module)
    turns = parse_turns(text, programs)
    given = ProgramFeeds(programs, turns, feeds)
    scope = ps.Scope()
    ps.run(module["startup"], scope=scope, seed=SEED)
    for step in range(steps):
        ps.run(programs[turns.program(step)], feed=given.step(step), scope=scope, seed=SEED, step=step)
    return scope


def run(made: Compiled, feeds: Any, text: Any = TURNS, steps: int = STEPS, **options: Any) -> Simulated:
    return simulate(made, feeds, steps, programs=text, seed=SEED, **options)


@pytest.mark.parametrize("mode", ["sync", "fleet-sync", "async", "half-async"])
def test_one_trainer_does_what_one_machine_does(mode: str):
    scope = alone(adversarial(), adversarial_feeds(), TURNS, STEPS)
    done = run(compiled(1, mode), adversarial_feeds())
    assert set(done.parameters) == {*DISCRIMINATOR, *GENERATOR}
    for name, value in done.parameters.items():
        np.testing.assert_array_equal(value, scope[name], name)


@pytest.mark.parametrize("mode", ["sync", "fleet-sync"])
def test_several_trainers_in_any_order_of_events(mode: str):
    scope = alone(adversarial(), adversarial_feeds(), TURNS, STEPS)
    done = run(compiled(3, mode), adversarial_feeds())
    for name, value in done.parameters.items():
        np.testing.assert_allclose(value, scope[name], rtol=1e-4, atol=2e-6)
    for schedule in range(50 if mode == "sync" else 10):
        again = run(compiled(3, mode), adversarial_feeds(), schedule=schedule)
        for name, value in done.parameters.items():
            np.testing.assert_array_equal(again.parameters[name], value)


BOTH = {"x": numbers(4, 8, 120), "y": numbers(4, 8, 1)}


@pytest.mark.parametrize(
    "optimizers", [[SGD(0.1), Adam(0.01)], [Adamax(0.01), Momentum(0.1, 0.9)]], ids=["sgd, adam", "adamax, momentum"]
)
def test_what_both_programs_train(optimizers: list[Any]):
    module = two_tasks(optimizers)
    done = run(ps.compile(module, job(trainers=1)), BOTH, "main,second")
    scope = alone(module, BOTH, "main,second", STEPS)
    for name, value in done.parameters.items():
        np.testing.assert_array_equal(value, scope[name])


def test_what_both_programs_train_with_several_trainers():
    module = two_tasks([SGD(0.1), Momentum(0.1, 0.9)])
    done = run(ps.compile(module, job(trainers=2)), BOTH, "main,second")
    scope = alone(module, BOTH, "main,second", STEPS)
    for name, value in done.parameters.items():
        np.testing.assert_allclose(value, scope[name], rtol=1e-4, atol=1e-6)


def test_an_update_leaves_the_other_program_alone():
    """Its parameters, and the state of its optimizers: nothing of the generator moves in steps of the discriminator."""
    cluster = cluster_of(compiled(), programs=TURNS, seed=SEED)
    cluster.feed(adversarial_feeds())
    cluster.start()
    before = {
        server.name: {n: v.copy() for n, v in server.scope.items() if _is_of(n, "g")} for server in cluster.servers
    }
    cluster.run_to(2)
    for server in cluster.servers:
        for name, value in before[server.name].items():
            np.testing.assert_array_equal(server.scope[name], value)
    cluster.run_to(3)
    assert any((server.scope[n] != v).any() for server in cluster.servers for n, v in before[server.name].items())
    cluster.finish()
    assert [server.updates for server in cluster.servers] == [3, 3]


def _is_of(name: str, letter: str) -> bool:
    return name.startswith(letter) and name[1].isdigit() and "GRAD" not in name


def test_just_the_main_program_of_several():
    """The blocks of what is not run stay idle, with and without turns."""
    feeds = {"noise": numbers(3, 12, 8), "real": numbers(3, 12, 200)}
    plain = simulate(compiled(), feeds, 3, seed=SEED)
    named = run(compiled(), feeds, "main", 3)
    for name, value in plain.parameters.items():
        np.testing.assert_array_equal(value, named.parameters[name])


def test_an_evaluation_sees_the_parameters_of_the_step_before():
    module = with_evaluation()
    ids = np.random.RandomState(0).randint(0, 1000, (6, 8, 1)).astype("int64")
    feeds = {"main/ids": ids, "y": numbers(6, 8, 1), "evaluation/ids": np.stack([ids[0]] * 3)}
    made = ps.compile(module, job())
    score = module["evaluation"].main_block.ops[-1].outputs["Out"][0]
    done = run(made, feeds, "main,evaluation/2", 9, fetch=[f"evaluation/{score}"])
    assert ran(done) == [["main", "main", "evaluation"] * 3] * 2
    assert [server.updates for server in done.cluster.servers] == [6, 6]
    assert list(done.fetched[0]) == [f"evaluation/{score}"]
    assert sorted(done.arrays())[-2:] == [f"trainer_{i}/evaluation/step/{score}" for i in (0, 1)]
    scope = alone(module, feeds, "main", 6)
    wanted = ps.run(module["evaluation"], feed={"ids": ids[0]}, fetch=[score], scope=scope)[score]
    found = np.concatenate([fetched[f"evaluation/{score}"][-1] for fetched in done.fetched])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    for schedule in range(5):
        again = run(made, feeds, "main,evaluation/2", 9, schedule=schedule, fetch=[f"evaluation/{score}"])
        for one, other in zip(done.fetched, again.fetched, strict=True):
            np.testing.assert_array_equal(one[f"evaluation/{score}"], other[f"evaluation/{score}"])


def test_one_trainer_may_evaluate_alone():
    """The others train on; nobody waits, since an evaluation is nothing to the servers."""
    module = with_evaluation()

    def program(trainer: int, step: int) -> str:
        return "evaluation" if trainer == 0 and step == 1 else "main"

    def feed(trainer: int, step: int) -> dict[str, Any] | None:
        if step == 3 + (trainer == 0):
            return None
        ids = np.full((4, 1), step, "int64")
        return {"ids": ids} if program(trainer, step) == "evaluation" else {"ids": ids, "y": numbers(4, 1)}

    done = simulate(ps.compile(module, job()), feed, 5, programs=program)
    assert ran(done) == [["main", "evaluation", "main", "main"], ["main"] * 3]
    assert {server.updates for server in done.cluster.servers} == {3}


def test_trainers_that_run_different_programs_are_told():
    with pytest.raises(DiagnosticError) as told:
        run(compiled(), adversarial_feeds(), lambda trainer, step: ("main", "generator")[trainer and step == 2])
    (found,) = told.value.diagnostics
    assert found.code == "cluster-programs"
    assert "@generator and @main" in found.message
    assert [note.message for note in found.notes] == ["trainer_0: @main, step 3", "trainer_1: @generator, step 3"]


def test_a_stuck_cluster_tells_who_runs_what():
    def feed(trainer: int, step: int) -> dict[str, Any]:
        return {"ids": np.zeros((4, 1), "int64"), "y": numbers(4, 1)}

    turns = lambda trainer, step: "evaluation" if trainer and step == 1 else "main"  # noqa: E731
    made = ps.compile(with_evaluation(), job())
    with pytest.raises(DiagnosticError) as told:
        simulate(made, lambda t, s: {"ids": feed(t, s)["ids"]} if turns(t, s) == "evaluation" else feed(t, s), 2,
                 programs=turns)  # fmt: skip
    assert told.value.diagnostics[0].code == "cluster-stuck"
    assert "trainer_0 runs @main" in str(told.value)


def test_a_gradient_that_its_program_does_not_send():
    """A hand-made fault: the generator's program sends nothing for one parameter."""
    roles = dict(compiled().roles())
    for name in ("trainer_0", "trainer_1"):
        program = roles[name].others["generator"]
        ops = [op for op in program.main_block.ops if op.type != "send" or "g0_b@GRAD" not in op.inputs["X"][0]]
        assert len(ops) == len(program.main_block.ops) - 1
        fewer = program._replace(blocks=(program.main_block._replace(ops=tuple(ops)), *program.blocks[1:]))
        roles[name] = roles[name]._replace(others=type(roles[name].others)({"generator": fewer}))
    with pytest.raises(DiagnosticError, match=r"cluster-not-sent.*nobody sent g0_b@GRAD"):
        run(roles, adversarial_feeds())


def test_a_step_counter_counts_the_steps_of_its_program():
    module = adversarial(SGD(Exponential(0.1, 2, 0.5)), SGD(0.2))
    scope = alone(module, adversarial_feeds(), TURNS, STEPS)
    for mode in ("fleet-sync", "async", "half-async"):
        done = run(ps.compile(module, job(mode, 1)), adversarial_feeds())
        for name, value in done.parameters.items():
            np.testing.assert_allclose(value, scope[name], rtol=1e-6, atol=1e-7, err_msg=f"{mode} {name}")


FAULTS = "drop 0.1\nduplicate 0.1\ncrash pserver_1 step 5 after 2 restart 30"


def test_faults_change_nothing():
    done = run(compiled(), adversarial_feeds())
    again = run(compiled(), adversarial_feeds(), faults=parse_scenario(FAULTS))
    assert any("crashed" in text for _, text in again.cluster.injector.log)
    for name, value in done.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], value)


def test_a_trainer_that_leaves_and_rejoins():
    done = run(
        compiled(),
        adversarial_feeds(),
        faults=parse_scenario("crash trainer_1 step 3 after 1\nrejoin trainer_1 step 6"),
    )
    assert all(np.isfinite(value).all() for value in done.parameters.values())
    assert [server.updates for server in done.cluster.servers] == [STEPS, STEPS]
    assert done.cluster.trainers[1].results[-1].program == done.cluster.trainers[0].results[-1].program


def test_faults_and_steps_that_are_none_to_the_servers():
    with pytest.raises(DiagnosticError, match=r"cluster-scenario.*@evaluation updates nothing"):
        cluster_of(ps.compile(with_evaluation(), job()), programs="main,evaluation", faults=parse_scenario("drop 0.1"))


def test_modes_that_compile_just_the_main_program():
    module = adversarial()
    made = ps.compile(module, ps.Job(trainers=["a:6170", "b:6170"], mode="grad-allreduce"))
    with pytest.raises(DiagnosticError, match=r"cluster-no-program.*trainer_0 has no program @generator, just @main"):
        cluster_of(made, programs=parse_turns(TURNS, step_programs(module)))
    with pytest.raises(DiagnosticError, match="program-turns"):
        cluster_of(made, programs=TURNS)


def test_geo_counts_the_steps_of_all_programs():
    module = adversarial(SGD(0.1), SGD(0.1))
    done = run(ps.compile(module, job("geo", 1, geo_sgd_need_push_nums=3)), adversarial_feeds())
    scope = alone(module, adversarial_feeds(), TURNS, STEPS)
    for name, value in done.parameters.items():
        np.testing.assert_allclose(value, scope[name], rtol=1e-5, atol=1e-6)


def test_random_numbers_are_those_of_the_step():
    """A second step of one program draws others than its first, whatever was run in between."""
    first = run(compiled(1), adversarial_feeds(), "main,generator", 4)
    assert [server.updates for server in first.cluster.servers] == [4, 4]
    (runner,) = [
        runner for (name, *_), runner in first.cluster.trainers[0]._prepared_runners.items() if name == "generator"
    ]
    assert runner.script.execution.step == 4


class TestTurns:
    def test_what_a_text_says(self):
        turns = parse_turns("@main*2, generator,evaluation/4", ["main", "startup", "generator", "evaluation"])
        assert [turns.program(k)[0] for k in range(12)] == list("mmgmemgmmegm")
        assert [turns.runs_before(k) for k in range(6)] == [0, 1, 0, 2, 0, 3]
        assert turns.names == ("main", "generator", "evaluation")
        assert turns.steps_within({"main": 3, "generator": None, "evaluation": 9}) == 5
        assert turns.steps_within({}) is None

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("", "NAME, NAME.COUNT or NAME/EVERY"),
            ("main,", "is no program"),
            ("main*0", "is no program"),
            ("startup", "run once, before all steps"),
            ("generato", r"there is @main and @generator; did you mean generator\?"),
            ("main/2", "nothing is run in between"),
        ],
    )
    def test_what_is_refused(self, text: str, told: str):
        with pytest.raises(DiagnosticError, match=told) as refused:
            parse_turns(text, ["main", "generator"])
        assert refused.value.diagnostics[0].code == "program-turns"

    def test_a_function_that_names_no_program(self):
        with pytest.raises(DiagnosticError, match=r"program-turns.*no such program"):
            run(compiled(), adversarial_feeds(), lambda trainer, step: "other")


class TestFeeds:
    def test_each_program_has_its_own(self):
        programs = step_programs(adversarial())
        feeds = {**adversarial_feeds(), "trainer_1/generator/noise": numbers(4, 3, 8)}
        found = arrays_by_program(feeds, programs, ["main", "generator"])
        assert sorted(found["main"]) == ["noise", "real"]
        assert sorted(found["generator"]) == ["noise", "trainer_1/noise"]
        assert found["generator"]["noise"] is feeds["generator/noise"]

    def test_what_no_program_takes(self):
        with pytest.raises(DiagnosticError, match=r"no program has an input nois; did you mean noise\?"):
            run(compiled(), {**adversarial_feeds(), "nois": numbers(4, 3, 8)})

    def test_programs_that_run_out_end_the_run(self):
        feeds = {**adversarial_feeds(), "generator/noise": numbers(1, 12, 8)}
        done = run(compiled(), feeds, steps=None)  # pyright: ignore[reportArgumentType]
        assert ran(done) == [["main", "main", "generator", "main", "main"]] * 2

    def test_too_few_for_the_steps(self):
        programs = step_programs(adversarial())
        given = ProgramFeeds(programs, parse_turns(TURNS, programs), ArrayFile(adversarial_feeds(), "data.npz"))
        assert given.steps == 9
        told = "data.npz: .*@main is fed 6 times, which is enough for 9 steps; 10 are asked for"
        with pytest.raises(DiagnosticError, match=told):
            given.require(10)


def test_a_trainer_may_go_on_with_another_program():
    result = ps.compile(ps.load(str(Path(__file__).parents[3] / "examples" / "regression.ir")), job())
    cluster = cluster_of(result, seed=SEED)
    cluster.feed({"x": numbers(2, 4, 1000), "y": numbers(2, 4, 20, seed=1)})
    trainer = cluster.trainers[0]
    cluster.start()
    cluster.run_to(1)
    main = trainer.role.main
    block, more = main.main_block, []
    for source in ("loss", "twice"):
        slots = FrozenMap({"X": (source,)}), FrozenMap({"Out": ("twice",)})
        more.append(Op("scale", *slots, FrozenMap({"scale": 2.0})))
    named = FrozenMap({**block.vars, "twice": block.vars["loss"]._replace(name="twice")})
    trainer.role.replace_main(main._replace(blocks=(block._replace(vars=named, ops=(*block.ops, *more)),)))
    assert "twice" in trainer.role.changed_variables
    trainer.role.fetches[MAIN] = ("loss", "twice")
    cluster.run_to(2)
    assert trainer.results[0].values.keys() == set()
    values = trainer.results[1].values
    assert np.asarray(values["twice"]).item() == 4 * np.asarray(values["loss"]).item()
