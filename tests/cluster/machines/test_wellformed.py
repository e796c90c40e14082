"""Programs edited by hand: what can't work is found before the run, at its op; nothing hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from pstranspile.cluster.machines.placement import infer_placement
from pstranspile.cluster.machines.simulate import simulate
from pstranspile.frontends.program_desc import program_from_bytes, program_to_bytes
from pstranspile.ir.attributes import Ints, Strings
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError
from pstranspile.ir.model import Op, Program
from tests.cluster.machines.fuzz import compiled, feeds
from tests.cluster.machines.recorded import arrays, roles


class Role(NamedTuple):
    main: Program
    startup: Program


Edit = Callable[[list[Op]], list[Op]]


def index_of(ops: list[Op], op_type: str, number: int = 0) -> int:
    return [place for place, op in enumerate(ops) if op.type == op_type][number]


def attrs(op_type: str, number: int = 0, **values: Any) -> Edit:
    """Sets attributes of an op; a function is given the value there is."""

    def edit(ops: list[Op]) -> list[Op]:
        place = index_of(ops, op_type, number)
        op = ops[place]
        given = {name: value(op.attrs[name]) if callable(value) else value for name, value in values.items()}
        ops[place] = op._replace(attrs=type(op.attrs)({**op.attrs, **given}))
        return ops

    return edit


def removed(op_type: str, number: int = 0) -> Edit:
    return lambda ops: [op for place, op in enumerate(ops) if place != index_of(ops, op_type, number)]


def moved(op_type: str, before: str, number: int = 0) -> Edit:
    """Moves an op right before the first one of another type (`$`: to the end)."""

    def edit(ops: list[Op]) -> list[Op]:
        op = ops.pop(index_of(ops, op_type, number))
        ops.insert(len(ops) if before == "$" else index_of(ops, before), op)
        return ops

    return edit


def edited(program: Program, edit: Edit) -> Program:
    block = program.main_block
    return program._replace(blocks=(block._replace(ops=tuple(edit(list(block.ops)))), *program.blocks[1:]))


def through_bytes(program: Program) -> Program:
    return program_from_bytes(program_to_bytes(program), "edited.pb", "main")


def run(mode: str, role: str, part: str, edit: Edit, *, kind: str = "dense", pb: bool, schedule: int | None) -> None:
    made = compiled(kind, 2, 2, mode, **({"geo_sgd_need_push_nums": 2} if mode == "geo" else {}))
    given = {name: Role(role.main, role.startup) for name, role in made.roles().items()}
    given[role] = given[role]._replace(**{part: edited(getattr(given[role], part), edit)})
    if pb:
        given = {name: Role(*map(through_bytes, role)) for name, role in given.items()}
    simulate(given, feeds(kind, 2, 3), 3, schedule=schedule)


def finding(mode: str, role: str, part: str, edit: Edit, **options: Any) -> Diagnostic:
    with pytest.raises(DiagnosticError) as caught:
        run(mode, role, part, edit, **options)
    first, *_ = caught.value.diagnostics
    return first


def fewer(names: Any) -> Strings:
    return Strings(tuple(names)[1:])


def elsewhere(names: Any) -> Strings:
    return Strings(("9.9.9.9:9", *tuple(names)[1:]))


@pytest.mark.parametrize("pb", [False, True])
@pytest.mark.parametrize("schedule", [None, 1])
@pytest.mark.parametrize(
    ("mode", "role", "part", "edit", "code", "told"),
    [
        ("sync", "trainer_1", "main", attrs("send", epmap=fewer), "cluster-op", "send: has "),
        ("sync", "trainer_1", "main", attrs("recv", epmap=fewer), "cluster-op", "recv: has "),
        ("fleet-sync", "trainer_1", "main", attrs("send", sections=Ints((1, 1, 1))), "cluster-op", "but 3 sections"),
        ("async", "trainer_1", "startup", attrs("recv", epmap=fewer), "cluster-op", "recv: has "),
        ("sync", "trainer_1", "main", attrs("send", epmap=elsewhere), "cluster-no-server", "listens at 9.9.9.9:9"),
        ("sync", "trainer_0", "main", removed("send_barrier"), "cluster-barrier", "trainer_0 never sends in its main"),
        ("sync", "trainer_0", "main", removed("fetch_barrier"), "cluster-barrier", "trainer_0 never sends in its main"),
        ("sync", "trainer_0", "startup", removed("fetch_barrier"), "cluster-barrier", "its start-up program"),
        ("sync", "trainer_0", "main", attrs("send_barrier", endpoints=fewer), "cluster-barrier", "never sends"),
        ("sync", "trainer_0", "main", moved("recv", "send_barrier"), "cluster-order", "recv: stands before the"),
        ("sync", "trainer_0", "main", moved("recv", "$"), "cluster-order", "recv: stands after the fetch_barrier"),
        ("sync", "trainer_0", "startup", moved("recv", "$"), "cluster-order", "recv: stands after the fetch_barrier"),
        ("sync", "trainer_0", "main", moved("send", "recv"), "cluster-order", "what it sends would count for the step"),
        ("sync", "trainer_0", "main", moved("fetch_barrier", "send_barrier"), "cluster-order", "fetch_barrier: stands"),
        ("fleet-sync", "trainer_0", "main", moved("recv", "send_barrier"), "cluster-order", "recv: stands before"),
        ("sync", "pserver_1", "main", attrs("listen_and_serv", Fanin=3), "cluster-barrier", "waits for 3 trainers"),
        ("sync", "pserver_1", "main", removed("listen_and_serv"), "cluster-roles", "pserver_1 has no listen_and_serv"),
        *(
            (mode, "pserver_1", "main", attrs("listen_and_serv", distributed_mode=other), "cluster-modes", "but pserv")
            for mode, other in (("sync", 2), ("sync", 3), ("async", 0), ("async", 3), ("geo", 1))
        ),
        ("grad-allreduce", "trainer_1", "main", removed("c_allreduce_sum"), "cluster-collective-order", "ring_0"),
        ("grad-allreduce", "trainer_1", "startup", removed("c_gen_nccl_id"), "cluster-collective-order", "c_gen_nccl"),
        ("local-sgd", "trainer_1", "startup", removed("c_comm_init"), "cluster-collective-order", "1 has nothing more"),
        ("local-sgd", "trainer_1", "startup", attrs("c_comm_init", ring_id=7), "cluster-collective-order", "for ring_"),
        ("nccl2", "trainer_1", "startup", removed("gen_nccl_id"), "cluster-collective-order", ""),
    ],
)
def test_found_before_the_run(
    mode: str, role: str, part: str, edit: Edit, code: str, told: str, pb: bool, schedule: int | None
):
    found = finding(mode, role, part, edit, pb=pb, schedule=schedule)
    assert found.code == code
    assert told in str(found)


@pytest.mark.parametrize("name", ["endpoints", "table_names", "height_sections"])
def test_lists_of_a_lookup(name: str):
    def one_fewer(values: Any) -> Any:
        return type(values)(tuple(values)[1:])

    found = finding(
        "sync", "trainer_1", "main", attrs("distributed_lookup_table", **{name: one_fewer}), kind="embedding",
        pb=False, schedule=None,
    )  # fmt: skip
    assert (found.code, f"1 {name}" in found.message) == ("cluster-op", True)


def test_a_value_that_is_sent_before_it_is_made_is_told_at_its_send():
    """Not at what stands for it while the program runs."""
    found = finding("async", "trainer_0", "main", moved("send", "mul"), pb=False, schedule=None)
    assert found.code == "run-uninitialised"
    assert "send: " in str(found)
    assert "exchange" not in str(found)


def test_only_inputs_that_are_not_fed_are_told():
    """Fluid leaves out the ops that clip what a trainer then sends; what is fed is not said to be missing."""
    given = dict(roles("fit_a_line_sgd/sync_2x2"))

    def without_gradient(ops: list[Op]) -> list[Op]:
        def kept(op: Op) -> Op:
            slots = {slot: [n for n in names if "fc_0.b_0@GRAD" not in n] for slot, names in op.outputs.items()}
            return op._replace(outputs=type(op.outputs)({slot: tuple(names) for slot, names in slots.items()}))

        return [kept(op) for op in ops]

    for name in ("trainer_0", "trainer_1"):
        given[name] = given[name]._replace(main=edited(given[name].main, without_gradient))
    with pytest.raises(DiagnosticError) as caught:
        simulate(given, arrays("fit_a_line_sgd", "feeds"), 2)
    told = [(item.code, item.message) for item in caught.value.diagnostics]
    assert told
    assert all(code == "run-feed-missing" and "fc_0.b_0@GRAD" in message for code, message in told), told


def test_a_variable_that_is_declared_but_has_no_value_is_told_as_such():
    given = {name: Role(role.main, role.startup) for name, role in compiled("dense", 2, 2).roles().items()}
    for name in ("pserver_0", "pserver_1"):
        given[name] = given[name]._replace(startup=edited(given[name].startup, _without("fc_1.b_0")))
    with pytest.raises(DiagnosticError) as caught:
        simulate(given, feeds("dense", 2, 2), 2)
    (found,) = caught.value.diagnostics
    assert found.code == "cluster-unknown-variable"
    assert "is asked for fc_1.b_0, which its program declares, but never gives a value" in found.message


def _without(name: str) -> Edit:
    return lambda ops: [op for op in ops if name not in op.output_names]


def test_gradients_of_any_name_are_no_parameters():
    """A table of placed variables that is read off the programs leaves out what servers are sent."""
    given = compiled("dense", 2, 1).roles()
    server, trainer = given["pserver_0"].main, given["trainer_0"].main
    assert "fc_1.b_0" in [row.origin for row in infer_placement({"a:1": server}, [trainer])]

    def taken(ops: list[Op]) -> list[Op]:
        place = index_of(ops, "listen_and_serv")
        inputs = {**ops[place].inputs, "X": (*ops[place].inputs["X"], "fc_1.b_0")}
        ops[place] = ops[place]._replace(inputs=type(ops[place].inputs)(inputs))
        return ops

    assert "fc_1.b_0" not in [row.origin for row in infer_placement({"a:1": edited(server, taken)}, [trainer])]
