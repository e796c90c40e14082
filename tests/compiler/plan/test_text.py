"""Plans as text: what is printed can be edited and is read back, or refused with the reason."""

from __future__ import annotations

import pytest

from pstranspile.compiler.compile import compile, prepare
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.plan import plan_json, plan_text
from pstranspile.compiler.plan.plan_file import parse_plan
from pstranspile.frontends.loading import load
from pstranspile.ir.diagnostics import DiagnosticError
from tests.conftest import ROOT
from tests.models import mlp
from tests.recorded_fluid import source

JOB = Job(["a:1", "b:2"], 2)
MODULE = mlp(2, 100)


def text() -> str:
    compiled = prepare(MODULE, JOB)
    return plan_text(compiled.plan)


def codes(plan: str, job: Job = JOB) -> list[str]:
    with pytest.raises(DiagnosticError) as found:
        compile(MODULE, job, plan=parse_plan(plan, "my.plan"))
    return [d.code for d in found.value.diagnostics]


def test_an_unedited_plan_gives_the_same_programs() -> None:
    with_plan = compile(MODULE, JOB, plan=parse_plan(text()))
    assert with_plan.plan == compile(MODULE, JOB).plan
    assert with_plan.roles() == compile(MODULE, JOB).roles()


def test_slices_can_be_moved_and_cut_anew() -> None:
    lines = [line for line in text().split("\n") if not line.startswith("whole %fc_0.w_0")]
    lines += ['slice %fc_0.w_0 rows 0..30 @ "b:2"', 'slice %fc_0.w_0 rows 30..100 @ "a:1"']
    compiled = compile(MODULE, JOB, plan=parse_plan("\n".join(lines)))
    slices = compiled.plan.by_name["fc_0.w_0"].slices
    assert [(s.shape, s.offset, s.endpoint) for s in slices] == [((30, 100), 0, "b:2"), ((70, 100), 3000, "a:1")]
    assert compiled.pserver("a:1").main.main_block.vars["fc_0.w_0_moment1_0"].shape == (70, 100)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("plan 1", "plan 2", "plan-syntax"),
        ("whole %fc_1.b_0", "hole %fc_1.b_0", "plan-syntax"),
        ("whole %fc_1.b_0", "whole %fc_9.b_0", "plan-invalid"),
        ('-> %fc_1.b_0 @ "a:1"', '-> %fc_1.b_0 @ "c:1"', "plan-invalid"),
        ("-> %fc_1.b_0 @", "-> %my_name @", "plan-invalid"),
        ("source sha256:", "source sha256:0", "plan-mismatch"),
        ("trainers=2", "trainers=3", "plan-mismatch"),
        ("whole %fc_0.w_0 ", "slice %fc_0.w_0 rows 0..60 ", "plan-invalid"),
        ("whole %fc_0.w_0 ", "slice %fc_0.w_0 rows 1..100 ", "plan-invalid"),
    ],
)
def test_edits_that_can_not_be_are_refused(old: str, new: str, code: str) -> None:
    plan = text()
    assert old in plan
    found = codes(plan.replace(old, new))
    assert set(found) == {code}


def test_rows_with_two_owners_are_refused() -> None:
    plan = text() + 'whole %fc_0.w_0 @ "a:1"\n'
    assert codes(plan) == ["plan-invalid"]


def test_a_plan_for_another_job_is_refused() -> None:
    assert codes(text(), Job(["a:1", "b:2"], 3)) == ["plan-mismatch"]


def test_what_must_stay_together_can_not_be_parted() -> None:
    module = source("clip_global_norm")
    compiled = prepare(module, JOB)
    plan = plan_text(compiled.plan)
    assert "# together, uncut, on one server: %fc_0.b_0 %fc_0.w_0" in plan
    parted = plan.replace('-> %fc_1.b_0 @ "a:1"', '-> %fc_1.b_0 @ "b:2"')
    assert parted != plan
    with pytest.raises(DiagnosticError) as found:
        compile(module, JOB, plan=parse_plan(parted))
    assert "must stay whole, and together" in found.value.diagnostics[0].message


def test_json_has_the_fields_of_the_contract() -> None:
    compiled = prepare(MODULE, JOB)
    found = plan_json(compiled.plan, compiled.fingerprint, compiled.distributed_vars)
    head = ["version", "source", "mode", "pservers", "trainers", "distributed_lookup_table", "distributed_vars"]
    assert list(found)[:7] == head
    assert found["distributed_vars"][0] == {
        "origin": "fc_0.b_0",
        "origin_shape": [100],
        "slice": "fc_0.b_0",
        "slice_shape": [100],
        "is_slice": False,
        "block_id": 0,
        "offset": 0,
        "endpoint": "a:1",
        "vtype": "Param",
    }


@pytest.mark.parametrize(
    "line",
    [
        r'whole %w -> %w @ "a\:1"',
        'whole %w -> %w @ "a\x01:1"',
        r'slice %"w\y" rows 0..5 -> %w.block0 @ "a:1"',
        f'slice %w rows 0..{"9" * 5000} -> %w.block0 @ "a:1"',
        r'job mode=sync trainers=1 pservers=["a\:1"]',
    ],
)
def test_strings_and_numbers_that_are_none(line: str) -> None:
    with pytest.raises(DiagnosticError) as raised:
        parse_plan(f"plan 1\n{line}\n", "x.plan")
    (found,) = raised.value.diagnostics
    assert found.code == "plan-syntax"
    assert found.location is not None
    assert found.location.line == 2


def test_who_cuts_a_parameter_is_told_of_norms_over_the_whole() -> None:
    """The warning is about the cut that is made, be it by the job or by an edited plan."""
    module = load(ROOT / "golden" / "lars_norm_of_slice.ir")
    plan = str(prepare(module, JOB).plan)
    told = [d for d in compile(module, JOB).warnings if d.code == "sliced-norm"]
    (cut,) = {line.split(" ")[1] for line in plan.split("\n") if line.startswith("slice ")}
    lines = [line for line in plan.split("\n") if not line.startswith("slice ")]
    whole = compile(module, JOB, plan=parse_plan("\n".join([*lines, f'whole {cut} @ "a:1"'])))
    job = Job(["a:1", "b:2"], 2, slice_var_up=False)
    again = compile(module, job, plan=parse_plan(plan))
    assert told
    assert [d.code for d in whole.warnings] == [d.code for d in compile(module, job).warnings] == []
    assert [d.message for d in again.warnings] == [d.message for d in told]
