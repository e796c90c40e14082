"""Fluid's `paddle.batch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def batch(reader: Callable[[], Any], batch_size: int, drop_last: bool = False) -> Callable[[], Iterator[list[Any]]]:
    """A reader of lists of `batch_size` samples; `drop_last` leaves out a last one that is shorter.

    Raises ValueError unless `batch_size` is positive.
    """
    if int(batch_size) <= 0:
        raise ValueError(f"a batch has at least one sample, not {batch_size}")

    def batches() -> Iterator[list[Any]]:
        held: list[Any] = []
        for sample in reader():
            held.append(sample)
            if len(held) == batch_size:
                yield held
                held = []
        if held and not drop_last:
            yield held

    return batches
