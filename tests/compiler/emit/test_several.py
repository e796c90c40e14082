"""Several programs of one module on one cluster."""

from __future__ import annotations

import pytest

import pstranspile as ps
from pstranspile.frontends.autodiff import SGD, Adam, Exponential
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import FrozenMap, Module, Op, Program
from tests.compiler.emit.several import DISCRIMINATOR, GENERATOR, adversarial, two_tasks, with_evaluation

MODES = ("sync", "async", "half-async", "fleet-sync")


def job(mode: str = "sync", **settings: object) -> ps.Job:
    return ps.Job(pservers=2, trainers=2, mode=mode, min_block_size=1000, **settings)


def ops_of(program: Program, *types: str) -> list[Op]:
    return [op for op in program.main_block.ops if op.type in types]


def received(program: Program) -> set[str]:
    return {op.role_vars[0] for op in ops_of(program, "recv") if op.role_vars}


@pytest.mark.parametrize("mode", MODES)
def test_each_program_exchanges_what_it_trains(mode: str):
    compiled = ps.compile(adversarial(), job(mode))
    trainer = compiled.trainer(1)
    assert received(trainer.main) == set(DISCRIMINATOR)
    assert received(trainer.others["generator"]) == set(GENERATOR)
    assert [p.name for p in compiled.plan.parameters] == [*sorted(DISCRIMINATOR), *sorted(GENERATOR)]
    fetched = {name for op in ops_of(trainer.startup, "recv") for name in op.output_names}
    assert {name.partition(".block")[0] for name in fetched} == {*DISCRIMINATOR, *GENERATOR}


def test_the_servers_hold_a_block_for_every_update():
    compiled = ps.compile(adversarial(), job())
    slices = sum(len(parameter.slices) for parameter in compiled.plan.parameters)
    blocks = [compiled.pserver(endpoint).main.blocks[1:] for endpoint in compiled.plan.pservers]
    assert sum(map(len, blocks)) == slices
    assert all(block.ops[-1].type == "adam" for some in blocks for block in some)


def test_the_module_of_a_trainer_has_all_programs():
    compiled = ps.compile(adversarial(), job())
    assert list(compiled.trainer(0).module.programs) == ["main", "startup", "generator"]
    assert list(compiled.pserver(compiled.plan.pservers[0]).module.programs) == ["main", "startup"]


def test_a_parameter_trained_by_two_programs_has_two_gradients_and_one_place():
    compiled = ps.compile(two_tasks([SGD(0.1), Adam(0.01)]), job())
    encoder = compiled.plan.by_name["encoder_w"]
    assert len(encoder.slices) == 2
    for s in encoder.slices:
        blocks = compiled.pserver(s.endpoint).main.blocks[1:]
        updates = [op for block in blocks for op in block.ops if op.input("Param") == s.name]
        assert sorted(op.type for op in updates) == ["adam", "sgd"]
        assert len({op.input("Grad") for op in updates}) == 2
    sent = [name for p in ("main", "second") for op in _sends(compiled, p) for name in op.inputs["X"]]
    assert len(set(sent)) == len(sent)


def _sends(compiled: ps.Compiled, program: str) -> list[Op]:
    role = compiled.trainer(0)
    return ops_of(role.main if program == "main" else role.others[program], "send")


@pytest.mark.parametrize("settings", [{}, {"is_distributed": True}], ids=["prefetched", "by id"])
def test_an_evaluation_looks_tables_up_on_the_servers(settings: dict[str, bool]):
    compiled = ps.compile(with_evaluation(**settings), job())
    evaluation = compiled.trainer(1).others["evaluation"]
    kind = "prefetch" if settings else "distributed_lookup_table"
    assert len(ops_of(evaluation, kind)) == 1
    assert not ops_of(evaluation, "lookup_table", "send", "recv", "send_barrier")
    assert all(name in evaluation.main_block.vars for op in evaluation.main_block.ops for name in op.output_names)


def test_a_table_that_any_program_reads_otherwise_is_received():
    module = with_evaluation()
    evaluation = module["evaluation"]
    block = evaluation.main_block
    reader = Op("reduce_sum", FrozenMap(X=("words",)), FrozenMap(Out=("score.tmp",)))
    programs = {
        **module.programs,
        "evaluation": evaluation._replace(blocks=(block._replace(ops=(*block.ops, reader)),)),
    }
    compiled = ps.compile(Module(FrozenMap(programs)), job())
    assert not compiled.plan.by_name["words"].prefetched
    assert ops_of(compiled.trainer(0).main, "lookup_table")
    assert "words" in received(compiled.trainer(0).main)


def test_an_evaluation_without_tables_stays_as_it_is():
    module = adversarial()
    reading = Module(FrozenMap({**module.programs, "generator": module["startup"]}))  # any program without updates
    compiled = ps.compile(reading, job())
    assert str(compiled.trainer(0).others["generator"]) == str(reading["generator"])


def test_the_source_is_not_touched_and_the_order_of_asking_does_not_matter():
    module = adversarial()
    before = dict(module.programs)
    first, second = ps.compile(module, job()), ps.compile(module, job())
    assert second.pserver(second.plan.pservers[1]) == first.pserver(first.plan.pservers[1])
    assert second.trainer(1) == first.trainer(1)
    assert dict(module.programs) == before


def test_step_counters_of_two_programs_are_refused_where_servers_count_for_all():
    module = adversarial(Adam(Exponential(0.1, 10, 0.5)), Adam(0.1))
    with pytest.raises(DiagnosticError, match="counts steps for its learning rate") as refused:
        ps.compile(module, job())
    assert refused.value.diagnostics[0].code == "programs-schedule"
    compiled = ps.compile(module, job("async"))
    assert len(compiled.plan.counters) == 1
    assert not any(op.attrs.get("merge_add") for op in ops_of(compiled.trainer(0).others["generator"], "send"))


@pytest.mark.parametrize("mode", ["async", "half-async", "fleet-sync"])
def test_step_counters_of_two_programs_are_two(mode: str):
    module = adversarial(SGD(Exponential(0.1, 10, 0.5)), SGD(Exponential(0.1, 10, 0.5)))
    with pytest.raises(
        DiagnosticError, match="@main and @generator both count steps in %@LR_DECAY_COUNTER@"
    ) as refused:
        ps.compile(module, job(mode))
    assert refused.value.diagnostics[0].code == "programs-counter"
    name, own = "%@LR_DECAY_COUNTER@", "%g_steps"
    chunks = ps.dumps(module).split("\nprogram @")
    for place, chunk in enumerate(chunks):
        if chunk.startswith("generator"):
            chunks[place] = chunk.replace(name, own)
        elif chunk.startswith("startup"):
            lines = chunk.splitlines()
            chunks[place] = "\n".join(f"{a}\n{a.replace(name, own)}" if name in a else a for a in lines)
    renamed = ps.loads("\nprogram @".join(chunks))
    compiled = ps.compile(renamed, job(mode))
    assert sorted(counter.name for counter in compiled.plan.counters) == ["@LR_DECAY_COUNTER@", "g_steps"]


def test_two_programs_cannot_both_train_a_table_by_id():
    module = with_evaluation(is_distributed=True)
    twice = Module(FrozenMap({**module.programs, "evaluation": module.main}))
    with pytest.raises(DiagnosticError) as refused:
        ps.compile(twice, job())
    assert refused.value.diagnostics[0].code == "programs-table"
    assert ps.compile(twice, job(distributed_table="rows")).plan.by_name["words"].prefetched
