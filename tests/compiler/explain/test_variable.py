"""What a variable is, where it lies and why, and who uses it."""

import pytest

from pstranspile.compiler.compile import compile, prepare
from pstranspile.compiler.explain import (
    ExplainedJob,
    UnknownNameError,
    VariableAnswer,
    answer_json,
    answer_text,
    explain_variable,
)
from pstranspile.compiler.explain import of_compiled as of
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.plan import plan_text
from pstranspile.compiler.plan.plan_file import parse_plan
from pstranspile.ops.textual import parse
from tests.compiler.explain.jobs import ALL, PROGRAMS, TWO, compiled, explained
from tests.recorded_fluid import source


def job_of(name: str, job: Job) -> ExplainedJob:
    return of(compile(parse(PROGRAMS[name].read_text(), "net.ir"), job))


def cut(answer: VariableAnswer) -> list[tuple[str, int, int, str]]:
    return [(part.name, part.start, part.stop, part.machine) for part in answer.parts]


@pytest.mark.parametrize("name", ALL)
def test_every_variable_can_be_asked_for(name: str):
    job = explained(name)
    names = {n for programs in job.machines.values() for p in programs.values() for b in p.blocks for n in b.vars}
    for variable in sorted(names):
        answer = explain_variable(job, variable)
        assert answer.declared, variable
        assert answer_text(answer).startswith(f"%{variable}\n")
        assert answer_json(answer)["name"] == variable


@pytest.mark.parametrize("name", ALL)
def test_every_parameter_lies_where_the_plan_says(name: str):
    plan = compiled(name).plan
    for parameter in plan.parameters:
        answer = explain_variable(explained(name), parameter.name)
        assert [(p.name, p.start, p.stop, p.endpoint) for p in answer.parts] == [
            (s.name, s.start, s.stop, s.endpoint) for s in parameter.slices
        ]
        assert answer.why_cut
        assert "edited" not in answer_text(answer)
        for s in parameter.slices if parameter.is_cut else ():
            assert f"the parameter %{parameter.name}: rows {s.start} to {s.stop}" in answer_text(
                explain_variable(explained(name), s.name)
            )


def test_the_formula_with_its_numbers():
    answer = explain_variable(explained("mlp_adam"), "w1")
    assert answer.why_cut == (
        "128 x 128 = 16384 elements; min_block_size 8192 lets max(1, 16384 // 8192) = 2 fit; min(2 servers, 2) = 2 "
        "parts; ceil(16384 / 2) = 8192 elements, which is 64 rows of 128: 2 slices."
    )
    assert answer.parts[0].why.startswith("RoundRobin: dealt out as number ")
    assert explain_variable(explained("mlp_adam"), "b2").why_cut.startswith("10 elements; min_block_size 8192")


def test_dispatchers():
    hashed = explain_variable(job_of("mlp_adam", Job(TWO, 2, split_method="HashName")), "w1")
    assert all(part.why.startswith("HashName: crc32('w1.block") for part in hashed.parts)
    whole = explain_variable(job_of("mlp_adam", Job(TWO, 2, slice_var_up=False)), "w1")
    assert whole.why_cut == "slice_var_up is false, so its 128 x 128 = 16384 elements are one slice."
    assert "shuffled with the program's seed" in whole.parts[0].why
    assert "edited" not in whole.parts[0].why
    own = job_of("mlp_adam", Job(TWO, 2, split_method="tests.compiler.explain.jobs:Last"))
    assert explain_variable(own, "w1").parts[0].why == "the dispatcher tests.compiler.explain.jobs:Last chose server 1"


def test_an_edited_plan_is_told():
    module, job = parse(PROGRAMS["mlp_adam"].read_text(), "net.ir"), Job(TWO, 2)
    plain = prepare(module, job)
    lines = plan_text(plain.plan).split("\n")
    text = "\n".join(
        line.replace("a:6174", "b:6174") if line.startswith("whole %b2") and "a:6174" in line else line
        for line in lines
    )
    if text == "\n".join(lines):
        text = "\n".join(line.replace("b:6174", "a:6174") if line.startswith("whole %b2") else line for line in lines)
    edited = of(compile(module, job, plan=parse_plan(text)))
    assert "the plan was edited: server " in explain_variable(edited, "b2").parts[0].why
    rows = "\n".join(
        line.replace("0..64", "0..32").replace("64..128", "32..128") if "%w1 rows" in line else line for line in lines
    )
    assert rows != "\n".join(lines)
    assert (
        "The plan was edited: it has 2 slices."
        in explain_variable(of(compile(module, job, plan=parse_plan(rows))), "w1").why_cut
    )


def test_why_a_parameter_is_whole():
    job = of(compile(source("clip_global_norm"), Job(TWO, 2, min_block_size=16)))
    weight, bias = explain_variable(job, "fc_0.w_0"), explain_variable(job, "fc_0.b_0")
    assert len(weight.parts) == 1
    assert "It is whole all the same: its update is connected with that of %fc_0.b_0" in weight.why_cut
    whys = [weight.parts[0].why, bias.parts[0].why]
    assert [why.startswith("it must be on the server of ") for why in whys].count(True) == 1
    normed = of(compile(source("opt_unsupported_lamb"), Job(TWO, 2, min_block_size=1)))
    assert "lamb needs the whole parameter" in explain_variable(normed, "fc_0.w_0").why_cut


def test_names_of_a_gradient():
    job = explained("mlp_adam")
    slices = [part.name for part in explain_variable(job, "w1").parts]
    assert "The gradient of %w1, as a trainer computes it." in explain_variable(job, "w1@GRAD").about
    sent = explain_variable(job, "w1@GRAD.block1.trainer_0")
    assert sent.about[0] == "The gradient of %w1.block1 as trainer_0 sends it."
    assert [part.name for part in sent.parts] == [slices[1]]
    merged = explain_variable(job, "w1@GRAD.block1")
    assert merged.about[0].startswith("The gradient of %w1.block1 on ")


@pytest.mark.parametrize(
    ("job", "name", "said"),
    [
        ("mlp_adam", "w1.block0", "Slice 0 of the parameter %w1: rows 0 to 64 of 128, from element 0 on."),
        ("sync", "__control_var@send_barrier", "It carries no value, only an order"),
        ("table by id", "table", "The distributed lookup table: row i lies on server i modulo 2"),
        ("sparse", "table", "trainers look its rows up and never hold it"),
        ("dc-asgd", "b.trainer_0_bak", "A trainer's backup"),
        ("local-sgd", "w@SNAPSHOT", "A snapshot"),
        ("geo", "b.delta", "What a trainer changed of %b, as "),
        ("geo", "w.delta", "No op uses it; the trainer's communicator does"),
        ("linear_regression", "lr", "It is on the servers only"),
        ("linear_regression", "x", "It is on the trainers only"),
    ],
)
def test_what_a_variable_is(job: str, name: str, said: str):
    assert said in " ".join(explain_variable(explained(job), name).about)


def test_step_counters():
    job = explained("async")
    name = compiled("async").plan.counters[0].trainer_counters[0]
    assert "A trainer's own count of its steps." in explain_variable(job, name).about


def test_state_of_an_optimizer():
    job = explained("sync")
    states = {row["origin"]: row for row in job.plan["distributed_vars"] if row["vtype"] == "Optimizer"}
    following = next(name for name, row in states.items() if row["is_slice"])
    scalar = next(name for name, row in states.items() if not row["is_slice"] and "beta1" in name)
    assert "cut like its parameter" in explain_variable(job, following).about[0]
    assert len(explain_variable(job, following).parts) == 2
    assert "has its own" in explain_variable(job, scalar).about[0]


def test_uses_on_one_machine():
    job = explained("mlp_adam")
    assert {use.place.machine for use in explain_variable(job, "w1", "trainer_1").uses} == {"trainer_1"}
    with pytest.raises(UnknownNameError, match="pserver_0 has no variable 'w1'"):
        explain_variable(job, "w1", "pserver_0")


def test_a_variable_that_does_not_exist():
    with pytest.raises(UnknownNameError) as found:
        explain_variable(explained("mlp_adam"), "w1.block7")
    said = "there is no variable 'w1.block7'; did you mean w1.block1 or w1.block0"
    assert str(found.value).startswith(said)
    with pytest.raises(UnknownNameError, match="none with a name like it"):
        explain_variable(explained("mlp_adam"), "????????????")
