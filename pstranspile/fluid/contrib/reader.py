"""Fluid's `contrib.reader`: batches dealt to the trainers that a launcher has started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.running.flags import whole


def distributed_batch_reader(batch_reader: Callable[[], Any]) -> Callable[[], Iterator[Any]]:
    """A reader of every so manieth batch, as many as there are trainers, beginning with this one's number.

    All trainers get as many: what is left at the end is dropped. Raises ValueError where the environment
    (`PADDLE_TRAINER_ID`, `PADDLE_TRAINERS_NUM`) has a trainer that is none of so many.
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
