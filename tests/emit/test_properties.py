"""What must hold for every program and every job."""

from __future__ import annotations

from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from pstranspile.compile import compile, prepare
from pstranspile.ir.model import Module
from pstranspile.job import Job
from pstranspile.textual import parse, print_module
from tests.models import Training


@st.composite
def modules(draw: st.DrawFn) -> Module:
    net = Training()
    inner = draw(st.integers(1, 40))
    x = net.temp("x", -1, inner)
    for layer in range(draw(st.integers(1, 4))):
        width = draw(st.integers(1, 60))
        x = net.fc(layer, x, inner, width, draw(st.sampled_from(["", "relu", "tanh"])))
        inner = width
    return net.finish(net.fc(9, x, inner, 1))


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    servers = [f"ps{i}:6174" for i in range(draw(st.integers(1, 5)))]
    return Job(
        servers,
        draw(st.integers(1, 4)),
        mode=draw(st.sampled_from(["sync", "async"])),
        slice_var_up=draw(st.booleans()),
        min_block_size=draw(st.integers(1, 600)),
        split_method=draw(st.sampled_from(["RoundRobin", "HashName"])),
    )


@settings(deadline=None, max_examples=60)
@given(modules(), jobs())
def test_programs_link_and_slices_partition(module: Module, job: Job) -> None:
    before = repr(module)
    compiled = compile(module, job)  # links: every send has a receiver, every slice one owner
    assert repr(module) == before
    for parameter in compiled.plan.parameters:
        assert sum(prod(s.shape) for s in parameter.slices) == prod(parameter.shape)
        at = 0
        for s in parameter.slices:
            assert (s.start, s.offset) == (at, at * prod(parameter.shape[1:]))
            at = s.stop
        assert at == parameter.shape[0]
    owned = [s.name for endpoint in job.pservers for _, s in compiled.plan.slices_on(endpoint)]
    assert sorted(owned) == sorted(s.name for p in compiled.plan.parameters for s in p.slices)


@settings(deadline=None, max_examples=30)
@given(modules(), jobs(), st.randoms(use_true_random=False))
def test_roles_do_not_depend_on_the_order_they_are_asked_for(module: Module, job: Job, random: object) -> None:
    straight = compile(module, job).roles()
    shuffled = prepare(module, job)
    asks = [lambda i=i: shuffled.trainer(i) for i in range(job.trainers)]
    asks += [lambda e=e: shuffled.pserver(e) for e in job.pservers]
    random.shuffle(asks)  # type: ignore[attr-defined]
    for ask in asks:
        role = ask()
        assert role == straight[role.name]


@settings(deadline=None, max_examples=30)
@given(modules(), jobs())
def test_copied_ops_know_where_they_come_from(module: Module, job: Job) -> None:
    module = parse(print_module(module), "net.ir")
    compiled = compile(module, job)
    for endpoint in job.pservers:
        for block in compiled.pserver(endpoint).main.blocks[1:]:
            for op in block.ops:
                if op.type == "adam":
                    assert op.origin is not None
                    assert op.origin.location is not None
                    line = module.source.text.split("\n")[op.origin.location.line - 1]
                    assert line.strip().startswith(f"adam(Param=%{op.role_vars[0]},")
    for op in compiled.trainer(0).main.main_block.ops:
        if op.type == "send":
            assert op.origin is not None
            assert op.origin.rule == "send-gradient"
            assert module.main.main_block.ops[op.origin.op].type.endswith("_grad")
