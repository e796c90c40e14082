"""Mistakes that the verifier has nothing against and a cluster can't work with are told as the program's, at the op."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

import pstranspile as ps
from pstranspile.ir.diagnostics import DiagnosticError, Severity
from pstranspile.ir.model import FrozenMap, Module
from pstranspile.ir.types import DType, OpRole
from pstranspile.ops.gradients.versions import can_be_followed, expected_of
from pstranspile.proof.check import check
from pstranspile.proof.values import make_feeds
from tests import recorded_fluid
from tests.structure.sources import SOURCES
from tests.structure.trial import JOBS, is_unexplained, limited

ROOT = Path(__file__).parents[2]
MOMENTUM = (ROOT / "golden" / "momentum_weight_decay.ir").read_text(encoding="utf-8")
SPARSE = (ROOT / "golden" / "sparse_sync.ir").read_text(encoding="utf-8")
PIECEWISE = (ROOT / "golden" / "piecewise_decay.ir").read_text(encoding="utf-8")
LINEAR = (ROOT / "golden" / "linear_regression.ir").read_text(encoding="utf-8")
COUNTER = "%@LR_DECAY_COUNTER@"

SCALED = LINEAR.replace("    temp  %b@GRAD", "    temp  %decay : f32[13, 1]\n    temp  %b@GRAD").replace(
    "    sgd(Param=%w,",
    "    scale(X=%w, ScaleTensor=%b@GRAD) -> Out=%decay : optimize(%w, %w@GRAD)\n"
    "    sum(X=[%w@GRAD, %decay]) -> Out=%w@GRAD : optimize(%w, %w@GRAD)\n    sgd(Param=%w,",
)
SUMMED = LINEAR.replace("    temp  %b@GRAD", "    temp  %other : f32[1]\n    temp  %b@GRAD").replace(
    "    sgd(Param=%b,", "    c_allreduce_sum(X=%loss@GRAD) -> Out=%other {ring_id=0} : backward\n    sgd(Param=%b,"
)
DENSE = SPARSE.replace("rows f32", "f32").replace("is_sparse=true, remote_prefetch=true", "is_distributed=true")
LATE = SPARSE.replace("temp  %word : i64[-1, 1]", "temp  %word : i64[-1, 1] feed").replace(
    "    elementwise_add(X=%row, Y=%next_row)",
    "    assign(X=%next_word) -> Out=%word\n    elementwise_add(X=%row, Y=%next_row)",
)
MOVED = "scale(X=%w) -> Out=%decay {scale=0.0001} : optimize(%w, %w@GRAD)"
ADADELTA = MOMENTUM.replace(
    "    momentum(Param=%w, Grad=%w@GRAD, LearningRate=%lr, Velocity=%w_velocity_0) -> "
    "ParamOut=%w, VelocityOut=%w_velocity_0 {mu=0.9}",
    "    adadelta(Param=%w, Grad=%w_velocity_0, AvgSquaredGrad=%w@GRAD, AvgSquaredUpdate=%w_velocity_0) -> "
    "ParamOut=%w, AvgSquaredGradOut=%w_velocity_0, AvgSquaredUpdateOut=%w_velocity_0",
)


def edited(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


CASES = {
    "a sparse gradient has another height than its table": (
        edited(SPARSE, "temp  %words@GRAD : rows f32[6, 2]", "temp  %words@GRAD : rows f32[3, 2]"),
        "sync",
        "role-gradient",
        "sum(X=[%words@GRAD@RENAME",
    ),
    "a forward op has the role of learning rates": (
        edited(MOMENTUM, "square(X=%error) -> Out=%squared_error", "square(X=%error) -> Out=%squared_error : lr_sched"),
        "sync",
        "needs-server-value",
        "mean(X=",
    ),
    "a trainer makes the learning rate": (
        edited(
            MOMENTUM.replace("    temp  %decay", "    temp %rate : f32[1]\n    temp  %decay"),
            "    momentum(Param=%w, Grad=%w@GRAD, LearningRate=%lr",
            "    scale(X=%lr) -> Out=%rate\n    momentum(Param=%w, Grad=%w@GRAD, LearningRate=%rate",
        ),
        "sync",
        "needs-trainer-value",
        "momentum(",
    ),
    "a trainer makes the factor of a regularizer": (
        edited(
            MOMENTUM.replace("    temp  %decay", "    temp %factor : f32[1]\n    temp  %decay"),
            f"    {MOVED}",
            "    scale(X=%lr) -> Out=%factor\n"
            "    scale(X=%w, ScaleTensor=%factor) -> Out=%decay : optimize(%w, %w@GRAD)",
        ),
        "sync",
        "needs-trainer-value",
        "scale(X=%w,",
    ),
    "a step of the update is made on the trainer": (
        edited(MOMENTUM, MOVED, "scale(X=%w) -> Out=%decay {scale=0.0001}"),
        "async",
        "needs-trainer-value",
        "sum(X=[%w@GRAD, %decay])",
    ),
    "only a block of @startup that never runs initialises a parameter": (
        edited(
            MOMENTUM,
            "    uniform_random() -> Out=%w {max=0.15309311, min=-0.15309311, seed=1, shape=[128, 128]}\n",
            "    block ^1 {\n      fill_constant -> Out=%w {shape=[128, 128]}\n    }\n",
        ),
        "sync",
        "not-initialised",
        "scale(X=%w)",
    ),
    "an op of a schedule writes the gradient of a parameter": (
        edited(PIECEWISE.replace("    temp  %rate1 : f32[1]\n", ""), "%rate1", "%b@GRAD"),
        "async",
        "role-gradient",
        "Out=%b@GRAD {shape=[1]",
    ),
    "steps are counted in what is no tensor": (
        PIECEWISE.replace(f"state {COUNTER} : i64[1]", f"temp {COUNTER} : step_scopes", 1),
        "async",
        "update-variables",
        "increment(",
    ),
    "an op of an update reads the gradient of another parameter": (SCALED, "sync", "needs-trainer-value", "%decay :"),
    "a program of one machine sums values of trainers": (
        SUMMED,
        "grad-allreduce",
        "already-distributed",
        "c_allreduce_sum(",
    ),
    "an op of an update reads no variable": (
        edited(MOMENTUM, "sum(X=[%w@GRAD, %decay])", "sum(X=[%w@GRAD, %@EMPTY@])"),
        "sync",
        "not-initialised",
        "%@EMPTY@",
    ),
    "a block of a schedule reads no variable": (
        edited(PIECEWISE, "assign(X=%rate3)", "assign(X=%@EMPTY@)"),
        "sync",
        "not-initialised",
        "%@EMPTY@",
    ),
    "a lookup in a table of servers writes no variable": (
        edited(SPARSE, "-> Out=%next_row {", "-> Out=%@EMPTY@ {"),
        "sync",
        "not-initialised",
        "%@EMPTY@",
    ),
    "a table that is dealt out by id has a dense gradient": (DENSE, "sync", "table-gradient", "lookup_table(W="),
    "ids that are looked up are made later": (LATE, "sync", "table-order", "lookup_table(W="),
    "the op that updates a parameter is gone": (
        "\n".join(line for line in MOMENTUM.split("\n") if "momentum(" not in line),
        "sync",
        "optimizer-unknown",
        "scale(X=%w) -> Out=%decay",
    ),
    "the role variables of an update name another gradient": (
        edited(SPARSE, "optimize(%words, %words@GRAD)", "optimize(%words, %words@GRAD@RENAME@block0@0)"),
        "sync",
        "update-variables",
        "sgd(Param=%words",
    ),
    "the slots of Adadelta are swapped": (ADADELTA, "sync", "update-variables", "adadelta("),
}


def is_clean(module: Module) -> bool:
    return all(finding.severity is not Severity.ERROR for finding in ps.verify(module))


@pytest.mark.parametrize("case", CASES)
def test_it_is_told_at_its_line(case: str):
    text, mode, code, line = CASES[case]
    module = ps.loads(text)
    assert is_clean(module)
    with pytest.raises(DiagnosticError) as refused:
        ps.compile(module, JOBS[mode])
    (first, *_) = refused.value.diagnostics
    assert first.code == code
    assert first.location is not None
    assert line in text.split("\n")[first.location.line - 1]


@pytest.mark.parametrize("mode", ["sync", "fleet-sync", "rows"])
def test_the_norm_of_all_gradients_is_made_for_a_parameter_that_is_not_trainable(mode: str):
    """Which no server updates."""
    text = ps.dumps(recorded_fluid.source("clip_global_norm"))
    module = ps.loads(edited(text, "param %fc_2.w_0 : f32[8, 1]\n", "param %fc_2.w_0 : f32[8, 1] {trainable=false}\n"))
    assert is_clean(module)
    with pytest.raises(DiagnosticError, match=r"made for the update of %fc_2\.w_0; that is not trainable") as refused:
        ps.compile(module, JOBS[mode])
    assert not is_unexplained(refused.value)


def test_a_rate_has_as_many_elements_as_the_parameter():
    """Fluid refuses it, as any rate that is not one number."""
    text = (ROOT / "golden" / "mlp_adam.ir").read_text(encoding="utf-8")
    module = ps.loads(edited(text, "Grad=%w1@GRAD, LearningRate=%lr", "Grad=%w1@GRAD, LearningRate=%w1_moment1_0"))
    (finding,) = [finding for finding in ps.verify(module) if finding.severity is Severity.ERROR]
    assert (finding.code, finding.message[-24:]) == ("type-mismatch", "it must have one element")


def test_a_parameter_has_two_optimizers():
    """With delay compensation; servers keep the copies of a slice for one."""
    module = recorded_fluid.source("v1_and_v2")
    block = module.main.main_block
    at = next(i for i, op in enumerate(block.ops) if op.input("Param") == "t1")
    twice = block._replace(ops=(*block.ops[: at + 1], *block.ops[at:]))
    edited = Module(module.programs | {"main": module.main._replace(blocks=(twice, *module.main.blocks[1:]))})
    with pytest.raises(DiagnosticError, match="it is the second op that updates %t1"):
        ps.compile(edited, JOBS["dc-asgd"])


@pytest.mark.parametrize("mode", ["sync", "geo", "grad-allreduce", "local-sgd"])
@pytest.mark.parametrize(("program", "other"), [("main", "bool"), ("startup", "bool"), ("startup", "f64")])
def test_a_parameter_is_declared_with_two_element_types(program: str, other: str, mode: str):
    head, main, startup = MOMENTUM.partition("program @startup")[0], *MOMENTUM.partition("program @startup")[1:]
    parts = {"main": head, "startup": main + startup}
    parts[program] = edited(parts[program], "param %w : f32[128, 128]", f"param %w : {other}[128, 128]")
    module = ps.loads("".join(parts.values()))
    result = ps.compile(module, JOBS[mode])
    report = check(module, JOBS[mode], result=result, steps=2)
    assert mode in ("geo", "local-sgd") or not report.different


def test_gradients_of_a_program_that_updates_nothing_are_averaged():
    """Under grad-allreduce; decayed, and used for nothing."""
    lines = [line for line in MOMENTUM.split("\n") if "momentum(" not in line]
    module = ps.loads("\n".join(lines))
    main = ps.compile(module, JOBS["grad-allreduce"]).trainer(0).main
    types = [op.type for op in main.main_block.ops]
    assert types.count("c_sync_comm_stream") == 1
    assert types.index("c_sync_comm_stream") == types.index("sum") - 2  # before `scale` and `sum` of role optimize
    lines = [line for line in lines if ": optimize" not in line]
    ops = ps.compile(ps.loads("\n".join(lines)), JOBS["grad-allreduce"]).trainer(0).main.main_block.ops
    assert ops[-1].type == "c_sync_comm_stream"


def test_an_output_slot_that_nothing_declares_takes_no_value_from_others():
    """What stands in it is given no value there, so ops that follow read what it had before."""
    text = edited(LINEAR, "mul(X=%x, Y=%w) -> Out=%xw", "mul(X=%x, Y=%w) -> Out=%xw, Nothing=[%b, %lr]")
    trained: list[dict[str, Any]] = []
    for module in map(ps.loads, (LINEAR, text)):
        scope = ps.Scope()
        ps.run(module["startup"], scope=scope)
        for step in range(3):  # the first runs op by op
            feeds = {name: array[step] for name, array in make_feeds(module.main, 3, 4).items()}
            ps.run(module.main, feeds, scope=scope)
        trained.append({name: scope[name].tolist() for name in ("w", "b")})
    assert trained[0] == trained[1]


def test_a_step_in_which_an_op_gives_no_value_to_what_it_names_ends():
    """On trainers of a cluster, for which code is made anew until what it assumes of values holds."""
    module = recorded_fluid.source("hsigmoid_sparse")
    block = module.main.main_block
    ops = [op._replace(type="mean") if op.type == "hierarchical_sigmoid" else op for op in block.ops]
    main = module.main._replace(blocks=(block._replace(ops=tuple(ops)), *module.main.blocks[1:]))
    module = Module(module.programs | {"main": main})
    assert is_clean(module)
    compiled = ps.compile(module, JOBS["nccl2"])
    with limited(), pytest.raises(DiagnosticError, match=r"hierarchical_sigmoid_0.tmp_1 \(PreOut\) has no value"):
        ps.simulate(compiled, make_feeds(module.main, 2, 4), steps=2)


@pytest.mark.parametrize("mode", JOBS)
def test_a_start_up_program_makes_other_dims_than_declared(mode: str):
    """Those of a parameter; only when the program runs is it known."""
    made = "uniform_random(ShapeTensorList=[%lr, %lr]) -> Out=%w"
    module = ps.loads(edited(LINEAR, "uniform_random() -> Out=%w", made))
    assert is_clean(module)
    feeds = make_feeds(module.main, 2, 4)
    message = r"it makes w\S* on \w:1, f32\[0, 0\], but its dims are" if JOBS[mode].pservers else "mul: "
    with pytest.raises(DiagnosticError, match=message):
        ps.simulate(ps.compile(module, JOBS[mode]), feeds, steps=2)


@pytest.mark.parametrize("mode", ["sync", "geo"])
def test_a_parameter_is_made_as_one_number(mode: str):
    """On one machine; servers make slices of the dims that are declared."""
    text = ps.dumps(recorded_fluid.source("sparse_l2"))
    module = ps.loads(edited(text, "Out=%fc_0.b_0 {shape=[32]}", "Out=%fc_0.b_0"))
    assert is_clean(module)
    with contextlib.suppress(DiagnosticError):  # a step of geo may find it first
        assert check(module, JOBS[mode], steps=2).different


def test_rows_are_looked_up_for_ids_of_other_dims():
    """Which only their values tell: a trainer asks servers for rows, and can't deal them out."""
    module = recorded_fluid.source("lookup_chain")
    block = module.main.main_block
    ops = [op._replace(type="c_allreduce_sum") if op.type == "reshape2" else op for op in block.ops]
    main = module.main._replace(blocks=(block._replace(ops=tuple(ops)), *module.main.blocks[1:]))
    module = Module(module.programs | {"main": main})
    assert is_clean(module)
    with pytest.raises(DiagnosticError, match=r"distributed_lookup_table: (.*\n)*.*on trainer_0, step 1"):
        ps.simulate(ps.compile(module, JOBS["sync"]), make_feeds(module.main, 2, 4), steps=2)


@pytest.mark.parametrize("dtype", [DType.INT64, DType.BOOL])
def test_a_start_up_program_makes_another_element_type_than_declared(dtype: DType):
    """Which the verifier sees. If it is run, trainers refuse what servers hold."""
    old = "uniform_random() -> Out=%w {max=0.65465367, min=-0.65465367, seed=1, "
    module = ps.loads(edited(LINEAR, old, f"fill_constant -> Out=%w {{dtype={dtype.value}, "))
    assert any(finding.message.startswith("mul: Y is ") for finding in ps.verify(module))
    feeds = make_feeds(module.main, 2, 4)
    with pytest.raises(
        DiagnosticError, match=r"recv: w is declared as float32\[13, 1\], but the server holds "
    ) as refused:
        ps.simulate(ps.compile(module, JOBS["geo"]), feeds, steps=2)
    assert refused.value.diagnostics[0].location is not None
    with pytest.raises(DiagnosticError, match=r"recv: w\.block0 is declared as float32\[7, 1\], but the server holds "):
        ps.simulate(ps.compile(module, JOBS["sync"]), feeds, steps=2)


def test_a_step_gives_a_parameter_another_element_type():
    """Geo, which keeps what was exchanged before, has no difference of the two."""
    update = "sgd(Param=%w, Grad=%w@GRAD, LearningRate=%lr) -> ParamOut=%w : optimize(%w, %w@GRAD)\n"
    cast = f"    cast(X=%w) -> Out=%w {{in_dtype=5, out_dtype={DType.FP64.value}}} : optimize\n"
    module = ps.loads(edited(LINEAR, update, update + cast))
    compiled = ps.compile(module, ps.Job(2, 2, mode="geo", geo_sgd_need_push_nums=1))
    with pytest.raises(DiagnosticError, match=r"%w is f64\[13, 1\] after a step, and was f32\[13, 1\]"):
        ps.simulate(compiled, make_feeds(module.main, 1, 4), steps=1)


def test_state_that_can_only_be_made_whole_keeps_its_parameter_whole():
    text = edited(
        MOMENTUM,
        "fill_constant -> Out=%w_velocity_0 {shape=[128, 128]}",
        "eye() -> Out=%w_velocity_0 {num_rows=128, num_columns=128}",
    )
    result = ps.compile(ps.loads(text), JOBS["sync"])
    assert [len(parameter.slices) for parameter in result.plan.parameters] == [1]
    (warning,) = result.warnings
    assert "eye can't make a slice of %w_velocity_0" in warning.message


def test_a_variable_of_the_start_up_program_has_the_name_of_a_slice():
    text = edited(
        MOMENTUM,
        "Out=%w_velocity_0 {shape=[128, 128]}",
        "Out=%w_velocity_0 {shape=[128, 128]}\n    fill_constant -> Out=%w.block0 {shape=[128, 128]}",
    )
    at = text.rindex("    param %w :")
    text = f"{text[:at]}    state %w.block0 : f32[128, 128]\n{text[at:]}"
    with pytest.raises(DiagnosticError, match=r"%w\.block0 must have another name"):
        ps.compile(ps.loads(text), JOBS["sync"])


@pytest.mark.parametrize("mode", JOBS)
def test_an_unsound_module_ends_in_diagnostics(mode: str):
    """Not in a KeyError: the function that is imported does not verify first, as the command does."""
    for old, new in (
        ("    temp  %decay : f32[128, 128]\n", ""),
        ("    param %w : f32[128, 128]\n", ""),
        ("Grad=%w@GRAD, ", ""),
        ("-> ParamOut=%w, ", "-> "),
    ):
        module = ps.loads(edited(MOMENTUM, old, new))
        assert not is_clean(module)
        with contextlib.suppress(DiagnosticError):
            ps.compile(module, JOBS[mode])
    with pytest.raises(DiagnosticError, match="has no block"):
        ps.compile(Module(ps.loads(MOMENTUM).programs | {"main": ps.Program(blocks=())}), JOBS[mode])
    with pytest.raises(DiagnosticError, match="has no block"):
        ps.run(ps.Program(blocks=()))


@pytest.mark.parametrize(
    ("attrs", "count"),
    [({}, 0), ({"in_dtype": "f32", "out_dtype": 5}, 0), (dict.fromkeys(("in_dtype", "out_dtype"), 5), 1)],
)
def test_an_op_that_lacks_an_attribute_asks_for_no_gradient(attrs: dict[str, Any], count: int):
    """Nor one that has it of another kind: what its gradient would read of it is not known."""
    op = ps.Op("cast", FrozenMap({"X": ("a",)}), FrozenMap({"Out": ("b",)}), FrozenMap(attrs))
    assert len(expected_of(op, 0)) == count


def test_an_op_with_a_list_where_one_name_goes_asks_for_no_gradient():
    names = {"X": FrozenMap({"X": ("a", "b")}), "Out": FrozenMap({"Out": ("c", "d")})}
    assert expected_of(ps.Op("sum", names["X"], names["Out"], FrozenMap()), 0) == []
    assert len(expected_of(ps.Op("sum", names["X"], FrozenMap({"Out": ("c",)}), FrozenMap()), 0)) == 2


def test_an_op_that_is_written_as_an_expression_lacks_its_input():
    module = ps.loads("ir 1\nprogram @main {\nblock ^0 {\ntemp %y : bool[1]\nlogical_not() -> Out=%y\n}\n}\n")
    with pytest.raises(DiagnosticError, match="logical_not"):
        ps.run(module.main, {}, ["y"], scope=ps.Scope())


@pytest.mark.parametrize("slot", ["X", "Out", "step"])
def test_an_op_of_a_loop_lacks_what_its_gradient_needs(slot: str):
    """Running says so, without a look at the gradients first. A step that is not given is 1."""
    module = recorded_fluid.source("while_loop")

    def without(op: ps.Op) -> ps.Op:
        sides = (FrozenMap({s: names for s, names in side.items() if s != slot}) for side in (op.inputs, op.outputs))
        attrs = FrozenMap({name: value for name, value in op.attrs.items() if name != slot})
        return op._replace(inputs=next(sides), outputs=next(sides), attrs=attrs) if op.type == "increment" else op

    blocks = [block._replace(ops=tuple(map(without, block.ops))) for block in module.main.blocks]
    main, scope = module.main._replace(blocks=tuple(blocks)), ps.Scope()
    ps.run(module["startup"], scope=scope)
    feeds = {name: array[0] for name, array in make_feeds(main, 1, 4).items()}
    with limited(), contextlib.nullcontext() if slot == "step" else pytest.raises(DiagnosticError):
        ps.run(main, feeds, scope=scope)


def test_the_step_counter_is_kept_by_startup_only():
    """@main has one of its own, which nothing gives a value; async has trainers send the steps that they count."""
    module = recorded_fluid.source("lr_polynomial_cycle")
    block = module.main.main_block
    counter = block.vars["@LR_DECAY_COUNTER@"]._replace(persistable=False)
    changed = block._replace(vars=FrozenMap({**block.vars, counter.name: counter}))
    module = Module(module.programs | {"main": module.main._replace(blocks=(changed, *module.main.blocks[1:]))})
    assert is_clean(module)
    with pytest.raises(DiagnosticError, match="no op before makes it, and it is not persistable") as raised:
        ps.compile(module, JOBS["async"])
    assert not is_unexplained(raised.value)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_schedule_that_reads_what_nobody_declares(mode: str):
    """A slot that may be empty: one machine runs the op without it, and servers have nothing to give it."""
    module = recorded_fluid.source("lr_warmup")
    slots = FrozenMap({"X": ("nobody",)}), FrozenMap({"Out": ("learning_rate_warmup",)})
    block = module.main.main_block
    ops = (*block.ops, ps.Op("assign", *slots, role=OpRole.LR_SCHED))
    main = module.main._replace(blocks=(block._replace(ops=ops), *module.main.blocks[1:]))
    with pytest.raises(DiagnosticError, match="%nobody is not declared in block 0") as raised:
        ps.compile(Module(module.programs | {"main": main}), JOBS[mode])
    assert not is_unexplained(raised.value)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_schedule_whose_block_reads_what_nobody_declares(mode: str):
    module = recorded_fluid.source("lr_warmup")
    block = module.main.blocks[2]
    slots = FrozenMap({"X": ("nobody",)}), FrozenMap({"Out": ("learning_rate_warmup",)})
    changed = block._replace(ops=(*block.ops, ps.Op("assign", *slots, role=OpRole.LR_SCHED)))
    main = module.main._replace(blocks=(*module.main.blocks[:2], changed, *module.main.blocks[3:]))
    with pytest.raises(DiagnosticError, match="%nobody is not declared in block 0") as raised:
        ps.compile(Module(module.programs | {"main": main}), JOBS[mode])
    assert not is_unexplained(raised.value)


def is_backward(op: ps.Op) -> bool:
    return bool((op.role or OpRole.FORWARD) & (OpRole.BACKWARD | OpRole.OPTIMIZE))


def test_a_loop_that_can_not_end_is_stopped():
    """Its counter is not counted; a condition that nothing changes is computed anew in every turn."""
    module = recorded_fluid.source("while_loop")
    blocks = [
        block._replace(ops=tuple(op for op in block.ops if op.type != "increment" and not is_backward(op)))
        for block in module.main.blocks
    ]
    endless = module.main._replace(blocks=tuple(blocks))
    scope = ps.Scope()
    ps.run(module["startup"], scope=scope)
    with limited(), pytest.raises(DiagnosticError, match="nothing in its block changes its condition"):
        ps.run(endless, {name: array[0] for name, array in make_feeds(endless, 1, 4).items()}, scope=scope)


def test_the_gradient_of_a_loop_is_in_the_block_that_it_runs():
    """Which has no end when it is followed, and is told by the verifier."""
    module = SOURCES["while_loop"]()
    (loop,) = (op for op in module.main.main_block.ops if op.type == "while_grad")
    blocks = list(module.main.blocks)
    inner = blocks[loop.attrs["sub_block"]]
    blocks[loop.attrs["sub_block"]] = inner._replace(ops=(*inner.ops, loop))
    main = module.main._replace(blocks=tuple(blocks))
    assert not can_be_followed(main)
    scope = ps.Scope()
    ps.run(module["startup"], scope=scope, seed=1)
    feeds = {name: array[0] for name, array in make_feeds(module.main, 1, 4).items()}
    with pytest.raises(DiagnosticError), limited():
        ps.run(main, feeds, scope=scope)
    findings = ps.verify(module.with_programs({**module.programs, "main": main}))
    assert "block-reference-cycle" in [finding.code for finding in findings]


def test_the_scopes_of_a_schedule_have_the_name_of_what_it_computes():
    """A server keeps what has no numbers there; nothing is compared of it."""
    text = PIECEWISE.replace("Scope=%_generated_var_2", "Scope=%after2")
    job = JOBS["async"]
    module = ps.loads(text)
    with contextlib.suppress(DiagnosticError):
        assert check(module, job, steps=2).steps == 2


def test_a_table_that_is_dealt_out_by_id_is_all_that_is_trained():
    """A communicator sends nothing then, and its barrier is that of the mode."""
    module = recorded_fluid.source("dist_table_adam")
    block = module.main.main_block
    ops = [op for op in block.ops if op.input("Param") in (None, "shared_w")]
    main = module.main._replace(blocks=(block._replace(ops=tuple(ops)), *module.main.blocks[1:]))
    for mode in ("half-async", "sync", "split"):
        assert ps.compile(Module(module.programs | {"main": main}), JOBS[mode]).roles()


def test_a_step_gives_a_parameter_other_dims():
    """A lookup with table and rows swapped; every row is different then."""
    module = recorded_fluid.source("hsigmoid_sparse")
    block = module.main.main_block
    slots = {
        "inputs": FrozenMap({"W": ("embedding_0.tmp_0",), "Ids": ("ids",)}),
        "outputs": FrozenMap({"Out": ("hs_emb",)}),
    }
    ops = tuple([op._replace(**slots) if op.type == "lookup_table" else op for op in block.ops])
    main = module.main._replace(blocks=(block._replace(ops=ops), *module.main.blocks[1:]))
    report = check(Module(module.programs | {"main": main}), JOBS["sync"], steps=2)
    assert "hs_emb" in [verdict.name for verdict in report.different]


def test_a_block_that_a_gradient_runs_is_not_there():
    """Gradients are not followed through it, and its run is refused."""
    module = recorded_fluid.source("static_rnn")
    (first, inner, _) = module.main.blocks
    at = next(index for index, op in enumerate(first.ops) if op.type == "fill_constant_batch_size_like")
    ops = (*first.ops[:at], first.ops[at + 1], first.ops[at], *first.ops[at + 2 :])
    assert can_be_followed(module.main)
    for blocks in ((first._replace(ops=ops), inner), (first, inner._replace(parent=3))):
        main = module.main._replace(blocks=blocks)
        assert not can_be_followed(main)
        scope = ps.Scope()
        ps.run(module["startup"], scope=scope, seed=1)
        feeds = {name: array[0] for name, array in make_feeds(main, 1, 4).items()}
        with pytest.raises(DiagnosticError), limited():
            ps.run(main, feeds, scope=scope)


def test_an_optimizer_that_reads_the_clipped_gradient_of_another_parameter():
    """Trainers clip by the norm of all gradients, and send each to the server of its parameter only."""
    module = SOURCES["clip_global_norm"]()
    block = module.main.main_block
    bias, weight = [op for op in block.ops if op.type == "adam"][-2:]
    wrong = weight._replace(inputs=FrozenMap({**weight.inputs, "Beta1Tensor": bias.inputs["Grad"]}))
    ops = tuple(wrong if op is weight else op for op in block.ops)
    main = module.main.with_main_block(block._replace(ops=ops))
    for mode in ("async", "dc-asgd"):
        with pytest.raises(DiagnosticError) as refused:
            ps.compile(module.with_programs({**module.programs, "main": main}), JOBS[mode])
        assert {finding.code for finding in refused.value.diagnostics} == {"needs-trainer-value"}
