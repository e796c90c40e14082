"""What is printed of a plan is read back as that plan: its text, its JSON, and the text of what was read."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pstranspile as ps
from pstranspile.cluster.ray.session import resized_job
from pstranspile.compiler.plan.plan import plan_json, plan_text
from pstranspile.ir.json_text import json_text
from tests.compiler.explain.jobs import ALL, compiled
from tests.models import mlp

MODULE = mlp(2, 100)
JOB = ps.Job(["a:1", "b:2"], 2)


@pytest.mark.parametrize("name", ALL)
def test_the_plan_of_every_job(name: str):
    made = compiled(name)
    assert made.job is not None
    held = json_text(plan_json(made.plan, made.fingerprint, made.distributed_vars))
    for text in (str(made.plan), str(made.plan).replace("\n", "\r\n"), held):
        again = ps.prepare(made.source, made.job, plan=ps.parse_plan(text))
        assert again.plan == made.plan
        assert str(again.plan) == str(made.plan)


@given(
    st.lists(st.sampled_from(["a:1", "b:2", "[::1]:3", "host-4:4"]), min_size=1, unique=True),
    st.integers(1, 3),
    st.sampled_from(["sync", "async", "half-async", "geo"]),
    st.integers(1, 20_000),
    st.booleans(),
    st.data(),
)
def test_an_edited_plan_is_printed_as_it_is_used(
    servers: list[str], trainers: int, mode: str, block: int, sliced: bool, data: st.DataObject
):
    """Every line at a server drawn for it, which the plan that comes of it says too."""
    settings = {"min_block_size": block} if mode == "geo" else {"min_block_size": block, "slice_var_up": sliced}
    job = ps.Job(servers, trainers, mode=mode, **settings)
    lines = str(ps.prepare(MODULE, job).plan).split("\n")
    edited: list[str] = []
    for line in lines:
        head, at, _ = line.partition(' @ "')
        moved = at and not line.startswith("#")
        edited.append(f'{head} @ "{data.draw(st.sampled_from(servers))}"' if moved else line)
    plan = ps.prepare(MODULE, job, plan=ps.parse_plan("\n".join(edited))).plan
    assert [line for line in str(plan).split("\n") if line[:1] != "#"] == [line for line in edited if line[:1] != "#"]
    assert ps.prepare(MODULE, job, plan=plan).plan == plan


def test_a_plan_of_names_that_need_quotes():
    text = re.sub(r"%fc_0\.w_0(?![\w@])", r'%"fc \\"0\\" # ü"', ps.dumps(MODULE))
    module = ps.loads(text)
    made = ps.prepare(module, JOB)
    assert ps.prepare(module, JOB, plan=ps.parse_plan(str(made.plan))).plan == made.plan


def test_a_plan_that_make_plan_gives():
    made, _ = ps.make_plan(ps.analyze(MODULE.main), MODULE.startup, JOB, per_trainer=True)
    assert ps.prepare(MODULE, JOB, plan=ps.parse_plan(str(made))).plan.parameters == made.parameters


def test_a_plan_file_is_printed_as_it_was_read(tmp_path: Path):
    text = f"{ps.prepare(MODULE, JOB).plan}\n\n# mine\n"
    Path(tmp_path, "my.plan").write_text(text)
    assert str(ps.load_plan(tmp_path / "my.plan")) == text


@pytest.mark.parametrize("other", [mlp(3, 100), mlp(2, 50)])
def test_a_plan_value_of_another_program_is_refused_as_its_text_is(other: ps.Module):
    plan = ps.prepare(MODULE, JOB).plan
    for given_plan in (plan, ps.parse_plan(str(plan))):
        with pytest.raises(ps.DiagnosticError, match="the plan was made for another program: it says sha256:"):
            ps.compile(other, JOB, plan=given_plan)


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (ps.Job(["a:1", "b:2"], 3), "it says trainers=2, this one has trainers=3"),
        (ps.Job(["a:1"], 2), 'it says pservers=["a:1", "b:2"], this one has pservers=["a:1"]'),
        (ps.Job(["a:1", "b:2"], 2, mode="async"), "it says mode=sync, this one has mode=async"),
    ],
)
def test_a_plan_value_of_another_job_is_refused_as_its_text_is(job: ps.Job, told: str):
    plan = ps.prepare(MODULE, JOB).plan
    for given_plan in (plan, ps.parse_plan(str(plan), "my.plan")):
        with pytest.raises(ps.DiagnosticError) as raised:
            ps.compile(MODULE, job, plan=given_plan)
        assert [d.message for d in raised.value.diagnostics] == [f"the plan was made for another job: {told}"]


def test_the_same_program_read_twice_is_the_same():
    again = ps.loads(ps.dumps(MODULE))
    plan = ps.prepare(MODULE, JOB).plan
    assert ps.compile(again, JOB, plan=plan).plan == plan
    assert plan_text(replace(plan, made_for=again)) == plan_text(plan)


def test_a_plan_that_was_edited_says_nothing_of_other_numbers_of_machines():
    plan = ps.parse_plan(str(ps.prepare(MODULE, JOB).plan).replace('@ "b:2"', '@ "a:1"'))
    assert resized_job(ps.compile(MODULE, JOB), 3, 2).trainers == 3
    edited = ps.compile(MODULE, JOB, plan=plan)
    assert resized_job(edited, 2, 2) == JOB
    with pytest.raises(ps.DiagnosticError, match="the job has a plan of its own"):
        resized_job(edited, 3, 2)
