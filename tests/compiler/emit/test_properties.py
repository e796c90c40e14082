"""What must hold for every program and every job."""

from __future__ import annotations

from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from pstranspile.compiler.compile import compile, prepare
from pstranspile.compiler.job import Job
from pstranspile.ir.attributes import Longs
from pstranspile.ir.model import Module, TensorType, Var
from pstranspile.ir.types import DType
from pstranspile.ops.build import make_op
from pstranspile.ops.textual import parse, print_module
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
    before = repr(module.programs)
    compiled = compile(module, job)  # links: every send has a receiver, every slice one owner
    assert repr(module.programs) == before
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


def test_initialisers_come_with_what_they_need() -> None:
    net = Training()
    prediction = net.fc(0, net.temp("x", -1, 100), 100, 1)
    half = Var("half", tensor=TensorType(DType.FP32, (50, 1)))
    net.startup_vars["half"] = half
    at = next(i for i, op in enumerate(net.startup) if op.output("Out") == "fc_0.w_0")
    made = make_op("fill_constant", {}, {"Out": ["half"]}, {"shape": Longs([50, 1]), "dtype": 5, "value": 2.0})
    net.startup[at : at + 1] = [made, make_op("concat", {"X": ["half", "half"]}, {"Out": ["fc_0.w_0"]})]
    compiled = compile(net.finish(prediction), Job(["a:1", "b:2"], 2, min_block_size=10))
    assert [w.code for w in compiled.warnings] == ["whole-initialiser"]
    (owner,) = {s.endpoint for s in compiled.plan.by_name["fc_0.w_0"].slices}
    startup = compiled.pserver(owner).startup.main_block
    outputs = [op.output("Out") for op in startup.ops]
    assert outputs.index("half") < outputs.index("fc_0.w_0")
    assert "half" in startup.vars
