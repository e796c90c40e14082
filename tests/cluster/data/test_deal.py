"""Rows are dealt to trainers so that each is fed exactly once, however many trainers there are and become."""

from hypothesis import given
from hypothesis import strategies as st

from pstranspile.cluster.data.source import Order, RowAssignment, Schedule, UnitRows, deals
from pstranspile.cluster.machines.feeding import share

SIZES = st.lists(st.integers(0, 9), max_size=6).filter(sum)
CHANGES = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 5)), max_size=4, unique_by=lambda change: change[0])


def rows(spans: list[UnitRows]) -> list[tuple[int, int]]:
    return [(span.unit, row) for span in spans for row in range(span.start, span.stop)]


@given(SIZES, st.integers(1, 7), st.integers(1, 5), CHANGES, st.none() | st.integers(0, 3))
def test_every_row_is_fed_once_in_an_epoch(sizes, batch, trainers, changes, seed):
    order = Order(sizes, seed)
    schedule = Schedule(order, batch, 2, ((0, trainers), *sorted(changes)))
    for epoch in range(2):
        fed = []
        for step in range(epoch * schedule.in_epoch, (epoch + 1) * schedule.in_epoch):
            of_epoch, number, deal = schedule.deal(step)
            assert of_epoch == epoch
            now = [count for since, count in ((0, trainers), *sorted(changes)) if since <= step][-1]
            assert deal.trainers == now
            shares = [rows(deal.spans(number, trainer)) for trainer in range(now)]
            total = len([row for one in shares for row in one])
            assert total == min(batch, sum(sizes) - batch * (step - epoch * schedule.in_epoch))
            assert [len(one) for one in shares] == [b - a for a, b in (share(total, i, now) for i in range(now))]
            fed += [row for one in shares for row in one]
        assert sorted(fed) == [(unit, row) for unit, size in enumerate(sizes) for row in range(size)]


def test_a_trainer_reads_few_units():
    line = [UnitRows(unit, 0, 10) for unit in range(8)]
    deal = RowAssignment(line, 4, 8)
    assert [[span.unit for span in deal.piece(trainer).spans] for trainer in range(4)] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
    ]


def test_what_is_left_is_dealt_anew():
    line = [UnitRows(0, 0, 8), UnitRows(1, 0, 8)]
    (_, before), (step, after) = deals(line, 4, ((0, 2), (1, 4)), 0, 4)
    assert (before.spans(0, 0), before.spans(0, 1), step) == ([UnitRows(0, 0, 2)], [UnitRows(1, 0, 2)], 1)
    assert after.spans(0, 3) == [UnitRows(1, 5, 6)]


def test_shuffled_orders_differ_by_epoch_and_seed():
    orders = {tuple(Order([50], seed).row_order(epoch, 0).tolist()) for seed in (1, 2) for epoch in (0, 1)}
    assert len(orders) == 4
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert Order([50], 1).row_order(1, 0).tolist() == Order([50], 1).row_order(1, 0).tolist()
