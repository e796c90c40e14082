"""Who updates what: optimize-op discovery, pairs, attribution of helpers, and groups that must stay together."""

from __future__ import annotations

import pytest

from pstranspile.compiler.analysis import Facts, analyze
from pstranspile.compiler.analysis.uses import op_graph
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import FrozenMap
from pstranspile.ir.types import OpRole
from pstranspile.ops.build import make_op
from tests.models import mlp, with_ops
from tests.recorded_fluid import source


def facts(case: str) -> Facts:
    return analyze(source(case).main)


def types(found: Facts, indices: tuple[int, ...]) -> list[str]:
    return [found.program.main_block.ops[i].type for i in indices]


def test_parameters_come_in_the_order_of_their_first_optimize_op() -> None:
    names = [u.parameter for u in facts("deep_mlp_50").updates]
    assert names == sorted(names)
    assert names[:4] == ["fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0"]


def test_weight_decay_belongs_to_its_parameter() -> None:
    found = facts("reg_l2")
    assert all(types(found, u.ops) == ["scale", "sum", "sgd"] for u in found.updates)
    assert found.groups == ()


def test_clips_set_on_the_program_stay_on_the_trainer() -> None:
    found = facts("setclip_norm")
    assert set(types(found, found.roles.trainer_clips)) == {"clip_by_norm"}
    assert all("clip_by_norm" in u.gradient for u in found.updates)


def test_with_clips_of_the_optimizer_the_raw_gradient_travels() -> None:
    found = facts("clip_value_l2")
    assert all(u.gradient == f"{u.parameter}@GRAD" for u in found.updates)
    assert found.groups == ()
    assert all(not u.uncut_reason for u in found.updates)


def test_a_norm_needs_the_whole_gradient() -> None:
    assert all("clip_by_norm needs the whole" in u.uncut_reason for u in facts("clip_norm").updates)
    assert all("lamb needs the whole" in u.uncut_reason for u in facts("opt_unsupported_lamb").updates)


def test_a_global_norm_joins_all_parameters() -> None:
    found = facts("clip_global_norm")
    assert [set(g.parameters) for g in found.groups] == [{u.parameter for u in found.updates}]


def test_what_follows_the_updates_moves_with_them() -> None:
    found = facts("lookahead_sgd")
    (group,) = found.groups
    assert set(group.parameters) == {u.parameter for u in found.updates}
    moved = types(found, group.after)
    assert moved.count("conditional_block") == 2
    assert "increment" in moved
    assert "mul" not in moved


def test_frozen_and_left_out_parameters_are_not_distributed() -> None:
    found = facts("frozen_mlp")
    frozen = [v.name for v in found.program.parameters() if v.parameter and not v.parameter.trainable]
    assert frozen
    assert not {u.parameter for u in found.updates} & set(frozen)


def codes(*extra: object, drop: str = "") -> list[str]:
    with pytest.raises(DiagnosticError) as found:
        analyze(with_ops(mlp(2, 8), *extra, drop=drop).main)  # type: ignore[arg-type]
    return [d.code for d in found.value.diagnostics]


def test_a_program_without_optimizer_is_warned_of() -> None:
    facts = analyze(with_ops(mlp(2, 8), drop="adam").main)  # type: ignore[arg-type]
    assert [finding.code for finding in facts.findings] == ["no-optimizer"]
    assert facts.updates == ()


def test_an_unknown_optimizer_is_refused() -> None:
    op = make_op(
        "my_sgd",
        {"Param": ["fc_0.w_0"], "Grad": ["fc_0.w_0@GRAD"]},
        {"ParamOut": ["fc_0.w_0"]},
        role=OpRole.OPTIMIZE,
        role_vars=("fc_0.w_0", "fc_0.w_0@GRAD"),
    )
    assert codes(op, drop="adam") == ["optimizer-unknown"]


def test_an_optimize_op_without_parameter_is_refused() -> None:
    op = make_op("increment", {"X": ["y"]}, {"Out": ["y"]}, role=OpRole.OPTIMIZE)
    assert codes(op) == ["optimize-op-unattributed"]


def test_an_optimize_op_without_role_variables_goes_with_what_it_feeds() -> None:
    module = mlp(2, 8)
    block = module.main.main_block
    helper = make_op("scale", {"X": ["fc_0.w_0@GRAD"]}, {"Out": ["fc_0.w_0@GRAD"]}, role=OpRole.OPTIMIZE)
    at = next(i for i, op in enumerate(block.ops) if op.type == "adam" and op.input("Param") == "fc_0.w_0")
    ops = (*block.ops[:at], helper, *block.ops[at:])
    found = analyze(module.main._replace(blocks=(block._replace(ops=ops),)))
    update = next(u for u in found.updates if u.parameter == "fc_0.w_0")
    assert types(found, update.ops) == ["scale", "adam"]


def test_a_gradient_that_nobody_computes_is_refused() -> None:
    with pytest.raises(DiagnosticError) as found:
        analyze(with_ops(mlp(1, 8), drop="mul_grad").main)
    assert {d.code for d in found.value.diagnostics} == {"gradient-not-produced"}


def test_what_follows_an_update_must_not_need_the_trainer() -> None:
    feed = make_op("elementwise_add", {"X": ["fc_0.w_0"], "Y": ["x"]}, {"Out": ["fc_0.w_0"]})
    assert codes(feed) == ["after-update-needs-trainer"]


def test_op_graph_edges_are_reaching_definitions() -> None:
    program = mlp(1, 4).main
    ops = (
        make_op("fill_constant", {}, {"Out": ["a"]}),
        make_op("increment", {"X": ["a"]}, {"Out": ["a"]}),
        make_op("scale", {"X": ["a"]}, {"Out": ["b"]}),
    )
    graph = op_graph(program._replace(blocks=(program.main_block._replace(ops=ops, vars=FrozenMap()),)), range(3))
    assert sorted(graph.edges) == [(0, 1), (1, 2)]
    assert graph.nodes[0]["inputs"] == ()
