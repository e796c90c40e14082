"""The link check: every way in which emitted programs can fail to fit is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pstranspile.compile import compile
from pstranspile.ir.attributes import BlockRefs, Strings
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, Program, TensorType
from pstranspile.ir.types import DType
from pstranspile.job import Job
from pstranspile.link import Linked, LinkError, link
from tests.models import mlp

ROLES = {
    name: Linked(*role)
    for name, role in compile(mlp(2, 100), Job(["a:1", "b:2"], 2, min_block_size=500)).roles().items()
}


def ops_changed(program: Program, change: Callable[[Op], Op | None], block: int = 0) -> Program:
    found = program.blocks[block]
    ops = tuple(new for op in found.ops if (new := change(op)) is not None)
    blocks = list(program.blocks)
    blocks[block] = found._replace(ops=ops)
    return program._replace(blocks=tuple(blocks))


def without(kind: str) -> Callable[[Op], Op | None]:
    return lambda op: None if op.type == kind else op


def with_attrs(kind: str, **attrs: object) -> Callable[[Op], Op]:
    return lambda op: op._replace(attrs=FrozenMap({**op.attrs, **attrs})) if op.type == kind else op


def codes(role: str, change: Callable[[Linked], Linked]) -> set[str]:
    roles = {**ROLES, role: change(ROLES[role])}
    with pytest.raises(LinkError) as found:
        link(roles.values())
    return {d.code for d in found.value.diagnostics}


def main(change: Callable[[Op], Op | None], block: int = 0) -> Callable[[Linked], Linked]:
    return lambda role: role._replace(main=ops_changed(role.main, change, block))


def startup(change: Callable[[Op], Op | None]) -> Callable[[Linked], Linked]:
    return lambda role: role._replace(startup=ops_changed(role.startup, change))


def retyped(name: str) -> Callable[[Linked], Linked]:
    def change(role: Linked) -> Linked:
        block = role.main.main_block
        var = block.vars[name]._replace(tensor=TensorType(DType.FP64, block.vars[name].shape))
        return role._replace(
            main=role.main._replace(
                blocks=(block._replace(vars=FrozenMap({**block.vars, name: var})), *role.main.blocks[1:])
            )
        )

    return change


def test_what_the_compiler_emits_links() -> None:
    link(ROLES.values())


@pytest.mark.parametrize(
    ("role", "change", "code"),
    [
        ("trainer_0", main(without("send")), "link-unsent"),
        ("trainer_0", main(with_attrs("send", epmap=Strings(["z:9", "z:9"]))), "link-send"),
        ("trainer_1", main(without("send_barrier")), "link-barrier"),
        ("trainer_1", main(without("fetch_barrier")), "link-barrier"),
        ("trainer_1", startup(without("fetch_barrier")), "link-barrier"),
        ("trainer_0", main(with_attrs("send_barrier", endpoints=Strings(["a:1"]))), "link-barrier"),
        ("trainer_0", main(with_attrs("recv", epmap=Strings(["z:9", "z:9"]))), "link-receive"),
        ("trainer_0", retyped("fc_0.w_0@GRAD.block0.trainer_0"), "link-send"),
        ("trainer_0", retyped("fc_0.w_0.block0"), "link-receive"),
        ("pserver_0", main(with_attrs("listen_and_serv", Fanin=3)), "link-barrier"),
        ("pserver_0", main(with_attrs("listen_and_serv", optimize_blocks=BlockRefs([77]))), "link-blocks"),
        ("pserver_0", main(with_attrs("listen_and_serv", optimize_blocks=BlockRefs())), "link-blocks"),
        ("pserver_0", main(with_attrs("listen_and_serv", grad_to_block_id=Strings(["x:1"]))), "link-blocks"),
        ("pserver_0", main(without("adam"), 1), "link-owner"),
        ("pserver_0", startup(without("fill_constant")), "link-unserved"),
        ("pserver_1", main(without("listen_and_serv")), "link-send"),
    ],
)
def test_misfits_are_found(role: str, change: Callable[[Linked], Linked], code: str) -> None:
    assert code in codes(role, change)


def test_a_lost_slice_is_found() -> None:
    def change(op: Op) -> Op:
        if op.type != "concat":
            return op
        return op._replace(inputs=FrozenMap({**op.inputs, "X": op.inputs["X"][:-1]}))

    assert codes("trainer_0", main(change)) == {"link-partition"}


def test_two_owners_are_found() -> None:
    one = ROLES["pserver_0"]
    copy = ops_changed(one.main, with_attrs("listen_and_serv", endpoint="b:2", pserver_id=1))
    assert "link-owner" in codes("pserver_1", lambda _: one._replace(name="pserver_1", main=copy))
