"""The modes without servers: what Fluid gets wrong in them, and what must hold for every program."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pstranspile as ps
from pstranspile.compiler.compile import compile, prepare
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.plan import plan_text
from pstranspile.compiler.plan.plan_file import parse_plan
from pstranspile.ir.attributes import float32
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError
from pstranspile.ir.model import Module, Op, Program
from pstranspile.ir.types import OpRole
from pstranspile.ops.build import make_op
from pstranspile.ops.textual import parse, print_module
from tests import training
from tests.compiler.emit.test_properties import modules

GOLDEN = Path(__file__).parents[3] / "golden"
TEXT = (GOLDEN / "linear_regression.ir").read_text()
TWO = "a:1,b:2"
COLLECTIVE = ("grad-allreduce", "local-sgd", "single-process-multi-thread")


def changed(*replacements: tuple[str, str]) -> Module:
    text = TEXT
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return parse(text, "net.ir")


def job(mode: str, trainers: str = TWO, **settings: object) -> Job:
    return Job(trainers=trainers, mode=mode, **settings)  # type: ignore[arg-type]


def main_of(module: Module, mode: str, **settings: object) -> tuple[Op, ...]:
    return compile(module, job(mode, **settings)).trainer(0).main.main_block.ops


def lines(ops: tuple[Op, ...]) -> list[str]:
    """Each op as its type and its first output."""
    return [f"{op.type} {next(iter(op.output_names), '')}".strip() for op in ops]


def found(module: Module, mode: str, **settings: object) -> list[Diagnostic]:
    """What is said of a job, be it refused or not."""
    try:
        return list(compile(module, job(mode, **settings)).warnings)
    except DiagnosticError as refused:
        return list(refused.diagnostics)


SGD_W = "sgd(Param=%w, Grad=%w@GRAD, LearningRate=%lr) -> ParamOut=%w : optimize(%w, %w@GRAD)"
SGD_B = "sgd(Param=%b, Grad=%b@GRAD, LearningRate=%lr) -> ParamOut=%b : optimize(%b, %b@GRAD)"
ADADELTA_W = (
    "adadelta(Param=%w, Grad=%w@GRAD, AvgSquaredGrad=%g2, AvgSquaredUpdate=%u2) -> "
    "ParamOut=%w, AvgSquaredGradOut=%g2, AvgSquaredUpdateOut=%u2 : optimize(%w, %w@GRAD)"
)
ADADELTA = changed(
    (SGD_W, ADADELTA_W),
    ("    state %lr : f32[1]\n", "    state %lr : f32[1]\n    state %g2 : f32[13, 1]\n    state %u2 : f32[13, 1]\n"),
    (
        "    fill_constant -> Out=%b {shape=[1]}\n",
        "    fill_constant -> Out=%b {shape=[1]}\n    fill_constant -> Out=%g2 {shape=[13, 1]}\n"
        "    fill_constant -> Out=%u2 {shape=[13, 1]}\n",
    ),
)


# Where Fluid fails or forgets


def test_adadelta_is_averaged_like_any_other() -> None:
    sums = [op for op in main_of(ADADELTA, "local-sgd") if op.type == "c_allreduce_sum"]
    assert [op.outputs["Out"] for op in sums] == [("b",), ("w",)]


@pytest.mark.parametrize("mode", COLLECTIVE)
def test_one_trainer_is_a_cluster_like_any_other(mode: str) -> None:
    module = changed()
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(3, 4, 13)).astype("f4"), "y": np.ones((3, 4, 1), "f4")}
    run = ps.simulate(compile(module, job(mode, "a:1")), feeds, steps=3)
    scope = ps.Scope()
    ps.run(module["startup"], scope=scope)
    for step in range(3):
        ps.run(module.main, feed={name: rows[step] for name, rows in feeds.items()}, scope=scope)
    for name, value in run.parameters.items():
        np.testing.assert_allclose(value, scope[name], rtol=1e-5)


@pytest.mark.parametrize("mode", COLLECTIVE)
def test_a_startup_program_that_declares_no_parameters(mode: str) -> None:
    """Fluid knows none then and fails; @main says which variables they are."""
    head, tail = TEXT.split("program @startup")
    module = parse(head + "program @startup" + tail.replace("param %b", "state %b").replace("param %w", "state %w"))
    assert compile(module, job(mode)).trainer(1).startup.main_block.ops == (
        compile(changed(), job(mode)).trainer(1).startup.main_block.ops
    )


@pytest.mark.parametrize("mode", ["grad-allreduce", "single-process-multi-thread"])
def test_a_program_without_parameters(mode: str) -> None:
    main, startup = (
        "program @main {\nblock ^0 {\ntemp %x : f32[-1] feed\n}\n}\n",
        "program @startup {\nblock ^0 {\n}\n}\n",
    )
    made = compile(parse(f"ir 1\n{main}{startup}"), job(mode))
    joined = ["c_comm_init_all"] if mode.startswith("single") else ["c_gen_nccl_id", "c_comm_init"]
    assert [op.type for op in made.trainer(1).startup.main_block.ops] == joined
    assert [w.code for w in made.warnings] == ["collective-nothing"]


def test_what_reads_a_sum_early_waits_for_it() -> None:
    """Fluid waits before the first op with the role of an optimizer only, so a clip in the backward pass races."""
    clip = "clip(X=%b@GRAD) -> Out=%b@GRAD {max=1.0, min=-1.0} : backward\n    "
    ops = lines(main_of(changed(("mul_grad(", clip + "mul_grad(")), "grad-allreduce", nccl_comm_num=2))
    at = ops.index("clip b@GRAD")
    assert ops[at - 4 : at] == [
        "c_sync_calc_stream b@GRAD",
        "c_allreduce_sum b@GRAD",
        *["c_sync_comm_stream b@GRAD"] * 2,
    ]
    assert ops[-6:-2] == ["c_sync_calc_stream w@GRAD", "c_allreduce_sum w@GRAD", *["c_sync_comm_stream w@GRAD"] * 2]


def test_an_optimize_op_before_the_backward_pass_does_not_use_up_the_wait() -> None:
    counter = "increment(X=%lr) -> Out=%lr : optimize\n    "
    ops = lines(main_of(changed(("    mul(X=", f"    {counter}mul(X=")), "grad-allreduce"))
    assert ops[0] == "increment lr"
    assert ops.index("c_sync_comm_stream b@GRAD") == ops.index("sgd b") - 1
    assert ops.count("c_sync_comm_stream b@GRAD") == 1


def test_a_parameter_that_is_updated_twice_is_averaged_once() -> None:
    ops = lines(main_of(changed((SGD_W, f"{SGD_W}\n    {SGD_W}")), "local-sgd"))
    first, second = (i for i, op in enumerate(ops) if op == "sgd w")
    assert second == first + 1
    assert ops[second + 1 : second + 4] == ["elementwise_sub w", "c_sync_calc_stream w", "c_allreduce_sum w"]
    assert ops.count("c_allreduce_sum w") == 1


def test_what_follows_an_update_sees_the_parameter_not_its_difference() -> None:
    average = "scale(X=%w) -> Out=%copy {scale=0.5} : optimize(%w, %w@GRAD)"
    module = changed(
        (SGD_W, f"{SGD_W}\n    {average}"), ("    temp  %xw :", "    temp  %copy : f32[13, 1]\n    temp  %xw :")
    )
    ops = lines(main_of(module, "local-sgd"))
    assert ops.index("scale copy") == ops.index("sgd w") + 1
    assert ops.index("c_allreduce_sum w") == ops.index("sgd w") + 4
    both = changed((SGD_B, SGD_W), (f"{SGD_W}\n    {SGD_W}", f"{SGD_B}\n    {SGD_W}"))  # the order of the two
    assert lines(main_of(both, "local-sgd"))


def test_frozen_parameters_start_alike_and_are_not_averaged() -> None:
    frozen = changed((f"    {SGD_B}\n", ""), ("param %b : f32[1]", "param %b : f32[1] {trainable=false}"))
    role = compile(frozen, job("local-sgd")).trainer(0)
    assert "c_broadcast b" in lines(role.startup.main_block.ops)
    assert [op.outputs["Out"] for op in role.main.main_block.ops if op.type == "c_allreduce_sum"] == [("w",)]


def test_an_optimizer_inside_a_branch_is_seen() -> None:
    branch = (
        "conditional_block(Cond=%c, Input=[%w, %w@GRAD, %lr]) -> Out=%w, Scope=%s "
        "{is_scalar_condition=true, sub_block=^1} : optimize\n    block ^1 {\n      " + SGD_W + "\n    }"
    )
    module = changed(
        (SGD_W, branch), ("    temp  %xw :", "    temp  %c : bool[1]\n    temp  %s : step_scopes\n    temp  %xw :")
    )
    ops = lines(main_of(module, "local-sgd"))
    assert ops.index("c_allreduce_sum w") == ops.index("conditional_block w") + 3
    ops = lines(main_of(module, "grad-allreduce"))
    assert "c_sync_comm_stream b@GRAD" in ops[: ops.index("conditional_block w")]


# What is refused, and what is warned of


def test_nothing_to_average() -> None:
    forward = changed((f"    {SGD_B}\n    {SGD_W}\n", ""))
    (refused,) = found(forward, "local-sgd")
    assert (refused.code, refused.severity.value) == ("collective-nothing", "error")
    assert "`pstranspile grad` adds an optimizer" in refused.message


def test_nothing_to_sum() -> None:
    forward = changed((f"    {SGD_B}\n    {SGD_W}\n", ""), ("backward(%b, %b@GRAD)", "backward"))
    forward = parse(print_module(forward).replace("backward(%w, %w@GRAD)", "backward"))
    (warned,) = found(forward, "grad-allreduce")
    assert (warned.code, warned.severity.value) == ("collective-nothing", "warning")


def test_an_update_whose_gradient_would_not_be_summed() -> None:
    (refused,) = found(changed(("backward(%b, %b@GRAD)", "backward")), "grad-allreduce")
    assert (refused.code, refused.severity.value, refused.focus) == ("collective-unsummed", "error", "%b")
    assert refused.location is not None
    assert refused.location.line == TEXT[: TEXT.index(SGD_B)].count("\n") + 1


@pytest.mark.parametrize(
    "name", ["clip_global_norm", "momentum_weight_decay", "exponential_decay", "lars_norm_of_slice"]
)
def test_what_is_done_to_a_gradient_is_done_to_the_sum(name: str) -> None:
    ops = main_of(ps.load(GOLDEN / f"{name}.ir"), "grad-allreduce")
    last_sum = max(i for i, op in enumerate(ops) if op.type == "c_allreduce_sum")
    assert last_sum < min(i for i, op in enumerate(ops) if op.role is OpRole.OPTIMIZE)


def test_sparse_gradients_are_emitted_with_a_warning() -> None:
    (warned,) = found(changed(("temp  %w@GRAD : f32", "temp  %w@GRAD : rows f32")), "grad-allreduce")
    assert (warned.code, warned.severity.value, warned.focus) == ("collective-sparse", "warning", "%w@GRAD")
    assert "is_sparse=False, or use mode local-sgd" in warned.message
    assert warned.location is not None
    assert not found(changed(("temp  %w@GRAD : f32", "temp  %w@GRAD : rows f32")), "local-sgd")


def test_a_loss_that_does_not_show() -> None:
    (warned,) = found(changed(("backward|loss", "backward")), "grad-allreduce")
    assert (warned.code, warned.severity.value) == ("collective-not-scaled", "warning")


@pytest.mark.parametrize("mode", ["grad-allreduce", "local-sgd"])
def test_distributed_parameters_are_left_out(mode: str) -> None:
    module = changed(("param %w : f32[13, 1]", "param %w : f32[13, 1] {is_distributed=true}"))
    (warned,) = found(module, mode)
    assert (warned.code, warned.focus) == ("collective-left-out", "%w")
    role = compile(module, job(mode)).trainer(0)
    reached = [op.outputs["Out"][0] for op in role.main.main_block.ops if op.type == "c_allreduce_sum"]
    assert reached == [{"grad-allreduce": "b@GRAD", "local-sgd": "b"}[mode]]
    assert "c_broadcast w" not in lines(role.startup.main_block.ops)


def test_a_gradient_that_is_not_declared() -> None:
    (refused,) = found(changed((": backward(%w, %w@GRAD)", ": backward(%w, %nowhere)")), "grad-allreduce")
    assert (refused.code, refused.severity.value, refused.focus) == ("collective-undeclared", "error", "%nowhere")


@pytest.mark.parametrize(
    ("mode", "name"), [("local-sgd", "w@SNAPSHOT"), ("nccl2", "NCCLID"), ("nccl2", "Hierarchical_exter_NCCLID_1")]
)
def test_names_that_the_mode_needs(mode: str, name: str) -> None:
    module = changed(("    state %lr : f32[1]\n", f"    state %lr : f32[1]\n    state %{name} : f32[1]\n"))
    settings, trainers = {"nccl_comm_num": 2}, TWO
    if "exter" in name:
        settings |= {"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 2}
        trainers = "a:1,b:2,c:3,d:4"
    (refused,) = found(module, mode, trainers=trainers, **settings)
    assert (refused.code, refused.focus) == ("collective-name", f"%{name}")
    assert "rename it" in refused.message


def test_names_of_rings_give_way_to_the_programs() -> None:
    module = changed(("    state %lr : f32[1]\n", "    state %lr : f32[1]\n    state %nccl_id_0 : f32[1]\n"))
    startup = compile(module, job("grad-allreduce")).trainer(0).startup
    (made,) = (op for op in startup.main_block.ops if op.type == "c_gen_nccl_id")
    assert made.outputs["Out"] == ("nccl_id_0_",)


@pytest.mark.parametrize("ranks", [0, 1, 3, 4])
def test_groups_of_trainers_must_be_equal_and_more_than_one(ranks: int) -> None:
    with pytest.raises(DiagnosticError, match="smaller than the number of trainers"):
        job(
            "nccl2",
            "a:1,b:2,c:3,d:4",
            use_hierarchical_allreduce=True,
            hierarchical_allreduce_inter_nranks=ranks,
        )


def test_a_plan_of_another_kind() -> None:
    module = changed()
    made = prepare(module, job("grad-allreduce"))
    text = plan_text(made.plan)
    assert compile(module, job("grad-allreduce"), plan=parse_plan(text)).plan == made.plan
    with pytest.raises(DiagnosticError) as refused:
        compile(module, job("local-sgd"), plan=parse_plan(text))
    assert [d.code for d in refused.value.diagnostics] == ["plan-mismatch"]
    with pytest.raises(DiagnosticError) as refused:
        compile(module, job("grad-allreduce"), plan=parse_plan(text + 'whole %w -> %w @ "a:1"\n'))
    assert [d.code for d in refused.value.diagnostics] == ["plan-invalid"]


# What Fluid inserts

INSERTED = json.loads(lzma.decompress((Path(__file__).parents[2] / "data" / "fluid" / "inserted.json.xz").read_bytes()))
OTHERWISE = {
    "two_optimizers/grad-allreduce",  # Fluid's second optimizer does not wait for its sums
    "two_optimizers/local-sgd",  # Fluid's second backward pass reads differences for parameters
    "ema_sgd/local-sgd",  # Fluid averages differences instead of parameters over time
    "model_average_momentum/local-sgd",
    "lookahead_sgd/local-sgd",  # Fluid interpolates differences
}


@pytest.mark.parametrize("case", sorted(INSERTED))
def test_the_same_is_inserted_at_the_same_places(case: str) -> None:
    module = training.recorded(case)
    source = {id(op) for op in module.main.main_block.ops}
    for mode, expected in INSERTED[case].items():
        ops = main_of(module, mode, trainers="a:1,b:2,c:3", nccl_comm_num=2)
        assert [op for op in ops if id(op) in source] == [*module.main.main_block.ops]
        ours = [
            [
                at,
                op.type,
                [*op.input_names],
                [*op.output_names],
                op.attrs.get("ring_id"),
                scale_of(op),
                int(op.role or 0),
            ]
            for at, op in enumerate(ops)
            if id(op) not in source
        ]
        assert (ours == expected) == (f"{case}/{mode}" not in OTHERWISE)


def scale_of(op: Op) -> object:
    return op.attrs["scale"] if op.type == "scale" else None


# What must hold for every program


SUMMING = ("c_allreduce_sum", "c_broadcast")


def communications(program: Program) -> list[tuple[str, object, tuple[str, ...]]]:
    ops = program.main_block.ops
    return [(op.type, op.attrs["ring_id"], op.outputs["Out"]) for op in ops if op.type in SUMMING]


@settings(deadline=None, max_examples=60)
@given(modules(), st.sampled_from(COLLECTIVE), st.integers(1, 5), st.integers(1, 4))
def test_trainers_communicate_alike_over_rings_that_exist(module: Module, mode: str, trainers: int, rings: int) -> None:
    before = repr(module.programs)
    compiled = compile(module, job(mode, ",".join(f"h{i}:1" for i in range(trainers)), nccl_comm_num=rings))
    assert repr(module.programs) == before
    roles = [compiled.trainer(i) for i in range(trainers)]
    first = roles[0]
    joined = [op for op in first.startup.main_block.ops if op.type in ("c_comm_init", "c_comm_init_all")]
    known = [op.attrs["ring_id"] for op in joined]
    assert known == list(range(1 if mode.startswith("single") else rings))
    for rank, role in enumerate(roles):
        assert role.main == first.main
        for part, theirs in ((role.main, first.main), (role.startup, first.startup)):
            assert communications(part) == communications(theirs)
            assert all(ring in known for _, ring, _ in communications(part))
        made = [op for op in role.startup.main_block.ops if op.type == "c_gen_nccl_id"]
        assert all(op.attrs["rank"] == rank and op.attrs["endpoint"] == f"h{rank}:1" for op in made)
    # Every parameter takes part once, and the rings share the work evenly.
    sums = [(ring, names) for kind, ring, names in communications(first.main) if kind == "c_allreduce_sum"]
    parameters = [var.name for var in module.main.parameters()]
    suffix = "" if mode == "local-sgd" else "@GRAD"
    assert sorted(names[0] for _, names in sums) == sorted(name + suffix for name in parameters)
    loads = [sum(r == ring for r, _ in sums) for ring in known]
    assert max(loads) - min(loads) <= 1
    assert [(s.variable, s.ring) for s in compiled.plan.collective.summed] == [  # pyright: ignore
        (names[0], ring) for ring, names in reversed(sums)
    ]


@settings(deadline=None, max_examples=30)
@given(modules(), st.integers(1, 4))
def test_a_gradient_is_summed_before_it_is_used_and_scaled_once(module: Module, rings: int) -> None:
    ops = main_of(module, "grad-allreduce", nccl_comm_num=rings)
    summed: set[str] = set()
    waited: set[str] = set()
    for op in ops:
        if op.role is OpRole.OPTIMIZE:
            assert summed.intersection(op.input_names) <= waited
            assert op.inputs["Grad"][0] in waited
        if op.type == "c_allreduce_sum":
            summed.add(op.outputs["Out"][0])
        if op.type == "c_sync_comm_stream":
            waited |= summed
    scales = [op for op in ops if op.type == "scale" and op.attrs["scale"] == float32(0.5)]
    assert len(scales) == 1


@settings(deadline=None, max_examples=30)
@given(modules(), st.integers(1, 3), st.booleans())
def test_nccl2_changes_the_startup_only(module: Module, communicators: int, hierarchical: bool) -> None:
    settings = {"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 2} if hierarchical else {}
    compiled = compile(module, job("nccl2", "a:1,b:2,c:3,d:4", nccl_comm_num=communicators, **settings))
    for rank in range(4):
        role = compiled.trainer(rank)
        assert role.main._replace(distribution=None) == module.main
        exchange = role.startup.main_block.ops[-1]
        assert role.startup.main_block.ops[:-1] == module["startup"].main_block.ops
        assert (exchange.type, exchange.attrs["trainer_id"]) == ("gen_nccl_id", rank)
        made = set(role.startup.main_block.vars) - set(module["startup"].main_block.vars)
        assert len(made) == communicators * (3 if hierarchical else 1)


def test_main_programs_are_made_once() -> None:
    compiled = prepare(changed(), job("grad-allreduce", ",".join(f"h{i}:1" for i in range(200))))
    assert compiled.trainer(7).main is compiled.trainer(199).main
    made = make_op("c_comm_init", {"X": ["nccl_id_0"]}, {}, {"nranks": 200, "rank": 199})
    assert made in compiled.trainer(199).startup.main_block.ops
