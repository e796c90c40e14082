"""Sums that trainers make among themselves: cut into segments, made in another one's place when a trainer is gone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.machines import rings
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.message import PIECE, TOTAL, Message
from pstranspile.cluster.machines.rings import (
    NEVER,
    Piece,
    RingContribution,
    Segment,
    Statement,
    Total,
    combine,
    join_totals,
    numbers_of,
    split_segments,
)
from pstranspile.cluster.machines.script import EXCHANGE, find_exchanges
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import FrozenMap, Op
from pstranspile.runtime.values import LoDTensor, SelectedRows
from tests.cluster.machines.faulty import STEPS, WITHOUT, cluster, ended, equal
from tests.cluster.machines.fuzz import compiled

SUM = Op("c_allreduce_sum")


@pytest.fixture
def cutting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of a few numbers are cut, too."""
    monkeypatch.setattr(rings, "LEAST_SEGMENT", 8)


def part(value: Any, kind: str = "c_allreduce_sum") -> RingContribution:
    return RingContribution(kind, 0, False, str(value.shape), value)


def bytes_by_machine(found: Cluster) -> dict[str, int]:
    """Bytes of parts and sums that each trainer sends and takes."""
    counted = dict.fromkeys((trainer.name for trainer in found.trainers), 0)

    def observe(event: str, message: Message) -> None:
        if event == "post" and message.kind in (PIECE, TOTAL):
            payload = message.payload
            value = payload.part.value if isinstance(payload, Piece) else payload.value
            for name in (message.source, message.target):
                counted[name.partition("/")[0]] += 0 if value is None else value.nbytes

    found.network.observe(observe)
    return counted


# Values


@pytest.mark.parametrize("dims", [((), ()), ((), (2,)), ((2, 3), (2, 4))])
@pytest.mark.parametrize("kind", ["c_allgather", "c_reducescatter"])
def test_values_whose_rows_are_not_alike_are_not_put_together(kind: str, dims: tuple[tuple[int, ...], ...]):
    given = {index: part(np.zeros(shape), kind)._replace(form="f32") for index, shape in enumerate(dims)}
    with pytest.raises(DiagnosticError, match="have no rows that are alike"):
        combine("ring_0", given, 2, Op(kind))


def test_of_ragged_values_the_numbers_are_summed_and_scopes_are_refused():
    op = Op("c_allreduce_sum", FrozenMap({"X": ("x",)}))
    ragged = LoDTensor(np.arange(3.0), [[0, 1, 3]])
    assert numbers_of(op, "c_allreduce_sum", ragged) is ragged.data
    rows = SelectedRows(np.array([1]), np.ones((1, 2)), 4)
    assert numbers_of(op, "c_allreduce_sum", rows) is rows
    for kind, value in (("c_allreduce_max", rows), ("c_allreduce_sum", [ragged])):
        with pytest.raises(DiagnosticError, match="which c_allreduce_sum does not take"):
            numbers_of(op, kind, value)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096 * 3, 4096 * 3 + 1, 50_001])
@pytest.mark.parametrize("kind", ["c_allreduce_sum", "c_allreduce_max", "average"])
def test_a_value_that_is_cut_is_summed_to_the_same_bits(size: int, kind: str):
    values = [np.random.RandomState(seed).standard_normal((size,)).astype("float32") for seed in range(3)]
    whole = combine("ring_0", {index: part(value, kind) for index, value in enumerate(values)}, 3, SUM)
    pieces = [list(split_segments(part(value, kind), (4, 1), [0, 1, 2])) for value in values]
    assert len(pieces[0]) == (3 if values[0].nbytes >= 3 * rings.LEAST_SEGMENT else 1)
    totals = {
        number: Total(number, (4, 1), "g", NEVER, (0, 1, 2), combine("ring_0", dict(enumerate(cuts)), 3, SUM))
        for number, cuts in ((same[0][0], [segment for _, segment in same]) for same in zip(*pieces, strict=True))
    }
    assert np.array_equal(join_totals(part(values[0], kind), totals, 0), whole)


def test_small_values_are_summed_in_turn():
    small = part(np.ones(3, "float32"))
    assert [next(split_segments(small, (0, number), [0, 2, 5]))[0] for number in range(4)] == [0, 2, 5, 0]


@pytest.mark.parametrize("kind", ["c_allgather", "c_reducescatter"])
def test_what_gives_other_dims_is_not_cut(kind: str):
    assert len(list(split_segments(part(np.ones((4, 1 << 16), "float32"), kind), (0, 0), [0, 1]))) == 1


# Programs


def test_collective_ops_are_put_off_until_their_results_are_needed():
    role = compiled("dense", 2, 2, "grad-allreduce").trainer(0)
    program, exchanges = find_exchanges(role.main)
    (exchange,) = exchanges
    summed = [op for op in role.main.main_block.ops if op.type == "c_allreduce_sum"]
    assert exchange.ops == tuple(summed)
    assert len(summed) > 1
    place = [op.type for op in program.main_block.ops].index(EXCHANGE)
    reading = [n for n, op in enumerate(program.main_block.ops) if {*op.input_names} & {*exchange.outputs}]
    assert place == min(n for n in reading if n >= place)


def test_an_op_with_a_block_of_its_own_is_not_moved_before_a_sum():
    role = compiled("dense", 2, 2, "grad-allreduce").trainer(0)
    ops = list(role.main.main_block.ops)
    place = next(n for n, op in enumerate(ops) if op.type == "c_allreduce_sum")
    from pstranspile.ir.attributes import BlockRef
    from pstranspile.ir.model import FrozenMap

    ops.insert(place + 1, Op("while", attrs=FrozenMap({"sub_block": BlockRef(0)})))
    main = role.main._replace(blocks=(role.main.main_block._replace(ops=tuple(ops)),))
    types = [op.type for op in find_exchanges(main)[0].main_block.ops]
    assert types[types.index("while") - 1] == EXCHANGE


# Clusters


@pytest.mark.parametrize("mode", WITHOUT)
@pytest.mark.parametrize("schedule", [None, 1])
def test_cut_or_not_trainers_end_with_the_same_bits(mode: str, schedule: int | None, request: pytest.FixtureRequest):
    whole = ended(cluster(mode, schedule=schedule, trainers=3))
    request.getfixturevalue("cutting")
    assert equal(whole, ended(cluster(mode, schedule=schedule, trainers=3)))


@pytest.mark.usefixtures("cutting")
def test_no_machine_carries_the_values_of_all():
    found = cluster("grad-allreduce", trainers=4)
    counted = bytes_by_machine(found)
    ended(found)
    assert max(counted.values()) < 1.2 * min(counted.values())


def assert_alike(found: Cluster) -> None:
    """All trainers that have done all steps hold the same parameters, bit for bit."""
    there = [trainer for trainer in found.trainers if not trainer.down and trainer.step == STEPS]
    assert there
    for name in found.parameters():
        for trainer in there:
            np.testing.assert_array_equal(trainer.scope[name], there[0].scope[name], name)


@pytest.mark.usefixtures("cutting")
@pytest.mark.parametrize("mode", WITHOUT)
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_the_others_go_on_whoever_crashes_and_whenever(mode: str, victim: int):
    """After any number of messages: when its parts have come to some, and its sums to some."""
    told: set[str] = set()
    for after in range(24):
        found = cluster(mode, f"crash trainer_{victim} step 3 after {after} notice 5", after % 4 or None, trainers=3)
        ended(found)
        assert_alike(found)
        assert [trainer.step for trainer in found.trainers if trainer.index != victim] == [STEPS] * 2
        assert found.injector is not None
        told.update(text for _, text in found.injector.log)
    assert f"trainer_{victim} crashed in step 3" in told


@pytest.mark.usefixtures("cutting")
@pytest.mark.parametrize("schedule", [None, *range(8)])
@pytest.mark.parametrize(
    "scenario",
    [
        "crash trainer_0 step 3 after 7 notice 5\ncrash trainer_1 step 3 after 9 notice 9",
        "crash trainer_1 step 3 after 7 notice 30\ncrash trainer_2 step 3 after 8 notice 1",
        "crash trainer_0 step 2 after 5\ncrash trainer_1 step 4 after 5\ncrash trainer_2 step 5 after 5",
        "leave trainer_1 step 2\ncrash trainer_0 step 4 after 6 notice 2",
        "crash trainer_0 step 2 after 6 notice 3\nrejoin trainer_0 step 4\ncrash trainer_3 step 5 after 6",
        "crash trainer_0 step 2 after 6 notice 3\nrejoin trainer_0 step 3\ncrash trainer_0 step 5 after 3",
        "crash trainer_3 step 4 after 9 notice 70\nrejoin trainer_3 step 4\nseed 13\ndelay 0.3 1..40\ndrop 0.2",
        "drop 0.2\nduplicate 0.2\ndelay 0.3 1..20\ncrash trainer_2 step 3 after 6 notice 40",
    ],
)
def test_several_things_go_wrong(scenario: str, schedule: int | None):
    found = cluster("grad-allreduce", scenario, schedule, trainers=4)
    ended(found)
    assert_alike(found)


# Segments


def test_sums_that_somebody_lacks_are_handed_out_before_the_next_is_made():
    segment = Segment(1, [0, 1, 2], taking=True)
    sums = [Total(1, (3, place), "g", NEVER, (0, 2), np.full(2, place)) for place in range(3)]
    segment.queues[0].append(Piece(1, (3, 2), "g", (3, 1), part(np.ones(2))))
    segment.queues[2].append(Piece(1, (3, 1), "g", (3, 0), part(np.ones(2))))
    segment.statements = {0: Statement(1, (3, 1), (sums[0], sums[1])), 2: Statement(1, (3, 0), (sums[0],))}
    assert segment.resolve_missing_sums() is None  # this trainer has not heard that it is its turn
    segment.awaited_trainers = {0, 1, 2}
    assert segment.missing([0, 2], {}) == [1]
    segment.awaited_trainers.discard(1)
    assert segment.resolve_missing_sums() == {0: [], 2: [sums[1]]}
    assert not segment.queues[2]  # what it is a part of has been summed
    assert segment.missing([0, 2], {}) == [2]
