"""Delay compensation: g + g * g * (w - w as the sender saw it), on the servers of asynchronous jobs."""

from __future__ import annotations

import pytest

from pstranspile.compiler.compile import Compiled, compile
from pstranspile.compiler.job import Job, job_warnings
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import L2, SGD, Adam, ClipByNorm, ClipByValue, minimize
from pstranspile.frontends.autodiff.clips import Clip
from pstranspile.ir.diagnostics import DiagnosticError, Severity
from pstranspile.ir.model import Module
from pstranspile.ops.textual import parse, print_module
from tests.compiler.link.jobs import several
from tests.sparse import Look, kinds, model, of_type

SERVERS = ["a:6174", "b:6174"]
COMPENSATION = ["ref_by_trainer_id", "elementwise_sub", "elementwise_mul", "elementwise_mul", "elementwise_add"]


def dense(*widths: int, names: tuple[str, ...] = ()) -> Module:
    draft = L.Draft(seed=1)
    x = L.data(draft, "x", [-1, 50], "f32")
    for number, width in enumerate(widths):
        name = names[number] if names else f"w{number}"
        x = L.fc(x, width, param_attr=name, bias_attr=False)
    minimize(L.mean(L.square_error_cost(x, L.data(draft, "y", [-1, 1], "f32"))), SGD(0.1))
    return parse(print_module(draft.module()), "net.ir")


def compensated(module: Module, **settings: object) -> Compiled:
    job = Job(SERVERS, 3, **{"mode": "async", "enable_dc_asgd": True, "min_block_size": 500, **settings})  # pyright: ignore[reportArgumentType]
    return compile(module, job)


def filled(compiled: Compiled, server: int) -> list[tuple[str | None, str | None]]:
    startup = compiled.pserver(SERVERS[server]).startup
    return [(op.input("X"), op.output("Out")) for op in of_type(startup, "assign")]


@pytest.mark.parametrize("runtime_split", [False, True])
def test_every_slice_has_a_copy_for_each_trainer(runtime_split: bool) -> None:
    compiled = compensated(dense(20, 1), runtime_split_send_recv=runtime_split)
    for server, endpoint in enumerate(SERVERS):
        names = [s.name for _, s in compiled.plan.slices_on(endpoint)]
        assert sorted(filled(compiled, server)) == [
            (n, f"{n}.trainer_{i}_bak") for n in sorted(names) for i in range(3)
        ]
        main = compiled.pserver(endpoint).main
        assert main.main_block.ops[0].attrs["dc_asgd"] is True
        for index in range(1, len(main.blocks)):
            assert kinds(main, index) == [*COMPENSATION, "sgd"]
            chosen = main.blocks[index].ops[0]
            update = main.blocks[index].ops[-1]
            assert chosen.inputs["X"] == tuple(f"{update.input('Param')}.trainer_{i}_bak" for i in range(3))
            assert update.input("Grad") == main.blocks[index].ops[-2].output("Out")


def test_copies_are_filled_in_the_order_in_which_slices_were_dealt_out() -> None:
    # Without slices that order is shuffled, and so is not that of the optimizer ops.
    compiled = compensated(dense(20, 20, 20, 20, 20, 1), slice_var_up=False)
    placed = [p.name for i in compiled.plan.send_order for p in (compiled.plan.parameters[i],)]
    for server, endpoint in enumerate(SERVERS):
        here = [name for name in placed if compiled.plan.by_name[name].slices[0].endpoint == endpoint]
        assert [name for name, _ in filled(compiled, server)] == [name for name in here for _ in range(3)]
    assert placed != sorted(placed)


def test_a_sparse_gradient_is_left_as_it_is_and_said_so() -> None:
    module = model([Look()], Adam(0.1))
    compiled = compensated(module)
    (warning,) = compiled.warnings
    assert (warning.code, warning.severity, warning.focus) == ("dc-asgd-sparse", Severity.WARNING, "%table")
    assert warning.message == "adam: the sparse gradient of %table is applied without delay compensation"
    assert warning.location is not None
    assert module.source is not None
    assert "adam(Param=%table" in module.source.text.split("\n")[warning.location.line - 1]
    blocks = [kinds(compiled.pserver(e).main, k) for e in SERVERS for k in (1, 2)]
    assert sorted(blocks) == [["adam"]] * 2 + [[*COMPENSATION, "adam"]] * 2


def test_neither_is_one_that_weight_decay_makes_dense() -> None:
    compiled = compensated(model([Look()], SGD(0.1, regularizer=L2(0.1))))
    assert [w.code for w in compiled.warnings] == ["dc-asgd-sparse"]
    blocks = [kinds(compiled.pserver(e).main, k) for e in SERVERS for k in (1, 2)]
    assert sorted(blocks) == [["scale", "sum", *COMPENSATION, "sgd"]] * 2 + [["scale", "sum", "sgd"]] * 2


@pytest.mark.parametrize(
    ("clip", "kind"), [(ClipByNorm(1.0), "clip_by_norm"), (ClipByValue(1.0), "clip")], ids=["by norm", "by value"]
)
def test_what_is_compensated_is_what_the_optimizer_takes(clip: Clip, kind: str) -> None:
    compiled = compensated(model([Look(is_sparse=False)], SGD(0.1, clip=clip)), slice_var_up=False)
    for endpoint in SERVERS:
        main = compiled.pserver(endpoint).main
        for index in range(1, len(main.blocks)):
            assert kinds(main, index) == [kind, *COMPENSATION, "sgd"]
            clipped, *_, added, update = main.blocks[index].ops
            assert added.input("X") == clipped.output("Out")
            assert update.input("Grad") == added.output("Out")


def test_programs_that_share_a_parameter_share_its_copies() -> None:
    compiled = compensated(several())
    for server in range(2):
        pairs = filled(compiled, server)
        assert len(pairs) == len(set(pairs))


def test_not_in_synchronous_jobs() -> None:
    for mode in ("sync", "fleet-sync"):
        job = Job(SERVERS, 2, mode=mode, enable_dc_asgd=True)
        assert [(w.code, w.focus) for w in job_warnings(job)] == [("job-unused", "enable_dc_asgd")]
        served = compile(dense(20, 1), job).pserver(SERVERS[0]).main
        assert "dc_asgd" not in served.main_block.ops[0].attrs or served.main_block.ops[0].attrs["dc_asgd"] is False


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("w0.block1.trainer_2_bak", "%w0.block1 as trainer 2 saw it last"),
        ("@TRAINER_ID@", "the trainer whose gradient is applied"),
    ],
)
def test_names_that_servers_look_for_are_refused(name: str, what: str) -> None:
    module = dense(20, 1, names=("w0", name))
    with pytest.raises(DiagnosticError) as refusal:
        compensated(module)
    (found,) = refusal.value.diagnostics
    assert (found.code, found.focus) == ("reserved-name", f"%{name}")
    assert found.message == f"%{name} must have another name: servers keep there {what}"
    assert found.location is not None
    assert module.source is not None
    assert f"%{name} " in module.source.text.split("\n")[found.location.line - 1]
    compile(module, Job(SERVERS, 3, mode="async", min_block_size=500))  # elsewhere the name is like any other


def test_the_path_of_a_distributed_table_has_a_name_of_its_own() -> None:
    module = model([Look(ids="kLookupTablePath", is_distributed=True)])
    with pytest.raises(DiagnosticError) as refusal:
        compile(module, Job(SERVERS, 2))
    assert [(d.code, d.focus) for d in refusal.value.diagnostics] == [("reserved-name", "%kLookupTablePath")]
    compile(module, Job(SERVERS, 2, distributed_table="rows"))
