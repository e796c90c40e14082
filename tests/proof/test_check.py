"""The check: both sides side by side, what it finds, and what it says of it."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.machines.asynchronous import AsynchronousServer
from pstranspile.cluster.machines.network import Scheduler
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import (
    SGD,
    Adagrad,
    Adam,
    Exponential,
    LarsMomentum,
    Momentum,
    Optimizer,
    minimize,
)
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import FrozenMap, Module
from pstranspile.proof import check, make_feeds
from pstranspile.proof.report import BITWISE, DIFFERENT, Cause, Report, report_text
from pstranspile.tools.cli import main
from tests.sparse import Look, distributed, model

GOLDEN = Path(__file__).parent.parent.parent / "golden"


def job(trainers: int = 2, servers: int = 2, mode: str = "sync", **settings: object) -> ps.Job:
    return ps.Job(pservers=servers, trainers=trainers, mode=mode, min_block_size=40, **settings)


def dense(optimizer: Optimizer | None = None) -> Module:
    draft = L.Draft(seed=3)
    hidden = L.fc(L.data(draft, "x", [-1, 20]), 30, act="tanh")
    loss = L.mean(L.square_error_cost(L.fc(hidden, 1), L.data(draft, "y", [-1, 1])))
    minimize(loss, optimizer or SGD(0.1))
    return draft.module()


def sparse() -> Module:
    draft = L.Draft(seed=3)
    words = L.embedding(L.data(draft, "ids", [-1, 1], "i64", lod_level=1), (50, 8), is_sparse=True)
    scores = L.fc(L.sequence_pool(words, "sum"), 4, act="softmax")
    minimize(L.mean(L.cross_entropy(scores, L.data(draft, "label", [-1, 1], "i64"))), Momentum(0.1, 0.9))
    return draft.module()


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (4, 3), (3, 5)])
@pytest.mark.parametrize("make", [dense, sparse])
def test_synchronous_clusters_train_as_one_machine(make, shape: tuple[int, int]):
    report = check(make(), job(*shape), schedules=5)
    assert report.holds, report_text(report)
    assert report.schedules == 5
    assert not report.different
    if shape[0] == 1:
        assert {verdict.equality for verdict in report.verdicts} == {BITWISE}


@pytest.mark.parametrize("mode", ["fleet-sync", "async", "half-async"])
def test_other_modes_promise_it_of_one_trainer(mode: str):
    settings = {"runtime_split_send_recv": False} if mode == "half-async" else {}
    report = check(dense(), job(1, 2, mode, **settings))
    assert report.promised
    assert report.holds, report_text(report)


def test_asynchronous_clusters_apply_every_gradient_once():
    report = check(dense(), job(3, 2, "async"), steps=6)
    assert not report.promised
    assert report.holds
    assert report.applied is not None
    slices = sum(len(p.slices) for p in ps.compile(dense(), job(3, 2, "async")).plan.parameters)
    assert report.applied.sent == report.applied.applied == 3 * 6 * slices
    assert report.applied.stalest >= 2
    assert "gradients were applied, each once" in report_text(report)


def test_a_gradient_that_is_not_averaged_is_found():
    """The servers' `scale` ops are taken out of the compiled programs."""
    module = dense()
    result = ps.compile(module, job())
    for name, role in result.roles().items():
        if name.startswith("pserver"):
            blocks = [b._replace(ops=tuple(op for op in b.ops if op.type != "scale")) for b in role.main.blocks]
            result._role_cache[name] = role._replace(main=role.main._replace(blocks=tuple(blocks)))
    report = check(module, job(), result=result)
    assert not report.holds
    first = report.different[0]
    assert (first.kind, first.first) == ("parameter", 1)
    assert "DIFFERENT: first %fc_0.b_0, after step 1" in report_text(report)


def test_a_wrong_seed_of_a_slice_is_found():
    module = dense()
    result = ps.compile(module, job())
    role = result.pserver(result.plan.pservers[1])
    block = role.startup.main_block
    ops = tuple(
        op._replace(attrs=FrozenMap({**op.attrs, "value": 0.5})) if op.type == "fill_constant" else op
        for op in block.ops
    )
    result._role_cache[role.name] = role._replace(startup=role.startup._replace(blocks=(block._replace(ops=ops),)))
    assert not check(module, job(), result=result).holds


def named_causes(module: Module, **settings: object) -> list[tuple[str, str]]:
    report = check(module, job(**settings))
    assert not report.holds
    return [(cause.op_type, cause.why) for cause in report.causes]


def test_batch_statistics_are_named():
    draft = L.Draft(seed=3)
    hidden = L.batch_norm(L.fc(L.data(draft, "x", [-1, 20]), 30))
    minimize(L.mean(L.square_error_cost(L.fc(hidden, 1), L.data(draft, "y", [-1, 1]))), SGD(0.1))
    assert named_causes(draft.module())[0][0] == "batch_norm"


def test_causes_have_a_place_in_the_text():
    draft = L.Draft(seed=3)
    hidden = L.batch_norm(L.fc(L.data(draft, "x", [-1, 20]), 30))
    minimize(L.mean(L.square_error_cost(L.fc(hidden, 1), L.data(draft, "y", [-1, 1]))), SGD(0.1))
    text = ps.dumps(draft.module())
    (line,) = [number for number, line in enumerate(text.splitlines(), 1) if line.strip().startswith("batch_norm(")]
    report = check(ps.loads(text), job())
    told = [row for row in report_text(report).splitlines() if "batch_norm makes" in row]
    assert told[0].startswith(f"<string>:{line}:5: batch_norm makes %")


def test_a_cause_that_the_first_step_does_not_show_is_named():
    draw = np.random.default_rng(0)
    steps = [
        {"x": draw.normal(size=(rows, 20)).astype("f4"), "y": draw.normal(size=(rows, 1)).astype("f4")}
        for rows in (8, 8, 7)
    ]
    report = check(dense(), job(), feeds=steps)
    assert [(cause.op_type, cause.why) for cause in report.causes] == [
        (
            "mean",
            "it is a mean over rows that are not the same number on every trainer "
            "(3 on trainer_0, 4 on trainer_1 in step 3)",
        )
    ]


def masked() -> Module:
    """A mean over the tokens that a mask counts."""
    draft = L.Draft(seed=3)
    mask = L.data(draft, "mask", [-1, 1])
    error = L.square_error_cost(L.fc(L.data(draft, "x", [-1, 20]), 1), L.data(draft, "y", [-1, 1]))
    loss = L.elementwise_div(L.reduce_sum(L.elementwise_mul(error, mask)), L.reduce_sum(mask))
    minimize(loss, SGD(0.1))
    return draft.module()


def test_counts_that_differ_in_a_later_step_are_a_cause():
    draw, steps = np.random.default_rng(0), list[dict[str, np.ndarray[Any, Any]]]()
    for counted in ([1, 0, 1, 0], [0, 1, 1, 0], [1, 0, 1, 1]):
        x, y = draw.normal(size=(4, 20)).astype("f4"), draw.normal(size=(4, 1)).astype("f4")
        steps.append({"x": x, "y": y, "mask": np.array(counted, "f4").reshape(4, 1)})
    assert check(masked(), job(), feeds=steps[:2]).holds
    report = check(masked(), job(), feeds=steps)
    assert "this mean counts 1 on trainer_0, 2 on trainer_1 in step 3" in report.causes[0].why
    assert "divide by a number that all trainers have in common" in report_text(report)
    by_ranks = check(masked(), ps.Job(trainers=2, mode="ddp"), feeds=steps)
    assert "this mean counts 1 on rank 0, 2 on rank 1 in step 3" in by_ranks.causes[0].why
    assert by_ranks.causes[0].instead.startswith("divide the sum by the all-reduced count")


def test_rows_that_are_compared_with_each_other_are_a_cause():
    draft = L.Draft(seed=3)
    hidden = L.fc(L.data(draft, "x", [-1, 6]), 4, act="tanh")
    scores = L.matmul(hidden, hidden, transpose_y=True)
    minimize(L.mean(L.square(scores)), SGD(0.1))
    report = check(draft.module(), job())
    assert not report.holds
    assert report.causes[0].op_type == "matmul"


def test_differences_too_small_for_single_precision_have_a_cause():
    draft = L.Draft(seed=3)
    hidden = L.fc(L.data(draft, "x", [-1, 6]), 4)
    spread = L.scale(L.square(L.reduce_mean(hidden)), 1e-5)
    loss = L.elementwise_add(L.mean(L.square(hidden)), spread)
    minimize(loss, SGD(0.1))
    report = check(draft.module(), job())
    assert not report.holds
    assert report.causes, report_text(report)


def test_norms_of_slices_are_named():
    assert ("lars_momentum", "each server uses the norm of its own slice") in named_causes(
        dense(LarsMomentum(0.1, 0.9))
    )


def test_slices_that_get_no_rows_in_a_step_are_named():
    draft = L.Draft(seed=3)
    words = L.embedding(L.data(draft, "ids", [-1, 1], "i64"), (500, 8), is_sparse=True)
    minimize(L.mean(L.square_error_cost(L.fc(words, 1), L.data(draft, "y", [-1, 1]))), Momentum(0.1, 0.9))
    report = check(draft.module(), job(2, 8), batch=4, steps=4)
    assert not report.holds
    (cause,) = [cause for cause in report.causes if cause.variable == "embedding_0.w_0"]
    assert cause.op_type == "momentum"
    assert "in a step that brings no rows of it" in cause.why


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adagrad(0.1)], ids=["sgd", "adagrad"])
def test_updates_of_the_rows_that_were_used_are_those_of_one_machine(optimizer: Optimizer):
    draft = L.Draft(seed=3)
    words = L.embedding(L.data(draft, "ids", [-1, 1], "i64"), (500, 8), is_sparse=True)
    minimize(L.mean(L.square_error_cost(L.fc(words, 1), L.data(draft, "y", [-1, 1]))), optimizer)
    report = check(draft.module(), job(2, 8), batch=4, steps=4)
    assert report.holds, report_text(report)


def test_counters_of_asynchronous_schedules_are_named():
    report = check(dense(SGD(Exponential(0.1, 2, 0.5))), job(1, 2, "async"))
    assert [(cause.op_type, cause.variable) for cause in report.causes] == [("increment", "@LR_DECAY_COUNTER@")]
    assert "from 0, and may be ahead of a single machine" in report.causes[0].why


def test_programs_may_scale_by_one_over_the_number_of_trainers_themselves():
    schedule = Exponential(0.05, 3, 0.5, staircase=True)  # which scales the step number by the f32 nearest to 1 / 3
    report = check(dense(SGD(schedule)), job(3, 1), steps=2)
    assert report.holds, report_text(report)


def test_tables_by_id_are_named_and_tables_by_rows_are_equal():
    draft = L.Draft(seed=3)
    words = L.embedding(L.data(draft, "ids", [-1, 1], "i64"), (50, 8), is_sparse=True, is_distributed=True)
    minimize(L.mean(L.square_error_cost(L.fc(words, 1), L.data(draft, "y", [-1, 1]))), Adam(0.01))
    module = draft.module()
    assert "by sgd with the sum" in named_causes(module)[-1][1]
    assert check(module, job(distributed_table="rows")).holds
    assert check(module, job(1, 3, distributed_table="rows")).holds


def test_data_fit_what_reads_them():
    feeds = make_feeds(sparse().main, 3, 6, seed=1)
    assert feeds["ids@LENS"].shape == (3, 6)
    assert len(feeds["ids"]) == feeds["ids@LENS"].sum()
    assert 0 <= feeds["ids"].min() <= feeds["ids"].max() < 50
    assert feeds["label"].shape == (3, 6, 1)
    assert feeds["label"].max() < 4
    again = make_feeds(sparse().main, 3, 6, seed=1)
    assert all(np.array_equal(feeds[name], again[name]) for name in feeds)
    assert not np.array_equal(feeds["label"], make_feeds(sparse().main, 3, 6, seed=2)["label"])


def test_uneven_shares_are_told():
    report = check(dense(), job(4), batch=6, steps=1)
    assert not report.holds
    assert "means over different numbers of rows: 1, 2, 1, 2; each counts the same, as in Fluid" in report_text(report)
    weighted = check(dense(), job(4), batch=6, steps=1, shares="weighted")
    assert weighted.holds, report_text(weighted)
    assert "they are weighted by these" in report_text(weighted)


def reading(op: str) -> Module:
    """The dense model with an op before it that takes %x from a reader."""
    module = dense()
    block = module.main.main_block
    text = ps.loads(
        "ir 1\nprogram @main {\n  block ^0 {\n    state %r : reader\n    temp %x : f32[-1, 20]\n"
        f"    {op}(Reader=%r) -> Out=%x\n  }}\n}}\n"
    )
    reader = text.main.main_block
    changed = block._replace(vars=FrozenMap({**block.vars, **reader.vars}), ops=(*reader.ops, *block.ops))
    main_program = module.main._replace(blocks=(changed, *module.main.blocks[1:]))
    return Module(FrozenMap({**module.programs, "main": main_program}))


def test_what_a_reader_gives_is_drawn():
    assert make_feeds(reading("read").main, 2, 6).keys() == make_feeds(dense().main, 2, 6).keys()
    found = check(reading("read"), job(2), steps=2)
    assert found.holds


def test_other_ops_that_read_readers_are_refused():
    with pytest.raises(DiagnosticError, match="odd_read reads %r, which is a reader") as refused:
        make_feeds(reading("odd_read").main, 1, 2)
    assert refused.value.diagnostics[0].code == "check-no-data"


# The command


def test_the_command_reports_and_exits(capsys: pytest.CaptureFixture[str]):
    arguments = ["check", str(GOLDEN / "mlp_adam.ir"), "--pservers", "2", "--trainers", "2"]
    assert main([*arguments, "--steps", "2", "--schedules", "3"]) == 0
    out = capsys.readouterr().out
    assert "mode sync, 2 trainers, 2 servers, 2 steps" in out
    assert "3 schedules end bitwise equal" in out
    assert out.startswith("the cluster trains as the single machine does\n")
    assert main([*arguments, "--json", "--steps", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["holds"] is True
    assert {verdict["kind"] for verdict in found["verdicts"]} == {"loss", "parameter", "state"}


def test_the_command_exits_with_1_where_something_is_different(capsys: pytest.CaptureFixture[str]):
    path = str(GOLDEN / "lars_norm_of_slice.ir")
    assert main(["check", path, "--pservers", "2", "--trainers", "2", "--steps", "1"]) == 1
    assert DIFFERENT in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--steps", "0"], ["--schedules", "-1"]])
def test_the_command_refuses_numbers_that_mean_nothing(wrong: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["check", str(GOLDEN / "mlp_adam.ir"), "--pservers", "1", *wrong]) == 2
    assert "number of at least" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shares": "wieghted"}, "check takes 'equal' or 'weighted' as shares, not 'wieghted'; did you mean weighted"),
        ({"schedules": -1}, "check takes a number of orders, 0 at least, not -1"),
        ({"steps": 0}, "check takes a number of steps, 1 at least, not 0"),
        ({"batch": 0}, "check takes a number of rows, 1 at least, not 0"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ps.check(dense(), ps.Job(1, 1), **given)


def test_many_tables_are_counted_and_all_of_them_listed_on_request():
    model = L.Draft(seed=1)
    ids = [L.data(model, f"id_{number}", [-1, 1], "int64") for number in range(9)]
    rows = [L.embedding(each, [40, 3], is_sparse=True) for each in ids]
    minimize(L.mean(L.fc(L.concat(rows, axis=1), 1)), SGD(0.1))
    report = check(model.module(), ps.Job(pservers=2, trainers=2, min_block_size=8), steps=1)
    short, long = report_text(report).splitlines(), report_text(report, every=True).splitlines()
    unseen = [line for line in short if "nothing is shown of the others" in line]
    assert unseen[:5] == [line for line in long if "nothing is shown of the others" in line][:5]
    assert unseen[5:] == ["of 4 more tables some rows changed; nothing is shown of the others; --all lists them"]
    assert sum("nothing is shown of the others" in line for line in long) == 9


def test_many_causes_are_counted():
    cause = Cause("mean", "loss", "net.ir:7", "it takes a mean")
    report = Report("sync", 2, 1, 1, (), causes=tuple(cause._replace(variable=str(number)) for number in range(8)))
    short, long = report_text(report), report_text(report, every=True)
    assert short.count("it takes a mean") == 5
    assert "and 3 more causes; --all lists them" in short
    assert long.count("it takes a mean") == 8


def test_what_is_there_for_gradients_alone_is_no_result():
    """Reshapes keep the dims of their input in XShape, which a share of the batch has others of."""
    draft = L.Draft(seed=5)
    L.fc(L.reshape(L.data(draft, "x", [-1, 2, 3]), [-1, 6]), 1)
    report = check(draft.module(), job(), steps=1)
    assert report.holds, str(report)
    assert "the trainers' results are those of a single machine" in str(report)


def test_both_reports_show_the_figure_that_decides():
    report = check(
        ps.load(Path(__file__).parents[2] / "examples" / "regression.ir"), ps.Job(pservers=2, trainers=2), steps=2
    )
    short, long = report_text(report), report_text(report, every=True)
    (told,) = re.findall(r"the largest relative difference: %(\S+), ([^)]+)\)", short)
    assert re.search(rf"^  {re.escape(told[0])} .* equal within rounding  {re.escape(told[1])}$", long, re.MULTILINE)


def test_a_check_prints_no_warnings_of_numpy():
    """The counter of learning rates begins at 0 on servers that apply their decay before the first step."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        module = ps.load(str(Path(__file__).parents[2] / "examples" / "transformer_encoder.ir"))
        ps.check(module, ps.Job(pservers=["a:1", "b:1"], trainers=2, mode="async"), steps=1)
    assert [str(each.message) for each in told if issubclass(each.category, RuntimeWarning)] == []


@pytest.mark.parametrize("mode", ["async", "half-async"])
@pytest.mark.parametrize(
    ("look", "settings"),
    [
        (Look(), {"runtime_split_send_recv": False}),
        (Look(), {"large_tables": "table"}),
        (distributed(), {}),
        (distributed(), {"distributed_table": "rows"}),
    ],
    ids=["remote", "large", "modulo", "rows"],
)
def test_a_lookup_of_rows_is_a_fetch(mode: str, look: Look, settings: dict[str, Any]):
    """Machines in turn: between a lookup and the gradient of its rows comes at most one of the other trainer's."""
    module = model([look])
    result = ps.compile(module, job(2, 2, mode, **settings))
    report = check(module, job(2, 2, mode, **settings), result=result, steps=6)
    assert report.holds, report_text(report)
    assert report.applied is not None
    parts = sum(len(p.slices) for p in result.plan.parameters) + (2 if result.plan.table is not None else 0)
    assert report.applied.sent == report.applied.applied == 2 * 6 * parts
    assert report.applied.stalest == 1


@pytest.mark.parametrize("mode", ["async", "half-async", "geo"])
@pytest.mark.parametrize("make", [dense, sparse])
def test_other_orders_of_modes_that_wait_for_nobody_are_held_to_the_source(make: Any, mode: str):
    """They end differently, which the mode allows; each step of each order follows from the values before it."""
    told: list[str] = []
    report = check(
        make(), job(2, 2, mode), schedules=3, progress=lambda what, done, of: told.append(f"{what} {done}/{of}")
    )
    assert report.holds, report_text(report)
    assert (report.schedules, report.replayed) == (3, True)
    assert "the same holds in 3 other schedules" in report_text(report)
    assert {f"orders of events {number}/3" for number in (1, 2, 3)} <= {*told}


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_what_goes_wrong_in_one_order_alone_is_found(mode: str, monkeypatch: pytest.MonkeyPatch):
    """A server that loses its first gradient whenever the events are not in turn."""
    take = AsynchronousServer.on_send

    def losing(self: AsynchronousServer, message: Any) -> None:
        if type(self.network.scheduler) is Scheduler or self.updates:
            take(self, message)
        else:
            self.count_update()

    monkeypatch.setattr(AsynchronousServer, "on_send", losing)
    report = check(dense(), job(2, 2, mode), schedules=2)
    assert not report.holds
    assert report.wrong
    assert all(line.startswith("schedule ") for line in report.wrong)


def test_figures_of_servers_that_wait_for_nobody_have_units():
    module = ps.load(str(Path(__file__).parents[2] / "examples" / "regression.ir"))
    report = check(module, ps.Job(pservers=2, trainers=2, mode="async"), steps=2)
    short, long = report_text(report), report_text(report, every=True)
    assert re.search(
        r"which the mode allows; the largest relative difference: %\w+, \d\.\de[-+]\d+ after step \d", short
    )
    assert " gradients were applied, each once" in short
    assert "1 update of a parameter between its fetch and the gradient made of it" in short
    assert "\ndifferences are relative to values, and in double precision to what these have changed by\n" in long
