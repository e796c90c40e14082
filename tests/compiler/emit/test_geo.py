"""Mode geo: Fluid's programs where Fluid is right, and programs that train where it is not."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.machines.communicator import Settings
from pstranspile.compiler.compile import Compiled, prepare
from pstranspile.compiler.job import job_warnings
from pstranspile.compiler.plan.plan import plan_json, plan_text, vars_info
from pstranspile.compiler.plan.plan_file import parse_plan
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, Adam, minimize
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import MAIN, STARTUP, FrozenMap, Module, Op, Program, TensorType, Var
from pstranspile.ir.types import DType, OpRole, VarKind
from tests.compiler.emit.several import DISCRIMINATOR, GENERATOR, adversarial, with_evaluation
from tests.recorded_fluid import comparable, files, job_names, recording

EMITTED = [name for name in job_names() if "/geo" in name and recording(name).roles]
DENSE = [name for name in EMITTED if recording(name).fault]


def job(**settings: Any) -> ps.Job:
    return ps.Job(**{"pservers": 2, "trainers": 2, "mode": "geo", "min_block_size": 64, **settings})


def trained(loss: L.Value, **arguments: Any) -> Module:
    minimize(loss, arguments.pop("optimizer", SGD(0.1)))
    return loss.draft.module()


def line(width: int = 13) -> Module:
    m = L.Draft(seed=1)
    x, y = L.data(m, "x", [-1, width]), L.data(m, "y", [-1, 1])
    return trained(L.mean(L.square_error_cost(L.fc(x, 1, param_attr="w", bias_attr="b"), y)))


def words(m: L.Draft, *rows: L.Value) -> Module:
    """A model that sums what was looked up."""
    y = L.data(m, "y", [-1, 1])
    return trained(L.mean(L.square_error_cost(L.fc(L.sums([*rows]), 1, param_attr="w", bias_attr=False), y)))


def embedded(name: str = "table") -> Module:
    m = L.Draft(seed=1)
    ids = L.data(m, "ids", [-1, 1], "i64")
    return words(m, L.embedding(ids, (40, 8), is_sparse=True, param_attr=name))


def ops_of(program: Program, *types: str) -> list[Op]:
    return [op for op in program.main_block.ops if op.type in types]


def tick(program: Program) -> tuple[Any, Any]:
    (send,) = ops_of(program, "send")
    assert send is program.main_block.ops[-1]
    return send.inputs["X"], send.attrs["send_varnames"]


def refused(module: Module, **settings: Any) -> Any:
    with pytest.raises(DiagnosticError) as refusal:
        ps.compile(module, job(**settings))
    (diagnostic,) = refusal.value.diagnostics
    return diagnostic


def without_tick(program: Program) -> Program:
    """The program without its last send, and without what only it uses."""
    block = program.main_block
    send = block.ops[-1]
    assert send.type == "send"
    gone = set(send.output_names).union(send.input_names)
    ops = tuple(op for op in block.ops[:-1] if not gone & set(op.output_names))
    variables = FrozenMap({name: var for name, var in block.vars.items() if name not in gone})
    return program._replace(blocks=(block._replace(ops=ops, vars=variables), *program.blocks[1:]))


# As Fluid (that the programs of models with sparse tables are Fluid's is tested with those of all modes)


@pytest.mark.parametrize("name", DENSE)
def test_dense_models_are_fluids_but_for_the_end_of_the_step(name: str) -> None:
    recorded = recording(name)
    compiled = ps.compile(recorded.module, recorded.job)
    for role in recorded.roles:
        ours = compiled.roles()[role]
        mains = [recorded.program(role, "main"), ours.main]
        if role.startswith("trainer"):
            assert ops_of(mains[0], "send")[0].attrs.get("send_varnames") in (None, ps_strings())
            mains = [without_tick(main) for main in mains]
        theirs = comparable(mains[0], recorded.program(role, "startup"))
        assert json.dumps(comparable(mains[1], ours.startup), indent=1) == json.dumps(theirs, indent=1), role


def ps_strings() -> Any:
    from pstranspile.ir.attributes import Strings

    return Strings()


@pytest.mark.parametrize("name", EMITTED)
def test_communicators_are_told_what_fluid_tells_them(name: str) -> None:
    recorded = recording(name)
    compiled = ps.compile(recorded.module, recorded.job)
    told = json.loads(files()[f"{name}/vars_info.json"])
    assert sorted(told) == [f"trainer_{i}" for i in range(recorded.job.trainers)]
    for rows in told.values():
        assert list(vars_info(compiled.plan.parameters).items()) == [(name, info) for name, info in rows]


@pytest.mark.parametrize("name", EMITTED)
def test_places_as_fluid(name: str) -> None:
    recorded = recording(name)
    compiled = ps.compile(recorded.module, recorded.job)
    ours = [
        [v.vtype, v.endpoint, v.origin, [*v.origin_shape], v.slice, [*v.slice_shape], v.is_slice, v.block_id, v.offset]
        for v in compiled.distributed_vars
    ]
    assert all(rows == ours for rows in recorded.placed.values())
    assert compiled.plan.distributed_lookup_table is None


def test_slicing_cannot_be_switched_off() -> None:
    off = recording("basic_fc_1000/geo_noslice_2x2")
    assert [d.message for d in job_warnings(off.job)] == ["slice_var_up has no effect in mode geo"]
    without, usual = (ps.compile(r.module, r.job) for r in (off, recording("basic_fc_1000/geo_2x2")))
    assert without.roles() == usual.roles()
    assert without.plan.parameters[1].is_cut


# What a step tells


def test_a_lookup_is_local_and_its_ids_are_told() -> None:
    compiled = ps.compile(embedded(), job())
    main = compiled.trainer(1).main
    assert tick(main) == (("ids",), ("table",))
    (lookup,) = ops_of(main, "lookup_table")
    assert lookup.attrs["remote_prefetch"] is False
    assert not ops_of(main, "recv", "distributed_lookup_table")
    assert main == compiled.trainer(0).main._replace(distribution=main.distribution)
    assert main.main_block.vars["table.delta"].kind is VarKind.SELECTED_ROWS
    assert main.main_block.vars["table.block1.delta"].shape == (20, 8)


def test_two_tables_looked_up_at_the_same_ids() -> None:
    """Fluid remembers the table last told of for some ids, and meets them again in the backward pass."""
    m = L.Draft(seed=1)
    ids = L.data(m, "ids", [-1, 1], "i64")
    rows = [L.embedding(ids, (40, 8), is_sparse=True, param_attr=name) for name in ("one", "two")]
    compiled = ps.compile(words(m, *rows), job())
    ids_told, tables = tick(compiled.trainer(0).main)
    assert set(zip(ids_told, tables, strict=True)) == {("ids", "one"), ("ids", "two")}
    assert tables == ("one", "two", "one")


def test_distributed_tables_are_tables_like_others() -> None:
    """Fluid takes one at most, and calls it a table that servers look up and save, which they don't."""
    m = L.Draft(seed=1)
    ids = [L.data(m, name, [-1, 1], "i64") for name in ("a", "b")]
    rows = [L.embedding(i, (40, 8), is_sparse=True, is_distributed=True, param_attr=f"table_{i.name}") for i in ids]
    compiled = ps.compile(words(m, *rows), job())
    assert tick(compiled.trainer(0).main) == (("a", "b"), ("table_a", "table_b"))
    assert compiled.plan.distributed_lookup_table is None
    assert [p.name for p in compiled.plan.parameters if p.sparse] == ["table_a", "table_b"]


def test_lookups_of_the_second_version() -> None:
    """They keep `remote_prefetch`, as in Fluid, and look up locally all the same, since they know no server."""
    m = L.Draft(seed=1)
    ids = L.data(m, "ids", [-1], "i64")
    module = words(m, L.embedding_v2(ids, (40, 8), is_sparse=True, param_attr="table"))
    compiled = ps.compile(module, job(trainers=1))
    trainer = compiled.trainer(0)
    (lookup,) = ops_of(trainer.main, "lookup_table_v2")
    assert lookup.attrs["remote_prefetch"] is True
    assert tick(trainer.main) == (("ids",), ("table",))
    assert {name for op in ops_of(trainer.startup, "recv") for name in op.output_names} >= {"table.block0"}
    assert_follows(compiled, module, {"ids": np.arange(24).reshape(4, 6) % 7, "y": np.ones((4, 6, 1), "float32")})


def classes(**arguments: Any) -> L.Value:
    m = L.Draft(seed=1)
    x, label = L.data(m, "x", [-1, 8]), L.data(m, "label", [-1, 1], "i64")
    hidden = L.fc(x, 8, param_attr="w", bias_attr=False)
    return L.mean(L.nce(hidden, label, 40, num_neg_samples=4, param_attr="classes", bias_attr="bias", **arguments))


def test_sampled_classes_are_told() -> None:
    """Fluid refuses `nce` in any form."""
    compiled = ps.compile(trained(classes(is_sparse=True)), job())
    main = compiled.trainer(0).main
    (nce,) = ops_of(main, "nce")
    sampled = nce.outputs["SampleLabels"][0]
    assert tick(main) == ((sampled,), ("classes",))
    assert [p.name for p in compiled.plan.parameters if p.sparse] == ["classes"]
    compiled = ps.compile(trained(classes()), job())
    assert not compiled.plan.by_name["classes"].sparse
    assert tick(compiled.trainer(0).main) == (("geo_step",), ("bias",))


def test_rows_that_no_variable_tells() -> None:
    module = recording("hsigmoid_sparse/geo_2x2").module
    block = module.main.main_block
    ops = tuple(
        op._replace(inputs=FrozenMap({**op.inputs, "PathTable": ()})) if op.type == "hierarchical_sigmoid" else op
        for op in block.ops
    )
    diagnostic = refused(
        Module(FrozenMap({**module.programs, MAIN: module.main._replace(blocks=(block._replace(ops=ops),))}))
    )
    assert diagnostic.code == "geo-rows"
    assert "hierarchical_sigmoid: the op changes rows of %hierarchical_sigmoid_0.w_0" in diagnostic.message
    assert "is_sparse=False" in diagnostic.message


def test_paths_in_a_tree_are_told_without_what_pads_them() -> None:
    """Fluid refuses `hierarchical_sigmoid`. Row 0, which stands for none, is sent as it is."""
    recorded = recording("hsigmoid_sparse/geo_2x2")
    compiled = ps.compile(recorded.module, recorded.job)
    main = compiled.trainer(0).main
    (loss,) = ops_of(main, "hierarchical_sigmoid")
    path = loss.inputs["PathTable"][0]
    ids, tables = tick(main)
    assert (ids[-1], tables[-1]) == (f"{path}.rows", loss.inputs["W"][0])
    last = ops_of(main, "elementwise_max")[-1]
    assert (last.inputs["X"], last.inputs["Y"], last.outputs["Out"]) == ((path,), ("geo_step",), (f"{path}.rows",))


def test_lookups_in_sub_blocks() -> None:
    module = embedded()
    block = module.main.main_block
    inner = type(block)(FrozenMap(), tuple(ops_of(module.main, "lookup_table")), 0)
    nested = Module(FrozenMap({**module.programs, MAIN: module.main._replace(blocks=(block, inner))}), module.source)
    diagnostic = refused(nested)
    assert (diagnostic.code, diagnostic.focus) == ("geo-rows", "%table")
    assert "sub-block" in diagnostic.message


def test_a_sparse_gradient_of_unknown_origin() -> None:
    module = embedded()
    block = module.main.main_block
    ops = tuple(op for op in block.ops if not op.type.startswith("lookup_table"))
    bare = Module(FrozenMap({**module.programs, MAIN: module.main._replace(blocks=(block._replace(ops=ops),))}))
    diagnostic = refused(bare)
    assert diagnostic.code == "geo-rows"
    assert "no op that is known looks it up" in diagnostic.message


# Names


@pytest.mark.parametrize("name", ["param_init", "w.delta", "w.block1.delta"])
def test_names_that_have_a_meaning_are_refused(name: str) -> None:
    module = line(200)
    block = module.main.main_block
    variables = FrozenMap({**block.vars, name: Var(name, tensor=TensorType(DType.FP32, (1,)))})
    main = module.main._replace(blocks=(block._replace(vars=variables),))
    diagnostic = refused(Module(FrozenMap({**module.programs, MAIN: main})))
    assert (diagnostic.code, diagnostic.focus) == ("geo-name", f"%{name}")
    assert "rename it" in diagnostic.message


@pytest.mark.parametrize("name", ["table#1", "a&b"])
def test_names_that_fluids_communicator_cannot_be_told_work_here(name: str) -> None:
    module = embedded(name)
    compiled = ps.compile(module, job(trainers=1))
    assert [(d.code, d.focus) for d in compiled.warnings] == [("geo-name", f"%{name}")]
    assert vars_info(compiled.plan.parameters)[name]["var_names"] == [f"{name}.block0", f"{name}.block1"]
    assert_follows(compiled, module, {"ids": np.arange(24).reshape(4, 6, 1) % 7, "y": np.ones((4, 6, 1), "float32")})


def test_names_of_slices_that_are_taken_are_not_used() -> None:
    module = line(200)
    block = module.main.main_block
    variables = FrozenMap({**block.vars, "w.block1": Var("w.block1", tensor=TensorType(DType.FP32, (1,)))})
    main = module.main._replace(blocks=(block._replace(vars=variables),))
    compiled = ps.compile(Module(FrozenMap({**module.programs, MAIN: main})), job())
    assert vars_info(compiled.plan.parameters)["w"]["var_names"] == ["w.block0", "w.block1_"]
    assert "w.block1_.delta" in compiled.trainer(0).main.main_block.vars


def test_names_that_look_like_slices() -> None:
    """Fluid takes a parameter's name apart and fails."""
    compiled = ps.compile(embedded("a.block1.b"), job())
    assert vars_info(compiled.plan.parameters)["a.block1.b"]["var_names"] == ["a.block1.b.block0", "a.block1.b.block1"]
    assert {v.origin for v in compiled.distributed_vars} == {"a.block1.b", "w"}


# Training


def assert_follows(compiled: Compiled, module: Module, feeds: dict[str, Any], push_every: int = 2) -> None:
    """One trainer learns as one machine does, and what the servers hold follows it."""
    steps = len(next(iter(feeds.values())))
    scope = ps.Scope()
    ps.run(module[STARTUP], scope=scope)
    start = {p.name: np.array(scope[p.name]) for p in compiled.plan.parameters}
    for step in range(steps):
        ps.run(module.main, feed={name: value[step] for name, value in feeds.items()}, scope=scope)
    found = ps.simulate(compiled, feeds, steps, settings=Settings(push_every=push_every))
    for name, value in found.parameters.items():
        assert (value != start[name]).any(), name
        np.testing.assert_allclose(value, scope[name], rtol=1e-5, atol=1e-6)


def test_a_dense_model_exchanges() -> None:
    """In Fluid nothing is pushed or pulled."""
    module = line()
    compiled = ps.compile(module, job(trainers=1, pservers=3))
    main = compiled.trainer(0).main
    assert tick(main) == (("geo_step",), ("b",))
    token = main.main_block.ops[-2]
    assert (token.type, token.outputs["Out"], token.attrs["dtype"]) == ("fill_constant", ("geo_step",), 3)
    random = np.random.default_rng(0)
    feeds = {"x": random.normal(size=(6, 4, 13)).astype("f"), "y": random.normal(size=(6, 4, 1)).astype("f")}
    assert_follows(compiled, module, feeds)


def test_paths_in_a_tree_are_exchanged() -> None:
    m = L.Draft(seed=1)
    x, label = L.data(m, "x", [-1, 8]), L.data(m, "label", [-1, 1], "i64")
    path, code = L.data(m, "path", [-1, 3], "i64"), L.data(m, "code", [-1, 3], "i64")
    hidden = L.fc(x, 8, param_attr="w", bias_attr=False)
    paths = {"path_table": path, "path_code": code}
    module = trained(L.mean(L.hsigmoid(hidden, label, 40, param_attr="tree", bias_attr=False, is_sparse=True, **paths)))
    compiled = ps.compile(module, job(trainers=1))
    assert tick(compiled.trainer(0).main) == (("path.rows",), ("tree",))
    random = np.random.default_rng(0)
    feeds = {
        "x": random.normal(size=(6, 4, 8)).astype("f"),
        "label": random.integers(0, 40, (6, 4, 1)),
        "path": np.tile([[0, 11, -1], [0, 12, 31], [0, 11, 39], [0, -1, -1]], (6, 1, 1)),
        "code": np.tile([[0, 1, -1], [1, 0, 1], [0, 0, 0], [1, -1, -1]], (6, 1, 1)),
    }
    assert_follows(compiled, module, feeds)


def test_sampled_classes_are_exchanged() -> None:
    module = trained(classes(is_sparse=True, seed=5))
    compiled = ps.compile(module, job(trainers=1))
    random = np.random.default_rng(0)
    feeds = {"x": random.normal(size=(6, 4, 8)).astype("f"), "label": random.integers(0, 40, (6, 4, 1))}
    assert_follows(compiled, module, feeds)


def test_a_server_that_holds_nothing_has_a_block_to_start_with() -> None:
    """Fluid's has none, and does not start."""
    compiled = ps.compile(line(), job(pservers=3))
    main = compiled.pserver("127.0.0.1:6176").main
    assert [len(block.ops) for block in main.blocks] == [1, 0]
    assert main.main_block.ops[0].attrs["optimize_blocks"] == (1,)


def test_one_server_holds_everything_whole() -> None:
    compiled = ps.compile(embedded(), job(pservers=1))
    assert all(not p.is_cut for p in compiled.plan.parameters)
    blocks = compiled.pserver("127.0.0.1:6174").main.blocks[1:]
    assert [(op.type, op.inputs["X"], op.outputs["Out"]) for block in blocks for op in block.ops] == [
        ("sum", ("table", "table.delta"), ("table",)),
        ("sum", ("w", "w.delta"), ("w",)),
    ]


def test_the_server_is_told_apart_from_others_by_its_mode() -> None:
    """`pserver_id` stays -1, as in Fluid: nobody watches the trainers' heartbeats."""
    compiled = ps.compile(embedded(), job())
    serve = compiled.pserver("127.0.0.1:6175").main.main_block.ops[0]
    assert (serve.attrs["distributed_mode"], serve.attrs["Fanin"], serve.attrs["pserver_id"]) == (3, 2, -1)
    assert serve.attrs["sparse_grad_to_param"] == ("table.block1.delta:table.block1",)


def test_tables_that_trainers_initialise_are_the_servers() -> None:
    """Fluid's trainers do not fetch a table either, but its initialisers do not agree."""
    compiled = ps.compile(embedded(), job())
    startup = compiled.trainer(1).startup
    assert {name for op in ops_of(startup, "recv") for name in op.output_names} == {"w"}
    feeds = {"ids": np.zeros((1, 4, 1), "int64"), "y": np.ones((1, 4, 1), "float32")}
    found = ps.simulate(compiled, feeds, 1, settings=Settings(push_every=9))
    table = found.parameters["table"]
    for trainer in found.cluster.trainers:
        np.testing.assert_array_equal(trainer.scope["table"][1:], table[1:])
    assert np.abs(table).min() > 0


def test_a_table_that_is_also_read_whole_is_exchanged_whole() -> None:
    """Its gradient is dense; it starts on each trainer as its initialiser makes it, as in Fluid."""
    m = L.Draft(seed=1)
    ids, y = L.data(m, "ids", [-1, 1], "i64"), L.data(m, "y", [-1, 1])
    table = L.create_parameter(m, "table", "table", [40, 8], "f32")
    row = L.embedding(ids, (40, 8), is_sparse=True, param_attr="table")
    scores = L.matmul(row, table, transpose_y=True)
    module = trained(L.mean(L.square_error_cost(L.fc(scores, 1, param_attr="w", bias_attr=False), y)))
    compiled = ps.compile(module, job(trainers=1))
    assert not compiled.plan.by_name["table"].sparse
    trainer = compiled.trainer(0)
    assert [op.outputs["Out"] for op in ops_of(trainer.startup, "recv")] == [("w",)]
    assert tick(trainer.main) == (("geo_step",), ("table",))
    random = np.random.default_rng(0)
    feeds = {"ids": random.integers(0, 40, (6, 4, 1)), "y": random.normal(size=(6, 4, 1)).astype("f")}
    assert_follows(compiled, module, feeds)


# Parameters, optimizers, initialisers


def test_any_optimizer_stays_and_its_state_leaves_no_trainer() -> None:
    recorded = recording("opt_unsupported_lamb/geo_2x2")
    compiled = ps.compile(recorded.module, recorded.job)
    assert {op.type for op in ops_of(compiled.trainer(0).main, "lamb")} == {"lamb"}
    assert any(p.is_cut for p in compiled.plan.parameters)
    assert {v.vtype for v in compiled.distributed_vars} == {"Param"}


def test_an_optimizer_that_nobody_knows_is_as_good_as_any() -> None:
    module = line()
    block = module.main.main_block
    ops = tuple(op._replace(type="my_update") if op.type == "sgd" else op for op in block.ops)
    unknown = Module(FrozenMap({**module.programs, MAIN: module.main._replace(blocks=(block._replace(ops=ops),))}))
    assert [p.name for p in ps.compile(unknown, job()).plan.parameters] == ["b", "w"]


def test_parameters_that_are_not_trained_are_not_exchanged() -> None:
    recorded = recording("frozen_mlp/geo_2x2")
    compiled = ps.compile(recorded.module, recorded.job)
    assert "w0" not in compiled.plan.by_name
    assert "w0.delta" not in compiled.trainer(0).main.main_block.vars


def test_clips_belong_to_the_backward_pass() -> None:
    recorded = recording("fit_a_line_sgd/geo_2x2")
    block = recorded.module.main.main_block
    clip = next(op for op in block.ops if op.role == OpRole.OPTIMIZE)
    scoped = clip._replace(type="clip", attrs=FrozenMap({"op_namescope": "/gradient@CLIP/"}))
    main = recorded.module.main._replace(blocks=(block._replace(ops=(*block.ops, scoped)),))
    compiled = ps.compile(Module(FrozenMap({**recorded.module.programs, MAIN: main})), recorded.job)
    assert [op.role for op in ops_of(compiled.trainer(0).main, "clip")] == [OpRole.BACKWARD]


def test_an_initialiser_that_cannot_make_a_slice_keeps_the_parameter_whole() -> None:
    module = line(200)
    startup = module[STARTUP]
    block = startup.main_block
    ops = tuple(op._replace(type="eye") if op.outputs["Out"] == ("w",) else op for op in block.ops)
    programs = {**module.programs, STARTUP: startup._replace(blocks=(block._replace(ops=ops),))}
    compiled = ps.compile(Module(FrozenMap(programs)), job())
    assert [(d.code, d.focus) for d in compiled.warnings] == [("whole-initialiser", "%w")]
    assert not compiled.plan.by_name["w"].is_cut


def test_a_parameter_without_dims_is_refused() -> None:
    module = line()
    block = module.main.main_block
    variables = FrozenMap({**block.vars, "w": block.vars["w"]._replace(tensor=TensorType(DType.FP32, (-1, 1)))})
    unknown = Module(
        FrozenMap({**module.programs, MAIN: module.main._replace(blocks=(block._replace(vars=variables),))})
    )
    assert refused(unknown).code == "parameter-shape"


# Several programs, plans, the source


def test_every_training_program_ends_its_steps() -> None:
    compiled = ps.compile(adversarial(), job(min_block_size=1000))
    trainer = compiled.trainer(1)
    assert tick(trainer.main) == (("geo_step",), ("d0_b",))
    assert tick(trainer.others["generator"]) == (("geo_step",), ("g0_b",))
    assert {p.name for p in compiled.plan.parameters} == {*DISCRIMINATOR, *GENERATOR}
    assert "d0_w.delta" not in trainer.others["generator"].main_block.vars
    fetched = {n.partition(".block")[0] for op in ops_of(trainer.startup, "recv") for n in op.output_names}
    assert fetched == {*DISCRIMINATOR, *GENERATOR}


def test_programs_that_only_read_stay_as_they_are() -> None:
    module = with_evaluation()
    compiled = ps.compile(module, job())
    others = compiled.trainer(0).others
    assert list(others) == [name for name in module.programs if name not in (MAIN, STARTUP)]
    assert all(module[name] == program for name, program in others.items())


def test_plan_files_are_taken_back() -> None:
    module = embedded()
    compiled = ps.compile(module, job())
    text = plan_text(compiled.plan)
    again = ps.compile(module, job(), plan=parse_plan(text))
    assert again.roles() == compiled.roles()
    moved = text.replace('%w @ "127.0.0.1:6174"', '%w @ "127.0.0.1:6175"')
    assert moved != text
    other = ps.compile(module, job(), plan=parse_plan(moved))
    assert vars_info(other.plan.parameters)["w"]["epmap"] == ["127.0.0.1:6175"]
    assert ps.compile(module, job(), plan=compiled.plan).roles() == compiled.roles()


def test_the_plan_says_what_communicators_are_told() -> None:
    compiled = ps.compile(embedded(), job(geo_sgd_need_push_nums=7))
    written = plan_json(compiled.plan, compiled.fingerprint, compiled.distributed_vars)["geo"]
    assert written["need_push_nums"] == 7
    assert written["vars_info"] == vars_info(compiled.plan.parameters)
    assert written["vars_info"]["table"] == {
        "var_names": ["table.block0", "table.block1"],
        "sections": ["20", "20"],
        "epmap": ["127.0.0.1:6174", "127.0.0.1:6175"],
        "is_sparse": ["True"],
    }
    other = ps.compile(line(), job(mode="sync"))
    assert "geo" not in plan_json(other.plan, other.fingerprint, other.distributed_vars)


def test_the_source_is_not_touched_and_roles_come_in_any_order() -> None:
    module, again = embedded(), embedded()
    compiled = ps.compile(module, job())
    assert module == again
    alone = prepare(module, job())
    assert alone.pserver("127.0.0.1:6175") == compiled.pserver("127.0.0.1:6175")
    assert alone.trainer(1) == compiled.trainer(1)
    added = [op for role in compiled.roles().values() for op in ops_of(role.main, "send", "listen_and_serv")]
    added += (
        op for endpoint in compiled.plan.pservers for b in compiled.pserver(endpoint).main.blocks[1:] for op in b.ops
    )
    added += (op for i in range(2) for op in ops_of(compiled.trainer(i).startup, "recv", "fetch_barrier", "send"))
    assert {op.origin.rule for op in added if op.origin} == {
        "tell-rows",
        "add-change",
        "serve",
        "receive-first-value",
        "start-barrier",
        "begin-exchange",
    }
    assert all(op.origin for op in added)


def test_decay_and_adam_stay_with_the_trainer() -> None:
    m = L.Draft(seed=1)
    x, y = L.data(m, "x", [-1, 13]), L.data(m, "y", [-1, 1])
    module = trained(L.mean(L.square_error_cost(L.fc(x, 1), y)), optimizer=Adam(0.1))
    main = ps.compile(module, job()).trainer(0).main
    assert [op.type for op in main.main_block.ops][:-2] == [op.type for op in module.main.main_block.ops]
