"""Fluid's `contrib.reader`: distributes batches to the trainers that a launcher has started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.running.flags import whole


def distributed_batch_reader(batch_reader: Callable[[], Any]) -> Callable[[], Iterator[Any]]:
    """A reader of every n-th batch, where n is the number of trainers, beginning with this trainer's number.

    All trainers get the same number of batches; the rest at the end is dropped. Raises ValueError where the numbers in
    the environment (`PADDLE_TRAINER_ID`, `PADDLE_TRAINERS_NUM`) do not fit.
    """
    count, number = whole("PADDLE_TRAINERS_NUM", 1), whole("PADDLE_TRAINER_ID", 0)
    if not 0 <= number < count:
        raise ValueError(f"trainer {number} is none of {count}")

    def dealt() -> Iterator[Any]:
        batches: Iterator[Any] = iter(batch_reader())
        while len(row := list(islice(batches, count))) == count:
            yield row[number]

    return dealt


__getattr__ = names_of_fluid(__name__, globals())
